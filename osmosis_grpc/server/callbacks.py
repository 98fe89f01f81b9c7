"""The engine's ports over a callback: a trainer's TrainerService, dialled at the address that was checked."""

import logging
import weakref
from collections.abc import Awaitable, Callable, Generator
from dataclasses import replace
from typing import Any

import grpc

from osmosis_grpc._gen.osmosis.rollout.v1 import services_pb2_grpc, trainer_pb2
from osmosis_grpc.engine import Peer
from osmosis_grpc.errors import CallError, Internal, InvalidArgument, Unavailable, UnknownChat
from osmosis_grpc.link.calls import DETAILS_KEY, call, error_of
from osmosis_grpc.link.credentials import channel
from osmosis_grpc.link.options import MAX_MESSAGE_BYTES, callback_options
from osmosis_grpc.link.targets import Address, TargetPolicy
from osmosis_grpc.link.tls import ClientTls
from osmosis_grpc.types import Callback, ChatRequest, ChatResponse, Completion, InitRequest, Outcome
from osmosis_grpc.wire.rollout import completion_to_wire, fit
from osmosis_grpc.wire.trainer import chat_bytes, outcome_from_wire, reply_from_wire

log = logging.getLogger(__name__)

COMPLETE_TIMEOUT = 30.0
"""Seconds that one try of a completion waits."""


CHAT = "/osmosis.rollout.v1.TrainerService/Chat"

MakePeer = Callable[..., Awaitable[Peer]]
"""Takes an InitRequest and, as `authenticated`, whether it is known who the caller is."""


class Callbacks:
    """Makes Peers of callbacks; trainers at one address share a channel while any rollout needs it.

    A target with a scheme in front (http://...) is for whoever registered that scheme.
    `authenticated` says whether it is known of callers who they are. `tls` has the files for
    trainers that speak TLS.
    """

    def __init__(self, policy: TargetPolicy, *, authenticated: bool = False, tls: ClientTls | None = None) -> None:
        self.policy = policy
        self.schemes: dict[str, MakePeer] = {}
        self._authenticated = authenticated
        self._tls = tls or ClientTls()
        self._channels: weakref.WeakValueDictionary[tuple[Address, ClientTls | None], grpc.aio.Channel]
        self._channels = weakref.WeakValueDictionary()

    async def peer(self, init: InitRequest) -> Peer:
        """Where a rollout's calls go. Raises InvalidArgument naming callback or callback.target."""
        callback = init.callback
        if callback is None:
            raise InvalidArgument("callback", "is missing: say where chats and the completion go")
        make = self.schemes.get(callback.target.partition("://")[0])
        if make is not None:
            if callback.tls:
                raise InvalidArgument("callback.tls", "does not go with a URL, whose scheme says it")
            return await make(init, authenticated=self._authenticated)
        address = await self.policy.check(callback.target, "callback.target", authenticated=self._authenticated)
        trainer = _Trainer(self._channel(address, callback), init)
        return Peer(trainer.chat, trainer.complete, _same(callback))

    def _channel(self, address: Address, callback: Callback) -> grpc.aio.Channel:
        tls = replace(self._tls, server_name=callback.tls.server_name) if callback.tls else None
        known = self._channels.get((address, tls))
        if known is None:
            try:
                known = channel(address.grpc_target, tls, callback_options(address.authority))
            except ValueError as error:
                log.error("no callback can be made over TLS: %s", error)
                raise Internal("this server cannot speak TLS with trainers now; its log tells why") from None
            self._channels[address, tls] = known
        return known

    def later(self, init: InitRequest) -> Peer:
        """The same for a rollout that another process left: its target is looked up with its first call."""
        later = _Later(self, init)
        callback = init.callback
        return Peer(later.chat, later.complete, _same(callback) if callback else None)

    async def close(self) -> None:
        """Close every channel."""
        for known in list(self._channels.values()):
            await known.close()


def _same(callback: Callback) -> object:
    """Equal for callbacks that reach the same place in the same way."""
    return callback.target, callback.credential, callback.state, callback.delta, callback.tls


