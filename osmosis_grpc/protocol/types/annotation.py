"""Annotations: facts about a rollout that only its trainer, or a person, knows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types.json_values import number_of
from osmosis_grpc.protocol.types.jsontext import check_text
from osmosis_grpc.protocol.types.samples import Sample
from osmosis_grpc.protocol.types.tensors import ArrayEquality, ArrayLike, Float32Array, np
from osmosis_grpc.protocol.types.tokens import Logprobs, check_logprobs

MAX_ID_CHARS = 256
"""The longest id, author, label and weight step of an annotation, in characters."""
MAX_LABELS = 64
"""The most labels of an annotation."""
MAX_NOTE_CHARS = 64 * 1024
"""The longest note and reason of an annotation, in characters."""

Values = Float32Array


def _values(values: ArrayLike) -> Values:
    return np.ascontiguousarray(values, dtype="<f4")


def _no_values() -> Values:
    return np.empty(0, dtype="<f4")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SegmentAnnotation(ArrayEquality):
    """Values that the trainer computed for the tokens with mask 1 of a segment.

    Each array is float32 with shape (n,), where n is Segment.sampled, or it is empty.
    """

    sample: str = "main"
    """The name of the sample."""
    index: int = 0
    """The index of the segment in Sample.segments."""
    logprobs: Logprobs = field(default_factory=_no_values)
    """The logprobs that the trainer recomputed. NaN is a missing logprob."""
    entropies: Values = field(default_factory=_no_values)
    advantages: Values = field(default_factory=_no_values)

    def __post_init__(self) -> None:
        for name in ("logprobs", "entropies", "advantages"):
            object.__setattr__(self, name, _values(getattr(self, name)))

    def check(self, samples: Mapping[str, Sample], path: str) -> None:
        """Raise InvalidArgument if the outcome has no such segment, or if an array has another length."""
        if self.sample not in samples:
            known = ", ".join(map(repr, samples)) or "none"
            raise InvalidArgument(f"{path}.sample", f"{self.sample!r} is not a sample of the outcome; it has {known}")
        segments = samples[self.sample].segments
        if self.index >= len(segments):
            raise InvalidArgument(f"{path}.index", f"{self.index}: the sample has {len(segments)} segments")
        sampled = segments[self.index].sampled
        if len(self.logprobs):
            check_logprobs(self.logprobs, sampled, "tokens with mask 1", path)
        for name in ("entropies", "advantages"):
            values: Values = getattr(self, name)
            if len(values) not in (0, sampled):
                raise InvalidArgument(f"{path}.{name}", f"{len(values)} values for {sampled} tokens with mask 1")
            wrong = ~np.isfinite(values)
            if wrong.any():
                index = int(wrong.argmax())
                raise InvalidArgument(f"{path}.{name}", f"value {index} is {values[index]}, not a finite number")


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    """Facts about a rollout that are known after its end. Every field but `id` is optional.

    An annotation does not change the outcome, which keeps its reward even if there is a corrected one.
    """

    id: str = field(default_factory=lambda: uuid4().hex)
    """A unique name, 1 to 256 characters. The same annotation under the same id is stored once."""
    author: str = ""
    """A person, or the program that trains."""
    time: float | None = None
    """When the server stored it, in Unix seconds. The server sets it."""
    segments: tuple[SegmentAnnotation, ...] = ()
    advantage: float | None = None
    """The advantage of the rollout."""
    trained: bool | None = None
    """Whether the trainer trained on the rollout; None if unknown."""
    dropped_reason: str = ""
    """Why the trainer dropped the rollout."""
    weight_step: str = ""
    """The step of the weights after which the rollout was consumed."""
    reward: float | None = None
    """A corrected reward, or a score (see `score_name`)."""
    sample: str = ""
    """The sample that `reward` is for. Empty for the whole rollout."""
    labels: tuple[str, ...] = ()
    note: str = ""
    """A remark for people."""

    def __post_init__(self) -> None:
        for name in ("advantage", "reward"):
            value = getattr(self, name)
            if value is not None and (number := number_of(value)) is not None:
                object.__setattr__(self, name, number)

    @property
    def score_name(self) -> str:
        """The eval function or grader whose score `reward` is; empty for a corrected reward.

        It is the only label of the annotation, whose id is NAME@DIGEST.
        """
        name = self.labels[0] if self.reward is not None and len(self.labels) == 1 else ""
        return name if name and self.id.startswith(name) and "@" in self.id[len(name) :] else ""

    def check(self, path: str = "annotation") -> None:
        """Raise InvalidArgument naming the first field that is not valid by itself."""
        if not 1 <= len(self.id) <= MAX_ID_CHARS or not self.id.strip():
            raise InvalidArgument(f"{path}.id", f"has {len(self.id)} characters, not 1 to {MAX_ID_CHARS}")
        limits = dict.fromkeys(("id", "author", "weight_step", "sample"), MAX_ID_CHARS)
        limits |= dict.fromkeys(("dropped_reason", "note"), MAX_NOTE_CHARS)
        for name, limit in limits.items():
            _check_length(getattr(self, name), limit, f"{path}.{name}")
        if len(self.labels) > MAX_LABELS:
            raise InvalidArgument(f"{path}.labels", f"has {len(self.labels)} labels, more than {MAX_LABELS}")
        for index, label in enumerate(self.labels):
            _check_length(label, MAX_ID_CHARS, f"{path}.labels[{index}]")
        for name in ("advantage", "reward"):
            value = getattr(self, name)
            if value is not None and number_of(value) is None:
                raise InvalidArgument(f"{path}.{name}", f"{value} is not a finite number")
        if self.sample and self.reward is None:
            raise InvalidArgument(f"{path}.sample", "goes with a reward")

    def check_against(self, samples: Mapping[str, Sample], path: str = "annotation") -> None:
        """Raise InvalidArgument if the annotation does not fit the samples of the rollout's outcome."""
        if self.sample and self.sample not in samples:
            raise InvalidArgument(f"{path}.sample", f"{self.sample!r} is not a sample of the outcome")
        for index, segment in enumerate(self.segments):
            segment.check(samples, f"{path}.segments[{index}]")

    def same_as(self, other: "Annotation") -> bool:
        """Return whether two annotations are equal except for their times."""
        return replace(self, time=None) == replace(other, time=None)

    @property
    def nbytes(self) -> int:
        """The bytes of its arrays and texts."""
        texts: Sequence[Any] = (self.note, self.dropped_reason, self.author, *self.labels)
        arrays = sum(s.logprobs.nbytes + s.entropies.nbytes + s.advantages.nbytes for s in self.segments)
        return arrays + sum(map(len, texts))


def _check_length(text: str, limit: int, path: str) -> None:
    if len(text) > limit:
        raise InvalidArgument(path, f"has {len(text)} characters, more than {limit}")
    check_text(text, path)
