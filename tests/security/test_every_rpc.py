"""Every RPC of every server with every credential: the list is read from the services' descriptors."""

import re

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from osmosis_grpc.policies import ToolCallingMock
from osmosis_grpc.server import AgentServer, ServerConfig, ServerSecurity
from osmosis_grpc.testing.calculator import CalculatorAgent
from osmosis_grpc.trainer import Trainer
from tests.security.conftest import RIGHT, SECOND, TOKEN, WRONG, methods, status

TOKENS = [f"named={TOKEN}", SECOND]
SERVICES = ("RolloutService", "ServerReflection")


@pytest.fixture
async def agent_server(stack):
    return await stack.enter_async_context(
        AgentServer(
            [CalculatorAgent()],
            port=0,
            security=ServerSecurity(TOKENS),
            config=ServerConfig(allow_targets=["127.0.0.1"]),
        )
    )


@pytest.fixture
async def channel(stack, agent_server):
    return await stack.enter_async_context(grpc.aio.insecure_channel(agent_server.address))


@pytest.mark.parametrize("method", methods(*SERVICES), ids=lambda row: row[0].rpartition("/")[2])
async def test_an_agent_server_asks_everybody(agent_server, channel, method):
    for name, shown in WRONG.items():
        for body in (b"", b"\xff\xff"):  # nothing of a request is looked at
            assert await status(channel, method, shown, body) == "UNAUTHENTICATED", name
    assert not agent_server.engine.shutdown.draining
    for name, shown in RIGHT.items():
        assert await status(channel, method, shown) != "UNAUTHENTICATED", name


@pytest.mark.parametrize("method", methods("TrainerService"), ids=lambda row: row[0].rpartition("/")[2])
@pytest.mark.parametrize("transport", ["callback", "attach"])
async def test_a_trainer_asks_everybody(stack, method, transport):
    security = ServerSecurity(TOKENS)
    trainer = Trainer([], ToolCallingMock(), transport=transport, listen="127.0.0.1:0", security=security)
    await stack.enter_async_context(trainer)
    channel = await stack.enter_async_context(grpc.aio.insecure_channel(trainer.address))
    for name, shown in WRONG.items():
        for body in (b"", b"\xff\xff"):
            assert await status(channel, method, shown, body) == "UNAUTHENTICATED", name
    for name, shown in RIGHT.items():
        assert await status(channel, method, shown) != "UNAUTHENTICATED", name


async def test_no_service_is_forgotten(channel):
    """What the server has is what is called above, and health."""
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    asked = stub.ServerReflectionInfo(
        iter([reflection_pb2.ServerReflectionRequest(list_services="")]),
        metadata=(("authorization", RIGHT["the first"]),),
    )
    names = {row.name.rpartition(".")[2] for row in (await asked.read()).list_services_response.service}
    assert names == {*SERVICES, "Health"}
    assert len(methods(*SERVICES)) == 10
    assert len(methods("TrainerService")) == 4


async def test_health_answers_anyone(channel):
    stub = health_pb2_grpc.HealthStub(channel)
    for shown in (None, "Bearer another"):
        metadata = None if shown is None else (("authorization", shown),)
        answer = await stub.Check(health_pb2.HealthCheckRequest(), metadata=metadata)
        assert answer == health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)
        watch = stub.Watch(health_pb2.HealthCheckRequest(service="liveness"), metadata=metadata)
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        watch.cancel()


async def test_everybody_hears_the_same(channel):
    answers = set()
    for shown in WRONG.values():
        metadata = None if shown is None else (("authorization", shown),)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(methods("RolloutService")[0][0])(b"", metadata=metadata)
        answers.add(caught.value.details())
    assert len(answers) == 1
    assert not any(secret[:8] in text for text in answers for secret in (TOKEN, SECOND, "another"))


@pytest.mark.parametrize(("shown", "reason"), [(None, "it shows no token"), ("Bearer x", "its token is not accepted")])
async def test_a_refused_caller_is_a_line_in_the_log(agent_server, channel, caplog, shown, reason):
    assert await status(channel, methods("RolloutService")[0], shown) == "UNAUTHENTICATED"
    (line,) = [record.getMessage() for record in caplog.records if record.name.startswith("osmosis_grpc.network")]
    assert re.fullmatch(rf"the server refuses caller ipv4:127\.0\.0\.1:\d+: {reason}", line)
    assert shown is None or shown not in caplog.text


async def test_many_refused_callers_make_few_log_lines_without_tokens(agent_server, channel, caplog):
    for _ in range(5):
        for shown in WRONG.values():
            await status(channel, methods("RolloutService")[0], shown)
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("osmosis_grpc.network")]
    assert 1 <= len(lines) < 5 * len(WRONG)
    assert not any(secret[:8] in caplog.text for secret in (TOKEN, SECOND, "another"))


async def test_without_tokens_no_call_needs_one(stack, serve):
    server = await serve()
    channel = await stack.enter_async_context(grpc.aio.insecure_channel(server.address))
    for method in methods(*SERVICES):
        for shown in (None, "Bearer another"):
            assert await status(channel, method, shown) != "UNAUTHENTICATED"
