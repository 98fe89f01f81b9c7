"""result_of(): the main thread waits for a future, and every signal ends the wait."""

import signal
import threading
from concurrent.futures import CancelledError, Future

import pytest

from osmosis_grpc.supervise import result_of


def ended(value=None, error=None):
    future = Future()
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)
    return future


def test_the_result_and_the_error_of_the_future():
    assert result_of(ended(3)) == 3
    with pytest.raises(ZeroDivisionError):
        result_of(ended(error=ZeroDivisionError()), timeout=5)
    with pytest.raises(TimeoutError, match="its own"):
        result_of(ended(error=TimeoutError("its own")))
    cancelled = Future()
    cancelled.cancel()
    with pytest.raises(CancelledError):
        result_of(cancelled)


@pytest.mark.parametrize("timeout", [0, 0.01, 0.6])
def test_it_waits_no_longer_than_the_timeout(timeout):
    with pytest.raises(TimeoutError):
        result_of(Future(), timeout)


def test_a_result_that_comes_just_after_a_check_is_returned():
    class Late(Future):
        def exception(self, timeout=None):
            if not self.done():
                self.set_result(3)
                raise TimeoutError
            return super().exception(timeout)

    assert result_of(Late()) == 3


def test_a_signal_that_another_thread_gets_ends_the_wait():
    def handler(number, frame):
        raise KeyboardInterrupt

    def interrupt():
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    timer = threading.Timer(0.1, interrupt)  # the main thread waits by then
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            result_of(Future(), timeout=30)
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)
