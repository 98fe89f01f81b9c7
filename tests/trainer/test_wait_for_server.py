"""Trainer.wait_for_server(): a script learns within seconds that no agent server is there."""

import re

import pytest

from osmosis_grpc.protocol.errors import Unauthenticated, Unavailable
from osmosis_grpc.server import AgentServer
from osmosis_grpc.trainer import ServerSecurity, SyncTrainer, Trainer
from tests.ports import quiet_port
from tests.trainer.conftest import reply, talker


async def test_it_returns_when_a_server_is_there(serve):
    server = await serve(talker())
    async with Trainer([server.address], reply) as trainer:
        await trainer.wait_for_server()
        assert [each.attached for each in trainer.servers] == [True]
        await trainer.wait_for_server(0)


async def test_it_waits_for_several_servers(serve):
    server, away = await serve(talker()), f"127.0.0.1:{quiet_port()}"
    async with Trainer([server.address, away], reply) as trainer:
        await trainer.wait_for_server()
        with pytest.raises(Unavailable, match=rf"^1 of 2 agent servers were there after 0\.1 s: {server.address}$"):
            await trainer.wait_for_server(0.1, count=2)
    other = await serve(talker())
    async with Trainer([server.address, other.address], reply) as trainer:
        await trainer.wait_for_server(count=2)
        assert [each.attached for each in trainer.servers] == [True, True]


def test_it_names_the_server_that_cannot_be_reached():
    address = f"127.0.0.1:{quiet_port()}"
    expected = re.escape(f"no agent server was there for 0.1 s ({address}: ")
    with SyncTrainer([address], reply) as trainer, pytest.raises(Unavailable, match=expected):
        trainer.wait_for_server(0.1)


async def test_a_refusal_ends_the_wait_at_once():
    async with (
        AgentServer([talker()], port=0, security=ServerSecurity(["secret"])) as server,
        Trainer([server.address], reply) as trainer,
    ):
        with pytest.raises(Unauthenticated):
            await trainer.wait_for_server(60)
