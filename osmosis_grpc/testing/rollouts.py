"""Runs one rollout in this process, with the real engine and a policy but without sockets."""

import uuid
from collections.abc import Sequence
from typing import Any

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.agent.runnable import Runnable
from osmosis_grpc.policies import Policy
from osmosis_grpc.protocol.types import Message, RolloutOutcome, RolloutRequest, TrajectoryEvent
from osmosis_grpc.records.local_host import LocalHost


async def run_rollout(
    agent_loop: RolloutAgentLoop | Runnable | type, policy: Policy, messages: Sequence[Message] = (), **request: Any
) -> RolloutOutcome:
    """Run one rollout, and return its outcome.

    Args:
        agent_loop: An agent loop, or the class of a workflow.
        policy: A sync or an async function that answers the chats.
        messages: The conversation to start from.
        **request: Further fields of RolloutRequest.

    Raises:
        Internal: get_tools() fails.
    """
    return (await collect_rollout(agent_loop, policy, messages, **request))[0]


async def collect_rollout(
    agent_loop: RolloutAgentLoop | Runnable | type, policy: Policy, messages: Sequence[Message] = (), **request: Any
) -> tuple[RolloutOutcome, list[TrajectoryEvent]]:
    """Run one rollout as run_rollout() does, and return its outcome and its events.

    Args:
        agent_loop: As in run_rollout().
        policy: As in run_rollout().
        messages: As in run_rollout().
        **request: As in run_rollout().
    """
    request.setdefault("rollout_id", f"test-{uuid.uuid4().hex[:8]}")
    seen: list[TrajectoryEvent] = []
    async with LocalHost(agent_loop, policy, sinks=[seen.append]) as host:
        outcome = await host.run(RolloutRequest(messages=list(messages), **request))
    return outcome, seen
