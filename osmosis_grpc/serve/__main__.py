"""python -m osmosis_grpc.serve"""

import sys

from osmosis_grpc.serve.entrypoint import run, single

if __name__ == "__main__":
    sys.exit(run(lambda: single("osmosis_grpc.serve", "osmosis_grpc.serve.command", "serve")))
