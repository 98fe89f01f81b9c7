"""Runs `serve` as a child process that ends with its parent: when the parent ends, the child's stdin ends."""

import os
import signal
import sys

from osmosis_grpc.serve.entrypoint import run, serve
from osmosis_grpc.supervise import OnFailure, job, thread

END = job("serve.end_with_parent", OnFailure.RESTART, "thread")


def end_with_parent() -> None:
    """End this process at once when stdin ends. Its journal has everything that the next process needs."""

    def step() -> bool:
        if not os.read(0, 1):
            os.kill(os.getpid(), signal.SIGKILL)
        return True

    thread(END, step)


if __name__ == "__main__":
    end_with_parent()
    sys.exit(run(serve))
