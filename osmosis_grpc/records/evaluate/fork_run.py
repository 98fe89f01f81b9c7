"""Runs one fork of a recorded rollout in this process, with a journal in a run's folder."""

import asyncio
import inspect
from contextlib import AsyncExitStack
from pathlib import Path

import osmosis_grpc.endpoints  # noqa: F401 # serves the base URLs of rollouts
from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.agent.runnable import Runnable
from osmosis_grpc.engine import Engine, EngineConfig, Peer
from osmosis_grpc.engine.recorded_chats import ForkedChats
from osmosis_grpc.policies import Policy
from osmosis_grpc.protocol.types import ChatRequest, ChatResponse, InitRequest, Receipt, RolloutOutcome, RolloutRequest
from osmosis_grpc.records.evaluate.models import entered
from osmosis_grpc.storage import SqliteJournal
from osmosis_grpc.storage.keep_all import BUDGET, KEPT
from osmosis_grpc.supervise import Supervisor


async def run_fork(
    agent_loop: RolloutAgentLoop | Runnable,
    policy: Policy,
    folder: Path,
    request: RolloutRequest,
    chats: ForkedChats,
    timeout: float,
) -> RolloutOutcome:
    """Run a fork and return its outcome. `chats` are the recorded chats of its original.

    The fork ends after `timeout` seconds at most. Raises the CallError of a refusal, such as that of a get_tools that
    raises, and JournalError if the folder cannot be written.
    """
    supervisor = Supervisor("the fork")
    ended: asyncio.Future[RolloutOutcome] = asyncio.get_running_loop().create_future()

    async def complete(outcome: RolloutOutcome, /) -> Receipt:
        if not ended.done():
            ended.set_result(outcome)
        return Receipt.RECORDED

    async def chat(asked: ChatRequest, /) -> ChatResponse:
        reply = policy(asked)
        return await reply if inspect.isawaitable(reply) else reply

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(entered(policy))
        journal = SqliteJournal(folder, record_ttl=KEPT, budget=BUDGET, supervisor=supervisor)
        stack.callback(journal.close)
        config = EngineConfig(max_concurrent=1, agent_timeout=timeout, record_ttl=KEPT)
        engine = Engine([agent_loop], config, journal=journal, supervisor=supervisor)
        await stack.enter_async_context(engine)
        await engine.init(InitRequest(request=request), owner="", peer=Peer(chat, complete), original=chats)
        return await ended
