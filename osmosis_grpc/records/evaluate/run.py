"""Runs an agent over the rows of a dataset, in this process. The real engine keeps its journal in the run's folder."""

import asyncio
import contextlib
import inspect
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.agent.runnable import Runnable
from osmosis_grpc.engine import Engine, EngineConfig, Peer
from osmosis_grpc.engine.record import Record
from osmosis_grpc.policies import Policy
from osmosis_grpc.protocol.errors import AlreadyExists, CallError, ResourceExhausted
from osmosis_grpc.protocol.types import (
    ChatRequest,
    ChatResponse,
    FailureReason,
    Group,
    InitRequest,
    JournaledRollout,
    RolloutOutcome,
    RolloutRequest,
    TrajectoryEvent,
    events,
)
from osmosis_grpc.protocol.types.outcome import describe
from osmosis_grpc.records.evaluate.dataset import Row
from osmosis_grpc.records.evaluate.eval_functions import OWN_REWARD, Scored, Scorer
from osmosis_grpc.records.evaluate.results import REFUSED, Price, RowResult, asked, cost_of, result_of
from osmosis_grpc.records.evaluate.run_folder import RunFolder
from osmosis_grpc.records.local_host import LocalHost, local_peer
from osmosis_grpc.storage.journal.schema import KEPT
from osmosis_grpc.supervise import DaemonThreads

_logger = logging.getLogger(__name__)

QUEUED = 1_000_000
"""The most queued rollouts. It is high, because a crashed run may have left many unfinished rollouts."""
FULL_RETRY = 0.2
"""How many seconds to wait before trying again to start a rollout while the running ones fill the memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """How the rollouts of a run are made."""

    max_turns: int = 10
    completion_params: Mapping[str, Any] = field(default_factory=dict)
    """The sampling parameters, under OpenAI's names."""
    pin_completion_params: bool = False
    """Whether these parameters override those that the agent passes."""
    concurrency: int = 4
    """How many rollouts run at once."""
    agent_timeout: float | None = 1800.0
    """How many seconds one rollout may take."""
    free: bool = False
    """Whether replies cost nothing, because they were recorded in an earlier run."""
    price: Price | None = None
    """The price of tokens, if the user has set it."""
    stalled_after: float = 60.0
    """After how many seconds without progress a rollout is logged as stalled."""
    trainer_grace: float = 120.0
    """For how many seconds a chat is retried while the model server is down or refuses calls."""
    evaluation: bool = False
    """Whether the rollouts are marked as evaluation, not training."""


OnResult = Callable[[RowResult, RolloutOutcome | None], None]
"""Called on the event loop with each result. The outcome is None if the rollout was not accepted."""


STOPPED = frozenset(
    {FailureReason.SHUTDOWN, FailureReason.RESTART, FailureReason.REPLAY_DIVERGED, FailureReason.DATA_LOSS}
)
"""Failures caused by the end of an earlier process. The rows of such rollouts run again, as a higher attempt."""
EVAL = "eval"
"""The author of the annotations with scores."""


@dataclass(slots=True)
class _Waiting:
    """A rollout whose outcome the run is waiting for."""

    done: "asyncio.Future[RolloutOutcome]"
    costs: list[float] = field(default_factory=list)


