"""A trainer reads the limits and times of a server. It need not guess."""

import grpc
import pytest

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import control_pb2
from osmosis_grpc.protocol._gen.osmosis.rollout.v1.services_pb2_grpc import RolloutServiceStub
from osmosis_grpc.testing.raw import RawTrainer
from osmosis_grpc.testing.raw.trainer_frames import init
from tests.server.attached import Talk

CONFIG = {
    "record_ttl": 1234.0,
    "trainer_grace": 45.0,
    "chat_silence": 67.0,
    "retry_delay": (0.25, 7.5),
    "outbox_delay": (0.5, 12.0),
    "agent_timeout": 89.0,
    "max_metadata_bytes": 5000,
    "heartbeat_interval": 11.0,
    "heartbeat_timeout": 33.0,
}
WANTED = {
    "outcome_ttl": 1234.0,
    "trainer_grace": 45.0,
    "chat_silence": 67.0,
    "chat_retry_min": 0.25,
    "chat_retry_max": 7.5,
    "outcome_retry_min": 0.5,
    "outcome_retry_max": 12.0,
    "agent_timeout": 89.0,
    "max_metadata_bytes": 5000,
    "max_message_bytes": 64 * 2**20,
    "max_sent_bytes": 64 * 2**20,
    "max_reply_bytes": 32 * 2**20,
    "max_json_depth": 256,
    "max_rollout_id_chars": 256,
    "heartbeat_interval": 11.0,
    "heartbeat_timeout": 33.0,
    "min_ping_interval": 10.0,
}


def plain(limits):
    """The limits by name; times in seconds."""
    values = {field.name: value for field, value in limits.ListFields()}
    return {
        name: value.ToTimedelta().total_seconds() if hasattr(value, "nanos") else value
        for name, value in values.items()
    }


async def told(server, stack):
    """The limits in the hello, and those in the server's description."""
    trainer = await stack.enter_async_context(RawTrainer(server.address))
    stream = await trainer.attach()
    stub = RolloutServiceStub(await stack.enter_async_context(grpc.aio.insecure_channel(server.address)))
    info = await stub.GetServerInfo(control_pb2.GetServerInfoRequest())
    return stream.all("hello")[0].limits, info.limits


async def test_the_hello_and_the_description_have_all_limits(serve, stack):
    hello, info = await told(await serve(Talk(), **CONFIG), stack)
    assert plain(hello) == plain(info) == WANTED
    assert WANTED.keys() == set(control_pb2.Limits.DESCRIPTOR.fields_by_name)


async def test_no_agent_timeout_is_unset(serve, stack):
    hello, info = await told(await serve(Talk(), agent_timeout=None), stack)
    assert not hello.HasField("agent_timeout")
    assert not info.HasField("agent_timeout")


@pytest.mark.parametrize("count", [5000, 5001])
async def test_the_limit_of_the_metadata_is_kept(serve, count):
    server = await serve(Talk(), **CONFIG)
    text = '{"turns": 1, "x": "' + "y" * (count - 21) + '"}'
    assert len(text) == count
    async with RawTrainer(server.address) as trainer:
        await trainer.attach()
        await trainer.send(init("r", metadata_json=text))
        reply = await trainer.stream.next("init_reply")
        assert reply.WhichOneof("result") == ("response" if count == 5000 else "status")
