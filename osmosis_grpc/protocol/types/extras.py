"""Extras: values for each token, by name. LAYOUTS has the names with a fixed meaning, as in tokens.proto."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types.tensors import RaggedTensor, Tensor

Extra = Tensor | RaggedTensor
"""Values for each token."""

Extras = Mapping[str, Extra]
"""Extras by name."""

MAX_EXTRAS = 64
"""The most extras of one token block."""
MAX_NAME = 128
"""The most characters in the name of an extra."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The type and shape that an extra must have."""

    dtypes: tuple[str, ...]
    dimensions: tuple[str, ...]
    """The names of the dimensions. n is the number of tokens."""
    ragged: bool = False
    """Whether each token has any number of values."""

    def __str__(self) -> str:
        shape = "ragged" if self.ragged else f"shape ({', '.join(self.dimensions)})"
        return f"{' or '.join(self.dtypes)}, {shape}"


LAYOUTS: Mapping[str, Layout] = MappingProxyType(
    {
        "routed_experts": Layout(("uint8", "int16", "int32"), ("n", "L", "K")),
        "top_logprobs": Layout(("float32",), ("n", "K")),
        "top_logprob_ids": Layout(("uint32",), ("n", "K")),
        "sampling_mask": Layout(("uint32",), ("values",), ragged=True),
        "entropy": Layout(("float32",), ("n",)),
        "temperature": Layout(("float32",), ("n",)),
        "reference_logprobs": Layout(("float32",), ("n",)),
    }
)
"""The layouts by name. An extra with any other name may have any type and shape."""


def check_extras(extras: Extras, tokens: int, field: str) -> None:
    """Raise InvalidArgument for an extra without one row for each token, and for a wrong layout; see LAYOUTS."""
    if len(extras) > MAX_EXTRAS:
        raise InvalidArgument(field, f"has {len(extras)} names, more than {MAX_EXTRAS}")
    for name, extra in extras.items():
        path = f"{field}[{name[:MAX_NAME]}]"
        if not name or len(name) > MAX_NAME or not name.isprintable():
            raise InvalidArgument(path, f"a name has 1 to {MAX_NAME} printable characters")
        if not isinstance(extra, Tensor | RaggedTensor):
            raise InvalidArgument(path, f"is a {type(extra).__name__}; use Tensor.of() or RaggedTensor.of()")
        _check_layout(name, extra, path)
        extra.check(tokens, f"{path}.ragged" if isinstance(extra, RaggedTensor) else f"{path}.tensor")
    ids, top = extras.get("top_logprob_ids"), extras.get("top_logprobs")
    if isinstance(ids, Tensor) and isinstance(top, Tensor) and ids.shape != top.shape:
        raise InvalidArgument(f"{field}[top_logprob_ids]", f"has the shape {ids.shape}, and top_logprobs {top.shape}")


def _check_layout(name: str, extra: Extra, path: str) -> None:
    layout = LAYOUTS.get(name)
    if layout is None:
        return
    ragged = isinstance(extra, RaggedTensor)
    values = extra.values if isinstance(extra, RaggedTensor) else extra
    if ragged is layout.ragged and values.dtype in layout.dtypes and len(values.shape) == len(layout.dimensions):
        return
    kind = "a ragged tensor" if ragged else "a tensor"
    raise InvalidArgument(path, f"is {layout}, not {kind} of {values.dtype} with the shape {values.shape[:8]}")
