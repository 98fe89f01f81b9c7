"""The old names of osmosis_grpc.testing.raw, for tests/trainer."""

from contextlib import asynccontextmanager
from types import SimpleNamespace

from osmosis_grpc.testing.raw import RawAgentServer, listen_as_agent_server
from osmosis_grpc.testing.raw.connections import ACCEPT
from osmosis_grpc.testing.raw.server_frames import (
    HEARTBEAT,
    accepted,
    chat,
    complete,
    delta,
    event,
    hello,
    init_reply,
    referring,
    status,
    window,
)

__all__ = [
    "ACCEPT",
    "HEARTBEAT",
    "RawAgentServer",
    "accepted",
    "chat",
    "complete",
    "delta",
    "event",
    "hello",
    "host",
    "init_reply",
    "referring",
    "status",
    "window",
]


@asynccontextmanager
async def host():
    """An agent server that trainers dial."""
    async with listen_as_agent_server() as listener:
        yield SimpleNamespace(streams=SimpleNamespace(get=listener.accept)), listener.address
