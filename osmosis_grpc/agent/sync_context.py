"""The context of an agent whose run() is not async. It has the methods of RolloutContext, and waits in them."""

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from osmosis_grpc.agent.context import RolloutContext
from osmosis_grpc.agent.results import CompletionsResult, RolloutResult
from osmosis_grpc.errors import RolloutEndedError
from osmosis_grpc.supervise import OnFailure, child, job
from osmosis_grpc.types import ChatPurpose, ChatRef, Message, RolloutRequest, ToolDict

CALL = job("agent.sync_call", OnFailure.RAISE)

T = TypeVar("T")


class SyncRolloutContext:
    """The view of one rollout for code on a thread. After the end of the rollout every method raises RolloutEndedError.

    Several threads of one rollout may call the methods at once.
    """

    def __init__(self, context: RolloutContext) -> None:
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._variables = contextvars.copy_context()
        self._tasks: set[asyncio.Task[Any]] = set()
        """The calls for which a thread waits. Only the event loop changes the set."""
        self._closed = False

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
        self._closed = True
        for task in self._tasks:
            task.cancel()

    def _call(self, function: Callable[[], T]) -> T:
        """Call a function on the event loop, and return its result."""

        async def call() -> T:
            return function()

        return self._wait(call)

    def _wait(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on the event loop, and wait on this thread for its result."""
        if _on(self._loop):
            raise RuntimeError("a sync agent's ctx was used on the event loop; in async code use `async def run`")
        future: Future[T] = Future()
        try:
            self._loop.call_soon_threadsafe(self._begin, work, future)
        except RuntimeError:  # the event loop is closed
            raise RolloutEndedError("the server has stopped") from None
        return future.result()

    def _begin(self, work: Callable[[], Coroutine[Any, Any, T]], future: "Future[T]") -> None:
        if self._closed:
            future.set_exception(RolloutEndedError("the rollout has ended"))
            return
        try:
            task = child(CALL, work(), context=self._variables.copy())
        except BaseException as error:  # `work` raised, or returned no coroutine; the thread would wait for ever
            future.set_exception(error)
            return
        self._tasks.add(task)
        task.add_done_callback(partial(self._done, future))

    def _done(self, future: "Future[T]", task: "asyncio.Task[T]") -> None:
        """Give the result of a task to the thread that waits for it."""
        self._tasks.discard(task)
        if task.cancelled():
            future.set_exception(RolloutEndedError("the rollout has ended"))
        elif (error := task.exception()) is not None:
            future.set_exception(error)
        else:
            future.set_result(task.result())


def _on(loop: asyncio.AbstractEventLoop) -> bool:
    """Returns whether this code runs on the thread of the event loop."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False
