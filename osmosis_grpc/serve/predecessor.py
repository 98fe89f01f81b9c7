"""Waits at the start of a server until the previous server, which may still be draining, has ended."""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from osmosis_grpc.serve.json_output import say_error
from osmosis_grpc.storage.journal.schema import LOCK
from osmosis_grpc.storage.lock_file import Holder, holder_of, is_held
from osmosis_grpc.storage.state_folders import worker_folders

ORPHANS = 10.0
"""The workers of a killed supervisor end within this many seconds."""
LOOK_EVERY = 0.1
"""Seconds between two checks of a lock."""


def wait_for_predecessor(state: Path) -> None:
    """Wait until a server that is stopping has released its state folder, and the folders of its workers.

    If the server that uses a folder is not stopping, return at once; opening the folder then fails.
    """

    def say(holder: Holder, seconds: float) -> None:
        orphans = holder.is_gone and holder.until < time.time()
        who = f"the workers of the killed process {holder} have" if orphans else f"process {holder} has"
        say_error(f"serve: waiting at most {seconds:.0f} s until {who} stopped and released {state}")

    for folder in (state, *worker_folders(state).values()):
        wait_for_end(folder / LOCK, say)


def wait_for_end(lock: Path, say: Callable[[Holder, float], None]) -> None:
    """Wait while the process that holds a lock is stopping. Return at once if it is not stopping, or the lock is free.

    `say` is called once, with the holder and the longest time that this call can take, in seconds.
    """
    end = None
    while is_held(lock):
        with suppress(FileNotFoundError):
            holder = holder_of(lock)
            if end is None:
                # A stopping holder in another container also seems gone: its process id does not exist here.
                left = max(holder.until - time.time(), ORPHANS if holder.is_gone else 0.0)
                if left <= 0:
                    return
                end = time.monotonic() + left
                say(holder, left)
        if end is not None and time.monotonic() > end:
            return
        time.sleep(LOOK_EVERY)
