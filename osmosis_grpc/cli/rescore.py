"""The rescore command: scores recorded rollouts with eval functions or a grader. Each score is an annotation.

The rewards that a rollout already has do not change. The id of a score contains the name and a digest of the source of
its function or grader, so a second run of the command adds nothing.
"""

import asyncio
import hashlib
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from osmosis_grpc.agent.config_sources import parsed
from osmosis_grpc.agent.grader import Grader
from osmosis_grpc.agent.grading import grade_recorded
from osmosis_grpc.agent.loader import LoadError, load_grader
from osmosis_grpc.agent.source_version import AgentVersion
from osmosis_grpc.agent.workflow import GraderConfig
from osmosis_grpc.agent.workflow_validator import validate_grader
from osmosis_grpc.cli.command_options import RescoreOptions
from osmosis_grpc.cli.compare import score_lines
from osmosis_grpc.cli.options import SourceOptions
from osmosis_grpc.cli.recorded import selected
from osmosis_grpc.cli.screen import Screen
from osmosis_grpc.cli.source import Source, open_source
from osmosis_grpc.integrations._strands_messages import recorded_samples
from osmosis_grpc.protocol.types import (
    Annotation,
    OutcomeStatus,
    RolloutFilter,
    RolloutInfo,
    RolloutOutcome,
    RolloutRequest,
    RolloutState,
    TrajectoryEvent,
    events,
)
from osmosis_grpc.protocol.types.annotation import MAX_ID_CHARS
from osmosis_grpc.protocol.types.outcome import printable
from osmosis_grpc.records.evaluate.errors import EvalFunctionError
from osmosis_grpc.records.evaluate.eval_functions import (
    MOST_NAME_CHARS,
    EvalFunction,
    Scored,
    Scorer,
    load_eval_functions,
    score_id,
)
from osmosis_grpc.records.reading.annotator import Annotator, open_annotator
from osmosis_grpc.records.reading.history import History
from osmosis_grpc.records.reading.phrases import counted
from osmosis_grpc.records.reading.source_port import SourceError
from osmosis_grpc.serve.json_output import Records, records, usage_error
from osmosis_grpc.trainer.score_statistics import Scores

DIGITS = 8


@dataclass(frozen=True, slots=True)
class Regraded:
    """The result of a grader for one rollout."""

    score: float | None
    """The mean of the rewards; None if all samples are removed, or after an error."""
    added: tuple[Annotation, ...] = ()
    """The rewards to add to the rollout."""
    known: int = 0
    """The number of rewards of this grader that the rollout already has."""
    error: str = ""


