"""Gives each episode global random numbers of its own, for libraries that draw from the modules random and numpy.

Episodes of such a library would draw from one stream, so that a seed would not decide what happens. Its calls run one
at a time here, each with the state that the episode's last call has left.
"""

import random
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")
_LOCK = threading.Lock()


class OwnRandomness:
    """The global random numbers of one episode, which begin with a seed."""

    def __init__(self, seed: int) -> None:
        self._python = random.Random(seed).getstate()
        self._numpy: Any = np.random.RandomState(seed % 2**32).get_state()

    def call(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """Call a function with the random numbers of the episode, and put back those of the process."""
        with _LOCK:
            python, numpy = random.getstate(), np.random.get_state()
            random.setstate(self._python)
            np.random.set_state(self._numpy)
            try:
                return function(*args, **kwargs)
            finally:
                self._python, self._numpy = random.getstate(), np.random.get_state()
                random.setstate(python)
                np.random.set_state(numpy)
