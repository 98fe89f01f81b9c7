"""`serve` as a child process: it ends when its parent ends, because then its stdin ends."""

import os
import signal
import sys

from osmosis_grpc.serve.entrypoint import run, single
from osmosis_grpc.supervise import OnFailure, job, thread

END = job("serve.end_with_parent", OnFailure.RESTART, "thread")


def _wait_for_parent() -> bool:
    """Read stdin to its end, and end this process at once. Its journal has everything that the next one needs."""
    if not os.read(0, 1):
        os.kill(os.getpid(), signal.SIGKILL)
    return True


if __name__ == "__main__":
    thread(END, _wait_for_parent)
    sys.exit(run(lambda: single("osmosis_grpc.serve", "osmosis_grpc.serve.command", "serve")))
