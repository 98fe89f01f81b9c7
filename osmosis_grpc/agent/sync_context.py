"""The context of an agent whose run() is not async. It has the methods of RolloutContext, and waits in them."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from osmosis_grpc.agent.context import RolloutContext
from osmosis_grpc.agent.loop_calls import LoopCalls
from osmosis_grpc.agent.results import CompletionsResult, RolloutResult
from osmosis_grpc.protocol.types import ChatPurpose, ChatRef, Message, RolloutRequest, ToolDict

T = TypeVar("T")


class SyncRolloutContext:
    """The view of one rollout for code on a thread. After the end of the rollout every method raises RolloutEndedError.

    Several threads of one rollout may call the methods at once.
    """

    def __init__(self, context: RolloutContext) -> None:
        self._context = context
        self._calls = LoopCalls(asyncio.get_running_loop())

    @property
    def request(self) -> RolloutRequest:
        """The trainer's request."""
        return self._context.request

    @property
    def tools(self) -> list[ToolDict]:
        """The tools that get_tools returned, as dicts."""
        return self._context.tools

    @property
    def samples(self) -> tuple[str, ...]:
        """The names of the samples that have begun."""
        return self._call(lambda: self._context.samples)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        sample: str = "main",
        purpose: ChatPurpose = ChatPurpose.POLICY,
        tools: Sequence[Any] | None = None,
        **params: Any,
    ) -> CompletionsResult:
        """Wait for a reply of the model. See RolloutContext.chat."""
        return self._wait(lambda: self._context.chat(messages, sample=sample, purpose=purpose, tools=tools, **params))

    def run_tools(self, reply: Any) -> list[Message]:
        """Run the tool calls of a reply and wait for their messages. See RolloutContext.run_tools."""
        return self._wait(lambda: self._context.run_tools(reply))

    def tool_loop(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        sample: str = "main",
        max_turns: int | None = None,
        **params: Any,
    ) -> list[Message]:
        """Ask the model and run its tools until a reply calls none. See RolloutContext.tool_loop."""
        return self._wait(lambda: self._context.tool_loop(messages, sample=sample, max_turns=max_turns, **params))

    def add_sample(
        self,
        name: str | None = None,
        *,
        policy: str = "",
        parent: ChatRef | tuple[str, int] | None = None,
        train: bool | None = None,
    ) -> str:
        """See RolloutContext.add_sample."""
        return self._call(partial(self._context.add_sample, name, policy=policy, parent=parent, train=train))

    def set_reward(self, value: float, *, sample: str = "main", chat: int = 0, name: str = "") -> None:
        """See RolloutContext.set_reward."""
        self._call(partial(self._context.set_reward, value, sample=sample, chat=chat, name=name))

    def complete(
        self,
        final_messages: Sequence[Message] | None = None,
        finish_reason: str = "stop",
        reward: float | None = None,
        extra_fields: Mapping[str, Any] | None = None,
    ) -> RolloutResult:
        """See RolloutContext.complete."""
        return self._call(partial(self._context.complete, final_messages, finish_reason, reward, extra_fields))

    def error(self, error_message: str, final_messages: Sequence[Message] | None = None) -> RolloutResult:
        """See RolloutContext.error."""
        return self._call(partial(self._context.error, error_message, final_messages))

    def record_tool_call(self, latency_ms: float = 0.0) -> None:
        """See RolloutContext.record_tool_call."""
        self._call(partial(self._context.record_tool_call, latency_ms))

    def log_event(self, event_name: str, /, **data: Any) -> None:
        """See RolloutContext.log_event."""
        self._call(lambda: self._context.log_event(event_name, **data))

    def wait(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Call an async function on the server's event loop, and wait for its result.

        Raises TypeError if `work` returns no coroutine.
        """
        return self._wait(work)

    def close(self) -> None:
        """End every wait with RolloutEndedError. Called on the event loop after the end of the run."""
        self._calls.close()

    def _call(self, function: Callable[[], T]) -> T:
        self._check_thread()
        return self._calls.call(function)

    def _wait(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        self._check_thread()
        return self._calls.wait(work)

    def _check_thread(self) -> None:
        if self._calls.here:
            raise RuntimeError("a sync agent's ctx was used on the event loop; in async code use `async def run`")
