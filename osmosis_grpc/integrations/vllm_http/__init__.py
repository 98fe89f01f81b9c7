"""vLLM over plain HTTP, token in and token out: a generator for TokenPolicy, and a client that controls the engine."""

from osmosis_grpc.integrations._vllm_weights import PauseMode
from osmosis_grpc.integrations.vllm_http.control import VllmHttpControl
from osmosis_grpc.integrations.vllm_http.generator import VllmHttpGenerator

__all__ = ["PauseMode", "VllmHttpControl", "VllmHttpGenerator"]