class _Trainer:
    """One rollout's trainer."""

    def __init__(self, channel: grpc.aio.Channel, init: InitRequest) -> None:
        assert init.callback is not None
        self._channel = channel  # held, so that the pool keeps it
        self._chat: Any = channel.unary_unary(CHAT, None, trainer_pb2.ChatResponse.FromString)
        self._complete = services_pb2_grpc.TrainerServiceStub(channel).Complete
        self._state = init.callback.state
        self.delta = init.callback.delta
        self.credential = init.callback.credential
        metadata = []
        if init.callback.credential:
            metadata.append(("authorization", f"Bearer {init.callback.credential}"))
        if init.trace is not None:
            metadata += [
                (name, value)
                for name, value in (("traceparent", init.trace.traceparent), ("tracestate", init.trace.tracestate))
                if value
            ]
        self._metadata = tuple(metadata) or None

    def chat(self, request: ChatRequest, /) -> "_Asking":
        return _Asking(self, request)

    def call(self, request: ChatRequest, *, delta: bool) -> Any:
        """Call Chat. Raises InvalidArgument for more than a message holds."""
        message = chat_bytes(request, delta=delta)
        if len(message) > MAX_MESSAGE_BYTES:
            raise InvalidArgument("messages", f"the chat has {len(message)} bytes, more than {MAX_MESSAGE_BYTES}")
        return self._chat(message, timeout=request.timeout, metadata=self._metadata)

    async def complete(self, completion: Completion, /) -> Outcome:
        message = fit(completion_to_wire(completion))
        request = trainer_pb2.CompleteRequest(completion=message, state=self._state)
        answer = await call(self._complete, request, timeout=COMPLETE_TIMEOUT, metadata=self._metadata or (),
                            hide=self.credential)  # fmt: skip
        outcome = outcome_from_wire(answer.outcome)
        if outcome is None:
            raise Unavailable("the trainer's answer tells no outcome")
        return outcome


class _Later:
    """A trainer that is looked up when it is needed: its name may not resolve yet."""

    def __init__(self, callbacks: Callbacks, init: InitRequest) -> None:
        self._callbacks = callbacks
        self._init = init
        self._peer: Peer | None = None

    async def chat(self, request: ChatRequest, /) -> ChatResponse:
        return await (await self._found()).chat(request)

    async def complete(self, completion: Completion, /) -> Outcome:
        return await (await self._found()).complete(completion)

    async def _found(self) -> Peer:
        if self._peer is None:
            try:
                self._peer = await self._callbacks.peer(self._init)
            except InvalidArgument as error:
                raise Unavailable(f"the trainer cannot be called: {error}") from None
        return self._peer


class _Asking:
    """A chat on its way: awaited in the agent's own task, and given up by cancel()."""

    __slots__ = ("_call", "_request", "_trainer")

    def __init__(self, trainer: _Trainer, request: ChatRequest) -> None:
        self._trainer = trainer
        self._request = request
        self._call = trainer.call(request, delta=trainer.delta)

    def __await__(self) -> Generator[Any, None, ChatResponse]:
        return self._answer().__await__()

    def cancel(self) -> None:
        """Wait no longer: who awaits it sees CancelledError."""
        self._call.cancel()

    async def _answer(self) -> ChatResponse:
        try:
            reply = await self._call
        except grpc.aio.AioRpcError as failed:
            error = _told(failed, self._trainer.credential)
            if not isinstance(error, UnknownChat):
                raise error from None
            self._call = self._trainer.call(self._request, delta=False)
            try:
                reply = await self._call
            except grpc.aio.AioRpcError as again:
                raise _told(again, self._trainer.credential) from None
        try:
            return reply_from_wire(reply)
        except InvalidArgument as unreadable:
            raise Internal(f"the trainer's reply cannot be read: {unreadable}") from None


def _told(failed: grpc.aio.AioRpcError, credential: str) -> CallError:
    """What a chat was answered. CANCELLED by grpc itself is a cut: a trainer that stops cancels its handlers."""
    told = any(key == DETAILS_KEY for key, _ in failed.trailing_metadata() or ())
    if failed.code() is grpc.StatusCode.CANCELLED and not told:
        return Unavailable("the chat was cut off by the trainer")
    return error_of(failed, hide=credential)
