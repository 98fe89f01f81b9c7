"""Selects the segments that are trained on, each with its reward and its weight."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, get_args

from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import OutcomeStatus, RolloutOutcome, Sample, Segment
from osmosis_grpc.protocol.types.outcome import lacks
from osmosis_grpc.protocol.types.samples import Cut, Dropped, check_choices
from osmosis_grpc.protocol.types.tensors import BoolArray

Untrainable = Literal["raise", "skip"]
"""What to do with a sample that cannot be trained on: raise InvalidArgument, or leave it out and list it."""

Outcomes = Iterable[RolloutOutcome | Iterable[RolloutOutcome]]
"""Outcomes, and groups of outcomes such as OutcomeGroup."""


@dataclass(frozen=True, slots=True)
class Row:
    """The segment of a row."""

    outcome: int
    """The index of the row's outcome among all outcomes. Each outcome of a group has its own index."""
    rollout_id: str
    sample: str
    """The name of the sample."""
    segment: int
    """The index of the segment in its sample."""
    policy: str = ""
    """The policy that answered the chats of the sample; empty for the trainer's only policy."""
    cut: str = ""
    """The limit that cut the sample; see Sample.cut. Empty if none did."""
    dropped: bool = False
    """Whether the agent dropped the replies of the segment; see Segment.dropped."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """An outcome, a sample or a segment without a row."""

    rollout_id: str
    sample: str
    """The name of the sample; empty for the whole outcome."""
    reason: str
    segment: int | None = None
    """The index of the segment in its sample; None for the whole sample or outcome."""
    chosen: bool = False
    """Whether it was left out by choice: `cut="skip"`, `dropped="skip"`, or `train=False` of the agent's author."""


class TrainableSegment(NamedTuple):
    """A segment to train on."""

    row: Row
    outcome: RolloutOutcome
    sample: Sample
    segment: Segment
    """The segment. With `cut="mask"`, all tokens of a sample that was cut have mask 0 here, but not in `sample`.
    """
    reward: float
    """The reward of the sample, or else of the rollout."""
    position: int
    """The index of the segment among all trainable segments of its rollout."""
    segments: int
    """The number of trainable segments of the rollout."""

    @property
    def sampled(self) -> BoolArray:
        """bool, shape (n,): whether the policy sampled the token. It is the segment's mask before `cut="mask"`."""
        return self.sample.segments[self.row.segment].mask()

    @property
    def weight(self) -> float:
        """1 / `segments`. The weights of a rollout add up to 1, so more segments do not give a rollout more weight."""
        return 1.0 / self.segments

    def __str__(self) -> str:
        return f"rollout {self.row.rollout_id}, sample {self.row.sample}, segment {self.row.segment}"


def flatten(outcomes: Outcomes) -> Iterator[RolloutOutcome]:
    """Yield every outcome, those of a group in the order of the group. Raises TypeError for another value."""
    for each in outcomes:
        for member in each if isinstance(each, Iterable) else (each,):
            if not isinstance(member, RolloutOutcome):
                raise TypeError(f"outcomes: holds a {type(member).__name__}, not an outcome or an OutcomeGroup")
            yield member


def select(
    outcome: RolloutOutcome, index: int = 0, *, cut: Cut = "train", dropped: Dropped = "skip"
) -> tuple[list[TrainableSegment], list[Skipped]]:
    """Return the trainable segments of an outcome in order, and what is left out.

    See RolloutOutcome.trainable_samples() for `cut` and `dropped`. If no sample is trainable, there is a single Skipped
    with an empty sample name and the reason for the whole outcome.
    """
    check_choices(cut, dropped)
    samples = outcome.trainable_samples(dropped="train")
    if not samples:
        chosen = bool(outcome.samples) and all(sample.train is False for sample in outcome.samples.values())
        chosen = chosen and outcome.status is OutcomeStatus.COMPLETED
        return [], [Skipped(outcome.rollout_id, "", outcome.not_trainable_reason, chosen=chosen)]
    found: list[TrainableSegment] = []
    skipped: list[Skipped] = []
    for name, sample in outcome.samples.items():
        leave_out = partial(Skipped, outcome.rollout_id, name)
        if name not in samples:
            skipped.append(leave_out(lacks(sample) or "it has no reward", chosen=sample.train is False))
            continue
        if sample.cut and cut == "skip":
            skipped.append(leave_out(f"it was cut ({sample.cut})", chosen=True))
            continue
        reward = samples[name].reward
        assert reward is not None
        for number, segment in enumerate(sample.segments):
            if segment.dropped and dropped == "skip":
                chats = ", ".join(map(str, segment.chats))
                reason = f"the agent dropped the reply of chat {chats}, and went on without it"
                skipped.append(leave_out(reason, number, chosen=True))
                continue
            row = Row(index, outcome.rollout_id, name, number, sample.policy, sample.cut, segment.dropped)
            part = segment.masked() if sample.cut and cut == "mask" else segment
            found.append(TrainableSegment(row, outcome, sample, part, reward, len(found), 0))
    return [each._replace(segments=len(found)) for each in found], skipped


class Selection:
    """Selects the segments of many outcomes, one outcome after the other, and counts what is left out.

    Samples that the caller or the agent's author excludes are left out; see Skipped.chosen. Any other sample that
    cannot be trained on raises InvalidArgument, or is left out with `untrainable="skip"`.
    """

    def __init__(self, untrainable: Untrainable = "raise", *, cut: Cut = "train", dropped: Dropped = "skip") -> None:
        check_choice("untrainable", untrainable, get_args(Untrainable))
        check_choices(cut, dropped)
        self._raise, self._cut, self._dropped = untrainable == "raise", cut, dropped
        self.outcomes = 0
        """The number of outcomes so far."""
        self.segments = 0
        """The number of selected segments so far."""
        self.skipped = 0
        """The number of outcomes, samples and segments that were left out so far."""

    def of(self, outcome: RolloutOutcome) -> list[TrainableSegment]:
        """Return the segments of the next outcome. Raises InvalidArgument naming the rollout and the reason."""
        found, skipped = select(outcome, self.outcomes, cut=self._cut, dropped=self._dropped)
        if self._raise and (wrong := [each for each in skipped if not each.chosen]):
            raise untrainable_error(wrong[0])
        self.outcomes += 1
        self.segments += len(found)
        self.skipped += len(skipped)
        return found


def untrainable_error(skipped: Skipped) -> InvalidArgument:
    """Return the error for an outcome or a sample that cannot be trained on."""
    name = f"rollout {skipped.rollout_id}" + f", sample {skipped.sample}" * bool(skipped.sample)
    return InvalidArgument(
        "outcomes", f'{name} is not trained on: {skipped.reason}. Leave it out, or pass untrainable="skip"'
    )


def no_outcomes(name: str) -> InvalidArgument:
    """Return the error for a batch or a group without outcomes. `name` is the name of the argument."""
    return InvalidArgument(
        name,
        "has no outcomes, so there is nothing to train on. If groups() yielded nothing, the log says why it dropped "
        "its groups, and trainer.group_counts says how many",
    )


def check_choice(name: str, value: str, known: tuple[str, ...]) -> None:
    """Raise InvalidArgument for a value that is not one of the known values."""
    if value not in known:
        raise InvalidArgument(name, f"{value!r} is not one of {', '.join(known)}")
