"""Converts outcomes to padded NumPy arrays: pad().

Each segment becomes a row. An outcome without rows is refused, or listed in `skipped`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import RolloutOutcome, Segment, Tensor
from osmosis_grpc.protocol.types.samples import Cut, Dropped
from osmosis_grpc.protocol.types.tensors import ArrayEquality
from osmosis_grpc.protocol.types.trainable import (
    Row,
    Skipped,
    TrainableSegment,
    Untrainable,
    check_choice,
    flatten,
    no_outcomes,
    select,
    untrainable_error,
)
from osmosis_grpc.trainer.advantage import Advantages
from osmosis_grpc.trainer.groups import OutcomeGroup
from osmosis_grpc.trainer.torch_batch import TorchBatch, torch_batch

Side = Literal["right", "left"]
TooLong = Literal["raise", "truncate", "skip"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Batch(ArrayEquality):
    """Padded rows, one for each segment. n is the number of rows, and w the length of the longest row."""

    ids: NDArray[np.int64]
    """int64, shape (n, w): prompts and replies; `pad_id` for padding."""
    attention_mask: NDArray[np.bool_]
    """bool, shape (n, w): True for tokens, False for padding."""
    loss_mask: NDArray[np.bool_]
    """bool, shape (n, w): True for tokens that the policy sampled."""
    logprobs: NDArray[np.float32]
    """float32, shape (n, w): the logprob of each token; 0.0 where the loss mask is False."""
    versions: NDArray[np.int32]
    """int32, shape (n, w): the index in `version_names` of the policy version that sampled the token;
    -1 for other tokens and for unknown versions."""
    version_names: tuple[str, ...]
    """The policy versions, in order of appearance."""
    rewards: NDArray[np.float32]
    """float32, shape (n,): the reward of the sample, or else of the rollout."""
    advantages: NDArray[np.float32] | None
    """float32, shape (n,): the advantages passed to pad(); None without advantages."""
    lengths: NDArray[np.int64]
    """int64, shape (n,): the number of tokens in the row."""
    truncated: NDArray[np.bool_]
    """bool, shape (n,): whether the row was truncated."""
    extras: Mapping[str, NDArray[Any]]
    """The extras by name, shape (n, w, ...); zeros for padding, and where the segment has no value."""
    rows: tuple[Row, ...]
    skipped: tuple[Skipped, ...]
    pad_id: int
    side: Side
    """The side of the padding."""

    def __len__(self) -> int:
        return len(self.rows)

    def torch(self, device: Any = "cpu") -> TorchBatch:
        """Return the arrays as new torch tensors.

        Args:
            device: The device of the tensors, as for torch.tensor(), such as "cuda" or model.device.

        Raises:
            MissingExtraError: torch is not installed.
        """
        return torch_batch(self, device)

    def __repr__(self) -> str:
        parts = [f"rows={len(self)}"]
        for name in ("ids", "attention_mask", "loss_mask", "logprobs", "versions", "rewards", "advantages"):
            array = getattr(self, name)
            parts.append(f"{name}={'None' if array is None else f'{array.dtype}{list(array.shape)}'}")
        parts += [f"truncated={self.truncated.sum()}", f"skipped={len(self.skipped)}"]
        return f"Batch({', '.join(parts)}, version_names={self.version_names!r:.80}, side={self.side!r})"


def pad(
    outcomes: Iterable[RolloutOutcome | OutcomeGroup],
    *,
    advantages: Advantages | Iterable[Advantages] | Iterable[float] | None = None,
    pad_id: int = 0,
    side: Side = "right",
    max_length: int | None = None,
    too_long: TooLong = "raise",
    untrainable: Untrainable = "raise",
    cut: Cut = "train",
    dropped: Dropped = "skip",
    extras: Sequence[str] = (),
) -> Batch:
    """Return a batch of the trainable samples of outcomes. Its `skipped` lists the other samples.

    Args:
        outcomes: The outcomes. Some or all of them may be groups.
        advantages: The Advantages of every group, or one number for each outcome, which applies to all its samples.
        pad_id: The token id of the padding.
        side: The side of the padding.
        max_length: The largest number of tokens of a row.
        too_long: What to do with a longer segment: "raise" InvalidArgument, "truncate" its end, which keeps the
            logprobs of the remaining tokens exact, or "skip" it.
        untrainable: What to do with an outcome that failed, was an evaluation, or has no reward or no exact tokens:
            "raise" InvalidArgument, or "skip" it. If only some samples of an outcome are untrainable, they are skipped.
        cut: What to do with samples that a limit has cut (Sample.cut): "train" on them, "mask" their tokens, which
            keeps their rows and rewards, or "skip" them.
        dropped: Whether to "skip" replies that the agent dropped (Segment.dropped) or to "train" on them.
        extras: The names of extras to include, for example "routed_experts". Every segment must have them, and they
            must not be ragged.

    Raises:
        InvalidArgument: See above. Also if there are no outcomes. The message names the argument and the rollout.
    """
    for name, value, known in (
        ("side", side, Side),
        ("too_long", too_long, TooLong),
        ("untrainable", untrainable, Untrainable),
    ):
        check_choice(name, value, get_args(known))
    if max_length is not None and max_length < 1:
        raise InvalidArgument("max_length", f"{max_length} is less than 1")
    skipped: list[Skipped] = []
    each = list(flatten(outcomes))
    if not each:
        raise no_outcomes("outcomes")
    choices = partial(select, cut=cut, dropped=dropped)
    found = list(_fitting(_segments(each, choices, untrainable, skipped), max_length, too_long, skipped))
    width = max((len(each.segment.ids) for each in found), default=0)
    width = width if max_length is None else min(width, max_length)
    shape = len(found), width
    ids, logprobs = np.full(shape, pad_id, dtype=np.int64), np.zeros(shape, dtype=np.float32)
    attention_mask, loss_mask = np.zeros(shape, dtype=bool), np.zeros(shape, dtype=bool)
    versions, names = np.full(shape, -1, dtype=np.int32), dict[str, int]()
    places = []
    for number, segment in enumerate(each.segment for each in found):
        length = min(len(segment.ids), width)
        columns = slice(0, length) if side == "right" else slice(width - length, width)
        places.append(columns)
        ids[number, columns] = segment.ids[:length]
        attention_mask[number, columns] = True
        loss_mask[number, columns] = segment.mask()[:length]
        logprobs[number, columns] = segment.aligned_logprobs()[:length]
        versions[number, columns] = _versions(segment, names)[:length]
    lengths = np.array([len(each.segment.ids) for each in found], dtype=np.int64)
    rows = tuple(each.row for each in found)
    segments, texts = [each.segment for each in found], [f"rollout {r.rollout_id}, sample {r.sample}" for r in rows]
    return Batch(
        ids=ids,
        attention_mask=attention_mask,
        loss_mask=loss_mask,
        logprobs=logprobs,
        versions=versions,
        version_names=tuple(names),
        rewards=np.array([each.reward for each in found], dtype=np.float32),
        advantages=_of_rows(rows, advantages, len(each)),
        lengths=np.minimum(lengths, width),
        truncated=lengths > width,
        extras={name: _pad_extra(name, segments, places, width, texts) for name in extras},
        rows=rows,
        skipped=tuple(skipped),
        pad_id=pad_id,
        side=side,
    )


def _segments(
    outcomes: Iterable[RolloutOutcome],
    choices: Callable[[RolloutOutcome, int], tuple[list[TrainableSegment], list[Skipped]]],
    untrainable: Untrainable,
    skipped: list[Skipped],
) -> Iterator[TrainableSegment]:
    for index, outcome in enumerate(outcomes):
        found, left_out = choices(outcome, index)
        if not found and untrainable == "raise" and (wrong := [each for each in left_out if not each.chosen]):
            raise untrainable_error(wrong[0])
        skipped += left_out
        yield from found


def _fitting(
    found: Iterable[TrainableSegment], max_length: int | None, too_long: TooLong, skipped: list[Skipped]
) -> Iterator[TrainableSegment]:
    for each in found:
        row, length = each.row, len(each.segment.ids)
        if max_length is not None and length > max_length and too_long != "truncate":
            problem = f"segment {row.segment} has {length} tokens, more than max_length {max_length}"
            if too_long == "raise":
                raise InvalidArgument(
                    "outcomes",
                    f"rollout {row.rollout_id}, sample {row.sample}: {problem}. "
                    'Pass too_long="truncate" or too_long="skip"',
                )
            skipped.append(Skipped(row.rollout_id, row.sample, problem, row.segment))
            continue
        yield each


def _versions(segment: Segment, names: dict[str, int]) -> NDArray[np.int32]:
    """Return the index of each token's policy version, int32, shape (n,). Add new versions to `names`."""
    versions = np.full(len(segment.ids), -1, dtype=np.int32)
    if segment.versions:
        numbers = [names.setdefault(span.version, len(names)) for span in segment.versions]
        versions[segment.mask()] = np.repeat(numbers, [span.tokens for span in segment.versions])
    return versions


