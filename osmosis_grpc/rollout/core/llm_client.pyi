from osmosis_grpc.agent.model_client import LLMClientProtocol as LLMClientProtocol

__all__ = ["LLMClientProtocol"]
