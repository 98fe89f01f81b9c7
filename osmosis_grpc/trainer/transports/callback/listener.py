"""TrainerService for callbacks: receives the chats and outcomes that agent servers send to a trainer."""

from collections.abc import Callable
from typing import Any, Protocol

import grpc

from osmosis_grpc.network.bearer_tokens import CallbackKeys, bearer
from osmosis_grpc.network.channel_options import MIN_PING_INTERVAL
from osmosis_grpc.network.client_calls import CallSink
from osmosis_grpc.network.handlers import Registrar, metadata_value
from osmosis_grpc.network.network import GRPC, Network, start
from osmosis_grpc.network.server_security import CallbackAuthenticator, ServerSecurity, check_for_rollout
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import chat_pb2 as pb
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import outcome_pb2, services_pb2_grpc
from osmosis_grpc.protocol.errors import Unimplemented
from osmosis_grpc.protocol.types import Callback, CallbackTls, ChatRequest, Receipt
from osmosis_grpc.protocol.wire.chat import RECEIPTS, chat_from_wire
from osmosis_grpc.protocol.wire.control import FEATURES, PROTOCOL


class Receiver(Protocol):
    """Answers callbacks. If a method raises an error, the caller gets it as the answer."""

    async def chat(self, request: ChatRequest) -> bytes:
        """Return the reply to a chat, as bytes to send."""

    def abandon(self, request: pb.AbandonChatRequest) -> None:
        """Stop the sampling of a chat whose reply is no longer wanted."""

    async def complete(self, raw: outcome_pb2.RolloutOutcome, state: bytes, credential: str) -> Receipt:
        """Record an outcome, which is the message as received. `state` is the state in the rollout's callback."""


class CallbackListener(services_pb2_grpc.TrainerServiceServicer):
    """Listens for callbacks, from listen() to stop().

    Each call needs a credential made by `keys`, or a token of `security`.
    """

    def __init__(
        self,
        receiver: Receiver,
        address: str,
        security: ServerSecurity,
        keys: CallbackKeys,
        run_id: str,
        network: Network = GRPC,
    ) -> None:
        self.address = address
        """HOST:PORT. After listen(), the port is the bound port."""
        self._receiver = receiver
        self._security = security
        self._keys = keys
        self._run_id = run_id
        self._network = network
        self._server: grpc.aio.Server | None = None

    def listen(self, calls: CallSink, new_id: Callable[[], str], max_age: float | None = None) -> None:
        """Bind the port. Raises OSError, ValueError.

        `calls` counts the answered calls, and `new_id` makes ids for failed ones. A connection gets GOAWAY after
        `max_age` seconds.
        """
        self._server = self._network.server(max_age=max_age)
        guard = CallbackAuthenticator(self._security, self._keys)
        services: Any = Registrar(self._server, guard, calls, new_id=new_id)
        services_pb2_grpc.add_TrainerServiceServicer_to_server(self, services)
        self.address = self._network.listen(self._server, self.address, self._security)

    async def start(self) -> None:
        """Start answering calls."""
        assert self._server is not None
        await start(self._server)

    async def stop(self) -> None:
        """Wait at most half a second until the open calls are answered, and release the port."""
        if self._server is not None:
            await self._server.stop(0.5)

    def callback(
        self,
        *,
        rollout_id: str = "",
        target: str = "",
        server_name: str = "",
        credential: str = "",
        state: bytes = b"",
        delta: bool = True,
        outcome_by_reference: bool = False,
    ) -> Callback:
        """Return the callback to send with an Init.

        Agent servers reach this trainer at `target`, HOST:PORT; the default is the address where the trainer listens.
        The default `credential` is valid only for callbacks to this trainer, and with `rollout_id` only for that
        rollout. `server_name` is the name in this trainer's certificate, if it differs from the target's host. Without
        `delta`, every chat has its whole history. With `outcome_by_reference`, outcomes refer to the chats that this
        trainer answered. Raises ValueError for a `credential` that this trainer would refuse.
        """
        if self._server is None:
            raise RuntimeError("the trainer does not listen yet: use it inside `async with`")
        if not credential:
            credential = self._keys.make(rollout_id)
        elif self._security.tokens.owner(credential) is None and not self._keys.made(credential):
            raise ValueError("credential: is not one of this trainer's tokens, so callbacks with it would be refused")
        tls = CallbackTls(server_name) if self._security.tls else None
        return Callback(
            target=target or self.address,
            credential=credential,
            state=state,
            delta=delta,
            tls=tls,
            run_id=self._run_id,
            protocol=PROTOCOL[1],
            features=FEATURES,
            outcome_by_reference=outcome_by_reference,
            min_ping_interval=MIN_PING_INTERVAL,
        )

    # The RPCs.

    async def Chat(self, request: pb.ChatRequest, context: Any) -> Any:
        credential = bearer(metadata_value(context, "authorization"))
        chat = chat_from_wire(request, context.time_remaining(), credential)
        check_for_rollout(credential, chat.rollout_id)
        return await self._receiver.chat(chat)

    async def Complete(self, request: outcome_pb2.CompleteRequest, context: Any) -> outcome_pb2.CompleteResponse:
        credential = bearer(metadata_value(context, "authorization"))
        check_for_rollout(credential, request.outcome.rollout_id)
        receipt = await self._receiver.complete(request.outcome, request.state, credential)
        return outcome_pb2.CompleteResponse(receipt=RECEIPTS.numbers[receipt])

    async def AbandonChat(self, request: pb.AbandonChatRequest, context: Any) -> pb.AbandonChatResponse:
        check_for_rollout(bearer(metadata_value(context, "authorization")), request.rollout_id)
        self._receiver.abandon(request)
        return pb.AbandonChatResponse()

    async def Accept(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]
        raise Unimplemented(
            'this trainer takes callbacks; Trainer(..., transport="attach", listen=HOST:PORT) takes agent servers'
        )
