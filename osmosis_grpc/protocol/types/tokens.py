"""Token blocks: ids with logprobs, as NumPy arrays of fixed width, and further values for each token.

Ids are uint32 and logprobs are float32. Both are one-dimensional. The sampler returns them, or they are absent. This
module never estimates them. Received arrays are read-only views.
"""

import math
import struct
from array import array
from dataclasses import dataclass, field

from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types.extras import Extras, check_extras
from osmosis_grpc.protocol.types.fast_init import fast_init
from osmosis_grpc.protocol.types.jsontext import NOTHING
from osmosis_grpc.protocol.types.tensors import Array, ArrayEquality, ArrayLike, Float32Array, UInt32Array, np

Ids = UInt32Array
Logprobs = Float32Array

MAX_LOGPROB = 1e-3
"""The highest valid logprob. Rounding can make a logprob slightly greater than zero; a larger one is an error."""
_HIGHEST: float = struct.unpack("<f", struct.pack("<f", MAX_LOGPROB))[0]


@fast_init
@dataclass(frozen=True, slots=True, eq=False)
class TokenBlock(ArrayEquality):
    """Tokens with their logprobs and further values."""

    ids: Ids
    """uint32, shape (n,)."""
    logprobs: Logprobs | None = None
    """float32, shape (n,). A missing logprob is NaN; None if all are missing."""
    extras: Extras = field(default_factory=lambda: NOTHING)
    """Further values by name, with one row for each token. LAYOUTS has the names with a fixed meaning."""
    _complete: bool | None = field(default=None, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, ids: ArrayLike, logprobs: ArrayLike | None = None, extras: Extras | None = None) -> "TokenBlock":
        """Return a checked block of array-like values.

        Args:
            ids: Token ids, shape (n,): integers from 0 to 2**32 - 1.
            logprobs: Shape (n,): the logprob of each token; NaN for one that is not known.
            extras: Further values by name, with one row for each token.

        Raises:
            InvalidArgument: A value is wrong; the text names the field.
        """
        block = cls(
            _ids(ids),
            None if logprobs is None else _flat(logprobs, "logprobs", "<f4"),
            dict(extras) if extras else NOTHING,
        )
        block.check("tokens")
        return block

    def check(self, field_path: str) -> None:
        """Raise InvalidArgument for arrays of different lengths, impossible logprobs, and extras of a wrong shape."""
        count = len(self.ids)
        if self.logprobs is not None and self._complete is None:
            complete = check_logprobs(self.logprobs, count, "ids", field_path)
            object.__setattr__(self, "_complete", complete)
        if self.extras:
            check_extras(self.extras, count, f"{field_path}.extras")

    @property
    def complete(self) -> bool:
        """Whether every token has a logprob."""
        if self._complete is not None:
            return self._complete
        return not len(self.ids) or (self.logprobs is not None and not np.isnan(self.logprobs.max()))

    @property
    def nbytes(self) -> int:
        """The bytes of all arrays."""
        own = self.ids.nbytes + (0 if self.logprobs is None else self.logprobs.nbytes)
        return own + sum(extra.nbytes for extra in self.extras.values())


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """A number of consecutive tokens, and the version of the policy that sampled them."""

    version: str
    tokens: int


def _ids(values: ArrayLike) -> Ids:
    if isinstance(values, list) and values and type(values[0]) is int:  # from JSON: four times as fast as NumPy
        try:
            return np.frombuffer(array("I", values), dtype=np.uint32).astype("<u4", copy=False)
        except (TypeError, OverflowError):
            pass  # the rest says what is wrong
    given = _flat(values, "ids")
    if given.size and (given.dtype.kind not in "iu" or int(given.min()) < 0 or int(given.max()) > 0xFFFFFFFF):
        raise InvalidArgument("ids", f"{_wrong_id(given)}; token ids are integers from 0 to 2**32 - 1")
    return np.ascontiguousarray(given, dtype="<u4")


def _flat(values: ArrayLike, name: str, dtype: str | None = None) -> Array:
    try:
        with np.errstate(over="ignore"):
            array: Array = np.asarray(values, dtype=dtype, order="C")
    except (TypeError, ValueError, OverflowError):
        raise InvalidArgument(name, "is not a list of numbers") from None
    if array.ndim != 1:
        raise InvalidArgument(name, f"has {array.ndim} dimensions, not one")
    return array


def _wrong_id(ids: Array) -> str:
    if ids.dtype.kind not in "iu":
        return f"the ids are of the type {ids.dtype}"
    index = int(((ids < 0) | (ids > 0xFFFFFFFF)).argmax())
    return f"id {index} is {ids[index]}"


def check_logprobs(logprobs: Logprobs, count: int, of: str, field_path: str) -> bool:
    """Return whether every logprob is present.

    Raises InvalidArgument if there are not `count` logprobs, for infinities, and for values above MAX_LOGPROB.
    """
    if len(logprobs) != count:
        raise InvalidArgument(f"{field_path}.logprobs", f"{len(logprobs)} logprobs for {count} {of}")
    if not count:
        return True
    # This takes half the time of min() and max(). `lowest` and `highest` are both NaN if a logprob is missing.
    lowest, highest = logprobs.item(logprobs.argmin()), logprobs.item(logprobs.argmax())
    if highest <= _HIGHEST and lowest > -math.inf:
        return True
    bad = (logprobs > MAX_LOGPROB) | (logprobs == -np.inf)
    if bool(bad.any()):
        index = int(bad.argmax())
        problem = f"logprob {index} is {logprobs[index]:g}; it is finite and at most {MAX_LOGPROB}, or NaN when missing"
        raise InvalidArgument(f"{field_path}.logprobs", problem)
    return False
