"""Runs rollouts in this process on the real engine, without sockets. A policy replaces the trainer."""

import asyncio
import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from pathlib import Path
from typing import Any

import osmosis_grpc.endpoints  # noqa: F401 # serves the base URLs of rollouts
from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.agent.runnable import Runnable
from osmosis_grpc.engine import Engine, EngineConfig, Peer
from osmosis_grpc.engine.recorded_chats import ForkedChats
from osmosis_grpc.policies import Policy
from osmosis_grpc.protocol.types import (
    ChatRequest,
    ChatResponse,
    InitRequest,
    Receipt,
    RolloutOutcome,
    RolloutRequest,
    TrajectoryEvent,
)
from osmosis_grpc.storage import MemoryJournal, SqliteJournal
from osmosis_grpc.storage.journal.schema import BUDGET, KEPT
from osmosis_grpc.supervise import Supervisor

ONE = EngineConfig(max_concurrent=1, stop_again_after=(0.2, 0.5))
"""The limits of a host for one rollout. An agent that ignores its cancellation is soon cancelled again."""


class LocalHost:
    """An engine with one agent, whose chats a policy answers. Use it with `async with`.

    Args:
        agent: An agent loop, or the class of a workflow.
        policy: A sync or an async function. If it is a context manager, it is entered.
        config: The limits of the engine. `record_ttl` applies to a journal on disk, too.
        folder: The folder of the journal; None for a journal in memory.
        sinks: Functions that get each event.
    """

    def __init__(
        self,
        agent: RolloutAgentLoop | Runnable | type,
        policy: Policy,
        config: EngineConfig = ONE,
        *,
        folder: Path | None = None,
        sinks: Sequence[Callable[[TrajectoryEvent], None]] = (),
    ) -> None:
        self.policy = policy
        self.supervisor = Supervisor("the local host")
        self.engine: Engine
        self._agent, self._config, self._folder, self._sinks = agent, config, folder, sinks
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> "LocalHost":
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(entered(self.policy))
            journal: MemoryJournal | SqliteJournal = MemoryJournal()
            if self._folder is not None:
                journal = SqliteJournal(self._folder, record_ttl=KEPT, budget=BUDGET, supervisor=self.supervisor)
                stack.callback(journal.close)
            engine = Engine([self._agent], self._config, journal=journal, sinks=self._sinks, supervisor=self.supervisor)
            self.engine = await stack.enter_async_context(engine)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self._stack.aclose()

    async def run(self, request: RolloutRequest, *, original: ForkedChats | None = None) -> RolloutOutcome:
        """Run one rollout to its end, and return its outcome.

        Args:
            request: The rollout.
            original: The recorded chats of the rollout that it forks from.

        Raises:
            CallError: The rollout is refused, for example because get_tools fails.
        """
        ended: asyncio.Future[RolloutOutcome] = asyncio.get_running_loop().create_future()
        peer = local_peer(self.policy, ended)
        await self.engine.init(InitRequest(request=request), owner="", peer=peer, original=original)
        return await ended


def local_peer(policy: Policy, ended: "asyncio.Future[RolloutOutcome]") -> Peer:
    """Return a trainer in this process, which asks the policy and sets `ended` to the outcome."""

    async def chat(request: ChatRequest, /) -> ChatResponse:
        reply = policy(request)
        return await reply if inspect.isawaitable(reply) else reply

    async def complete(outcome: RolloutOutcome, /) -> Receipt:
        if not ended.done():
            ended.set_result(outcome)
        return Receipt.RECORDED

    return Peer(chat, complete)


def entered(policy: Any) -> AbstractAsyncContextManager[Any]:
    """Return the policy if it is an async context manager, else an empty context."""
    return policy if hasattr(policy, "__aenter__") else nullcontext()
