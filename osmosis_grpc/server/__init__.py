"""The agent server: RolloutService over grpc.aio in front of the engine."""

from osmosis_grpc.network import grpc_variables  # noqa: F401 - before anything imports grpc

# isort: split
from osmosis_grpc.network.credentials import Credentials
from osmosis_grpc.network.server_security import ServerSecurity
from osmosis_grpc.network.tls import ClientTls, ServerTls
from osmosis_grpc.server.app import AgentServer
from osmosis_grpc.server.config import ServerConfig

__all__ = ["AgentServer", "ClientTls", "Credentials", "ServerConfig", "ServerSecurity", "ServerTls"]
