"""Connects requests to chats, so that a client that retries a request does not sample a second reply.

A client that gives up and asks again gets the reply to its first request. The order in which the server notices the
disconnect, the second request and the reply does not matter. Two equal requests become separate chats only if both
clients stay connected. If a reply arrives while no client waits for it, it is held back. It becomes part of the rollout
if a retry asks for it, and is dropped otherwise.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from osmosis_grpc.agent import CompletionsResult
from osmosis_grpc.network.channel_options import agent_connections
from osmosis_grpc.network.http.connections import Connection
from osmosis_grpc.protocol.errors import RolloutEndedError
from osmosis_grpc.supervise import OnFailure, call_later, child, job

ASK = job("gateway.ask_chat", OnFailure.RAISE)
DROP = job("gateway.drop_chat", OnFailure.REPORT, "timer")

_numbers = itertools.count()

MAX_LEFT = 256
"""How many chats of a rollout are kept for clients that have disconnected."""

Wanted = Callable[[], Awaitable[Any]]
"""An async function that returns as soon as a client waits for the reply."""
Replies = Sequence[CompletionsResult]
"""The replies to one request. There is nearly always one."""
Work = Callable[[Wanted], Coroutine[Any, Any, Replies]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """How long requests wait, in seconds."""

    headers: float = 10.0
    """How long a stream waits for the reply before it sends its headers. An error before that sets the status."""
    ping: float = 10.0
    """The time between the comments of a stream that waits for its reply."""
    retry: float = 15.0
    """How long a chat continues after its client has disconnected. A retry within this time gets its reply."""
    most: int = field(default_factory=lambda: agent_connections() // 2)
    """How many requests of one rollout may wait at once. It is limited because all rollouts share the connections."""


class ClientGone(Exception):
    """The client of a request has disconnected."""


class _Chat:
    """A chat, and the requests that wait for its reply."""

    def __init__(self, digest: bytes, work: Work) -> None:
        self.digest = digest
        self.number = next(_numbers)
        self.wanted = asyncio.Event()
        self.requests: list[OpenRequest] = []
        """The requests whose clients are still connected."""
        self.read = False
        """Whether a client has read the reply."""
        self.streamed_to = -1
        """The number of the newest request to which the reply was streamed."""
        self.task = child(ASK, work(self.wanted.wait))

    def place(self) -> tuple[bool, int]:
        """Return a sort key for equal chats without a client. A retry takes the first of them."""
        return not self.answered, self.number

    @property
    def answered(self) -> bool:
        """Whether the reply is part of the rollout."""
        return self.task.done() and not self.task.cancelled() and self.task.exception() is None


class OpenRequest:
    """A request that waits for the reply of a chat. Make it with OpenChats.begin()."""

    def __init__(self, chat: _Chat, connection: Connection | None, retried: bool) -> None:
        self.chat = chat
        self.connection = connection
        self.retried = retried
        """Whether the client says that this is a retry."""
        self.sent = False
        self.gone = False
        self.number = next(_numbers)
        self.reply: asyncio.Future[Replies] = asyncio.get_running_loop().create_future()

    async def ended(self, seconds: float | None = None) -> bool:
        """Wait until the chat has ended or the client is gone. Return False if that takes longer than `seconds`."""
        return bool((await asyncio.wait({self.reply}, timeout=seconds))[0])

    def send(self, *, stream: bool) -> None:
        """Record that the response begins. From then on, the client may read it; see may_be_read()."""
        self.sent = True
        if stream:
            self.chat.streamed_to = self.number

    def result(self) -> Replies:
        """Return the replies of a chat that has ended. Raises CallError, RolloutEndedError and ClientGone."""
        if self.gone:
            raise ClientGone
        if self.reply.cancelled():
            raise RolloutEndedError("the rollout has ended")
        return self.reply.result()

    def repeats(self, other: "OpenRequest") -> bool:
        """Return whether this is a newer request, equal to `other`, that waits for a different chat."""
        mine, its = self.chat, other.chat
        return self.number > other.number and mine.digest == its.digest and mine is not its and not mine.task.done()

    def may_be_read(self) -> bool:
        """Return whether it is possible that the client has received the response."""
        return self.sent and not (self.connection is not None and self.connection.is_reset())

    def settle(self) -> None:
        """If the chat has ended, pass its result or its error to the waiting request."""
        task = self.chat.task
        if self.reply.done() or not task.done():
            return
        if task.cancelled():
            self.reply.cancel()
        elif (error := task.exception()) is not None:
            self.reply.set_exception(error)
            self.reply.exception()  # mark it as retrieved, or asyncio logs the error of a client that has left
        else:
            self.reply.set_result(task.result())


class OpenChats:
    """The open chats of one rollout. `unread` is called with each recorded reply that no client has read."""

    def __init__(self, waits: Waits, unread: Callable[[CompletionsResult], object] = lambda reply: None) -> None:
        self._waits = waits
        self._unread = unread
        self._open: set[_Chat] = set()
        self._requests: dict[OpenRequest, None] = {}
        """The requests whose clients may still read the reply, oldest first."""
        self._left: dict[_Chat, asyncio.TimerHandle] = {}
        """The chats without a client, oldest first."""
        self._newest: dict[bytes, int] = {}
        """The number of the newest request of each digest."""

    def begin(
        self, digest: bytes, work: Work, *, retried: bool = False, connection: Connection | None = None
    ) -> OpenRequest:
        """Start a request. It waits for an equal chat whose client has left or, if there is none, for a new chat.

        `retried` is whether the client says that this is a retry.
        """
        left = [left for left in self._left if left.digest == digest and (retried or not left.read)]
        chat = min(left, key=_Chat.place, default=None)
        if chat is None:
            chat = _Chat(digest, work)
            self._open.add(chat)
            chat.task.add_done_callback(partial(self._ended, chat))
        else:
            self._left.pop(chat).cancel()
        request = OpenRequest(chat, connection, retried)
        self._requests[request] = None
        self._newest[digest] = request.number
        self._join(request, chat)
        if connection is not None:
            connection.watch(partial(self._closed, request))
        return request

    def leave(self, request: OpenRequest) -> None:
        """Handle a disconnect. Keep the chat for an equal request, and drop it if none comes in time."""
        if request not in self._requests:
            return
        request.gone, chat = True, request.chat
        request.reply.cancel()
        if self._remove(request):
            return
        newer = self._newer(request)
        if newer is None or (chat.task.done() and not chat.answered):
            self._keep(chat)
            return
        abandoned = max(chat, newer.chat, key=_Chat.place)
        if abandoned is not chat:
            abandoned.requests.remove(newer)
            self._join(newer, chat)
        if not abandoned.requests:
            abandoned.task.cancel()

    def close(self) -> None:
        """Cancel every chat, and report the replies that no client has read."""
        for request in list(self._requests):
            if request.chat.answered and not request.may_be_read():
                self.leave(request)
        for chat in list(self._left):
            self._drop(chat)
        for chat in self._open:
            chat.task.cancel()

    def _join(self, request: OpenRequest, chat: _Chat) -> None:
        request.chat = chat
        chat.requests.append(request)
        chat.wanted.set()
        request.settle()

    def _remove(self, request: OpenRequest) -> bool:
        """Remove a request. Return whether its chat has another client, or its reply was read."""
        del self._requests[request]
        request.chat.requests.remove(request)
        return bool(request.chat.requests) or request.chat.read

    def _closed(self, request: OpenRequest, whole: bool, ended: bool) -> None:
        """Handle the end of a response: whether the client read it `whole`, and whether the connection has `ended`."""
        newer = self._newer(request)
        if not whole or (ended and newer is not None and newer.retried):
            self.leave(request)
        elif request in self._requests:
            alone = not self._remove(request)
            request.chat.read = True
            if alone and ended and request.chat.answered:
                self._keep(request.chat)

    def _newer(self, request: OpenRequest) -> OpenRequest | None:
        """Return the oldest request that repeats another one, or None."""
        return next((other for other in self._requests if other.repeats(request)), None)

    def _keep(self, chat: _Chat) -> None:
        chat.wanted.clear()
        self._left[chat] = call_later(DROP, self._waits.retry, self._drop, chat)
        if len(self._left) > MAX_LEFT:
            self._drop(next(iter(self._left)))

    def _drop(self, chat: _Chat) -> None:
        timer = self._left.pop(chat, None)
        if timer is None:
            return
        timer.cancel()
        # A client may close a stream when it has seen the end of the reply. If it did not retry, it has the reply.
        stopped_reading = chat.streamed_to == self._newest[chat.digest]
        if chat.answered and not (chat.read or stopped_reading):
            for reply in chat.task.result():
                self._unread(reply)
        chat.task.cancel()

    def _ended(self, chat: _Chat, task: "asyncio.Task[Replies]") -> None:
        self._open.discard(chat)
        if not task.cancelled():
            task.exception()  # mark it as retrieved, or asyncio logs the error of a chat without a client
        for request in chat.requests:
            request.settle()
