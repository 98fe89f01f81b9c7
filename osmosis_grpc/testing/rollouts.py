"""Runs one rollout in this process with the real engine and a policy, without sockets."""

import asyncio
import inspect
import uuid
from collections.abc import Sequence
from typing import Any

import osmosis_grpc.endpoints  # noqa: F401 # serves the base URLs of rollouts
from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.agent.runnable import Runnable
from osmosis_grpc.engine import Engine, EngineConfig, Peer
from osmosis_grpc.policies import Policy
from osmosis_grpc.protocol.types import (
    ChatRequest,
    ChatResponse,
    InitRequest,
    Message,
    Receipt,
    RolloutOutcome,
    RolloutRequest,
    TrajectoryEvent,
)
from osmosis_grpc.storage import MemoryJournal


async def run_rollout(
    agent_loop: RolloutAgentLoop | Runnable | type, policy: Policy, messages: Sequence[Message] = (), **request: Any
) -> RolloutOutcome:
    """Runs one rollout and returns its outcome. `agent_loop` can be the class of a workflow, too.

    `policy` can be a sync or an async function.

    `request` has further fields of RolloutRequest. Raises Internal if get_tools() fails.
    """
    return (await collect_rollout(agent_loop, policy, messages, **request))[0]


async def collect_rollout(
    agent_loop: RolloutAgentLoop | Runnable | type, policy: Policy, messages: Sequence[Message] = (), **request: Any
) -> tuple[RolloutOutcome, list[TrajectoryEvent]]:
    """Runs one rollout as run_rollout() does, and returns its outcome and its events."""
    request.setdefault("rollout_id", f"test-{uuid.uuid4().hex[:8]}")
    done: asyncio.Future[RolloutOutcome] = asyncio.get_running_loop().create_future()
    seen: list[TrajectoryEvent] = []

    async def sink(outcome: RolloutOutcome, /) -> Receipt:
        if not done.done():
            done.set_result(outcome)
        return Receipt.RECORDED

    async def chat(chat_request: ChatRequest, /) -> ChatResponse:
        reply = policy(chat_request)
        return await reply if inspect.isawaitable(reply) else reply

    config = EngineConfig(max_concurrent=1, stop_again_after=(0.2, 0.5))
    async with Engine([agent_loop], config, sinks=[seen.append], journal=MemoryJournal()) as engine:
        init = InitRequest(request=RolloutRequest(messages=list(messages), **request))
        await engine.init(init, owner="", peer=Peer(chat, sink))
        outcome = await done
    return outcome, seen
