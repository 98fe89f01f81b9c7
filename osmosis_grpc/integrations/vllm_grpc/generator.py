"""Samples tokens from vLLM over its own gRPC service, `vllm serve --grpc-port` with the Rust frontend.

    policy = TokenPolicy(renderer, VllmGrpcGenerator("127.0.0.1:50051"))

vLLM's service has no authentication. A token and TLS are for a proxy in front of it.
"""

import asyncio
from typing import Any

import grpc
from google.protobuf.message import Message

from osmosis_grpc.integrations._model_server import NO_CREDENTIALS, ModelClient
from osmosis_grpc.integrations.vllm_grpc import vllm_messages_pb2 as pb
from osmosis_grpc.integrations.vllm_grpc.messages import call, from_message, to_message
from osmosis_grpc.network.credentials import Credentials
from osmosis_grpc.policies.generation import Generated, GenerateRequest, WeightNames
from osmosis_grpc.supervise import SYSTEM, Backoff

SHORT = 10.0
"""The timeout of calls that do not sample, in seconds."""
PAUSES = 0.05, 1.0
"""The first and the longest interval, in seconds, for checking whether vLLM is still paused."""


class VllmGrpcGenerator(ModelClient):
    """A TokenGenerator for vLLM. `async with` closes its connection at the end, as TokenPolicy does.

    Each result has the version of the weights at its start, or none if they have no name. If weights change while a
    reply is sampled (pause mode KEEP), its last tokens may come from a newer version, but never from an older one. A
    call raises Unavailable if the weights have lost their name, because the server was restarted.

    Args:
        target: HOST:PORT of vLLM.
        model: A served name; empty for the only model.
        lora: The name of a loaded adapter; empty for none.
        credentials: A token and TLS, for a proxy.
    """

    def __init__(
        self, target: str, *, model: str = "", lora: str = "", credentials: Credentials = NO_CREDENTIALS
    ) -> None:
        super().__init__(target, credentials)
        self._model = model
        self._lora = lora
        self._has_control = True
        self._weights = WeightNames(target)

    async def generate(self, request: GenerateRequest, /) -> Generated:
        """See TokenGenerator."""
        message = to_message(request, self._model, self._lora)
        await self._until_resumed()
        version = await self._weight_version()
        sent = call(self._server, message, timeout=request.timeout, session_id=request.session_id)
        return from_message(request, await self._server.answer(sent), version)

    async def abort(self, request_id: str, /) -> None:
        """Stop the sampling of a call. Raises CallError if vLLM cannot be reached."""
        await self._server.answer(call(self._server, pb.AbortRequest(request_ids=[request_id]), timeout=SHORT))

    async def context_length(self) -> int:
        """Return the most tokens of a prompt and its reply together; 0 if this release of vLLM does not say."""
        reply: pb.ServerInfo | None = await self._served(pb.GetServerInfoRequest())
        return reply.max_model_len if reply is not None else 0

    async def _until_resumed(self) -> None:
        """Wait while vLLM is paused, because it would hold the call and then sample with weights of another version."""
        pauses = Backoff(*PAUSES, system=SYSTEM)
        while self._has_control:
            reply: pb.IsPausedResponse | None = await self._served(pb.IsPausedRequest())
            if reply is None or not reply.paused:
                return
            await asyncio.sleep(pauses.next())

    async def _weight_version(self) -> str:
        if not self._has_control:
            return ""
        reply: pb.GetWeightVersionResponse | None = await self._served(pb.GetWeightVersionRequest())
        self._has_control = reply is not None
        return self._weights.read(reply.weight_version) if reply is not None else ""

    async def _served(self, request: Message) -> Any:
        """Return the reply to a request, or None if this release of vLLM lacks the method."""
        try:
            return await call(self._server, request, timeout=SHORT)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                return None
            raise await self._server.error_of(error) from None
