"""One episode of an environment: its conversations with the model, and its calls to the library.

Calls to the library run on threads, one at a time for an episode, and each has a time limit. A call that does not
return keeps its thread, and the episode ends without it. Functions registered with close_with() run once, even if the
rollout is cancelled several times: after the episode, or on the thread of a call that returns later.
"""

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from osmosis_grpc.agent.context import RolloutContext
from osmosis_grpc.agent.results import CompletionsResult
from osmosis_grpc.environments.port import EnvironmentFault
from osmosis_grpc.protocol.types import Message
from osmosis_grpc.protocol.types.outcome import with_type
from osmosis_grpc.supervise import DaemonThreads
from osmosis_grpc.tools.uninterrupted import uninterrupted

T = TypeVar("T")
THREADS = 64
"""At most this many calls to libraries run at once in a process."""
_threads = DaemonThreads(THREADS, replaced=512, name="environments")


class Episode:
    """One episode, as an adapter's play() gets it.

    Args:
        context: The rollout.
        seconds: The time limit of each call to the library. 0 means no limit.
    """

    def __init__(self, context: RolloutContext, seconds: float) -> None:
        self.context = context
        self.turns = 0
        """The number of chats so far."""
        self.conversations: dict[str, list[Message]] = {}
        """The messages of each sample so far, by the sample's name."""
        self._seconds = seconds
        self._lock = threading.Lock()
        self._busy = self._ended = False
        self._closers: list[Callable[[], object]] = []
        self._async_closers: list[Callable[[], Awaitable[object]]] = []

    @property
    def max_turns(self) -> int:
        """The largest number of turns that the trainer's request allows."""
        return self.context.request.max_turns

    async def ask(
        self, *said: str | Message, sample: str = "main", tools: Sequence[Any] | None = None
    ) -> CompletionsResult:
        """Add messages to a conversation, ask the model, add its reply, and return the reply.

        Args:
            *said: The messages of the environment. A string becomes a user message.
            sample: The conversation. Each begins with the messages of the request.
            tools: The tools of this chat, in OpenAI's format.

        Raises:
            EnvironmentFault: The episode would have more turns than the request allows.
            CallError: The model cannot answer.
        """
        if self.turns >= self.max_turns:
            raise EnvironmentFault(f"it had not ended after {self.turns} turns, the most that max_turns allows")
        conversation = self.conversations.get(sample)
        if conversation is None:
            conversation = self.conversations[sample] = list(self.context.request.messages)
            if sample != "main":
                self.context.add_sample(sample)
        conversation += [{"role": "user", "content": each} if isinstance(each, str) else dict(each) for each in said]
        self.turns += 1
        more: dict[str, Any] = {} if tools is None else {"tools": tools}
        params: Mapping[str, Any] = self.context.request.completion_params
        reply = await self.context.chat(conversation, sample=sample, **more, **params)
        conversation.append(reply.message)
        return reply

    async def call(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """Call a function of the library on a thread, and return its result.

        Args:
            function: The function. Errors contain its name.
            *args: Its positional arguments.
            **kwargs: Its keyword arguments.

        Raises:
            EnvironmentFault: The function raised, or took too long. `__cause__` is the exception that it raised.
        """
        name = getattr(function, "__qualname__", None) or type(function).__name__
        return await self.wait(_threads.run(lambda: self._on_thread(function, args, kwargs)), name)

    async def wait(self, work: Awaitable[T], name: str) -> T:
        """Await an awaitable of an async library, with the same time limit and the same errors as call().

        Args:
            work: The awaitable.
            name: Its name in errors.
        """
        try:
            async with asyncio.timeout(self._seconds or None) as limit:
                return await work
        except TimeoutError as error:
            if not limit.expired():
                raise EnvironmentFault(f"{name} raised {with_type(error)}") from error
            raise EnvironmentFault(f"{name} did not return within {self._seconds:g} s") from None
        except (asyncio.CancelledError, EnvironmentFault):
            raise
        except BaseException as error:  # includes SystemExit, which would end the server
            raise EnvironmentFault(f"{name} raised {with_type(error)}") from error

    def close_with(self, closer: Callable[[], object]) -> None:
        """Register a function to run after the episode, even if the episode fails or is cancelled.

        Register it where you open the resource: in the function that call() runs. If the rollout is cancelled before
        that function returns, its thread runs the closer.

        Args:
            closer: The function. It is called on a thread, or awaited if it is async. It has the time limit of a call,
                and its errors are only logged as events of the rollout.
        """
        if inspect.iscoroutinefunction(closer):
            self._async_closers.append(closer)
        else:
            self._closers.append(closer)

    async def end(self) -> None:
        """Run the functions registered with close_with(). If a call still runs, its thread runs them when it returns.

        A cancellation takes effect after they have run.
        """
        with self._lock:
            self._ended = True
            late = self._busy
        if self._async_closers or (self._closers and not late):
            await uninterrupted(self._closed(late))

    async def _closed(self, late: bool) -> None:
        closes = [self._close_async] if late else [self._close_async, lambda: _threads.run(self._close)]
        for close in closes:
            try:
                await self.wait(close(), "closing it")
            except EnvironmentFault as fault:
                self._not_closed(fault)

    async def _close_async(self) -> None:
        while self._async_closers:
            try:
                await self._async_closers.pop()()
            except Exception as error:
                self._not_closed(error)

    def _on_thread(self, function: Callable[..., T], args: Any, kwargs: Any) -> T:
        with self._lock:
            if self._ended:  # cancelled while every thread was busy; end() has closed the environment
                raise EnvironmentFault("the episode has ended")
            self._busy = True
        try:
            return function(*args, **kwargs)
        finally:
            with self._lock:
                self._busy = False
                late = self._ended
            if late:
                self._close()

    def _close(self) -> None:
        while self._closers:
            try:
                self._closers.pop()()
            except Exception as error:
                self._not_closed(error)

    def _not_closed(self, error: Exception) -> None:
        self.context.log_event("environment not closed", error=with_type(error))
