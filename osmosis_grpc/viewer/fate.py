"""What the trainer did with a rollout, as the annotations say."""

from collections.abc import Callable
from typing import Any, NamedTuple

from osmosis_grpc.protocol.types import Annotation
from osmosis_grpc.records.reading.history import History


class Fate(NamedTuple):
    """What the trainer did with a rollout. The newest annotation with a value counts."""

    trained: bool | None
    weight_step: str
    dropped: str
    """Why the trainer dropped it; empty if it did not."""
    advantage: float | None
    reward: float | None
    """The corrected reward of the rollout."""
    consumed: float | None
    """When the trainer said so, in Unix seconds."""


def fate_of(history: History) -> Fate:
    """Return what the annotations of a rollout say about its fate."""
    notes = [event.annotation for event in reversed(history.annotated)]

    def newest(value: Callable[[Annotation], Any], default: Any = None) -> Any:
        return next((value(note) for note in notes if value(note) not in (None, "")), default)

    def used(note: Annotation) -> float | None:
        says = note.trained is not None or note.weight_step or note.dropped_reason
        return note.time if says else None

    return Fate(
        trained=newest(lambda note: note.trained),
        weight_step=newest(lambda note: note.weight_step, ""),
        dropped=newest(lambda note: note.dropped_reason, ""),
        advantage=newest(lambda note: note.advantage),
        reward=newest(lambda note: None if note.sample else note.reward),
        consumed=newest(used),
    )