def _of_rows(
    rows: Sequence[Row], advantages: Advantages | Iterable[Advantages] | Iterable[float] | None, outcomes: int
) -> NDArray[np.float32] | None:
    if advantages is None:
        return None
    try:
        listed: list[Any] = [advantages] if isinstance(advantages, Advantages) else list(advantages)
    except TypeError:
        raise InvalidArgument("advantages", f"is a {type(advantages).__name__}; {_WANTED}") from None
    if listed and not all(isinstance(each, Advantages) for each in listed):
        return _numbers(listed, outcomes)[[row.outcome for row in rows]]
    known = dict(chain.from_iterable(zip(each.keys, each.values, strict=True) for each in listed))
    missing = next((row for row in rows if (row.rollout_id, row.sample) not in known), None)
    if missing is not None:
        raise InvalidArgument(
            "advantages",
            f"have none of rollout {missing.rollout_id}, sample {missing.sample}; "
            "pass those of every group in the batch",
        )
    return np.array([known[row.rollout_id, row.sample] for row in rows], dtype=np.float32)


_WANTED = "pass advantages(group) for every group in the batch, or one number for each outcome"


def _numbers(listed: list[Any], outcomes: int) -> NDArray[np.float32]:
    """Return the advantage of each outcome, float32, shape (outcomes,). Raises InvalidArgument."""
    try:
        values = np.asarray(listed)
    except (TypeError, ValueError):  # lists of different lengths
        values = np.empty(0, dtype=object)
    if values.ndim != 1 or values.dtype.kind not in "iuf":
        raise InvalidArgument("advantages", f"holds what is not a number; {_WANTED}")
    if len(values) != outcomes:
        raise InvalidArgument("advantages", f"has {len(values)} numbers for {outcomes} outcomes; {_WANTED}")
    return values.astype(np.float32)


