"""Placement: rollouts with one affinity key go to one server, as long as the key is kept."""

import asyncio
from dataclasses import dataclass, field

import pytest

from osmosis_grpc.protocol.types import RolloutRequest
from osmosis_grpc.trainer import placement
from osmosis_grpc.trainer.agent_server_link import Rollout
from osmosis_grpc.trainer.annotate import RecentServers
from osmosis_grpc.trainer.placement import Placement


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
