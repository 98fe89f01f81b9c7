"""The methods of vLLM's own gRPC service: their paths, and the types of their messages."""

from collections.abc import Awaitable, Mapping
from typing import Any

from google.protobuf.message import Message

from osmosis_grpc.integrations.model_channel import ModelChannel
from osmosis_grpc.integrations.vllm_grpc import vllm_messages_pb2 as pb

METHODS: Mapping[type[Message], tuple[str, type[Message]]] = {
    pb.GenerateRequest: ("/vllm.Inference/Generate", pb.GenerateResponse),
    pb.AbortRequest: ("/vllm.Control/Abort", pb.AbortResponse),
    pb.PauseGenerationRequest: ("/vllm.Control/PauseGeneration", pb.PauseGenerationResponse),
    pb.ResumeGenerationRequest: ("/vllm.Control/ResumeGeneration", pb.ResumeGenerationResponse),
    pb.IsPausedRequest: ("/vllm.Control/IsPaused", pb.IsPausedResponse),
    pb.GetWeightVersionRequest: ("/vllm.Control/GetWeightVersion", pb.GetWeightVersionResponse),
    pb.FinishWeightUpdateRequest: ("/vllm.Control/FinishWeightUpdate", pb.FinishWeightUpdateResponse),
    pb.UpdateWeightVersionRequest: ("/vllm.Control/UpdateWeightVersion", pb.UpdateWeightVersionResponse),
    pb.GetModelInfoRequest: ("/vllm.Control/GetModelInfo", pb.ModelInfo),
    pb.GetServerInfoRequest: ("/vllm.Control/GetServerInfo", pb.ServerInfo),
}
"""The path and the type of the reply, by the type of the request. All methods are unary."""


def call(
    server: ModelChannel, request: Message, *, timeout: float | None = None, session_id: str = ""
) -> Awaitable[Any]:
    """Send a request, and return the call, which gives the reply. `timeout` is in seconds; None for no limit."""
    path, reply = METHODS[type(request)]
    method: Any = server.open().unary_unary(
        path, request_serializer=type(request).SerializeToString, response_deserializer=reply.FromString
    )
    sent: Awaitable[Any] = method(request, timeout=timeout, metadata=server.metadata(session_id))
    return sent
