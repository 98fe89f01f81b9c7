"""RolloutClient.wait(): it ends with its client, and what it has returned does not stay with a TrainerServer."""

import asyncio
from dataclasses import replace

import grpc
import pytest

from osmosis_grpc._gen.osmosis.rollout.v1.services_pb2_grpc import TrainerServiceStub
from osmosis_grpc._gen.osmosis.rollout.v1.trainer_pb2 import CompleteRequest
from osmosis_grpc.errors import Unavailable
from osmosis_grpc.link.client_calls import call
from osmosis_grpc.trainer import RolloutClient, TrainerServer, inbox
from osmosis_grpc.types import Completion, CompletionStatus
from osmosis_grpc.wire.rollout import completion_to_wire
from tests.credentials import shown
from tests.trainer.conftest import PATIENCE, USER, reply, talker
from tests.waiting import until


def within(awaitable):
    return asyncio.wait_for(awaitable, PATIENCE)


async def test_h03_a_wait_ends_when_its_client_is_closed(serve, train):
    agent = talker()
    agent.gate("r")
    server, trainer = await serve(agent), await train(reply)
    async with RolloutClient(server.address) as client:
        await client.init(rollout_id="r", messages=[USER], callback=trainer.callback())
        waiting = asyncio.ensure_future(within(client.wait("r")))
        await until(lambda: agent.started)
        await asyncio.sleep(0.1)  # it waits for the end by now
    with pytest.raises(Unavailable, match="client was closed"):
        await waiting
    with pytest.raises(Unavailable, match="client was closed"):
        await within(client.wait("r"))


async def test_h03_a_wait_ends_that_has_not_reached_its_server():
    async with RolloutClient("127.0.0.1:1", lost_after=3600.0) as client:
        waiting = asyncio.ensure_future(within(client.wait("r")))
        await asyncio.sleep(0)
    with pytest.raises(Unavailable):
        await waiting


async def test_h04_what_wait_has_returned_is_not_held_any_more(serve):
    server = await serve(talker())
    trainer = TrainerServer(reply)
    async with trainer, RolloutClient(server.address) as client:
        for number in range(20):
            await client.init(rollout_id=f"r{number}", messages=[USER], callback=trainer.callback())
        for number in range(19):
            assert (await within(client.wait(f"r{number}"))).status is CompletionStatus.COMPLETED
        await until(lambda: not server.engine.capacity().undelivered)
        assert (await within(trainer.completion("r18"))).rollout_id == "r18", "it may be asked for by name"
    left = [completion.rollout_id async for completion in trainer.completions()]
    assert left == ["r19"]


@pytest.fixture
async def complete(train, stack, monkeypatch):
    """Reports an outcome to a trainer with room for three."""
    monkeypatch.setattr(inbox, "MAX_HELD", 3)
    trainer = await train(reply)
    channel = await stack.enter_async_context(grpc.aio.insecure_channel(trainer.address))
    stub = TrainerServiceStub(channel)

    async def complete(rollout_id):
        completion = Completion(rollout_id=rollout_id, result_id="x", status=CompletionStatus.COMPLETED)
        request = CompleteRequest(completion=completion_to_wire(replace(completion, attempt=1)))
        await call(stub.Complete, request, timeout=PATIENCE, metadata=shown(trainer))

    complete.trainer = trainer
    return complete


async def test_h04_what_nobody_takes_is_bounded_and_stays_with_its_server(complete, caplog, refused_at_once):
    for number in range(3):
        await complete(f"r{number}")
    with pytest.raises(Unavailable, match="3 outcomes wait to be taken") as refused:
        await complete("r3")
    assert refused.value.retry_after == inbox.FULL_RETRY
    assert "agent servers keep the others" in caplog.text
    named = asyncio.ensure_future(within(complete.trainer.completion("r4")))
    await asyncio.sleep(0)
    await complete("r4")  # somebody waits for it
    assert (await named).rollout_id == "r4"
    assert (await within(complete.trainer.completion("r0"))).rollout_id == "r0"
    await complete("r3")
    names = {(await within(complete.trainer.completion(f"r{number}"))).rollout_id for number in (1, 2, 3)}
    assert names == {"r1", "r2", "r3"}


async def test_h04_with_a_ledger_what_nobody_takes_is_on_disk(serve, monkeypatch, tmp_path):
    monkeypatch.setattr(inbox, "MAX_HELD", 3)
    server = await serve(talker())
    async with TrainerServer(reply, ledger=tmp_path / "ledger") as trainer, RolloutClient(server.address) as client:
        for number in range(8):
            await client.init(rollout_id=f"r{number}", messages=[USER], callback=trainer.callback())
        await until(lambda: server.engine.capacity().completed == 8 and not server.engine.capacity().undelivered)
        completions = trainer.completions()
        names = {(await within(anext(completions))).rollout_id for _ in range(8)}
        assert names == {f"r{number}" for number in range(8)}
        await completions.aclose()


async def test_completions_end_when_the_trainer_is_closed():
    async with TrainerServer(reply) as trainer:
        waiting = asyncio.ensure_future(within(anext(trainer.completions(), None)))
        await asyncio.sleep(0)
    assert await waiting is None
