"""A server that accepts a rollout and forgets it, again and again."""

import asyncio
import contextlib

import grpc
import pytest

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import attach_pb2
from osmosis_grpc.protocol._gen.osmosis.rollout.v1.services_pb2_grpc import add_RolloutServiceServicer_to_server
from osmosis_grpc.protocol.errors import Unavailable
from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.testing.raw.peers import listen_as_agent_server
from osmosis_grpc.testing.raw.server_frames import accepted, hello
from osmosis_grpc.trainer import RolloutRequest, Trainer
from tests.trainer.conftest import reply
from tests.trainer.test_ledger import copied
from tests.trainer.test_references import OldServer
from tests.waiting import until


async def forget(server, seen):
    """Accept every Init, and say of each that it is not known."""
    while True:
        request = await server.stream.next("init")
        seen.append(request.attempt)
        ref = attach_pb2.RolloutRef(rollout_id=request.rollout_id, attempt=request.attempt)
        unknown = attach_pb2.ServerFrame(unknown_rollouts=attach_pb2.UnknownRollouts(rollouts=[ref]))
        await server.send(accepted(request), unknown)


@pytest.fixture
def forgetting(listening):
    async def start(**options):
        deployment = await listening(**options)
        server = await deployment.server()
        await server.attach()
        server.stream.timeout = 30.0
        seen = []
        task = asyncio.create_task(forget(server, seen))
        task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return deployment, seen

    return start


async def test_run_yields_it_as_failed_and_the_number_of_attempts_is_an_option(forgetting):
    deployment, seen = await forgetting(max_attempts=2)
    requests = [RolloutRequest(rollout_id="r", agent_loop="talk")]
    outcomes = [outcome async for outcome in deployment.trainer.run(requests)]
    assert seen == [1, 2]
    (outcome,) = outcomes
    assert (outcome.status, outcome.failure.boundary) == (OutcomeStatus.FAILED, "server")
    assert "lost 2 times" in outcome.failure.message


@pytest.mark.parametrize("durable", [True, False])
async def test_a_rollout_that_was_lost_too_often_never_runs_as_an_old_attempt_again(forgetting, tmp_path, durable):
    deployment, seen = await forgetting(max_attempts=2, ledger=tmp_path / "ledger" if durable else None)
    for attempts in ([1, 2], [3, 4]):
        with pytest.raises(Unavailable):
            await deployment.run("r")
        assert seen[-2:] == attempts
    if durable:
        next_process, seen = await forgetting(max_attempts=1, ledger=copied(tmp_path / "ledger"))
        with pytest.raises(Unavailable):
            await next_process.run("r")
        assert seen == [5]


async def test_other_rollouts_run_while_one_waits_for_its_next_attempt(listening):
    deployment = await listening()
    server = await deployment.server()
    await server.attach(max_open_rollouts=1)
    lost = deployment.run("lost")
    request = await server.accept()
    other = deployment.run("other")
    ref = attach_pb2.RolloutRef(rollout_id="lost", attempt=1)
    await server.send(attach_pb2.ServerFrame(unknown_rollouts=attach_pb2.UnknownRollouts(rollouts=[ref])))
    request = await server.accept()
    assert request.rollout_id == "other"
    await server.complete(request)
    await other
    request = await server.accept()
    assert (request.rollout_id, request.attempt) == ("lost", 2)
    await server.complete(request)
    assert (await lost).attempt == 2


async def test_a_rollout_that_waits_for_its_next_attempt_can_be_cancelled(forgetting, caplog):
    deployment, _ = await forgetting(max_attempts=100)
    running = asyncio.create_task(deployment.trainer.rollout(rollout_id="r", agent_loop="talk"))
    await until(lambda: caplog.text.count("has forgotten 1 rollouts") >= 4)
    await deployment.trainer.cancel("r")
    outcome = await asyncio.wait_for(running, 10)
    assert outcome.status is OutcomeStatus.CANCELLED


@pytest.mark.parametrize(("journal", "attempt"), [("one", 1), ("two", 2)])
async def test_an_init_without_an_answer_is_sent_as_the_next_attempt_to_a_server_that_has_lost_its_journal(
    stack, journal, attempt
):
    listener = await stack.enter_async_context(listen_as_agent_server())
    trainer = await stack.enter_async_context(Trainer([listener.address], reply))
    done = asyncio.create_task(trainer.rollout(rollout_id="r", agent_loop="talk"))
    for journal_id, expected in (("one", 1), (journal, attempt)):
        stream = await listener.accept()
        await stream.next("hello")
        await stream.send(hello(journal_id=journal_id))
        request = await stream.next("init")
        assert request.attempt == expected
        await stream.send(hello(journal_id=journal_id))  # a second hello is a breach, and the trainer connects again
        await stream.ended()
    done.cancel()


class LosesItsJournal(OldServer):
    """Its first Init gets no answer. After that it is another process with `journal`, and is slow to say so."""

    def __init__(self, journal):
        super().__init__([])
        self.journal, self.attempts = journal, []
        self.again = asyncio.Event()

    async def GetServerInfo(self, request, context):
        info = await super().GetServerInfo(request, context)
        if self.attempts:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.again.wait(), 0.6)  # an Init that waits for no ping comes before that
            info.journal_id, info.process_id = self.journal, "second"
        return info

    async def Init(self, request, context):
        self.attempts.append(request.attempt)
        if len(self.attempts) == 1:
            await context.abort(grpc.StatusCode.UNAVAILABLE)
        self.again.set()
        return await super().Init(request, context)


@pytest.mark.parametrize(("journal", "attempt"), [("raw", 1), ("another", 2)])
async def test_over_callbacks_an_init_without_an_answer_is_sent_as_the_next_attempt_too(
    stack, caplog, journal, attempt
):
    agents, listener = LosesItsJournal(journal), grpc.aio.server()
    add_RolloutServiceServicer_to_server(agents, listener)
    port = listener.add_insecure_port("127.0.0.1:0")
    await listener.start()
    stack.push_async_callback(listener.stop, None)
    async with Trainer([f"127.0.0.1:{port}"], reply, transport="callback") as trainer:
        outcome = await asyncio.wait_for(trainer.rollout(rollout_id="r", agent_loop="talk"), 10)
    assert outcome.attempt == attempt
    assert agents.attempts == [1, attempt]
    warnings = [each for each in caplog.records if "has lost its journal" in each.message]
    assert len(warnings) == attempt - 1
