"""Only an administrator drains a server, and a drain can be ended."""

import asyncio
import socket

import pytest

from osmosis_grpc.policies import ToolCallingMock
from osmosis_grpc.protocol.errors import FailedPrecondition, PermissionDenied, Unauthenticated, Unavailable
from osmosis_grpc.protocol.types import Callback
from osmosis_grpc.server import AgentServer, ServerSecurity
from osmosis_grpc.testing.calculator import CalculatorAgent
from osmosis_grpc.trainer import RolloutClient, Trainer
from tests.deployment import health
from tests.security.conftest import SECOND, TOKEN
from tests.waiter import Waiter

QUESTION = [{"role": "user", "content": "What is 1 + 2?"}]
ADMIN = "secret-of-the-administrator"


async def hosting(stack, security, *loops, host="127.0.0.1"):
    loops = loops or (CalculatorAgent(),)
    return await stack.enter_async_context(AgentServer(loops, host=host, port=0, security=security))


async def test_a_tenants_token_does_not_drain(stack):
    server = await hosting(stack, ServerSecurity([f"lab={TOKEN}", SECOND], admin_tokens=f"ops={ADMIN}"))
    for token, refused in ((TOKEN, PermissionDenied), (SECOND, PermissionDenied), ("", Unauthenticated)):
        async with RolloutClient(server.address, token=token) as client:
            for cancel in (False, True):
                with pytest.raises(refused):
                    await client.drain(cancel=cancel)
    assert await health(server.address) == "SERVING"
    async with RolloutClient(server.address, token=ADMIN) as admin:
        await admin.drain()
        assert (await admin.info()).draining
        assert await health(server.address) == "NOT_SERVING"


async def test_with_tokens_but_no_administrators_token_drain_is_refused(stack):
    server = await hosting(stack, ServerSecurity(TOKEN))
    async with RolloutClient(server.address, token=TOKEN) as client:
        with pytest.raises(PermissionDenied, match="--admin-token-file"):
            await client.drain()
        assert not (await client.info()).draining


async def test_without_tokens_an_administrators_token_still_counts(stack):
    server = await hosting(stack, ServerSecurity(admin_tokens=ADMIN))
    async with RolloutClient(server.address) as anyone, RolloutClient(server.address, token=ADMIN) as admin:
        with pytest.raises(PermissionDenied):
            await anyone.drain()
        await admin.drain()
        assert (await anyone.info()).draining


def own_address():
    """An address of this machine that is not loopback; none where there is no network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("10.255.255.255", 1))
        except OSError:
            return None
        return probe.getsockname()[0]


@pytest.mark.skipif(own_address() is None, reason="this machine has no address but loopback")
async def test_without_any_token_only_this_machine_drains(stack):
    server = await hosting(stack, ServerSecurity(insecure=True), host="0.0.0.0")
    async with RolloutClient(f"{own_address()}:{server.port}") as client:
        with pytest.raises(PermissionDenied, match="machine"):
            await client.drain()
        assert not (await client.info()).draining
    async with RolloutClient(f"127.0.0.1:{server.port}") as client:
        await client.drain()
        assert (await client.info()).draining


async def test_a_drain_can_be_ended(stack, refused_at_once):
    waiter = Waiter()
    server = await hosting(stack, ServerSecurity(), waiter, CalculatorAgent())
    trainer = await stack.enter_async_context(Trainer([server.address], ToolCallingMock()))
    running = asyncio.create_task(trainer.rollout(rollout_id="before", messages=QUESTION, agent_loop="waiter"))
    await waiter.started.wait()
    async with RolloutClient(server.address) as client:
        left = await client.drain()
        assert left.running == 1
        with pytest.raises(Unavailable, match="draining"):
            await client.init(
                rollout_id="x", messages=QUESTION, agent_loop="waiter", callback=Callback(target="127.0.0.1:9")
            )
        waits = asyncio.create_task(trainer.rollout(rollout_id="after", messages=QUESTION, agent_loop="calculator"))
        await client.drain()
        assert await health(server.address) == "NOT_SERVING"
        assert not waits.done()
        await client.drain(cancel=True)
        await client.drain(cancel=True)
        assert not (await client.info()).draining
        assert await health(server.address) == "SERVING"
        assert (await asyncio.wait_for(waits, 30)).status.name == "COMPLETED"
        waiter.go.set()
        assert (await asyncio.wait_for(running, 30)).status.name == "COMPLETED"


async def test_a_stopping_server_refuses_to_cancel_its_drain(stack):
    waiter = Waiter()
    server = await hosting(stack, ServerSecurity(), waiter)
    trainer = await stack.enter_async_context(Trainer([server.address], ToolCallingMock()))
    running = asyncio.create_task(trainer.rollout(rollout_id="r", messages=QUESTION))
    await waiter.started.wait()
    async with RolloutClient(server.address) as client:
        stopping = asyncio.create_task(server.stop(30.0))
        while not (await client.info()).draining:
            await asyncio.sleep(0)
        with pytest.raises(FailedPrecondition, match="stopping"):
            await client.drain(cancel=True)
        assert (await client.info()).draining
        waiter.go.set()
        assert (await asyncio.wait_for(running, 30)).status.name == "COMPLETED"
        await asyncio.wait_for(stopping, 30)
