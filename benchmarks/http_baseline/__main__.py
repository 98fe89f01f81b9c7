"""python -m benchmarks.http_baseline --mode sdk|tuned --port 0"""

import argparse
import asyncio
import importlib
import json
import os
import signal
import socket
import sys


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=["sdk", "tuned"], required=True)
    parser.add_argument("--port", type=int, default=0)
    given = parser.parse_args()
    serve = importlib.import_module(f"benchmarks.http_baseline.{given.mode}").serve
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # uvicorn raises it again when it has stopped
    listening = socket.create_server(("127.0.0.1", given.port), backlog=4096)
    listening.setblocking(False)
    address = f"127.0.0.1:{listening.getsockname()[1]}"  # a client can connect from here on
    print(json.dumps({"event": "ready", "http": address, "mode": given.mode, "pid": os.getpid()}), flush=True)
    asyncio.run(serve(listening))


if __name__ == "__main__":
    main()
