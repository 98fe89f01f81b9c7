"""A callback trainer that is a stock grpc-go server holds a silent chat for more than five minutes."""

import asyncio

import pytest

from tests.clients import stubs
from tests.clients.scenario import EXPECTED, command, read_result

pytestmark = [pytest.mark.long, pytest.mark.timeout(540)]
SILENCE = 310
"""Seconds without a reply: five minutes, and one ping of the agent server."""
TOO_MANY = 110
"""Seconds after which a stock grpc-go server has refused pings every 20 seconds."""


async def test_p09_a_stock_grpc_go_trainer_sends_no_goaway_in_five_minutes_of_a_silent_chat(serve, tmp_path):
    """GOAWAY ends a connection. The trainer counts its connections.

    A second trainer permits pings every 20 seconds, but its listener does not. It shows that the count sees a GOAWAY.
    """
    program = await stubs.go(tmp_path)
    server, draining = await serve(), await serve()
    await draining.drain()

    async def run(*options: str) -> dict:
        out = await command(*program, *options, server.address, draining.address, cwd=tmp_path, timeout=480)
        return read_result(out)

    stock, wrong = await asyncio.gather(
        run("-id", "stock", "-silent", str(SILENCE)), run("-id", "wrong", "-silent", str(TOO_MANY), "-ping", "20")
    )
    assert stock == EXPECTED | {"connections": 1, "ended": 0}
    assert wrong["ended"] > 0
    assert wrong["status"] == "COMPLETED", "the chat was asked again over another connection"
