"""The engine: lifecycle, admission, the event log, the chat client, delivery.

It knows no transport: it calls the ports of osmosis_grpc.agent.
"""

from osmosis_grpc.engine.config import EngineConfig
from osmosis_grpc.engine.engine import Engine
from osmosis_grpc.engine.record import Peer, Record, Tenant

__all__ = ["Engine", "EngineConfig", "Peer", "Record", "Tenant"]
