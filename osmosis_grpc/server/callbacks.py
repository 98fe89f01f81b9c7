"""Peers for callback trainers. A peer implements the engine's ports with calls to a TrainerService."""

import itertools
import logging
import weakref
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Generator
from dataclasses import replace
from functools import partial
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from osmosis_grpc.agent.ports import ChatModel, ResultSink
from osmosis_grpc.engine import Peer
from osmosis_grpc.engine.find_earlier_run import run_name
from osmosis_grpc.engine.record import ChatKey
from osmosis_grpc.network.channel_options import MAX_MESSAGE_BYTES, callback_options
from osmosis_grpc.network.client_calls import DETAILS_KEY, Asking, CallSink, call, error_of
from osmosis_grpc.network.network import GRPC, Network
from osmosis_grpc.network.target_policy import Address, TargetPolicy
from osmosis_grpc.network.tls import ClientTls
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import chat_pb2, outcome_pb2
from osmosis_grpc.protocol.errors import Internal, InvalidArgument, ReplyUnreadable, Unavailable, UnknownChat
from osmosis_grpc.protocol.types import (
    AbandonReason,
    Callback,
    ChatRequest,
    ChatResponse,
    InitRequest,
    Receipt,
    RolloutOutcome,
    TraceContext,
)
from osmosis_grpc.protocol.wire.chat import RECEIPTS, chat_bytes, reply_from_wire
from osmosis_grpc.protocol.wire.control import ABANDON_CHAT, BLOBS
from osmosis_grpc.protocol.wire.outcome import outcome_to_wire
from osmosis_grpc.protocol.wire.outcome_size import cut_to_limit
from osmosis_grpc.supervise import SYSTEM, System

log = logging.getLogger(__name__)

COMPLETE_TIMEOUT = 30.0
"""The timeout of one try of a delivery, in seconds."""

TOO_LARGE = "Received message larger than max"
"""Part of gRPC's error text for a reply above the channel's limit. A retry is useless: it gets the same reply."""
REACHED_AFTER = 10.0
"""A call that breaks after this many seconds had reached the trainer, because gRPC gives up connecting sooner."""

SHARED_FOR = 60.0
"""New rollouts reuse a channel to their address if one was handed out within this many seconds."""

CHAT = "/osmosis.rollout.v1.TrainerService/Chat"
COMPLETE = "/osmosis.rollout.v1.TrainerService/Complete"
ABANDON = "/osmosis.rollout.v1.TrainerService/AbandonChat"
ABANDON_TIMEOUT = 10.0
"""The timeout of an AbandonChat call, in seconds."""

_abandoning: set[Any] = set()
"""The open calls of AbandonChat. They are kept here because grpc cancels a call that has no reference."""

Abandon = Callable[[ChatKey, AbandonReason], None]
ChannelKey = tuple[Address, ClientTls | None, float | None]
MakePeer = Callable[..., Awaitable[Peer]]
"""Makes the peer for an InitRequest. `authenticated` says whether the caller is identified."""


