"""vLLM over its own gRPC service: a generator for TokenPolicy, and a client that pauses vLLM and names its weights."""

from osmosis_grpc.network import grpc_variables  # noqa: F401 - before anything imports grpc

# isort: split
from osmosis_grpc.integrations._vllm_weights import PauseMode
from osmosis_grpc.integrations.vllm_grpc.control import VllmControl, VllmServer
from osmosis_grpc.integrations.vllm_grpc.generator import VllmGrpcGenerator

__all__ = ["PauseMode", "VllmControl", "VllmGrpcGenerator", "VllmServer"]
