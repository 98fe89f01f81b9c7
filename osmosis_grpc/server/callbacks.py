"""The engine's ports over a callback: a trainer's TrainerService, dialled at the address that was checked."""

import weakref
from collections.abc import Awaitable, Callable

import grpc

from osmosis_grpc._gen.osmosis.rollout.v1 import services_pb2_grpc, trainer_pb2
from osmosis_grpc.engine import Peer
from osmosis_grpc.errors import Internal, InvalidArgument, Unavailable, UnknownChat
from osmosis_grpc.link.calls import call
from osmosis_grpc.link.options import MAX_MESSAGE_BYTES, callback_options
from osmosis_grpc.link.targets import Address, TargetPolicy
from osmosis_grpc.types import ChatRequest, ChatResponse, Completion, InitRequest, Outcome
from osmosis_grpc.wire.rollout import completion_to_wire, fit
from osmosis_grpc.wire.trainer import chat_to_wire, outcome_from_wire, reply_from_wire

COMPLETE_TIMEOUT = 30.0
"""Seconds that one try of a completion waits."""


MakePeer = Callable[[InitRequest], Awaitable[Peer]]


class Callbacks:
    """Makes Peers of callbacks; trainers at one address share a channel while any rollout needs it.

    A target with a scheme in front (http://...) is for whoever registered that scheme.
    """

    def __init__(self, policy: TargetPolicy) -> None:
        self.policy = policy
        self.schemes: dict[str, MakePeer] = {}
        self._channels: weakref.WeakValueDictionary[Address, grpc.aio.Channel] = weakref.WeakValueDictionary()

    async def peer(self, init: InitRequest) -> Peer:
        """Where a rollout's calls go. Raises InvalidArgument naming callback or callback.target."""
        callback = init.callback
        if callback is None:
            raise InvalidArgument("callback", "is missing: say where chats and the completion go")
        make = self.schemes.get(callback.target.partition("://")[0])
        if make is not None:
            return await make(init)
        address = await self.policy.check(callback.target, "callback.target")
        channel = self._channels.get(address)
        if channel is None:
            channel = grpc.aio.insecure_channel(address.grpc_target, options=callback_options(address.authority))
            self._channels[address] = channel
        trainer = _Trainer(channel, init)
        return Peer(
            trainer.chat, trainer.complete, (callback.target, callback.credential, callback.state, callback.delta)
        )

    async def close(self) -> None:
        """Close every channel."""
        for channel in list(self._channels.values()):
            await channel.close()


class _Trainer:
    """One rollout's trainer."""

    def __init__(self, channel: grpc.aio.Channel, init: InitRequest) -> None:
        assert init.callback is not None
        self._channel = channel  # held, so that the pool keeps it
        self._stub = services_pb2_grpc.TrainerServiceStub(channel)
        self._state = init.callback.state
        self._delta = init.callback.delta
        metadata = []
        if init.callback.credential:
            metadata.append(("authorization", f"Bearer {init.callback.credential}"))
        if init.trace is not None:
            metadata += [
                (name, value)
                for name, value in (("traceparent", init.trace.traceparent), ("tracestate", init.trace.tracestate))
                if value
            ]
        self._metadata = tuple(metadata)

    async def chat(self, request: ChatRequest, /) -> ChatResponse:
        try:
            reply = await self._ask(request, delta=self._delta)
        except UnknownChat:
            reply = await self._ask(request, delta=False)
        try:
            return reply_from_wire(reply)
        except InvalidArgument as error:
            raise Internal(f"the trainer's reply cannot be read: {error}") from None

    async def _ask(self, request: ChatRequest, *, delta: bool) -> trainer_pb2.ChatResponse:
        message = chat_to_wire(request, delta=delta)
        if message.ByteSize() > MAX_MESSAGE_BYTES:
            raise InvalidArgument("messages", f"the chat has {message.ByteSize()} bytes, more than {MAX_MESSAGE_BYTES}")
        return await call(self._stub.Chat, message, timeout=request.timeout, metadata=self._metadata)  # type: ignore[no-any-return]

    async def complete(self, completion: Completion, /) -> Outcome:
        message = fit(completion_to_wire(completion))
        request = trainer_pb2.CompleteRequest(completion=message, state=self._state)
        answer = await call(self._stub.Complete, request, timeout=COMPLETE_TIMEOUT, metadata=self._metadata)
        outcome = outcome_from_wire(answer.outcome)
        if outcome is None:
            raise Unavailable("the trainer's answer tells no outcome")
        return outcome