class Callbacks:
    """Makes the peers for callbacks. Rollouts with the same address share a channel, see SHARED_FOR.

    `schemes` maps URL schemes to peer factories, for recorded rollouts that came over HTTP. `authenticated` says
    whether callers are identified. `tls` has the files for callbacks over TLS.
    """

    def __init__(
        self,
        policy: TargetPolicy,
        *,
        authenticated: bool = False,
        tls: ClientTls | None = None,
        system: System = SYSTEM,
        network: Network = GRPC,
    ) -> None:
        self.policy = policy
        self._system = system
        self.calls: CallSink | None = None
        """Counts the calls to trainers."""
        self.schemes: dict[str, MakePeer] = {}
        self._authenticated = authenticated
        self._tls = tls or ClientTls()
        self._network = network
        self._channels: OrderedDict[ChannelKey, tuple[grpc.aio.Channel, float]] = OrderedDict()
        """The channels that new rollouts can reuse, each with the time of its last use, oldest first."""
        self._open: weakref.WeakValueDictionary[int, grpc.aio.Channel] = weakref.WeakValueDictionary()
        """All channels that are in use, by number. close() closes them."""
        self._numbers = itertools.count()

    async def peer(self, init: InitRequest) -> Peer:
        """Return the peer for a request's callback. Raises InvalidArgument if the callback is missing or wrong."""
        callback = init.callback
        if callback is None:
            raise InvalidArgument("callback", "is missing: say where chats and the outcome go")
        if "://" in callback.target:
            raise InvalidArgument(
                "callback.target", "is a URL; send HOST:PORT, and set callback.tls if the trainer speaks TLS"
            )
        address = await self.policy.check(callback.target, "callback.target", authenticated=self._authenticated)
        trainer = _Trainer(self._channel(address, callback), callback, init.trace, self.calls, self._system.monotonic)
        return _peer(trainer.chat, trainer.complete, callback, trainer.abandon)

    def _channel(self, address: Address, callback: Callback) -> grpc.aio.Channel:
        tls = replace(self._tls, server_name=callback.tls.server_name) if callback.tls else None
        key = (address, tls, callback.min_ping_interval)
        now = self._system.monotonic()
        while self._channels and next(iter(self._channels.values()))[1] < now - SHARED_FOR:
            self._channels.popitem(last=False)
        known, _ = self._channels.pop(key, (None, 0.0))
        if known is None:
            try:
                options = callback_options(address.authority, callback.min_ping_interval)
                known = self._network.channel(address.grpc_target, tls, options)
            except ValueError as error:
                log.error("no callback can be made over TLS: %s", error)
                raise Internal("this server cannot use TLS with trainers now; its log says why") from None
            self._open[next(self._numbers)] = known
        self._channels[key] = known, now
        return known

    def later(self, init: InitRequest) -> Peer:
        """Return the peer for a rollout of the previous process.

        The peer resolves the target at its first call, because its name may not resolve yet. The target is a URL if
        the rollout came over HTTP.
        """
        found: list[Peer] = []
        scheme = init.callback.target.partition("://")[0] if init.callback is not None else ""

        async def peer() -> Peer:
            make = self.schemes.get(scheme)
            try:
                found[:] = found or [
                    await (self.peer(init) if make is None else make(init, authenticated=self._authenticated))
                ]
            except InvalidArgument as error:
                raise Unavailable(f"the trainer cannot be called: {error}") from None
            return found[0]

        async def chat(request: ChatRequest, /) -> ChatResponse:
            return await (await peer()).chat(request)

        async def complete(outcome: RolloutOutcome, /) -> Receipt:
            return await (await peer()).complete(outcome)

        def abandon(chat: ChatKey, reason: AbandonReason, /) -> None:
            for known in found:
                known.abandon(chat, reason)

        if init.callback is None:
            return Peer(chat, complete)
        return _peer(chat, complete, init.callback, abandon)

    async def close(self) -> None:
        """Close every channel."""
        for known in list(self._open.values()):
            await known.close()


def _peer(chat: ChatModel, complete: ResultSink, callback: Callback, abandon: Abandon | None = None) -> Peer:
    run = run_name(callback.run_id or callback.target)
    peer = Peer(
        chat,
        complete,
        callback,
        accepts_references=callback.outcome_by_reference,
        trainer_run=run,
        destination_key=callback.target,
    )
    return replace(peer, abandon=abandon) if abandon is not None else peer


