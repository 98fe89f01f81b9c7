"""Placement by affinity keys, and wait_for_server()."""

import asyncio
import re
from dataclasses import dataclass, field

import pytest

from osmosis_grpc.protocol.errors import Unauthenticated, Unavailable
from osmosis_grpc.protocol.types import RolloutRequest
from osmosis_grpc.server import AgentServer
from osmosis_grpc.trainer import ServerSecurity, SyncTrainer, Trainer, placement
from osmosis_grpc.trainer.agent_server_state import Rollout
from osmosis_grpc.trainer.annotate import RecentServers
from osmosis_grpc.trainer.placement import Placement
from tests.ports import quiet_port
from tests.trainer.conftest import reply, talker


@dataclass(eq=False)
class Server:
    """A server with free slots that hosts every agent loop."""

    free: int
    window: int = 9

    def hosts(self, agent_loop):
        return True


@dataclass
class Servers:
    usable: list[Server]
    named: list[Server] = field(init=False)

    def __post_init__(self):
        self.named = list(self.usable)


@pytest.fixture
def servers():
    return Servers([Server(9), Server(8)])


def place(places, affinity_key):
    rollout = Rollout(RolloutRequest(rollout_id="r"), asyncio.get_running_loop().create_future(), affinity_key)
    server = places.server_for(rollout)
    if server is not None:
        places.add(rollout, server)
    return server


async def test_rollouts_of_a_key_go_to_one_server_and_wait_for_it(servers):
    first, second = servers.usable
    places = Placement(servers, {}, RecentServers())
    assert place(places, "a") is first
    first.free = 1
    assert place(places, "a") is first
    assert place(places, "b") is second
    assert place(places, "") is second
    first.free = 0
    assert place(places, "a") is None


async def test_a_lost_server_gets_no_more_rollouts_of_its_keys_when_it_comes_back(servers):
    first, second = servers.usable
    places = Placement(servers, {}, RecentServers())
    assert place(places, "a") is first
    servers.usable = [second]
    places.leave(first)
    assert place(places, "a") is second
    servers.usable = [first, second]
    assert place(places, "a") is second


async def test_the_next_rollout_of_a_key_does_not_wait_for_a_server_that_drains(servers):
    first, second = servers.usable
    places = Placement(servers, {}, RecentServers())
    assert place(places, "a") is first
    first.free = first.window = 0
    assert place(places, "a") is second


async def test_the_oldest_key_is_forgotten(servers, monkeypatch):
    monkeypatch.setattr(placement, "MAX_AFFINITY_KEYS", 2)
    first, second = servers.usable
    places = Placement(servers, {}, RecentServers())
    assert [place(places, key) for key in ("a", "b", "a", "c")] == [first] * 4
    first.free = 1
    assert place(places, "a") is first
    assert place(places, "b") is second


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
