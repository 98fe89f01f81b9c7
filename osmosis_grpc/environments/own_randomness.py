"""Gives each episode its own global random state, for libraries that use the global generators of random and numpy.

With one shared state, a seed would not determine what happens in an episode. So OwnRandomness runs calls one at a time,
each with the state that the previous call of its episode has left.
"""

import random
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")
_LOCK = threading.Lock()


class OwnRandomness:
    """The global random state of one episode, initialised with a seed."""

    def __init__(self, seed: int) -> None:
        self._python = random.Random(seed).getstate()
        self._numpy: Any = np.random.RandomState(seed % 2**32).get_state()

    def call(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """Call a function with the random state of the episode, then restore the state of the process."""
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
