"""The chats that requests wait for. A chat goes on after a disconnect, and a retry of its client gets the reply."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

from osmosis_grpc.agent import CompletionsResult
from osmosis_grpc.errors import RolloutEndedError
from osmosis_grpc.supervise import OnFailure, call_later, child, job

ASK = job("gateway.ask_chat", OnFailure.RAISE)
DISCONNECT = job("gateway.await_disconnect", OnFailure.RAISE)
DROP = job("gateway.drop_chat", OnFailure.REPORT, "timer")

MAX_LEFT = 256
"""The most chats of a rollout whose clients have disconnected."""

Receive = Callable[[], Awaitable[Any]]
"""Returns the next ASGI message of a request. Its body has been read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """How long requests wait, in seconds."""

    headers: float = 10.0
    """A stream begins after this time if there is no reply yet. An earlier error has its own status."""
    ping: float = 10.0
    """A stream without a reply sends a comment this often."""
    retry: float = 15.0
    """A chat whose client has disconnected goes on for this long. The same request then gets its reply."""


class ClientGone(Exception):
    """The client of a request has disconnected."""


class OpenChat:
    """A chat that a request waits for."""

    def __init__(self, task: "asyncio.Task[CompletionsResult]", digest: bytes) -> None:
        self.task = task
        self.digest = digest
        """That of the request."""

    async def ended(self, seconds: float | None = None) -> bool:
        """Wait for the end of the chat. Return whether it has ended within the time."""
        return bool((await asyncio.wait({self.task}, timeout=seconds))[0])

    async def ended_or_gone(self, seconds: float | None, receive: Receive) -> bool:
        """Do the same. Raises ClientGone if the client disconnects before the end."""
        gone = child(DISCONNECT, _disconnected(receive))
        try:
            await asyncio.wait({self.task, gone}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if gone.done() and not self.task.done():
                gone.result()
                raise ClientGone
        finally:
            gone.cancel()
            await asyncio.wait({gone})  # a response may call receive() only when this call has ended
        return self.task.done()

    def result(self) -> CompletionsResult:
        """Return the reply of a chat that has ended. Raises CallError and RolloutEndedError."""
        if self.task.cancelled():
            raise RolloutEndedError("the rollout has ended")
        return self.task.result()


class OpenChats:
    """The open chats of one rollout."""

    def __init__(self, waits: Waits) -> None:
        self._waits = waits
        self._open: set[OpenChat] = set()
        self._left: dict[bytes, tuple[OpenChat, asyncio.TimerHandle]] = {}
        """The chats without a client, by the digests of their requests, the oldest first."""

    def begin(self, digest: bytes, work: Callable[[], Coroutine[Any, Any, CompletionsResult]]) -> OpenChat:
        """Return the chat of a request: one whose client has left it, otherwise a new one that does `work`."""
        if digest in self._left:
            chat, timer = self._left.pop(digest)
            timer.cancel()
            return chat
        chat = OpenChat(child(ASK, work()), digest)
        self._open.add(chat)
        chat.task.add_done_callback(partial(self._ended, chat))
        return chat

    def leave(self, chat: OpenChat) -> None:
        """Keep a chat whose client has disconnected. Without a retry, it is cancelled."""
        self._drop(chat.digest)  # the same request of another client
        self._left[chat.digest] = chat, call_later(DROP, self._waits.retry, self._drop, chat.digest)
        if len(self._left) > MAX_LEFT:
            self._drop(next(iter(self._left)))

    def close(self) -> None:
        """Cancel every chat."""
        for digest in list(self._left):
            self._drop(digest)
        for chat in self._open:
            chat.task.cancel()

    def _drop(self, digest: bytes) -> None:
        if digest in self._left:
            chat, timer = self._left.pop(digest)
            timer.cancel()
            chat.task.cancel()

    def _ended(self, chat: OpenChat, task: "asyncio.Task[CompletionsResult]") -> None:
        self._open.discard(chat)
        if not task.cancelled():
            task.exception()  # asyncio logs an error that nobody has read, for example of a chat without a client


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
