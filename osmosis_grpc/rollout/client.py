"""The Osmosis SDK's osmosis_ai.rollout.client, looked up when first used: it needs the extra "server"."""

from typing import TYPE_CHECKING, Any

from osmosis_grpc.rollout._lazy import lookup

if TYPE_CHECKING:
    from osmosis_gateway.llm_client import OsmosisLLMClient as OsmosisLLMClient
    from osmosis_grpc.agent.results import CompletionsResult as CompletionsResult

__all__ = ["CompletionsResult", "OsmosisLLMClient"]
_WHERE = {"osmosis_gateway.llm_client": ["OsmosisLLMClient"], "osmosis_grpc.agent.results": ["CompletionsResult"]}


def __getattr__(name: str) -> Any:
    return lookup(__name__, _WHERE, name)


def __dir__() -> list[str]:
    return __all__
