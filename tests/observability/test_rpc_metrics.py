"""gRPC's own metrics (gRFC A66), of servers and of clients, over real sockets."""

import asyncio

import grpc
import pytest

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import control_pb2 as pb
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import services_pb2_grpc
from osmosis_grpc.server import AgentServer, ServerSecurity
from osmosis_grpc.trainer import RolloutClient, Trainer
from tests.callback_trainer import CallbackTrainer
from tests.observability.agents import PATIENCE, Mixed, policy, request, run_all
from tests.observability.scrape import scrape

SERVICE, TRAINER = "osmosis.rollout.v1.RolloutService", "osmosis.rollout.v1.TrainerService"
SENT, RECEIVED = "sent_total_compressed_message_size_bytes", "rcvd_total_compressed_message_size_bytes"


def counts(page, prefix):
    """How many calls ended, by method and status."""
    name = f"{prefix}_duration_seconds_count"
    return {
        (dict(labels)["grpc_method"].rpartition("/")[2], dict(labels)["grpc_status"]): value
        for (sample, labels), value in page.samples.items()
        if sample == name
    }


def total(page, name, method, status="OK"):
    return page.value(f"{name}_sum", grpc_method=method, grpc_status=status)


async def until_ended(source, count, prefix="grpc_server_call"):
    """The page, once so many calls have ended: a client knows it before the server's task does."""
    async with asyncio.timeout(PATIENCE):
        while sum(counts(page := scrape(source), prefix).values()) < count:
            await asyncio.sleep(0.005)  # between two scrapes
    return page


@pytest.fixture
async def server(stack):
    return await stack.enter_async_context(AgentServer([Mixed()], port=0))


@pytest.fixture
async def channel(stack, server):
    return await stack.enter_async_context(grpc.aio.insecure_channel(server.address))


async def refused(call):
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call
    return failed.value.code().name


async def test_calls_by_method_and_status(server, channel):
    stub = services_pb2_grpc.RolloutServiceStub(channel)
    for _ in range(3):
        await stub.GetServerInfo(pb.GetServerInfoRequest())
    assert await refused(stub.GetRollout(pb.GetRolloutRequest(rollout_id="nobody"))) == "NOT_FOUND"
    garbage = channel.unary_unary(f"/{SERVICE}/GetRollout")
    assert await refused(garbage(b"\xff\xff")) == "INVALID_ARGUMENT"
    stream = stub.StreamEvents(pb.StreamEventsRequest(from_now=True))
    await stream.read()
    open_page = scrape(server.metrics)
    assert open_page.value("grpc_server_call_started_total", grpc_method=f"{SERVICE}/StreamEvents") == 1
    assert not [key for key in counts(open_page, "grpc_server_call") if key[0] == "StreamEvents"], "it goes on"
    stream.cancel()
    page = await until_ended(server.metrics, 6)
    assert counts(page, "grpc_server_call") == {
        ("GetServerInfo", "OK"): 3,
        ("GetRollout", "NOT_FOUND"): 1,
        ("GetRollout", "INVALID_ARGUMENT"): 1,
        ("StreamEvents", "CANCELLED"): 1,
    }
    assert page.value("grpc_server_call_started_total", grpc_method=f"{SERVICE}/GetServerInfo") == 3
    assert page.value("grpc_server_call_started_total", grpc_method=f"{SERVICE}/GetRollout") == 2
    assert total(page, "grpc_server_call_duration_seconds", f"{SERVICE}/GetServerInfo") > 0
    for name, family in page.families.items():
        if name.startswith("grpc_"):
            labels = {label for sample in family.samples for label in sample.labels} - {"le"}
            assert labels <= {"grpc_method", "grpc_status"}, name


async def test_bytes_of_messages(server, channel):
    stub = services_pb2_grpc.RolloutServiceStub(channel)
    asked = pb.ListRolloutsRequest(group_id="g" * 5000)
    answer = await stub.ListRollouts(asked)
    page = await until_ended(server.metrics, 1)
    method = f"{SERVICE}/ListRollouts"
    assert total(page, f"grpc_server_call_{RECEIVED}", method) == asked.ByteSize() > 5000
    assert total(page, f"grpc_server_call_{SENT}", method) == answer.ByteSize()
    below = {"grpc_method": method, "grpc_status": "OK"}
    assert page.value(f"grpc_server_call_{RECEIVED}_bucket", le="4096.0", **below) == 0
    assert page.value(f"grpc_server_call_{RECEIVED}_bucket", le="16384.0", **below) == 1


