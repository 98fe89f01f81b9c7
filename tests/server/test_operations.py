"""Health, reflection, one server per port, and the drain."""

import asyncio

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from pydantic import BaseModel, model_serializer

from osmosis_grpc.policies import ToolCallingMock
from osmosis_grpc.protocol.errors import Internal, Unavailable
from osmosis_grpc.protocol.types import OutcomeStatus, events
from osmosis_grpc.server import AgentServer
from osmosis_grpc.testing.calculator import CalculatorAgent
from osmosis_grpc.trainer import RolloutClient
from tests.deployment import health
from tests.waiter import Waiter
from tests.waiting import ended, until

SERVICE = "osmosis.rollout.v1.RolloutService"


async def statuses(address):
    return [await health(address, name) for name in ("", SERVICE, "liveness")]


async def test_health_and_reflection(serve):
    server = await serve()
    assert await statuses(server.address) == ["SERVING"] * 3
    async with grpc.aio.insecure_channel(server.address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        asked = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        async for answer in stub.ServerReflectionInfo(asked):
            names = {service.name for service in answer.list_services_response.service}
    assert SERVICE in names
    await server.drain()
    assert await statuses(server.address) == ["NOT_SERVING", "NOT_SERVING", "SERVING"]


async def test_without_reflection_the_protocol_is_not_described(serve):
    server = await serve(reflection=False)
    async with grpc.aio.insecure_channel(server.address) as channel:
        call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(
            iter([reflection_pb2.ServerReflectionRequest(list_services="")])
        )
        assert await call.code() is grpc.StatusCode.UNIMPLEMENTED
    assert await statuses(server.address) == ["SERVING"] * 3


async def test_two_servers_do_not_share_a_port(serve):
    server = await serve()
    with pytest.raises(OSError, match="in use"):
        async with AgentServer([CalculatorAgent()], port=server.port):
            pass


def test_a_public_host_is_refused():
    with pytest.raises(ValueError, match="token or TLS"):
        AgentServer([CalculatorAgent()], host="0.0.0.0")


class Spoilt(BaseModel):
    """A tool schema that cannot be sent."""

    @model_serializer
    def tell(self):
        raise ValueError("no words")


class Odd(CalculatorAgent):
    """Its get_tools does what the request's label says."""

    name = "odd"

    def __init__(self):
        self.listed = []
        """Rollouts whose tools were asked for."""

    async def get_tools(self, request):
        self.listed.append(request.rollout_id)
        if request.label == "spoilt":
            return [Spoilt()]
        while request.rollout_id == "server-info":
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                await asyncio.sleep(0.2)  # it stops late
                raise
        await asyncio.sleep(0.05)  # get_tools takes a moment
        return []


async def test_what_get_tools_returns_cannot_take_the_server_along(serve, train):
    server, trainer = await serve(Odd(), max_concurrent=1), await train(ToolCallingMock())
    async with RolloutClient(server.address) as client:
        for _ in range(4):
            with pytest.raises(Internal, match="get_tools of odd failed"):
                await client.init(rollout_id="r", label="spoilt", callback=trainer.callback())
        assert (await client.info()).agent_loops[0].name == "odd"
        await client.init(rollout_id="r", callback=trainer.callback())
        assert (await trainer.outcome("r", timeout=10)).status is OutcomeStatus.COMPLETED


@pytest.mark.slow
async def test_what_is_accepted_while_the_server_closes_is_refused(serve, train):
    odd = Odd()
    server, trainer = await serve(odd, Waiter()), await train(ToolCallingMock())
    async with RolloutClient(server.address) as client:
        asking = asyncio.ensure_future(client.init(rollout_id="r", agent_loop="odd", callback=trainer.callback()))
        await until(lambda: "r" in odd.listed)
        closing = asyncio.ensure_future(server.engine.shutdown.close(0.0))
        with pytest.raises(Unavailable):
            await asyncio.wait_for(asking, 30)
        await closing
        assert (await server.engine.rollouts.page(""))[0] == []


@pytest.mark.slow
async def test_a_large_outcome_can_be_read_everywhere(serve, train):
    class Large(CalculatorAgent):
        async def run(self, ctx):
            return ctx.complete([], extra_fields={"x": "y" * (17 * 2**20)})

    server, trainer = await serve(Large()), await train(ToolCallingMock())
    async with RolloutClient(server.address) as client:
        await client.init(rollout_id="r", callback=trainer.callback())
        assert (await trainer.outcome("r", timeout=10)).omitted == ("extra_json",)
        assert (await ended(client, "r")).omitted == ("extra_json",)
        ends = [e.kind async for e in client.events("r") if isinstance(e.kind, events.Ended)]
        assert ends[0].outcome.omitted == ("extra_json",)


async def test_drain_lets_what_runs_finish(serve, train):
    waiter = Waiter()
    server, trainer = await serve(waiter), await train(ToolCallingMock())
    async with RolloutClient(server.address) as client:
        await client.init(rollout_id="r", callback=trainer.callback())
        stopping = asyncio.create_task(server.stop(30.0))
        await asyncio.sleep(0.05)  # get_tools takes a moment
        assert await statuses(server.address) == ["NOT_SERVING", "NOT_SERVING", "SERVING"]
        waiter.go.set()
        await asyncio.wait_for(stopping, 10)
    assert (await trainer.outcome("r")).status is OutcomeStatus.COMPLETED


async def test_what_does_not_finish_ends_failed_and_retryable(serve, train):
    server, trainer = await serve(Waiter(), max_concurrent=1), await train(ToolCallingMock())
    async with RolloutClient(server.address) as client:
        await client.init(rollout_id="running", callback=trainer.callback())
        await client.init(rollout_id="queued", callback=trainer.callback())
        await asyncio.wait_for(server.stop(0.1), 10)
    for rollout_id in ("running", "queued"):
        outcome = await asyncio.wait_for(trainer.outcome(rollout_id), 10)
        assert outcome.status is OutcomeStatus.FAILED
        assert (outcome.failure.boundary, outcome.failure.retryable) == ("server", True)
        assert outcome.reward is None
