"""The agent server: RolloutService over grpc.aio in front of the engine."""

from osmosis_grpc.server.app import AgentServer

__all__ = ["AgentServer"]
