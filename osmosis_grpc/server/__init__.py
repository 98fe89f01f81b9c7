"""The agent server: RolloutService over grpc.aio in front of the engine."""

from osmosis_grpc.link.credentials import Access
from osmosis_grpc.link.security import Security
from osmosis_grpc.link.tls import ClientTls, ServerTls
from osmosis_grpc.link.tokens import Tokens
from osmosis_grpc.server.app import AgentServer

__all__ = ["Access", "AgentServer", "ClientTls", "Security", "ServerTls", "Tokens"]
