"""The engine: lifecycle and admission of rollouts, the event log, the chat client, and the delivery of outcomes.

The engine does not depend on a transport. It calls the ports of osmosis_grpc.agent.
"""

from osmosis_grpc.engine.config import EngineConfig
from osmosis_grpc.engine.engine import Engine
from osmosis_grpc.engine.record import Peer, Record, Tenant

__all__ = ["Engine", "EngineConfig", "Peer", "Record", "Tenant"]
