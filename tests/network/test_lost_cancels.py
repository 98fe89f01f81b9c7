"""A cancel that comes together with the end of a call is not lost."""

import asyncio
import contextlib

import anyio
import grpc
import pytest

from osmosis_grpc.network.client_calls import Asking, call, cancellable
from osmosis_grpc.protocol.errors import CallError
from osmosis_grpc.testing.raw.peers import listen_as_agent_server

UNKNOWN = "/osmosis.rollout.v1.RolloutService/Unknown"
"""The server refuses it at once."""


async def read(made):
    return await cancellable(made.read())


async def unary(made):
    return await call(lambda *_, **__: made, b"", timeout=None)


async def asking(made):
    return await Asking(None, UNKNOWN, lambda _: made, b"")


KINDS = {
    read: lambda channel: channel.stream_stream(UNKNOWN)(),
    unary: lambda channel: channel.unary_unary(UNKNOWN)(b""),
    asking: lambda channel: channel.unary_unary(UNKNOWN)(b""),
}


@pytest.fixture
async def channel():
    async with listen_as_agent_server() as server, grpc.aio.insecure_channel(server.address) as channel:
        yield channel


async def ended(made):
    while not made.done():
        await asyncio.sleep(0)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_task_is_cancelled_although_its_call_has_just_ended(channel, kind):
    in_time = 0
    for _ in range(50):
        made = KINDS[kind](channel)
        task = asyncio.create_task(kind(made))
        await ended(made)
        if task.cancel():
            in_time += 1
            await asyncio.wait([task], timeout=5)
            assert task.cancelled()
    assert in_time


@pytest.mark.parametrize("kind", KINDS)
async def test_a_cancel_scope_of_anyio_ends_where_it_began(channel, kind):
    for _ in range(50):
        made = KINDS[kind](channel)
        with anyio.CancelScope() as scope:
            task = asyncio.create_task(ended(made))
            task.add_done_callback(lambda _, scope=scope: scope.cancel())
            with contextlib.suppress(grpc.aio.AioRpcError, CallError):
                await kind(made)
        await task
        assert not asyncio.current_task().cancelling()
