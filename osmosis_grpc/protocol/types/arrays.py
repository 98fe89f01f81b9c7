"""NumPy, imported at its first use, and the types of arrays.

A command that shows no tokens starts faster without NumPy. Modules that a server or a trainer imports may import NumPy
itself, so that no event loop waits for the import.
"""

from types import ModuleType
from typing import TYPE_CHECKING, Any, NewType

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

__all__ = ["Array", "ArrayLike", "BoolArray", "Float32Array", "UInt32Array", "np"]
