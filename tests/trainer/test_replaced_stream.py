"""A trainer whose stream another stream has replaced does not come back: the two would replace each other for ever."""

import asyncio

import pytest

from osmosis_grpc.policies.scripted import EchoPolicy
from osmosis_grpc.testing.conformance.trainer_links import PlayedServer
from osmosis_grpc.testing.raw import server_frames
from osmosis_grpc.trainer import Trainer
from tests.trainer.deployment import begun, within


@pytest.mark.parametrize(("status", "comes_back"), [("ABORTED", False), ("INTERNAL", True)])
async def test_only_a_replaced_stream_is_final(status, comes_back):
    async with PlayedServer("127.0.0.1") as server, Trainer([server.address], EchoPolicy()) as trainer:
        rollout = begun(trainer.rollout(rollout_id="r", agent_loop="talk", messages=[]))
        stream = await within(server.next_stream())
        await stream.next("hello")
        await stream.send(server_frames.hello(journal_id="j"))
        request = await stream.next("init")
        server.finish(stream, status)
        if not comes_back:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(server.next_stream(), 0.6)  # the first pause has 0.25 s at most
            assert not trainer.servers[0].attached
            rollout.cancel()
            return
        again = await within(server.next_stream())
        await again.next("hello")
        await again.send(server_frames.hello(journal_id="j"), server_frames.accepted(request))
        await again.send(server_frames.complete(request))
        assert (await within(rollout)).rollout_id == "r"
