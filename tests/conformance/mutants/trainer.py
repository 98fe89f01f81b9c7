"""The trainer under test with a planted fault: `python -m tests.conformance.mutants.trainer --fault NAME ...`."""

import sys

from osmosis_grpc.testing.conformance.trainer import main
from tests.conformance.mutants.faults import TRAINER

if __name__ == "__main__":
    at = sys.argv.index("--fault")
    TRAINER[sys.argv[at + 1]].plant("trainer")
    del sys.argv[at : at + 2]
    sys.exit(main())
