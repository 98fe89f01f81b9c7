"""The Runnable port, which the engine hosts and runs. Each kind of agent has an adapter to this port.

`AgentLoopRunnable` adapts the agent loops of this package; the gateway adapts legacy HTTP agent servers.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, Protocol

from osmosis_grpc.agent.context import RolloutContext
from osmosis_grpc.agent.loop import RolloutAgentLoop
from osmosis_grpc.agent.result_check import RunOutcome, outcome_of
from osmosis_grpc.supervise import OnFailure, child, job
from osmosis_grpc.types import RolloutRequest

GET_TOOLS = job("agent.get_tools", OnFailure.RAISE)


class Runnable(Protocol):
    """Something that runs rollouts. One instance serves all rollouts at once."""

    @property
    def name(self) -> str:
        """The name that trainers use. It is unique on a server."""

    @property
    def lists_tools_without_request(self) -> bool:
        """Whether the server can call tools() without a rollout, to list the tools that tools() usually returns."""

    @property
    def replayable(self) -> bool:
        """Whether run() asks the same chats when it runs again with the same replies."""

    @property
    def source(self) -> object:
        """The object whose class and imports make up the agent's version."""

    def tools(self, request: RolloutRequest) -> Sequence[Any] | Awaitable[Sequence[Any] | None] | None:
        """Return the tools for a rollout, or an awaitable of the tools. Called once, before the rollout is accepted.

        An exception refuses the rollout. None means no tools.
        """

    async def run(self, context: RolloutContext) -> RunOutcome:
        """Run a rollout. After an exception, the status of the rollout is FAILED."""

    def ended(self, rollout_id: str, attempt: int) -> None:
        """Release what tools() reserved for a rollout. Called once after the rollout's end, even if run() was not."""


class AgentLoopRunnable:
    """The adapter for agent loops."""

    def __init__(self, loop: RolloutAgentLoop) -> None:
        self.source = loop
        self.name = loop.name
        self.tools = loop.get_tools
        self.ended = loop.ended
        self.replayable = loop.replayable
        self.lists_tools_without_request = loop.lists_tools_without_request

    async def run(self, context: RolloutContext) -> RunOutcome:
        """Run the agent loop, and check its result."""
        return outcome_of(await self.source.run(context))


def as_runnable(agent: RolloutAgentLoop | Runnable) -> Runnable:
    """Return the agent itself, or the adapter for an agent loop."""
    return AgentLoopRunnable(agent) if isinstance(agent, RolloutAgentLoop) else agent


async def await_tools(tools: Awaitable[Any], seconds: float) -> Any:
    """Return the result of an async get_tools.

    get_tools is the agent's code, so it runs in its own task. Raises the exception of get_tools. Raises TimeoutError
    after `seconds`, and RuntimeError if get_tools cancels its own task.
    """
    task = child(GET_TOOLS, _settled(tools))
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    finally:
        task.cancel()
    if not done:
        raise TimeoutError(f"it took longer than {seconds:g} s")
    if task.cancelled():
        raise RuntimeError("it cancelled itself")
    result, error = task.result()
    if error is not None:
        raise error
    return result


async def _settled(tools: Awaitable[Any]) -> tuple[Any, BaseException | None]:
    """Return the result or the exception. This catches SystemExit, which would end the event loop."""
    try:
        return await tools, None
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        return None, error
