"""Runs an agent over the rows of a dataset, in this process, on a real engine with a journal in the run's folder."""

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.engine import Engine, EngineConfig, Peer
from osmosis_grpc.errors import CallError
from osmosis_grpc.evaluate.dataset import Row
from osmosis_grpc.evaluate.errors import DatasetError
from osmosis_grpc.evaluate.models import entered
from osmosis_grpc.evaluate.price import Price, cost_of
from osmosis_grpc.evaluate.results import REFUSED, RowResult, result_of
from osmosis_grpc.evaluate.run_folder import RunFolder
from osmosis_grpc.policies import Policy
from osmosis_grpc.storage import SqliteJournal
from osmosis_grpc.supervise import DaemonThreads, Supervisor
from osmosis_grpc.types import ChatRequest, ChatResponse, InitRequest, Receipt, RolloutOutcome, RolloutRequest
from osmosis_grpc.types.outcome import describe

_logger = logging.getLogger(__name__)

KEPT = 10 * 365 * 86_400.0
"""The journal of a run keeps its rollouts for this many seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """How the rollouts of a run are made."""

    max_turns: int = 10
    completion_params: Mapping[str, Any] = field(default_factory=dict)
    """The sampling parameters, under OpenAI's names."""
    concurrency: int = 4
    """The most rollouts that run at once."""
    agent_timeout: float | None = 1800.0
    """The most seconds of one rollout."""
    free: bool = False
    """Whether replies cost nothing, because they are recorded."""
    price: Price | None = None
    """The price of tokens, if the user gave it."""
    stalled_after: float = 60.0
    """A rollout that makes no progress for this many seconds is in the log."""
    trainer_grace: float = 120.0
    """While the model server is down or refuses calls for now, a chat is tried again for this many seconds."""


OnResult = Callable[[RowResult, RolloutOutcome | None], None]
"""Called on the event loop with each result. The outcome is None if the rollout was not accepted."""


class Run:
    """One run of an agent loop. `policy` answers the chats."""

    def __init__(self, agent_loop: RolloutAgentLoop, policy: Policy, folder: RunFolder, config: RunConfig) -> None:
        self._agent_loop = agent_loop
        self._policy = policy
        self._folder = folder
        self._config = config
        self._running: Engine | None = None
        self._warned = False

    def cancel(self, rollout_id: str) -> None:
        """End a running rollout as CANCELLED. Call it on the event loop."""
        if self._running is not None:
            self._running.cancel("", rollout_id=rollout_id, reason="cancelled by the user")

    async def run(self, rows: Iterator[Row], on_result: OnResult) -> None:
        """Run a rollout for each row, and write its result into the folder. Raises DatasetError of `rows`.

        After a DatasetError no further row starts. The running rollouts end first.
        """
        threads = DaemonThreads()
        error: DatasetError | None = None
        async with self._engine() as engine:
            self._running = engine

            async def work() -> None:
                nonlocal error
                while error is None:
                    try:
                        row = await threads.run(lambda: next(rows, None))
                    except DatasetError as raised:
                        error = raised
                        return
                    if row is None:
                        return
                    result, outcome = await self._rollout(engine, row)
                    await threads.run(partial(self._folder.add, result.record()))
                    on_result(result, outcome)

            try:
                await asyncio.gather(*(work() for _ in range(self._config.concurrency)))
            finally:
                threads.close()
        if error is not None:
            raise error

    @asynccontextmanager
    async def _engine(self) -> AsyncIterator[Engine]:
        """Open the journal and the engine, and enter the policy."""
        supervisor = Supervisor("the run")
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(entered(self._policy))
            journal = SqliteJournal(self._folder.path, record_ttl=KEPT, supervisor=supervisor)
            stack.callback(journal.close)
            config = EngineConfig(
                max_concurrent=self._config.concurrency,
                agent_timeout=self._config.agent_timeout,
                trainer_grace=self._config.trainer_grace,
                stalled_after=self._config.stalled_after,
                record_ttl=KEPT,
            )
            engine = Engine([self._agent_loop], config, journal=journal, supervisor=supervisor)
            yield await stack.enter_async_context(engine)

    async def _rollout(self, engine: Engine, row: Row) -> tuple[RowResult, RolloutOutcome | None]:
        """Run the rollout of one row to its end."""
        done: asyncio.Future[RolloutOutcome] = asyncio.get_running_loop().create_future()
        costs: list[float] = []

        async def complete(outcome: RolloutOutcome, /) -> Receipt:
            if not done.done():
                done.set_result(outcome)
            return Receipt.RECORDED

        async def chat(request: ChatRequest, /) -> ChatResponse:
            self._check_params(request)
            reply = self._policy(request)
            response = await reply if inspect.isawaitable(reply) else reply
            cost = None if self._config.free else cost_of(response, self._config.price)
            if cost is not None:
                costs.append(cost)
            return response

        request = RolloutRequest(
            rollout_id=self._folder.rollout_id(row.number),
            attempt=row.attempt,
            messages=row.messages,
            completion_params=dict(self._config.completion_params),
            max_turns=self._config.max_turns,
            metadata=row.metadata,
            label=row.label,
        )
        try:
            await engine.init(InitRequest(request=request), owner="", peer=Peer(chat, complete, has_tokens=True))
        except CallError as error:
            refused = RowResult(
                row_index=row.number,
                line=row.line,
                rollout_id=request.rollout_id,
                status=REFUSED,
                error=describe(error),
                reason=error.reason or None,
            )
            return refused, None
        outcome = await done
        return result_of(row.number, row.line, outcome, sum(costs) if costs else None), outcome

    def _check_params(self, request: ChatRequest) -> None:
        """Warn once if the agent does not use the sampling parameters of the run."""
        wanted = self._config.completion_params
        ignored = [name for name, value in wanted.items() if request.params.get(name) != value]
        if ignored and not self._warned:
            self._warned = True
            names = " and ".join(ignored)
            _logger.warning("the agent ignores %s: its chats need **ctx.request.completion_params", names)
