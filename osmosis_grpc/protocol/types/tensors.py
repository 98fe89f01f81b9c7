"""Arrays of numbers for the wire: rectangular ones, and rows of different lengths.

NumPy is imported at its first use, so that commands that show no tokens start faster. Modules of a server or a trainer
may import NumPy directly, so that no event loop waits for the import.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, NewType

from osmosis_grpc.protocol.errors import InvalidArgument

__all__ = ["Array", "ArrayLike", "BoolArray", "Float32Array", "UInt32Array", "np"]

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    UInt32Array = NDArray[np.uint32]
    Float32Array = NDArray[np.float32]
    BoolArray = NDArray[np.bool_]
    Array = NDArray[Any]
else:

    class _NumPy(ModuleType):
        """Keeps each name of NumPy after its first use."""

        def __getattr__(self, name: str) -> Any:
            import numpy

            value = getattr(numpy, name)
            setattr(self, name, value)
            return value

    np = _NumPy("numpy")
    ArrayLike = NewType("ArrayLike", object)
    UInt32Array = NewType("UInt32Array", object)
    Float32Array = NewType("Float32Array", object)
    BoolArray = NewType("BoolArray", object)
    Array = NewType("Array", object)


MAX_DIMENSIONS = 16
"""The most dimensions of a tensor."""
_LARGEST = 2**62
"""The most bytes that a shape may describe."""
_MAX_OFFSET = 0xFFFFFFFF

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
        """Return a tensor of a NumPy array. Raises InvalidArgument for a dtype that is not in TENSOR_DTYPES."""
        made = np.ascontiguousarray(array)
        name = made.dtype.name
        wire = TENSOR_DTYPES.get(name)
        if wire is None:
            raise InvalidArgument("extras", f"a tensor of {name} cannot be sent")
        return cls(dtype=name, shape=made.shape, data=made.astype(wire, copy=False).tobytes())

    def numpy(self) -> Array:
        """Return a read-only array. For bfloat16 the array has the raw values as uint16."""
        return np.frombuffer(self.data, dtype=TENSOR_DTYPES[self.dtype] or "<u2").reshape(self.shape)

    def check(self, rows: int, field_path: str) -> None:
        """Raise InvalidArgument if the bytes do not fit the shape, or if the first dimension is not `rows`."""
        if self.dtype not in TENSOR_DTYPES:
            raise InvalidArgument(f"{field_path}.type", "is not a tensor type")
        if len(self.shape) > MAX_DIMENSIONS:
            raise InvalidArgument(
                f"{field_path}.shape", f"has {len(self.shape)} dimensions, more than {MAX_DIMENSIONS}"
            )
        width = np.dtype(TENSOR_DTYPES[self.dtype] or "<u2").itemsize
        if (
            width * math.prod(filter(None, self.shape)) > _LARGEST
        ):  # NumPy refuses such a shape, even with a dimension 0
            raise InvalidArgument(f"{field_path}.shape", "is too large")
        if len(self.data) != width * math.prod(self.shape):
            raise InvalidArgument(f"{field_path}.data", f"{len(self.data)} bytes are not a tensor of {self.shape}")
        if not self.shape or self.shape[0] != rows:
            raise InvalidArgument(f"{field_path}.shape", f"is {self.shape} for {rows} rows")
        if self.dtype == "bool" and bool((np.frombuffer(self.data, dtype="|u1") > 1).any()):
            raise InvalidArgument(f"{field_path}.data", "has a byte that is neither 0 nor 1")

    @property
    def nbytes(self) -> int:
        """The bytes of the elements."""
        return len(self.data)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RaggedTensor(ArrayEquality):
    """Rows of different lengths: one row for each token."""

    values: Tensor
    """All rows, joined. The first dimension counts the elements of all rows."""
    offsets: UInt32Array
    """uint32, shape (n + 1,). Row i has the elements from offsets[i] up to, but without, offsets[i + 1]."""

    @classmethod
    def of(cls, rows: Sequence[ArrayLike], dtype: str | None = None) -> "RaggedTensor":
        """Return a ragged tensor of arrays or lists, one for each token.

        Args:
            rows: One array or list for each token.
            dtype: The type, such as "float32"; None for that of the arrays. It is needed if there are no rows.

        Raises:
            InvalidArgument: The rows differ in their types or in dimensions after the first, or the type is unknown.
        """
        if dtype is not None and TENSOR_DTYPES.get(dtype) is None:
            raise InvalidArgument("extras", f"a tensor of {dtype} cannot be made")
        try:
            arrays = [np.asarray(row, dtype=dtype and TENSOR_DTYPES[dtype]) for row in rows]
            full = [array for array in arrays if array.size] or arrays  # an empty list has no type of its own
            joined = np.concatenate(full) if full else np.empty(0, dtype or "uint32")
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidArgument("extras", f"the rows are not arrays of one type and shape: {error}") from None
        if any(array.dtype != joined.dtype for array in full):
            raise InvalidArgument("extras", "the rows have different types; name one as dtype")
        offsets = np.zeros(len(arrays) + 1, dtype=np.int64)
        np.cumsum([len(array) for array in arrays], out=offsets[1:])
        if offsets[-1] > _MAX_OFFSET:
            raise InvalidArgument("extras", f"the rows have {offsets[-1]} elements, more than {_MAX_OFFSET}")
        return cls(values=Tensor.of(joined), offsets=offsets.astype("<u4"))

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.offsets) - 1

    def row(self, index: int) -> Array:
        """Return a read-only view of one row. Negative indices count from the end. Raises IndexError."""
        count = len(self)
        if not -count <= index < count:
            raise IndexError(f"row {index} of {count} rows")
        start, end = self.offsets[index % count : index % count + 2].tolist()
        return self.values.numpy()[start:end]

    def numpy(self) -> list[Array]:
        """Return the rows, each as a read-only view."""
        values, bounds = self.values.numpy(), self.offsets.tolist()
        return [values[start:end] for start, end in pairwise(bounds)]

    def check(self, rows: int, field_path: str) -> None:
        """Raise InvalidArgument unless there are `rows` rows, and offsets and values agree."""
        offsets = self.offsets
        if len(offsets) != rows + 1:
            raise InvalidArgument(f"{field_path}.offsets", f"{len(offsets)} offsets for {rows} tokens, not one more")
        if offsets[0] != 0:
            raise InvalidArgument(f"{field_path}.offsets", "do not begin with 0")
        falls = offsets[1:] < offsets[:-1]
        if bool(falls.any()):
            raise InvalidArgument(f"{field_path}.offsets", f"decrease after row {int(falls.argmax())}")
        self.values.check(int(offsets[-1]), f"{field_path}.values")

    @property
    def nbytes(self) -> int:
        """The bytes of the elements and the offsets."""
        return self.values.nbytes + self.offsets.nbytes