def _pad_extra(
    name: str, segments: Sequence[Segment], columns: Sequence[slice], width: int, rows: Sequence[str]
) -> NDArray[Any]:
    """Return one extra of all segments, shape (n, w, ...), with zeros where there is no value.

    `columns` are the columns of each segment's tokens, and `rows` are the segments' names for errors. Raises
    InvalidArgument for a segment without the extra, for a ragged extra, and for differing types or shapes.
    """
    padded: NDArray[Any] | None = None
    for number, segment in enumerate(segments):
        try:
            extra = segment.aligned_extra(name)
        except InvalidArgument as error:
            raise InvalidArgument("extras", f"{rows[number]}: {error}") from None
        if not isinstance(extra, Tensor):
            raise InvalidArgument("extras", f"{name} is ragged; use segment.aligned_extra({name!r})")
        values = extra.numpy()
        if padded is None:
            padded = np.zeros((len(segments), width, *values.shape[1:]), dtype=values.dtype)
        if (padded.dtype, padded.shape[2:]) != (values.dtype, values.shape[1:]):
            kinds = f"{values.dtype}{list(values.shape[1:])}, others {padded.dtype}{list(padded.shape[2:])}"
            raise InvalidArgument("extras", f"{rows[number]}: {name} has {kinds} for each token")
        place = columns[number]
        padded[number, place] = values[: place.stop - place.start]
    return np.zeros((0, width), dtype=np.float32) if padded is None else padded
