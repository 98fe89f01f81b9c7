"""A higher attempt ends the lower one at its server only when the ledger has the higher one.

Otherwise a crash before the commit would leave the lower attempt in the ledger, and at the server it has ended.
"""

import grpc
import pytest

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import attach_pb2, control_pb2, outcome_pb2
from osmosis_grpc.testing.raw import server_frames
from osmosis_grpc.testing.raw.server_frames import chat
from tests.trainer.deployment import CODE
from tests.trainer.test_ledger import held_up
from tests.waiting import until


def forgotten(request):
    """Returns a frame that says that the server has forgotten a rollout."""
    ref = attach_pb2.RolloutRef(rollout_id=request.rollout_id, attempt=request.attempt)
    return attach_pb2.ServerFrame(unknown_rollouts=attach_pb2.UnknownRollouts(rollouts=[ref]))


def already_ended(cancel, attempt):
    """Returns the answer to a cancel of a server whose newest attempt is `attempt`."""
    ended = control_pb2.CANCEL_DISPOSITION_ALREADY_ENDED
    row = control_pb2.CancelResult(rollout_id=cancel.request.rollout_id, attempt=attempt, disposition=ended)
    response = control_pb2.CancelResponse(results=[row])
    return attach_pb2.ServerFrame(cancel_reply=attach_pb2.CancelReply(id=cancel.id, response=response))


@pytest.fixture
async def running(listening, tmp_path):
    """Returns a deployment with a ledger, its server, and the Init of a rollout that runs there."""
    deployment = await listening(ledger=tmp_path / "ledger", lost_after=0.5)
    server = await deployment.server()
    await server.attach()
    deployment.run("r")
    request = await server.accept()
    await until(lambda: deployment.trainer.scheduler.rollouts["r"].opened)
    await deployment.trainer.scheduler.ledger.written()
    return deployment, server, request


def attempt_of(deployment):
    return deployment.trainer.scheduler.rollouts["r"].request.attempt


async def test_chats_and_outcomes_of_the_lower_attempt_wait_for_the_commit(running):
    deployment, server, request = running
    with held_up(deployment.trainer.scheduler.ledger):
        await server.send(forgotten(request))
        await until(lambda: attempt_of(deployment) == 2)
        assert (await server.ask(request)).status.code == CODE["UNAVAILABLE"]
        assert (await server.complete(request)).status.code == CODE["UNAVAILABLE"]
    await until(lambda: not deployment.trainer.scheduler.cache.replaces("r"))
    assert (await server.complete(request)).status.code == CODE["ABORTED"]
    assert (await server.ask(request)).status.code == CODE["ABORTED"]


async def test_a_sampling_that_a_higher_attempt_stops_is_asked_again(running, policy):
    deployment, server, request = running
    policy.may.clear()
    await server.send(chat(request, 1))
    await until(lambda: policy.asked)
    with held_up(deployment.trainer.scheduler.ledger):
        await server.send(forgotten(request))
        stopped = await server.stream.next("chat_reply")
        assert (stopped.attempt, stopped.status.code) == (1, CODE["UNAVAILABLE"])


async def test_the_cancel_of_the_lower_attempt_waits_for_the_commit(running):
    deployment, server, request = running
    with held_up(deployment.trainer.scheduler.ledger):
        deployment.run("r", attempt=2)
        await until(lambda: attempt_of(deployment) == 2)
        assert (await server.ask(request)).status.code == CODE["UNAVAILABLE"]
        assert server.stream.all("cancel") == []
    cancelled = (await server.stream.next("cancel")).request
    assert (cancelled.rollout_id, cancelled.attempt) == ("r", 1)


async def test_an_attempt_that_ends_before_its_commit_ends_the_lower_one_after_it(running):
    deployment, server, request = running
    with held_up(deployment.trainer.scheduler.ledger):
        await server.send(forgotten(request))
        await until(lambda: attempt_of(deployment) == 2)
        await server.stream.cut()
        await until(lambda: "r" not in deployment.trainer.scheduler.rollouts)  # no server for `lost_after` seconds
        assert deployment.trainer.scheduler.cache.replaces("r")
    await until(lambda: not deployment.trainer.scheduler.cache.replaces("r"))
    await server.attach()
    deployment.run("r", attempt=1)
    assert (await server.stream.next("init")).attempt == 2


async def test_an_answer_about_a_lower_attempt_frees_the_place_of_one_that_the_server_never_got(running):
    deployment, server, _ = running
    (link,) = deployment.trainer.scheduler.servers
    with held_up(deployment.trainer.scheduler.ledger):
        deployment.run("r", attempt=2)
        await until(lambda: attempt_of(deployment) == 2 and deployment.trainer.scheduler.rollouts["r"].server is link)
        deployment.run("r", attempt=3)
        await until(lambda: attempt_of(deployment) == 3)
        assert set(link.leaving) == {("r", 1), ("r", 2)}
    for _ in range(2):
        cancel = await server.stream.next("cancel")
        await server.send(already_ended(cancel, attempt=1))
    await until(lambda: not link.leaving)


async def test_an_attempt_that_is_replaced_before_its_first_commit_gives_its_place_to_the_next(listening, tmp_path):
    deployment = await listening(ledger=tmp_path / "ledger")
    server = await deployment.server()
    await server.attach(max_open_rollouts=1)
    (link,) = deployment.trainer.scheduler.servers
    with held_up(deployment.trainer.scheduler.ledger):
        deployment.run("r")
        await until(lambda: ("r", 1) in link.rollouts)
        deployment.run("r", attempt=2)
        await until(lambda: attempt_of(deployment) == 2)
    cancel = await server.stream.next("cancel")
    await server.send(already_ended(cancel, attempt=1))
    init = await server.accept()
    assert (init.rollout_id, init.attempt) == ("r", 2)


async def test_an_attempt_that_its_server_has_ended_for_an_unknown_higher_one_runs_again(running):
    """The earlier process of this trainer began attempt 2, and ended before attempt 2 was in the ledger."""
    _, server, request = running
    cancelled = outcome_pb2.OUTCOME_STATUS_CANCELLED
    answered = await server.complete(request, status=cancelled, finish_reason="superseded")
    assert answered.status.code in (CODE["UNAVAILABLE"], CODE["ABORTED"])
    again = await server.accept()
    assert (again.rollout_id, again.attempt) == ("r", 2)


@pytest.mark.slow  # a refused cancel is repeated after 5 s
async def test_a_cancel_that_its_server_refuses_is_repeated(running):
    deployment, server, _ = running
    (link,) = deployment.trainer.scheduler.servers
    deployment.run("r", attempt=2)
    refused = await server.stream.next("cancel")
    status = server_frames.status(grpc.StatusCode.UNAVAILABLE, "the journal cannot be written")
    await server.send(attach_pb2.ServerFrame(cancel_reply=attach_pb2.CancelReply(id=refused.id, status=status)))
    again = await server.stream.next("cancel")
    assert again == refused
    await server.send(already_ended(again, attempt=1))
    await until(lambda: not link.leaving)
