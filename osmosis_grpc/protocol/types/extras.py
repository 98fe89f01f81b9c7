"""Extras: values for each token, by name. LAYOUTS has the names with a fixed meaning, as in tokens.proto.

The extras of a segment are those of its prompts and replies, joined. An extra is complete in a row of tokens if each of
them has a row of it, and if all rows have the same type and shape.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types.jsontext import NOTHING
from osmosis_grpc.protocol.types.tensors import BoolArray, RaggedTensor, Tensor, np

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


class Part(NamedTuple):
    """Consecutive tokens of a segment. Their rows are those from `start` up to, but without, `stop` in `extras`."""

    extras: Extras
    start: int
    stop: int
    mask: int
    """1 for the tokens of a reply, 0 for the tokens of a prompt."""


def bare_parts(runs: Sequence[int]) -> list[Part]:
    """Return the parts of tokens without extras. `runs` are mask runs, as in Segment."""
    return [Part(NOTHING, 0, count, number % 2) for number, count in enumerate(runs) if count]


def cut(parts: Iterable[Part], start: int, stop: int, *, as_prompt: bool = True) -> list[Part]:
    """Return the parts of the tokens from `start` up to, but without, `stop`. With `as_prompt`, all have mask 0."""
    found, at = [], 0
    for part in parts:
        count = part.stop - part.start
        first, last = max(start - at, 0), min(stop - at, count)
        if first < last:
            found.append(Part(part.extras, part.start + first, part.start + last, 0 if as_prompt else part.mask))
        at += count
    return found


def join(parts: Sequence[Part]) -> dict[str, Extra]:
    """Return the extras that are complete in the tokens of the parts, joined."""
    names = parts[0].extras if parts else NOTHING
    return {name: _joined([(part.extras[name], part) for part in parts]) for name in names if _complete(name, parts)}


def gather(parts: Sequence[Part]) -> tuple[Mapping[str, Extra], Mapping[str, Extra], tuple[str, ...]]:
    """Return sampled_extras, token_extras and incomplete_extras of a segment; see Segment.

    An extra that is complete in all tokens is a token extra. One that is complete only in the replies is a sampled
    extra, even if some prompts have it. If there is no prompt, all extras are sampled extras.
    """
    replies = [part for part in parts if part.mask]
    tokens = join(parts) if len(replies) < len(parts) else {}
    sampled = {name: extra for name, extra in join(replies).items() if name not in tokens}
    names = {name for part in parts for name in part.extras}
    return sampled, tokens, tuple(sorted(names - sampled.keys() - tokens.keys()))


def rows(extras: Extras, start: int, stop: int) -> Extras:
    """Return the rows from `start` up to, but without, `stop`."""
    return join([Part(extras, start, stop, 0)]) if extras else extras


def spread(extra: Extra, mask: BoolArray) -> Extra:
    """Return an extra with one row for each element of the mask: its own rows in order where the mask is set.

    The other rows are zeros, or empty.
    """
    if isinstance(extra, RaggedTensor):
        lengths = np.zeros(len(mask) + 1, dtype="<u4")
        lengths[1:][mask] = np.diff(extra.offsets)
        return RaggedTensor(values=extra.values, offsets=lengths.cumsum(dtype="<u4"))
    values = extra.numpy()
    spaced = np.zeros((len(mask), *values.shape[1:]), dtype=values.dtype)
    spaced[mask] = values
    return Tensor(dtype=extra.dtype, shape=spaced.shape, data=spaced.tobytes())


def _complete(name: str, parts: Sequence[Part]) -> bool:
    kinds = {_kind(part.extras[name]) if name in part.extras else None for part in parts}
    return len(kinds) == 1 and None not in kinds


def _kind(extra: Extra) -> tuple[Any, ...]:
    """Return what all rows of an extra share. Rows of different kinds cannot be joined."""
    values = extra.values if isinstance(extra, RaggedTensor) else extra
    return type(extra), values.dtype, values.shape[1:]


def _joined(pieces: Sequence[tuple[Extra, Part]]) -> Extra:
    first = pieces[0][0]
    if len(pieces) == 1 and (pieces[0][1].start, pieces[0][1].stop) == (0, _length(first)):
        return first
    if isinstance(first, RaggedTensor):
        return _join_ragged([(extra, part) for extra, part in pieces if isinstance(extra, RaggedTensor)])
    return _join_tensors([(extra, part) for extra, part in pieces if isinstance(extra, Tensor)])


def _length(extra: Extra) -> int:
    return len(extra) if isinstance(extra, RaggedTensor) else extra.shape[0]


def _join_tensors(pieces: Sequence[tuple[Tensor, Part]]) -> Tensor:
    first = pieces[0][0]
    arrays = [tensor.numpy()[part.start : part.stop] for tensor, part in pieces]
    count = sum(map(len, arrays))
    data = b"".join([array.tobytes() for array in arrays])
    return Tensor(dtype=first.dtype, shape=(count, *first.shape[1:]), data=data)


def _join_ragged(pieces: Sequence[tuple[RaggedTensor, Part]]) -> RaggedTensor:
    first = pieces[0][0].values
    arrays, offsets, end = [], [np.zeros(1, dtype="<u4")], 0
    for ragged, part in pieces:
        bounds = ragged.offsets[part.start : part.stop + 1]
        arrays.append(ragged.values.numpy()[int(bounds[0]) : int(bounds[-1])])
        offsets.append(bounds[1:] - bounds[0] + np.uint32(end))
        end += len(arrays[-1])
    data = b"".join([array.tobytes() for array in arrays])
    values = Tensor(dtype=first.dtype, shape=(end, *first.shape[1:]), data=data)
    return RaggedTensor(values=values, offsets=np.concatenate(offsets).astype("<u4", copy=False))
