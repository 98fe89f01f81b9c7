"""The Runnable port, which the engine hosts and runs. Each kind of agent has an adapter to this port.

`AgentLoopRunnable` adapts the agent loops of this package; the gateway adapts legacy HTTP agent servers.
"""

import asyncio
import reprlib
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from osmosis_grpc.agent.context import RolloutContext
from osmosis_grpc.agent.loop import RolloutAgentLoop
from osmosis_grpc.agent.results import RolloutResult
from osmosis_grpc.supervise import OnFailure, child, job
from osmosis_grpc.types import Failure, FailureReason, Message, RolloutRequest
from osmosis_grpc.types.completion import clip, describe, is_reward

GET_TOOLS = job("agent.get_tools", OnFailure.RAISE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """The result of one run, or its failure."""

    finish_reason: str = ""
    """Empty means `stop` for a run that succeeded, and `error` for a failure."""
    failure: Failure | None = None
    """None if the run succeeded."""
    messages: Sequence[Message] = ()
    """The final conversation. A failure without messages reports the newest conversation that was sampled."""
    reward: float | None = None
    """The reward of the whole rollout, and of its sample if there is only one. None means that there is no reward."""
    sample_rewards: Mapping[str, float] = field(default_factory=dict)
    """Sample name to reward, for a rollout with several samples."""
    extra_fields: Mapping[str, Any] | None = None
    """More data for the trainer."""


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


def outcome_of(result: Any) -> RunOutcome:
    """Return the outcome for an agent loop's return value. A value that is no valid RolloutResult gives a failure."""
    if result is None:
        return _invalid("run returned None; return ctx.complete(...) or ctx.error(...)")
    if not isinstance(result, RolloutResult):
        return _invalid(f"run returned a {type(result).__name__}, not what ctx.complete or ctx.error returns")
    failure = None
    if result.status == "ERROR":
        message = _text(result.error_message) or "the agent gave up without a reason"
        failure = Failure("agent", clip(message), False, reason=FailureReason.AGENT_ERROR)
        if isinstance(result.error_message, BaseException):
            failure = failure.raised_at(result.error_message)
    elif result.status != "COMPLETED":
        return _invalid(f"the result's status is {reprlib.repr(result.status)}, neither COMPLETED nor ERROR")
    elif result.reward is not None and not is_reward(result.reward):
        return _invalid(f"the reward is {reprlib.repr(result.reward)}, not a finite number")
    return RunOutcome(
        finish_reason=_text(result.finish_reason),
        failure=failure,
        messages=result.final_messages,
        reward=None if failure or result.reward is None else float(result.reward),
        extra_fields=result.extra_fields,
    )


def _invalid(message: str) -> RunOutcome:
    return RunOutcome(failure=Failure("agent", clip(message), False, reason=FailureReason.AGENT_RESULT_INVALID))


def _text(value: Any) -> str:
    """Return a text that can be sent, for any value that an agent gave as a text; empty for None."""
    if value is None:
        return ""
    return clip(describe(value) if isinstance(value, BaseException) else str(value))


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
