"""The tokens and logprobs of a reply, as a list for authors and as the array that the trainer sent."""

from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T", int, float)


class TokenList(list[T], Generic[T]):
    """A list of token ids or of logprobs. It is empty if the trainer sent none."""

    __slots__ = ("_array",)

    def __init__(self, values: Any = ()) -> None:
        self._array = values if isinstance(values, np.ndarray) else None
        super().__init__(values if self._array is None else self._array.tolist())

    @property
    def array(self) -> NDArray[Any]:
        """The same values as an array: uint32 for token ids, float32 for logprobs.

        It is the array that the trainer sent, so later changes of this list are not in it.
        """
        if self._array is None:
            self._array = np.asarray(list(self), "<f4" if any(isinstance(x, float) for x in self) else "<u4")
        return self._array


def as_list(values: Any) -> TokenList[Any]:
    """Return values as a TokenList. `values` is an array, a list or None."""
    return values if type(values) is TokenList else TokenList(() if values is None else values)
