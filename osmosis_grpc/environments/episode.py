"""One episode of an environment: its conversations with the model, and its calls of the library.

A library's calls run on threads, one at a time for an episode, and each has a time limit. A call that does not return
keeps its thread; the episode ends without it. What close_with() has registered is closed once, however often the
rollout is cancelled: after the episode, or by the thread itself if its call returns later.
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
"""At most this many calls of libraries run at once in a process."""
_threads = DaemonThreads(THREADS, replaced=512, name="environments")


class Episode:
    """What the play() of an adapter works with.

    Args:
        context: The rollout.
        seconds: The time limit of each call of the library.
    """

    def __init__(self, context: RolloutContext, seconds: float) -> None:
        self.context = context
        self.turns = 0
        """How often the model was asked."""
        self.conversations: dict[str, list[Message]] = {}
        """The messages so far of each sample."""
        self._seconds = seconds
        self._lock = threading.Lock()
        self._busy = self._ended = False
        self._closers: list[Callable[[], object]] = []
        self._async_closers: list[Callable[[], Awaitable[object]]] = []

    @property
    def max_turns(self) -> int:
        """The most turns that the trainer's request allows."""
        return self.context.request.max_turns

    async def ask(
        self, *said: str | Message, sample: str = "main", tools: Sequence[Any] | None = None
    ) -> CompletionsResult:
        """Add messages to a conversation, and return the model's reply, which is then a part of it.

        Args:
            *said: What the environment says. A text is a message of the user.
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
            function: The function. Its name is in the errors.
            *args: Its arguments.
            **kwargs: Its arguments by name.

        Raises:
            EnvironmentFault: It raised, or took too long. `__cause__` is its exception.
        """
        name = getattr(function, "__qualname__", None) or type(function).__name__
        return await self.wait(_threads.run(lambda: self._on_thread(function, args, kwargs)), name)

    async def wait(self, work: Awaitable[T], name: str) -> T:
        """Await what an async library returns, with the same time limit and the same errors as call().

        Args:
            work: What to await.
            name: What it is, for the errors.
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
        except BaseException as error:  # also SystemExit, which would end the server
            raise EnvironmentFault(f"{name} raised {with_type(error)}") from error

    def close_with(self, closer: Callable[[], object]) -> None:
        """Call a function after the end of the episode, also if it fails or is cancelled.

        Call it where you open what the function closes: in the function that call() runs. If the rollout is cancelled
        meanwhile, the thread closes it.

        Args:
            closer: The function. It is called on a thread, or awaited if it is async. It has the time limit of a call,
                and its errors are only logged as events of the rollout.
        """
        if inspect.iscoroutinefunction(closer):
            self._async_closers.append(closer)
        else:
            self._closers.append(closer)

    async def end(self) -> None:
        """Close what close_with() has registered. A call that still runs closes it when it returns.

        A cancellation takes effect when all is closed.
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
