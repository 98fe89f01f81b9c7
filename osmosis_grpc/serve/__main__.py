"""python -m osmosis_grpc.serve"""

import sys

from osmosis_grpc.serve.entrypoint import run, serve

if __name__ == "__main__":
    sys.exit(run(serve))
