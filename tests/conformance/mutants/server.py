"""The serve command with a planted fault: `python -m tests.conformance.mutants.server --fault NAME ...`."""

import runpy
import sys

from tests.conformance.mutants.faults import SERVER

if __name__ == "__main__":
    at = sys.argv.index("--fault")
    SERVER[sys.argv[at + 1]].plant("server")
    del sys.argv[at : at + 2]
    runpy.run_module("osmosis_grpc.serve", run_name="__main__")
