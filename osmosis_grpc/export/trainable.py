"""Selects the segments that are trained on, each with its reward and its weight."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from osmosis_grpc.errors import InvalidArgument
from osmosis_grpc.types import RolloutOutcome, Sample, Segment
from osmosis_grpc.types.outcome import lacks

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


@dataclass(frozen=True, slots=True)
class Skipped:
    """An outcome or a sample without a row."""

    rollout_id: str
    sample: str
    """The name of the sample; empty for the whole outcome."""
    reason: str


class TrainableSegment(NamedTuple):
    """A segment to train on."""

    row: Row
    outcome: RolloutOutcome
    sample: Sample
    segment: Segment
    reward: float
    """The reward of the sample, or else of the rollout."""
    position: int
    """The index of the segment among all trainable segments of its rollout."""
    segments: int
    """The number of trainable segments of the rollout."""

    @property
    def weight(self) -> float:
        """1 / `segments`. The weights of a rollout add up to 1, so a rollout with more segments counts no more."""
        return 1.0 / self.segments

    def __str__(self) -> str:
        return f"rollout {self.row.rollout_id}, sample {self.row.sample}, segment {self.row.segment}"


def flatten(outcomes: Outcomes) -> Iterator[RolloutOutcome]:
    """Yields every outcome, those of a group in the order of the group. Raises TypeError for another value."""
    for each in outcomes:
        for member in each if isinstance(each, Iterable) else (each,):
            if not isinstance(member, RolloutOutcome):
                raise TypeError(f"outcomes: holds a {type(member).__name__}, not an outcome or an OutcomeGroup")
            yield member


def select(outcome: RolloutOutcome, index: int = 0) -> tuple[list[TrainableSegment], list[Skipped]]:
    """Returns the trainable segments of an outcome in order, and its samples without one.

    If no sample is trainable, the only Skipped has an empty sample name and the reason for the whole outcome.
    """
    samples = outcome.trainable_samples()
    if not samples:
        return [], [Skipped(outcome.rollout_id, "", outcome.not_trainable_reason)]
    count = sum(len(sample.segments) for sample in samples.values())
    found: list[TrainableSegment] = []
    skipped: list[Skipped] = []
    for name, sample in outcome.samples.items():
        if name not in samples:
            skipped.append(Skipped(outcome.rollout_id, name, lacks(sample) or "it has no reward"))
            continue
        reward = samples[name].reward
        assert reward is not None
        for number, segment in enumerate(sample.segments):
            row = Row(index, outcome.rollout_id, name, number, sample.policy)
            found.append(TrainableSegment(row, outcome, sample, segment, reward, len(found), count))
    return found, skipped


class Selection:
    """Selects the segments of many outcomes, one outcome after the other, and counts what is left out.

    A sample with `train=False` is always left out, because its author wants that. Any other sample that cannot be
    trained on raises InvalidArgument, or is left out with `untrainable="skip"`.
    """

    def __init__(self, untrainable: Untrainable = "raise") -> None:
        check_choice("untrainable", untrainable, get_args(Untrainable))
        self._raise = untrainable == "raise"
        self.outcomes = 0
        """The number of outcomes so far."""
        self.segments = 0
        """The number of selected segments so far."""
        self.skipped = 0
        """The number of outcomes and samples that were left out so far."""

    def of(self, outcome: RolloutOutcome) -> list[TrainableSegment]:
        """Returns the segments of the next outcome. Raises InvalidArgument naming the rollout and the reason."""
        found, skipped = select(outcome, self.outcomes)
        if self._raise:
            for each in skipped:
                sample = outcome.samples.get(each.sample)
                if sample is None or sample.train is not False:
                    raise untrainable_error(each)
        self.outcomes += 1
        self.segments += len(found)
        self.skipped += len(skipped)
        return found


def untrainable_error(skipped: Skipped) -> InvalidArgument:
    """Returns the error for an outcome or a sample that cannot be trained on."""
    name = f"rollout {skipped.rollout_id}" + f", sample {skipped.sample}" * bool(skipped.sample)
    return InvalidArgument(
        "outcomes", f'{name} is not trained on: {skipped.reason}. Leave it out, or pass untrainable="skip"'
    )


def no_outcomes(name: str) -> InvalidArgument:
    """Returns the error for a batch or a group without outcomes. `name` is the argument."""
    return InvalidArgument(
        name,
        "has no outcome, so there is nothing to train on. If groups() yielded nothing, the log says why it dropped "
        "its groups, and trainer.group_counts has their number",
    )


def check_choice(name: str, value: str, known: tuple[str, ...]) -> None:
    """Raises InvalidArgument for a value that is not one of the known values."""
    if value not in known:
        raise InvalidArgument(name, f"{value!r} is not one of {', '.join(known)}")
