"""Rollouts with callbacks to one address share a channel."""

import gc

import grpc

from osmosis_grpc.network.network import GrpcNetwork
from osmosis_grpc.network.target_policy import TargetPolicy
from osmosis_grpc.protocol.types import Callback, InitRequest, RolloutRequest
from osmosis_grpc.server.callbacks import SHARED_FOR, Callbacks
from osmosis_grpc.supervise import System


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