class RecordedGrader:
    """A grader with the ids of its annotations. If its source code or its configuration changes, the ids change.

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
        """Grade a rollout. Do nothing if `rewards`, the rewards by annotation id, has all rewards of this grader."""
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
        """Return the id of the annotation for a sample. If it is the only sample, the id does not name it."""
        if len(outcome.samples) == 1:
            return self._id
        named = f"{self._id}/{sample}"
        return named if len(named) <= MAX_ID_CHARS else f"{self._id}/{_digest(sample)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def run_rescore(options: RescoreOptions, source: SourceOptions, *, json: bool) -> int:
    """Score the rollouts, print the scores, and return the exit code."""
    if not options.eval_fn and options.grader is None:
        usage_error(
            "rescore", "--eval-fn MODULE:FUNCTION names a function that scores, and --grader MODULE:CLASS a grader"
        )
    if options.grader_config and options.grader is None:
        usage_error("rescore", "--grader-config goes with --grader MODULE:CLASS")
    with records(json, drops_text=True) as out:
        try:
            functions = load_eval_functions(options.eval_fn)
            grader = None
            if options.grader is not None:
                grader = RecordedGrader(
                    options.grader, options.grader_config, author=options.author, timeout=options.timeout
                )
            return asyncio.run(_Rescore(options, functions, grader, open_source("rescore", source), out).run())
        except (LoadError, EvalFunctionError, SourceError) as error:
            usage_error("rescore", printable(str(error)))
        except KeyboardInterrupt:
            return 130


class _Rescore:
    """One run of the command."""

    def __init__(
        self,
        options: RescoreOptions,
        functions: list[EvalFunction],
        grader: RecordedGrader | None,
        source: Source,
        out: Records,
    ) -> None:
        self._options = options
        self._functions = functions
        self._grader = grader
        self._source = source
        self._out = out
        self._screen = Screen.of(out)
        self._scorer = Scorer(functions, options.timeout)
        names = [function.name for function in functions] + ([grader.name] if grader is not None else [])
        self._scores = {name: Scores() for name in names}
        self._rewards = Scores()
        self._rows: dict[str, int] = {}
        """A row number for each group, or rollout without a group, because rollouts of a group are not independent."""
        self._rollouts = self._added = self._known = self._failed = 0

    async def run(self) -> int:
        """Score all rollouts that completed."""
        async with self._source, open_annotator(self._source) as annotator:
            where = RolloutFilter(
                states=[RolloutState.COMPLETED], agent_loop=self._options.agent, group_id=self._options.group
            )
            found = [info async for info in selected(self._source, where)]
            if not found:
                raise SourceError(f"{self._source.where} has no rollout that completed")
            waiting = iter(found)

            async def work() -> None:
                for info in waiting:
                    await self._rescore(annotator, info)

            await asyncio.gather(*(work() for _ in range(self._options.concurrency)))
        self._scorer.close()
        self._end()
        return int(self._failed > 0)

    async def _rescore(self, annotator: Annotator, info: RolloutInfo) -> None:
        """Score one rollout, and annotate it with the scores that it does not have yet."""
        info = await self._source.get(info.rollout_id, info.attempt)
        outcome = info.outcome
        if outcome is None or outcome.status is not OutcomeStatus.COMPLETED:
            return
        history, logged = History(), []
        async for event in self._source.events(info.rollout_id, info.attempt):
            history.add(event)
            if isinstance(event.kind, events.Logged):
                logged.append(event)
        request = history.request
        if request is None:
            return
        given = [event.annotation for event in history.annotated]
        known = {each.id: each.reward for each in given if each.reward is not None}
        scored = Scored(messages=outcome.messages, label=request.label, metadata=request.metadata)
        scores, errors = await self._scorer.score(scored, known)
        notes = {
            function.name: [function.annotation(scores[function.name], self._options.author)]
            for function in self._functions
            if function.name in scores and function.annotation_id not in known
        }
        self._known += sum(function.annotation_id in known for function in self._functions)
        if self._grader is not None:
            regraded = await self._grader.grade(request, outcome, logged, known)
            self._known += regraded.known
            notes[self._grader.name] = list(regraded.added)
            if regraded.score is not None:
                scores[self._grader.name] = regraded.score
            if regraded.error:
                errors[self._grader.name] = regraded.error
        for name, added_notes in notes.items():
            try:
                for note in added_notes:
                    added = await annotator.annotate(info.rollout_id, info.attempt, note)
                    self._added += added
            except SourceError as error:
                del scores[name]
                errors[name] = str(error)
        self._rollouts += 1
        self._failed += len(errors)
        row = self._rows.setdefault(request.group.id if request.group else request.rollout_id, len(self._rows))
        own = outcome.mean_reward
        if own is not None:
            self._rewards.add(row, own, completed=True)
        for name, each in self._scores.items():
            each.add(row, scores.get(name), completed=True)
        self._out.write(
            "rollout", rollout_id=info.rollout_id, attempt=info.attempt, reward=own, scores=scores, errors=errors
        )
        if not all(function.annotation_id in known for function in self._functions):
            self._say(info, own, scores, errors)

    def _say(self, info: RolloutInfo, reward: float | None, scores: dict[str, float], errors: dict[str, str]) -> None:
        if self._options.quiet and not errors:
            return
        own = "no reward" if reward is None else f"reward {reward:g}"
        texts = [f"{name} {score:g}" for name, score in scores.items()]
        self._screen.say("  ".join([info.rollout_id, own, *texts]))
        for name, error in errors.items():
            self._screen.say(f"{info.rollout_id}  {name} has no score: {error.partition(chr(10))[0]}", "bad")

    def _end(self) -> None:
        found = {name: scores.summary() for name, scores in self._scores.items()}
        self._out.write(
            "summary",
            where=self._source.where,
            author=self._options.author,
            rollouts=self._rollouts,
            added=self._added,
            known=self._known,
            failed=self._failed,
            reward=self._rewards.summary().record(),
            eval_fns={name: each.record() for name, each in found.items()},
        )
        rewards = self._rewards.summary()
        own = {"reward of the agent": rewards} if rewards.scored else {}
        for name, each in {**own, **found}.items():
            for line in score_lines(name, replace(each, pass_at_k={}), self._rollouts, self._screen.width):
                self._screen.say(line)
        parts = [counted(self._added, "annotation") + " added", f"{self._known} known already"]
        failed = [counted(self._failed, "score") + " failed"] if self._failed else []
        self._screen.say(", ".join([*parts, *failed]))