async def test_unregistered_methods_share_a_label(server, channel):
    for number in range(30):
        path = f"/{SERVICE}/Evil{number}" if number % 2 else f"/evil.Service{number}/Do"
        assert await refused(channel.unary_unary(path)(b"")) == "UNIMPLEMENTED"
    page = await until_ended(server.metrics, 30)
    assert counts(page, "grpc_server_call") == {("other", "UNIMPLEMENTED"): 30}
    assert page.value("grpc_server_call_started_total", grpc_method="other") == 30
    assert "vil" not in page.text


async def test_a_call_without_the_token_is_counted(stack):
    server = await stack.enter_async_context(AgentServer([Mixed()], port=0, security=ServerSecurity("secret")))
    channel = await stack.enter_async_context(grpc.aio.insecure_channel(server.address))
    stub = services_pb2_grpc.RolloutServiceStub(channel)
    assert await refused(stub.GetServerInfo(pb.GetServerInfoRequest())) == "UNAUTHENTICATED"
    stream = stub.Attach()
    assert (await stream.code()).name == "UNAUTHENTICATED"
    health = channel.unary_unary("/grpc.health.v1.Health/Check")
    await health(b"")
    page = await until_ended(server.metrics, 3)
    assert counts(page, "grpc_server_call") == {
        ("GetServerInfo", "UNAUTHENTICATED"): 1,
        ("Attach", "UNAUTHENTICATED"): 1,
        ("Check", "OK"): 1,
    }


async def test_both_sides_of_callbacks_count_the_same(server):
    async with CallbackTrainer(policy) as trainer, RolloutClient(server.address) as client:
        for number in range(4):
            await client.init(request(f"ok-{number}", label="1"), callback=trainer.callback())
            await asyncio.wait_for(trainer.outcome(f"ok-{number}"), PATIENCE)
        made = await until_ended(server.metrics, 8, "grpc_client_attempt")
        answered = await until_ended(trainer.source, 8)
    expected = {("Chat", "OK"): 4, ("Complete", "OK"): 4}
    assert counts(made, "grpc_client_attempt") == counts(made, "grpc_client_call") == expected
    assert counts(answered, "grpc_server_call") == expected
    for method in (f"{TRAINER}/Chat", f"{TRAINER}/Complete"):
        for one, other in ((SENT, RECEIVED), (RECEIVED, SENT)):
            there = total(made, f"grpc_client_attempt_{one}", method)
            assert there == total(answered, f"grpc_server_call_{other}", method)
        assert total(made, f"grpc_client_attempt_{SENT}", method) > 0
    assert counts(made, "grpc_server_call") == {("Init", "OK"): 4}


@pytest.mark.parametrize("who", ["trainer dials", "server dials"])
async def test_both_sides_of_a_stream_count_the_same(stack, who):
    targets, listen_on = ([], "127.0.0.1:0") if who == "server dials" else (None, "")
    server = AgentServer([Mixed()], port=0)
    if targets is None:
        await stack.enter_async_context(server)
    async with Trainer([server.address] if targets is None else [], policy, listen=listen_on) as trainer:
        if targets is not None:
            server = await stack.enter_async_context(AgentServer([Mixed()], port=0, connect=[trainer.address]))
        await run_all(trainer, [request(f"ok-{number}", label="1") for number in range(5)])
        source = trainer.source
    sides = (server.metrics, source) if targets is not None else (source, server.metrics)
    dialled = await until_ended(sides[0], 1, "grpc_client_attempt")
    answered = await until_ended(sides[1], 1)
    ((method, status),) = counts(dialled, "grpc_client_attempt")
    assert method == ("Attach" if targets is None else "Accept")
    ((answered_method, answered_status),) = counts(answered, "grpc_server_call")
    assert answered_method == method
    path = f"{SERVICE if targets is None else TRAINER}/{method}"
    sent = total(dialled, f"grpc_client_attempt_{SENT}", path, status)
    received = total(answered, f"grpc_server_call_{RECEIVED}", path, answered_status)
    assert 500 < received <= sent, "what was under way at the end may be lost"
