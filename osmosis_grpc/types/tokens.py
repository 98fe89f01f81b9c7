"""Token blocks: ids with logprobs, as NumPy arrays of fixed width.

Ids are uint32 and logprobs are float32. Both are one-dimensional. The sampler returns them, or they are absent. This
module never estimates them. Received arrays are read-only views.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from osmosis_grpc.errors import InvalidArgument
from osmosis_grpc.types.fast_init import fast_init
from osmosis_grpc.types.jsontext import NOTHING

Ids = NDArray[np.uint32]
Logprobs = NDArray[np.float32]

MAX_LOGPROB = 1e-3
"""The highest valid logprob. Rounding can make a logprob slightly greater than zero; a larger one is an error."""
_HIGHEST = float(np.float32(MAX_LOGPROB))

TENSOR_DTYPES: Mapping[str, str | None] = MappingProxyType(
    {
        "float16": "<f2",
        "bfloat16": None,
        "float32": "<f4",
        "float64": "<f8",
        "int8": "|i1",
        "int16": "<i2",
        "int32": "<i4",
        "int64": "<i8",
        "uint8": "|u1",
        "uint16": "<u2",
        "uint32": "<u4",
        "uint64": "<u8",
        "bool": "|b1",
    }
)
"""The element types by name, each with NumPy's name. NumPy has no name for bfloat16."""


class ArrayEquality:
    """Equality of dataclasses with arrays. It compares field by field. NaN equals NaN."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        names = [field.name for field in fields(self) if field.compare]  # type: ignore[arg-type]
        return all(_same(getattr(self, name), getattr(other, name)) for name in names)

    __hash__ = None  # type: ignore[assignment]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return bool(one == other)
    return type(one) is type(other) and bool(one == other)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """An array with values for each token. The first dimension counts tokens."""

    dtype: str
    """A key of TENSOR_DTYPES."""
    shape: tuple[int, ...]
    data: bytes
    """Little-endian, row-major."""

    @classmethod
    def of(cls, array: ArrayLike) -> "Tensor":
        """Returns a tensor of a NumPy array. Raises InvalidArgument for a dtype that is not in TENSOR_DTYPES."""
        made = np.ascontiguousarray(array)
        name = made.dtype.name
        wire = TENSOR_DTYPES.get(name)
        if wire is None:
            raise InvalidArgument("extras", f"a tensor of {name} cannot be sent")
        return cls(dtype=name, shape=made.shape, data=made.astype(wire, copy=False).tobytes())

    def numpy(self) -> NDArray[Any]:
        """Returns a read-only array. For bfloat16 the array has the raw values as uint16."""
        return np.frombuffer(self.data, dtype=TENSOR_DTYPES[self.dtype] or "<u2").reshape(self.shape)

    def check(self, tokens: int, field_path: str) -> None:
        """Raises InvalidArgument if the bytes do not fit the shape, or the shape does not fit the number of tokens."""
        if self.dtype not in TENSOR_DTYPES:
            raise InvalidArgument(f"{field_path}.type", "is not a tensor type")
        width = np.dtype(TENSOR_DTYPES[self.dtype] or "<u2").itemsize
        if len(self.data) != width * int(np.prod(self.shape, dtype=object)):
            raise InvalidArgument(f"{field_path}.data", f"{len(self.data)} bytes are not a tensor of {self.shape}")
        if not self.shape or self.shape[0] != tokens:
            raise InvalidArgument(f"{field_path}.shape", f"the first dimension is not the number of tokens, {tokens}")


@fast_init
@dataclass(frozen=True, slots=True, eq=False)
class TokenBlock(ArrayEquality):
    """Tokens with their logprobs and further values."""

    ids: Ids
    """uint32, shape (n,)."""
    logprobs: Logprobs | None = None
    """float32, shape (n,). A missing logprob is NaN; None if all are missing."""
    extras: Mapping[str, Tensor] = field(default_factory=lambda: NOTHING)
    """Further arrays per token, by name."""
    _complete: bool | None = field(default=None, init=False, repr=False, compare=False)

    @classmethod
    def of(
        cls, ids: ArrayLike, logprobs: ArrayLike | None = None, extras: Mapping[str, Tensor] | None = None
    ) -> "TokenBlock":
        """Returns a checked block of array-like values. Raises InvalidArgument naming the field."""
        given = _flat(ids, "ids")
        if given.size and (given.dtype.kind not in "iu" or int(given.min()) < 0 or int(given.max()) > 0xFFFFFFFF):
            raise InvalidArgument("ids", "token ids are integers from 0 to 2**32 - 1")
        block = cls(
            np.ascontiguousarray(given, dtype="<u4"),
            None if logprobs is None else _flat(logprobs, "logprobs", "<f4"),
            dict(extras) if extras else NOTHING,
        )
        block.check("tokens")
        return block

    def check(self, field_path: str) -> None:
        """Raises InvalidArgument for arrays of different lengths and for impossible logprobs."""
        count = len(self.ids)
        if self.logprobs is not None and self._complete is None:
            complete = check_logprobs(self.logprobs, count, "ids", field_path)
            object.__setattr__(self, "_complete", complete)
        for name, tensor in self.extras.items():
            tensor.check(count, f"{field_path}.extras[{name}]")

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
        return own + sum(len(tensor.data) for tensor in self.extras.values())


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """A number of consecutive tokens, and the version of the policy that sampled them."""

    version: str
    tokens: int


def _flat(values: ArrayLike, name: str, dtype: str | None = None) -> NDArray[Any]:
    """Returns a one-dimensional array of numbers. Raises InvalidArgument."""
    try:
        with np.errstate(over="ignore"):
            array: NDArray[Any] = np.asarray(values, dtype=dtype, order="C")
    except (TypeError, ValueError, OverflowError):
        raise InvalidArgument(name, "is not a list of numbers") from None
    if array.ndim != 1:
        raise InvalidArgument(name, f"has {array.ndim} dimensions, not one")
    return array


def check_logprobs(logprobs: Logprobs, count: int, of: str, field_path: str) -> bool:
    """Returns whether every logprob is present.

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
    if highest == highest or bool(((logprobs > MAX_LOGPROB) | (logprobs == -np.inf)).any()):
        problem = f"a logprob is finite and at most {MAX_LOGPROB}, or NaN when missing"
        raise InvalidArgument(f"{field_path}.logprobs", problem)
    return False
