"""Waits of the main thread that every signal ends."""

import concurrent.futures
from typing import TypeVar

T = TypeVar("T")

_SIGNAL_CHECK = 0.5
"""A waiting thread wakes up this often (seconds), so that Python calls the handlers of signals."""


def result_of(future: "concurrent.futures.Future[T]", timeout: float | None = None) -> T:
    """Wait for the result of a future. A signal such as Ctrl-C ends the wait within half a second.

    `future.result()` waits on if another thread gets the signal, or if the signal comes just before the wait begins.

    Raises the error of the future, CancelledError, and TimeoutError after `timeout` seconds.
    """
    left = float("inf") if timeout is None else timeout
    while True:
        try:
            future.exception(min(left, _SIGNAL_CHECK))  # raises no error of the future itself
            break
        except TimeoutError:
            left -= _SIGNAL_CHECK
            if left <= 0:
                raise
    return future.result()