class _Trainer:
    """The trainer of one rollout."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        callback: Callback,
        trace: TraceContext | None,
        calls: CallSink | None,
        monotonic: Callable[[], float],
    ) -> None:
        self.monotonic = monotonic
        self._channel = channel  # this reference keeps the channel open
        self._calls = calls
        self._chat: Any = channel.unary_unary(CHAT)
        self._complete: Any = channel.unary_unary(COMPLETE)
        self._abandon: Any = channel.unary_unary(ABANDON)
        self.callback = callback
        metadata = {"authorization": callback.credential and f"Bearer {callback.credential}"}
        if trace is not None:
            metadata |= {"traceparent": trace.traceparent, "tracestate": trace.tracestate}
        self._metadata = tuple((name, value) for name, value in metadata.items() if value) or None

    def chat(self, request: ChatRequest, /) -> "_Asking":
        return _Asking(self, request)

    def call(self, request: ChatRequest, timeout: float | None, *, delta: bool) -> Asking:
        """Call Chat. Raises InvalidArgument if the chat is too large for a message."""
        message = chat_bytes(request, delta=delta, blobs=BLOBS in self.callback.features)
        if len(message) > MAX_MESSAGE_BYTES:
            raise InvalidArgument("messages", f"the chat has {len(message)} bytes, more than {MAX_MESSAGE_BYTES}")
        return Asking(self._calls, CHAT, self._chat, message, timeout=timeout, metadata=self._metadata)

    def abandon(self, chat: ChatKey, reason: AbandonReason, /) -> None:
        """Tell the trainer once that replies to open chats are no longer needed. Don't wait for an answer."""
        if ABANDON_CHAT not in self.callback.features:
            return
        rollout_id, attempt, sample, number = chat
        message = chat_pb2.AbandonChatRequest(
            rollout_id=rollout_id,
            attempt=attempt,
            sample=sample,
            chat_number=number,
            reason=reason,
            state=self.callback.state,
        )
        call = self._abandon(message.SerializeToString(), timeout=ABANDON_TIMEOUT, metadata=self._metadata)
        _abandoning.add(call)
        call.add_done_callback(_abandoning.discard)

    async def complete(self, outcome: RolloutOutcome, /) -> Receipt:
        blobs = BLOBS in self.callback.features
        message = cut_to_limit(outcome_to_wire(outcome, refer=self.callback.outcome_by_reference, blobs=blobs))
        request = outcome_pb2.CompleteRequest(outcome=message, state=self.callback.state).SerializeToString()

        ask = partial(Asking, self._calls, COMPLETE, self._complete)
        answer = await call(
            ask, request, timeout=COMPLETE_TIMEOUT, metadata=self._metadata or (), hide=self.callback.credential
        )
        receipt = RECEIPTS.names.get(outcome_pb2.CompleteResponse.FromString(answer).receipt)
        if receipt is None:
            raise Unavailable("the trainer's answer has no receipt")
        return receipt


class _Asking:
    """An open chat, which the agent's task awaits and cancel() ends."""

    __slots__ = ("_began", "_call", "_cancelled", "_delta", "_monotonic", "_request", "_trainer")

    def __init__(self, trainer: _Trainer, request: ChatRequest) -> None:
        self._trainer = trainer
        self._request = request
        self._delta = trainer.callback.delta
        self._cancelled = False
        self._monotonic = trainer.monotonic
        self._began = self._monotonic()
        self._call = trainer.call(request, request.timeout, delta=self._delta)

    def __await__(self) -> Generator[Any, None, ChatResponse]:
        return self._answer().__await__()

    def cancel(self) -> None:
        """Cancel the call. The task that awaits it gets CancelledError."""
        self._cancelled = True
        self._call.cancel()

    async def _answer(self) -> ChatResponse:
        reached = ever_reached = False
        while True:
            asked, after_cut = self._monotonic(), reached
            try:
                reply = await self._call
                break
            except grpc.aio.AioRpcError as failed:
                # Without our error details, a connection or a proxy has ended the call, and not the trainer.
                answered = any(key == DETAILS_KEY for key, _ in failed.trailing_metadata() or ())
                if not answered and TOO_LARGE in (failed.details() or ""):
                    raise ReplyUnreadable(f"the trainer's reply cannot be read: {failed.details()}") from None
                cut = not answered and failed.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
                error = error_of(failed, hide=self._trainer.callback.credential)
                if cut and failed.code() is grpc.StatusCode.CANCELLED:  # the trainer stops
                    error = Unavailable("the chat was cut off by the trainer")
                unknown = self._delta and isinstance(error, UnknownChat)
                reached = cut and self._monotonic() - asked >= REACHED_AFTER
                ever_reached = ever_reached or reached
                # gRPC may send the retry on the same broken connection, so if that breaks too, retry again.
                again = unknown or reached or (after_cut and cut)
                if self._cancelled or not again:
                    error.reached = ever_reached
                    raise error from None
                self._delta = self._delta and not unknown
            limit = self._request.timeout  # all calls share this timeout
            left = None if limit is None else max(0.001, limit - (self._monotonic() - self._began))
            self._call = self._trainer.call(self._request, left, delta=self._delta)
        try:
            return reply_from_wire(chat_pb2.ChatResponse.FromString(reply))
        except (InvalidArgument, DecodeError) as unreadable:
            raise ReplyUnreadable(f"the trainer's reply cannot be read: {unreadable}") from None
