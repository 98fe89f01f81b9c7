"""python -m osmosis_grpc.serve"""

import sys

from osmosis_grpc.serve.entry import run

if __name__ == "__main__":
    from osmosis_grpc.serve import entry

    sys.exit(run(lambda: entry.single("osmosis_grpc.serve", "osmosis_grpc.serve.command", "serve")))
