"""Callbacks: the form of their targets, and the channel that rollouts to one address share."""

import gc

import grpc
import pytest

from osmosis_grpc.network.network import GrpcNetwork
from osmosis_grpc.network.target_policy import TargetPolicy
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import Callback, InitRequest, RolloutRequest
from osmosis_grpc.protocol.wire.rollout import callback_from_bytes, callback_to_bytes
from osmosis_grpc.server.callbacks import SHARED_FOR, Callbacks
from osmosis_grpc.supervise import System
from osmosis_grpc.trainer import CallbackTls, RolloutClient

QUESTION = [{"role": "user", "content": "What is 1 + 1?"}]
URLS = ["http://127.0.0.1:1", "https://127.0.0.1:1", "HTTP://127.0.0.1:1/v1", "grpc://127.0.0.1:1", "://127.0.0.1:1"]


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("tls", [None, CallbackTls()])
async def test_a_url_is_refused_and_the_text_says_what_to_send(serve, stack, url, tls):
    server = await serve()
    client = await stack.enter_async_context(RolloutClient(server.address))
    with pytest.raises(InvalidArgument) as refusal:
        await client.init(rollout_id="r", messages=QUESTION, callback=Callback(target=url, tls=tls))
    ((field, problem),) = refusal.value.violations
    assert field == "callback.target"
    assert problem == "is a URL; send HOST:PORT, and set callback.tls if the trainer speaks TLS"
    assert not [row async for row in client.rollouts()]


@pytest.mark.parametrize("tls", [None, CallbackTls(), CallbackTls("trainer.example")])
def test_presence_of_tls_survives(tls):
    """An empty CallbackTls means TLS with the name of the target's host. It differs from no TLS."""
    callback = Callback(target="127.0.0.1:1", tls=tls)
    assert callback_from_bytes(callback_to_bytes(callback, secrets=True)).tls == tls


class Counting(GrpcNetwork):
    """Keeps the channels that it makes."""

    def __init__(self):
        self.made = []

    def channel(self, target, tls, options):
        made = super().channel(target, tls, options)
        self.made.append(made)
        return made


def init(target):
    return InitRequest(request=RolloutRequest(rollout_id="r", messages=[]), callback=Callback(target=target))


async def test_a_channel_is_shared_by_the_clock_and_not_by_the_garbage_collector():
    now, network, system = [0.0], Counting(), System()
    system.monotonic = lambda: now[0]
    callbacks = Callbacks(TargetPolicy(loopback=True), system=system, network=network)
    used = await callbacks.peer(init("127.0.0.1:9"))
    await callbacks.peer(init("127.0.0.1:9"))
    await callbacks.peer(init("127.0.0.1:10"))
    assert len(network.made) == 2
    gc.collect()
    now[0] = SHARED_FOR
    await callbacks.peer(init("127.0.0.1:10"))
    assert len(network.made) == 2
    now[0] = SHARED_FOR + 1.0
    await callbacks.peer(init("127.0.0.1:9"))
    assert len(network.made) == 3
    await callbacks.peer(init("127.0.0.1:10"))
    assert len(network.made) == 3
    await callbacks.close()
    assert [each.get_state() for each in network.made] == [grpc.ChannelConnectivity.SHUTDOWN] * 3
    assert used is not None
