"""Keeps the memory of this process, and its environment, from other programs of the same user."""

import ctypes
import logging
import sys

log = logging.getLogger(__name__)

_PR_SET_DUMPABLE = 4


def close_memory() -> None:
    """Make /proc/PID/environ and /proc/PID/mem of this process unreadable for programs of the same user. Linux only.

    Programs that this process starts are not affected. Root can still read both. A debugger cannot attach as the same
    user, and a crash leaves no core dump.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        failed = ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    except (OSError, AttributeError) as error:
        log.warning("the programs of --command can read the environment of this server: %s", error)
    else:
        if failed:
            log.warning("the programs of --command can read the environment of this server: prctl() is refused")