class Run:
    """One run of an agent loop. `policy` answers the chats, and `scorer` scores the rollouts that completed.

    If the folder already has a journal, the run continues it. Rows with an outcome do not run again, because their Init
    is equal to the recorded one. A rollout that an earlier process left unfinished continues with its recorded replies
    if its agent is replayable; otherwise its row runs again, as a higher attempt.
    """

    def __init__(
        self,
        agent_loop: RolloutAgentLoop | Runnable,
        policy: Policy,
        folder: RunFolder,
        config: RunConfig,
        scorer: Scorer | None = None,
    ) -> None:
        self._policy = policy
        self._folder = folder
        self._config = config
        self._scorer = scorer
        self._host = LocalHost(agent_loop, policy, _limits(config), folder=folder.path, sinks=[self._count_tool_error])
        self._tool_errors: Counter[tuple[str, int]] = Counter()
        """The failed tool calls of the running rollouts, by rollout id and attempt."""
        self._active = 0
        """The number of rollouts that are being accepted or have not ended."""
        self._waiting: dict[tuple[str, int], _Waiting] = {}
        self._warned = False

    def cancel(self, rollout_id: str) -> None:
        """End a running rollout as CANCELLED. Call it on the event loop."""
        self._host.engine.cancel("", rollout_id=rollout_id, reason="cancelled by the user")

    async def run(self, rows: Iterator[Row], on_result: OnResult) -> None:
        """Run a rollout for each row, and write its result into the folder.

        Raises the DatasetError of `rows`, CallError if the journal cannot be written, and OSError if the results cannot
        be written. After an error, no further row starts, and the running rollouts are finished first.
        """
        threads = DaemonThreads()
        error: Exception | None = None
        async with self._host:
            engine = self._host.engine
            engine.recovery.recover(lambda entry: self._peer_of(engine, entry))

            async def work() -> None:
                nonlocal error
                try:
                    while error is None:
                        row = await threads.run(lambda: next(rows, None))
                        if row is None:
                            return
                        result, outcome = await self._rollout(engine, row)
                        await threads.run(partial(self._folder.add, result.record()))
                        on_result(result, outcome)
                except Exception as raised:
                    error = error or raised

            try:
                await asyncio.gather(*(work() for _ in range(self._config.concurrency)))
            finally:
                threads.close()
                if self._scorer is not None:
                    self._scorer.close()
        if error is not None:
            raise error

    async def _rollout(self, engine: Engine, row: Row) -> tuple[RowResult, RolloutOutcome | None]:
        """Run the rollout of one row to its end, and score it."""
        rollout_id = self._folder.rollout_id(row.key)
        known = [entry.init.request.attempt for entry in engine.journal.find(rollout_id)]
        attempt = max(row.attempt, *known) if known else row.attempt
        costs: list[float] = []
        try:
            outcome = await self._outcome(engine, row, attempt, costs)
            if attempt in known and outcome.failure is not None and outcome.failure.reason in STOPPED:
                outcome = await self._outcome(engine, row, attempt + 1, costs)
        except CallError as error:
            if engine.journal.problem or self._host.supervisor.failure is not None:  # not the fault of this row
                raise
            refused = RowResult(
                row_index=row.number,
                line=row.line,
                rollout_id=rollout_id,
                status=REFUSED,
                error=describe(error),
                reason=error.reason or None,
                attempt=attempt,
                run_index=row.run_index,
                **asked(row),
                scores=None if self._scorer is None else {},
                score_errors=None if self._scorer is None else {},
            )
            return refused, None
        tool_errors = self._tool_errors.pop((outcome.rollout_id, outcome.attempt), 0)
        result = result_of(row, outcome, sum(costs) if costs else None, tool_errors)
        return await self._score(engine, row, result, outcome), outcome

    async def _outcome(self, engine: Engine, row: Row, attempt: int, costs: list[float]) -> RolloutOutcome:
        """Return the outcome of an attempt, and add the costs of its replies to `costs`. Raises CallError."""
        request = RolloutRequest(
            rollout_id=self._folder.rollout_id(row.key),
            attempt=attempt,
            messages=row.messages,
            completion_params=dict(self._config.completion_params),
            pin_completion_params=self._config.pin_completion_params,
            max_turns=self._config.max_turns,
            metadata=row.metadata,
            label=row.label,
            group=Group(self._folder.rollout_id(row.number), row.run_index, row.runs) if row.runs > 1 else None,
            evaluation=self._config.evaluation,
        )
        key = request.rollout_id, attempt
        waiting = self._waiting.get(key) or _Waiting(asyncio.get_running_loop().create_future())
        try:
            record = await self._init(engine, request, self._peer(waiting))
            try:
                if not record.delivery.settled or waiting.done.done():
                    return await waiting.done
            finally:
                self._active -= 1
            # An earlier process got the outcome, but stopped before it wrote the result.
            self._read_earlier(engine, key, waiting)
            outcome = (await engine.rollouts.info(record)).outcome
            assert outcome is not None
            return outcome
        finally:
            self._waiting.pop(key, None)
            costs += waiting.costs

    async def _init(self, engine: Engine, request: RolloutRequest, peer: Peer) -> Record:
        """Start a rollout, and count it as active. Wait while other rollouts fill the memory. Raises CallError."""
        while True:
            self._active += 1
            try:
                record, _ = await engine.init(InitRequest(request=request), owner="", peer=peer)
            except BaseException as error:
                self._active -= 1
                if not isinstance(error, ResourceExhausted) or not self._active:
                    raise
            else:
                return record
            await asyncio.sleep(FULL_RETRY)

    def _peer_of(self, engine: Engine, entry: JournaledRollout) -> Peer:
        """Return the peer of a rollout that an earlier process left unfinished."""
        request = entry.init.request
        waiting = _Waiting(asyncio.get_running_loop().create_future())
        key = request.rollout_id, request.attempt
        self._read_earlier(engine, key, waiting)
        self._waiting[key] = waiting
        return self._peer(waiting)

    def _peer(self, waiting: _Waiting) -> Peer:
        async def chat(request: ChatRequest, /) -> ChatResponse:
            self._check_params(request)
            reply = self._policy(request)
            response = await reply if inspect.isawaitable(reply) else reply
            waiting.costs += self._cost(response)
            return response

        return local_peer(chat, waiting.done)

    def _check_params(self, request: ChatRequest) -> None:
        """Warn once if the agent ignores the sampling parameters of the run."""
        wanted = self._config.completion_params
        ignored = [name for name, value in wanted.items() if request.params.get(name) != value]
        if ignored and not self._warned:
            self._warned = True
            names = " and ".join(ignored)
            _logger.warning(
                "the agent ignores %s: pass **ctx.request.completion_params to its chats, or run with --pin-sampling",
                names,
            )

    def _cost(self, response: ChatResponse) -> list[float]:
        cost = None if self._config.free else cost_of(response, self._config.price)
        return [] if cost is None else [cost]

    def _read_earlier(self, engine: Engine, key: tuple[str, int], waiting: _Waiting) -> None:
        """Count the costs and the failed tool calls that a rollout has from an earlier process."""
        for event in engine.log.trajectory(*key):
            self._count_tool_error(event)
            if isinstance(event.kind, events.ChatAnswered) and not (event.kind.recorded_event or event.kind.forked):
                waiting.costs += self._cost(event.kind.response)

    def _count_tool_error(self, event: TrajectoryEvent) -> None:
        if isinstance(event.kind, events.ToolReturned) and event.kind.error:
            self._tool_errors[event.rollout_id, event.attempt] += 1

    async def _score(self, engine: Engine, row: Row, result: RowResult, outcome: RolloutOutcome) -> RowResult:
        """Add the scores of the eval functions to a result. Without eval functions, the score is the reward.

        Each score, and each failure to score, becomes an annotation of the rollout. Scores that are in the journal are
        not computed again. A rollout that did not complete gets no scores.
        """
        if self._scorer is None:
            return result
        if not result.completed:
            return replace(result, scores={}, score_errors={})
        if not self._scorer.functions:
            return _own_score(result)
        key = result.rollout_id, result.attempt
        known = scores_in(engine.journal.annotations(*key))
        scored = Scored(messages=outcome.messages, label=row.label, metadata=row.metadata)
        scores, errors = await self._scorer.score(scored, known)
        for function in self._scorer.functions:
            if function.name in errors:
                note = function.failed_annotation(errors[function.name], EVAL)
            elif function.annotation_id not in known:
                note = function.annotation(scores[function.name], EVAL)
            else:
                continue
            with contextlib.suppress(AlreadyExists):  # an earlier try has already stored a different score
                await engine.annotations.add("", *key, note)
        return replace(result, scores=scores, score_errors=errors)


def _limits(config: RunConfig) -> EngineConfig:
    return EngineConfig(
        max_concurrent=config.concurrency,
        max_queued=QUEUED,
        agent_timeout=config.agent_timeout,
        trainer_grace=config.trainer_grace,
        stalled_after=config.stalled_after,
        record_ttl=KEPT,
    )


def _own_score(result: RowResult) -> RowResult:
    if result.reward is None:
        return replace(result, scores={}, score_errors={OWN_REWARD: "the rollout has no reward"})
    return replace(result, scores={OWN_REWARD: result.reward}, score_errors={})


def scores_in(annotated: Iterable[TrajectoryEvent]) -> dict[str, float]:
    """Return the rewards in annotations, by annotation id."""
    kinds = (event.kind for event in annotated)
    given = [kind.annotation for kind in kinds if isinstance(kind, events.Annotated)]
    return {each.id: each.reward for each in given if each.reward is not None}
