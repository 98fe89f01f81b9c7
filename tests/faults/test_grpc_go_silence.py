"""A callback trainer that is a stock grpc-go server holds a silent chat for more than five minutes."""

import json

import pytest

from tests.attach.cutting_proxy import CuttingProxy
from tests.clients.builds import program
from tests.clients.client_process import ClientProcess
from tests.ports import quiet_port
from tests.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.timeout(540)]
SILENCE = 310
"""Seconds without a reply: five minutes, and one ping of the agent server."""


async def test_a_stock_grpc_go_trainer_sends_no_goaway_in_five_minutes_of_a_silent_chat(serve, tmp_path):
    """GOAWAY ends a connection. The proxy before the trainer counts connections, and would see another one."""
    command = program("go")("trainer")
    script = tmp_path / "script.json"
    reply = {"content": "#### 5", "seconds": SILENCE}
    script.write_text(json.dumps({"silent": {"question": "What is 2 + 3?", "label": "5", "replies": [reply]}}))
    server, listen = await serve(), f"127.0.0.1:{quiet_port()}"
    async with CuttingProxy(listen) as back:
        addresses = ("--target", server.address, "--listen", listen, "--advertise", back.address)
        async with ClientProcess(command, "--mode", "callback", *addresses, "--script", str(script)) as trainer:
            await until(lambda: trainer.events("outcome"), "the outcome", timeout=SILENCE + 60)
            assert (back.accepted, len(back.connections)) == (1, 1)
            assert len(trainer.events("sampled")) == 1
            assert trainer.events("outcome")[0]["reward"] == 1.0
            assert await trainer.leave() == 0
