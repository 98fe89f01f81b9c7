"""The engine: lifecycle and admission of rollouts, the event log, the chat client, and the delivery of outcomes.

The engine does not depend on a transport. It calls the ports of osmosis_grpc.agent. The names below are imported on
first use, because the storage needs only the engine's ports.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from osmosis_grpc.engine.config import EngineConfig
    from osmosis_grpc.engine.engine import Engine
    from osmosis_grpc.engine.record import Peer, Record, Tenant

__all__ = ["Engine", "EngineConfig", "Peer", "Record", "Tenant"]

_MODULES = {"Engine": "engine", "EngineConfig": "config", "Peer": "record", "Record": "record", "Tenant": "record"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
