"""An outcome that the trainer cannot use ends its rollout for the caller, too."""

import asyncio

import grpc
import pytest

from osmosis_grpc.network.client_calls import call
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import attach_pb2, outcome_pb2
from osmosis_grpc.protocol._gen.osmosis.rollout.v1.services_pb2_grpc import TrainerServiceStub
from osmosis_grpc.protocol.errors import Internal, InvalidArgument
from osmosis_grpc.protocol.types import OutcomeStatus, RolloutOutcome
from osmosis_grpc.protocol.wire.outcome import outcome_to_wire
from osmosis_grpc.testing.raw.server_frames import complete, referring, status
from osmosis_grpc.trainer import RolloutRequest, Trainer, outcome_recorder
from tests.trainer.conftest import PATIENCE, USER, reply, talker
from tests.trainer.deployment import CODE, within
from tests.waiting import until


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(outcome_recorder, "READING_LIMIT", 0.5)


@pytest.mark.parametrize("events", ["silent", "gone"])
async def test_an_outcome_that_refers_to_chats_never_made_ends_its_rollout(listening, short, events):
    deployment = await listening()
    async with deployment.bystander():
        server = await deployment.server()
        await server.attach()
        done = deployment.run("r")
        request = await server.accept()
        await server.send(complete(request, **referring(1, runs=(1, 2))))
        wanted = await server.stream.next("subscribe")
        if events == "gone":
            gone = attach_pb2.Unsubscribed(id=wanted.id, status=status(grpc.StatusCode.OUT_OF_RANGE, "gone"))
            await server.send(attach_pb2.ServerFrame(unsubscribed=gone))
            assert (await server.stream.next("complete_reply")).status.code == CODE["UNAVAILABLE"], "it may come again"
        with pytest.raises(Internal, match="refers to chats that are not known here"):
            await done
        final = await server.stream.next("complete_reply")
        assert final.status.code == CODE["INVALID_ARGUMENT"], "the server need not send it again"


@pytest.mark.slow
async def test_the_limit_waits_for_a_server_that_is_away(listening, short, monkeypatch):
    deployment = await listening()
    server = await deployment.server()
    await server.attach()
    done = deployment.run("r")
    request = await server.accept()
    outcome = complete(request, **referring(1, runs=(1, 2)))
    await server.send(outcome)
    await server.stream.next("subscribe")
    await server.stream.cut()
    await asyncio.sleep(1.5)  # three times the limit
    monkeypatch.setattr(outcome_recorder, "READING_LIMIT", PATIENCE)
    await asyncio.sleep(0.6)  # by now the limit has begun again, with its new length
    assert not done.done()
    await server.attach()
    await server.send(complete(request))
    assert (await within(done)).status is OutcomeStatus.COMPLETED


async def test_a_refusal_that_is_final_for_the_server_is_final_for_the_caller(listening):
    deployment = await listening()
    server = await deployment.server()
    await server.attach()
    done = deployment.run("r")
    others = deployment.trainer.run([RolloutRequest(rollout_id="s", agent_loop="talk")])
    ended = asyncio.ensure_future(within(anext(others)))
    requests = [await server.accept() for _ in range(2)]
    for request in requests:
        refused = await server.complete(request, status=0)
        assert refused.status.code == CODE["INVALID_ARGUMENT"]
    with pytest.raises(Internal, match=r"the outcome of rollout r .*outcome\.status"):
        await done
    outcome = await ended
    assert (outcome.status, outcome.failure.boundary) == (OutcomeStatus.FAILED, "server")
    assert "outcome.status" in outcome.failure.message
    await others.aclose()


async def test_only_the_server_that_runs_a_rollout_can_end_it_so(listening):
    deployment = await listening()
    server, other = await deployment.server(), await deployment.server()
    await server.attach()
    await other.attach(agent_loops=["other"])
    done = deployment.run("r")
    request = await server.accept()
    refused = await other.complete(request, status=0)
    assert refused.status.code == CODE["INVALID_ARGUMENT"]
    await server.complete(request)
    assert (await done).status is OutcomeStatus.COMPLETED


async def test_a_callback_trainer_fails_the_call_that_waits(serve, stack):
    agent = talker()
    agent.gate("r")
    server = await serve(agent)
    trainer = await stack.enter_async_context(Trainer([server.address], reply, transport="callback"))
    waiting = [asyncio.ensure_future(within(trainer.rollout(rollout_id="r", messages=[USER]))) for _ in range(2)]
    await until(lambda: agent.started)
    callback = server.engine.rollouts.get("", "r").init.callback
    message = outcome_to_wire(RolloutOutcome(rollout_id="r", attempt=1, status=OutcomeStatus.COMPLETED))
    message.status = 0
    async with grpc.aio.insecure_channel(trainer.address) as channel:
        with pytest.raises(InvalidArgument):
            await call(
                TrainerServiceStub(channel).Complete,
                outcome_pb2.CompleteRequest(outcome=message),
                timeout=PATIENCE,
                metadata=(("authorization", f"Bearer {callback.credential}"),),
            )
    for task in waiting:
        with pytest.raises(Internal, match=r"the outcome of rollout r .*outcome\.status"):
            await task
    agent.release()
