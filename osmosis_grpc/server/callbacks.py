"""The engine's ports over a callback: a trainer's TrainerService, dialled at the address that was checked."""

import logging
import time
import weakref
from collections.abc import Awaitable, Callable, Generator
from dataclasses import replace
from functools import partial
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from osmosis_grpc._gen.osmosis.rollout.v1 import trainer_pb2
from osmosis_grpc.agent.ports import ChatModel, ResultSink
from osmosis_grpc.engine import Peer
from osmosis_grpc.engine.provenance import run_name
from osmosis_grpc.errors import CallError, Internal, InvalidArgument, ReplyUnreadable, Unavailable, UnknownChat
from osmosis_grpc.link.call_metrics import Asking, CallSink
from osmosis_grpc.link.channel_options import MAX_MESSAGE_BYTES, callback_options
from osmosis_grpc.link.client_calls import DETAILS_KEY, call, error_of
from osmosis_grpc.link.credentials import channel
from osmosis_grpc.link.target_policy import Address, TargetPolicy
from osmosis_grpc.link.tls import ClientTls
from osmosis_grpc.types import Callback, ChatRequest, ChatResponse, Completion, InitRequest, Outcome
from osmosis_grpc.wire.rollout import completion_to_wire, fit
from osmosis_grpc.wire.trainer import chat_bytes, outcome_from_wire, reply_from_wire

log = logging.getLogger(__name__)

COMPLETE_TIMEOUT = 30.0
"""Seconds that one try of a completion waits."""

HELD = 10.0
"""Seconds after which a chat that is cut off was with the trainer: longer than grpc tries to connect."""

CHAT = "/osmosis.rollout.v1.TrainerService/Chat"
COMPLETE = "/osmosis.rollout.v1.TrainerService/Complete"

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
        self.calls: CallSink | None = None
        """Counts the calls that go to trainers."""
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
        trainer = _Trainer(self._channel(address, callback), init, self.calls)
        return _peer(trainer.chat, trainer.complete, callback)

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
        if init.callback is None:
            return Peer(later.chat, later.complete)
        return _peer(later.chat, later.complete, init.callback)

    async def close(self) -> None:
        """Close every channel."""
        for known in list(self._channels.values()):
            await known.close()


def _peer(chat: ChatModel, complete: ResultSink, callback: Callback) -> Peer:
    """A Peer, with a key that is equal for callbacks that reach the same run of a trainer in the same way."""
    run = run_name(callback.run_id or callback.target)
    return Peer(chat, complete, callback, trainer_run=run, destination_key=callback.target)


class _Trainer:
    """One rollout's trainer."""

    def __init__(self, channel: grpc.aio.Channel, init: InitRequest, calls: CallSink | None) -> None:
        assert init.callback is not None
        self._channel = channel  # held, so that the pool keeps it
        self._calls = calls
        self._chat: Any = channel.unary_unary(CHAT)
        self._complete: Any = channel.unary_unary(COMPLETE)
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

    def call(self, request: ChatRequest, timeout: float | None, *, delta: bool) -> Asking:
        """Call Chat. Raises InvalidArgument for more than a message holds."""
        message = chat_bytes(request, delta=delta)
        if len(message) > MAX_MESSAGE_BYTES:
            raise InvalidArgument("messages", f"the chat has {len(message)} bytes, more than {MAX_MESSAGE_BYTES}")
        return Asking(self._calls, CHAT, self._chat, message, timeout=timeout, metadata=self._metadata)

    async def complete(self, completion: Completion, /) -> Outcome:
        message = fit(completion_to_wire(completion))
        request = trainer_pb2.CompleteRequest(completion=message, state=self._state).SerializeToString()

        ask = partial(Asking, self._calls, COMPLETE, self._complete)
        answer = await call(ask, request, timeout=COMPLETE_TIMEOUT, metadata=self._metadata or (), hide=self.credential)
        outcome = outcome_from_wire(trainer_pb2.CompleteResponse.FromString(answer).outcome)
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

    __slots__ = ("_began", "_call", "_cancelled", "_delta", "_request", "_trainer")

    def __init__(self, trainer: _Trainer, request: ChatRequest) -> None:
        self._trainer = trainer
        self._request = request
        self._delta = trainer.delta
        self._cancelled = False
        self._began = time.monotonic()
        self._call = trainer.call(request, request.timeout, delta=self._delta)

    def __await__(self) -> Generator[Any, None, ChatResponse]:
        return self._answer().__await__()

    def cancel(self) -> None:
        """Wait no longer: who awaits it sees CancelledError."""
        self._cancelled = True
        self._call.cancel()

    async def _answer(self) -> ChatResponse:
        stood = False
        while True:
            asked, after_cut = time.monotonic(), stood
            try:
                reply = await self._call
                break
            except grpc.aio.AioRpcError as failed:
                error = _chat_error(failed, self._trainer.credential)
                unknown = self._delta and isinstance(error, UnknownChat)
                stood = _cut(failed) and time.monotonic() - asked >= HELD
                # The call after a cut may be sent on the connection that was cut: its failure says nothing more.
                held = stood or (after_cut and _cut(failed))
                if self._cancelled or not (unknown or held):
                    raise error from None
                self._delta = self._delta and not unknown
            self._call = self._trainer.call(self._request, self._left(), delta=self._delta)
        try:
            return reply_from_wire(trainer_pb2.ChatResponse.FromString(reply))
        except (InvalidArgument, DecodeError) as unreadable:
            raise ReplyUnreadable(f"the trainer's reply cannot be read: {unreadable}") from None

    def _left(self) -> float | None:
        """How long the chat may still take: all its calls together are one try."""
        limit = self._request.timeout
        return None if limit is None else max(0.001, limit - (time.monotonic() - self._began))


def _cut(failed: grpc.aio.AioRpcError) -> bool:
    """Whether what lies between has ended a call, and not the trainer."""
    answered_by_peer = any(key == DETAILS_KEY for key, _ in failed.trailing_metadata() or ())
    return not answered_by_peer and failed.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


def _chat_error(failed: grpc.aio.AioRpcError, credential: str) -> CallError:
    """What a chat was answered. CANCELLED by grpc itself is a cut: a trainer that stops cancels its handlers."""
    if failed.code() is grpc.StatusCode.CANCELLED and _cut(failed):
        return Unavailable("the chat was cut off by the trainer")
    return error_of(failed, hide=credential)
