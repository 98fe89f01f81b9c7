from osmosis_gateway.llm_client import OsmosisLLMClient as OsmosisLLMClient
from osmosis_grpc.agent.results import CompletionsResult as CompletionsResult

__all__ = ["CompletionsResult", "OsmosisLLMClient"]
