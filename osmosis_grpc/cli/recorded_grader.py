"""A grader that scores recorded rollouts, for the rescore command."""

import asyncio
import hashlib
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from osmosis_grpc.agent.grader import Grader
from osmosis_grpc.agent.grading import grade_recorded
from osmosis_grpc.agent.loader import LoadError, load_grader
from osmosis_grpc.agent.source_version import AgentVersion
from osmosis_grpc.agent.workflow import GraderConfig
from osmosis_grpc.agent.workflow_sources import parsed
from osmosis_grpc.agent.workflow_validator import validate_grader
from osmosis_grpc.integrations._strands_messages import recorded_samples
from osmosis_grpc.protocol.types import Annotation, RolloutOutcome, RolloutRequest, TrajectoryEvent
from osmosis_grpc.protocol.types.annotation import MAX_ID_CHARS
from osmosis_grpc.records.evaluate.eval_functions import MOST_NAME_CHARS, score_id

DIGITS = 8


@dataclass(frozen=True, slots=True)
class Regraded:
    """The result of a grader for one rollout."""

    score: float | None
    """The mean of the rewards; None if all samples are removed, and after an error."""
    added: tuple[Annotation, ...] = ()
    """The rewards that the rollout does not have yet."""
    known: int = 0
    """The number of rewards that the rollout has already."""
    error: str = ""


class RecordedGrader:
    """A grader, and the ids of its annotations. Another source or another value of the configuration is another grader.

    `name` is MODULE:CLASS, and `values` are KEY=VALUE texts. Raises LoadError.
    """

    def __init__(self, name: str, values: Sequence[str], *, author: str, timeout: float) -> None:
        self.name = name
        self._grader: type[Grader[Any]]
        self._config: GraderConfig | None
        self._grader, self._config = load_grader(name, values)
        for finding in validate_grader(self._grader, self._config):
            raise LoadError(f"{name}: {finding.message}; {finding.hint}")
        self._author, self._timeout = author, timeout
        self._id = score_id(name, AgentVersion.of(self._grader).digest)
        if values:
            text = json.dumps(parsed(values, "--grader-config")[0], sort_keys=True)
            self._id += f"+{_digest(text)}"

    async def grade(
        self,
        request: RolloutRequest,
        outcome: RolloutOutcome,
        events: Iterable[TrajectoryEvent],
        rewards: Mapping[str, float],
    ) -> Regraded:
        """Grade a rollout, unless `rewards`, the rewards of its annotations by id, has all rewards of this grader."""
        ids = {sample: self._annotation_id(sample, outcome) for sample in outcome.samples}
        known = {sample: rewards[name] for sample, name in ids.items() if name in rewards}
        if ids and len(known) == len(ids):
            return Regraded(statistics.fmean(known.values()), known=len(known))
        samples = recorded_samples(outcome, events)
        try:
            async with asyncio.timeout(self._timeout):
                graded = await grade_recorded(self._grader, request, samples, config=self._config)
        except TimeoutError:
            return Regraded(None, error=f"it took longer than {self._timeout:g} s")
        if graded.failure is not None:
            place = f" at {graded.failure.file}:{graded.failure.line}" if graded.failure.file else ""
            return Regraded(None, error=graded.failure.message + place)
        new = {sample: reward for sample, reward in graded.rewards.items() if sample not in known}
        notes = (
            Annotation(
                id=ids[sample],
                author=self._author,
                reward=reward,
                sample=sample if len(ids) > 1 else "",
                labels=(self.name[:MOST_NAME_CHARS],),
            )
            for sample, reward in new.items()
        )
        found = [*known.values(), *new.values()]
        return Regraded(statistics.fmean(found) if found else None, tuple(notes), len(known))

    def _annotation_id(self, sample: str, outcome: RolloutOutcome) -> str:
        """Return the id of the annotation for a sample. The only sample of a rollout has the id of the rollout."""
        if len(outcome.samples) == 1:
            return self._id
        named = f"{self._id}/{sample}"
        return named if len(named) <= MAX_ID_CHARS else f"{self._id}/{_digest(sample)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]
