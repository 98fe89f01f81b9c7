"""What a trainer does with the outcomes that a raw agent server reports."""

import re
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import attach_pb2, message_pb2, outcome_pb2, rollout_pb2, tokens_pb2
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import chat_pb2 as pb
from osmosis_grpc.protocol.errors import Internal
from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.testing.raw import detail_of, field_of
from osmosis_grpc.testing.raw.server_frames import complete, event, referring, status
from osmosis_grpc.trainer import outcome_recorder
from tests.trainer.deployment import CODE

BAD_OUTCOMES: dict[str, tuple[dict[str, Any], str, str]] = {
    "no status": ({"status": 0}, "INVALID_ARGUMENT", "outcome.status"),
    "no rollout": ({"rollout_id": ""}, "INVALID_ARGUMENT", "outcome.rollout_id"),
    "a failure with a reward": ({"status": 2, "reward": 0.0}, "INVALID_ARGUMENT", "outcome.reward"),
    "no JSON": ({"extra_json": "no"}, "INVALID_ARGUMENT", "outcome.extra_json"),
    "an unknown rollout": ({"rollout_id": "nobody's"}, "UNAVAILABLE", ""),
}


@pytest.mark.parametrize("what", BAD_OUTCOMES)
async def test_a_bad_outcome_is_answered_singly(listening, what):
    deployment = await listening()
    fields, code, field = BAD_OUTCOMES[what]
    async with deployment.bystander():
        server = await deployment.server()
        await server.attach()
        done = deployment.run("r")
        request = await server.accept()
        refused = await server.complete(request, **fields)
        assert (refused.status.code, refused.result_id) == (CODE[code], "result of r")
        if field:
            assert field_of(refused.status) == field
        else:
            assert detail_of(refused.status, error_details_pb2.RetryInfo) is not None
        if code == "INVALID_ARGUMENT" and what != "no rollout":  # the server sends no other one
            with pytest.raises(Internal, match=re.escape(field)):
                await done
            return
        assert (await server.complete(request)).receipt == outcome_pb2.RECEIPT_RECORDED
        assert (await done).status is OutcomeStatus.COMPLETED


async def test_an_outcome_that_refers_to_unknown_chats_is_not_recorded(listening):
    deployment = await listening()
    async with deployment.bystander():
        server = await deployment.server()
        await server.attach()
        done = deployment.run("r")
        request = await server.accept()
        await server.send(complete(request, **referring(1, runs=(1, 2))))
        wanted = await server.stream.next("subscribe")
        assert (wanted.request.rollout_id, wanted.request.attempt, wanted.tokens) == ("r", 1, True)
        gone = attach_pb2.Unsubscribed(id=wanted.id, status=status(grpc.StatusCode.OUT_OF_RANGE, "gone"))
        await server.send(attach_pb2.ServerFrame(unsubscribed=gone))
        assert (await server.stream.next("complete_reply")).status.code == CODE["UNAVAILABLE"]
        assert not done.done()
        runs = (len((await server.ask(request)).response.prompt.ids), 2)
        assert (await server.complete(request, **referring(1, runs=runs))).receipt == outcome_pb2.RECEIPT_RECORDED
        assert (await done).samples["main"].segments


async def test_outcomes_that_wait_for_events_are_bounded_for_each_server(listening, monkeypatch):
    monkeypatch.setattr(outcome_recorder, "READING_BYTES", 2 * outcome_recorder.READING_COST + 4096)
    deployment = await listening()
    server, other = await deployment.server(), await deployment.server()
    await server.attach()
    done = deployment.run("r")
    request = await server.accept()
    results = [complete(request, result_id=f"result {n}", **referring(1, runs=(1, 1))) for n in range(50)]
    await server.send(*results, results[0])
    refused = [await server.stream.next("complete_reply") for _ in range(48)]
    assert {(reply.result_id, reply.status.code) for reply in refused} == {
        (f"result {n}", CODE["UNAVAILABLE"]) for n in range(2, 50)
    }
    assert all(detail_of(reply.status, error_details_pb2.RetryInfo) is not None for reply in refused)
    assert server.stream.count("subscribe") == 2, "one for each that waits"

    await other.attach(agent_loops=["other"])
    honest = deployment.run("honest", agent_loop="other")
    its = await other.accept()
    await other.send(complete(its, **referring(1, runs=(1, 1))))
    await other.send(*trajectory((await other.stream.next("subscribe")).id, its))
    assert (await other.stream.next("complete_reply")).receipt == outcome_pb2.RECEIPT_RECORDED
    assert (await honest).samples["main"].segments[0].sampled == 1

    first, second = [(await server.stream.next("subscribe")).id for _ in range(2)]
    gone = attach_pb2.Unsubscribed(id=first, status=status(grpc.StatusCode.OUT_OF_RANGE, "gone"))
    await server.send(attach_pb2.ServerFrame(unsubscribed=gone))
    assert (await server.stream.next("complete_reply")).result_id == "result 0"
    await server.send(results[49])
    third = (await server.stream.next("subscribe")).id
    await server.send(*trajectory(third, request), *trajectory(second, request))
    told = {reply.result_id: reply.receipt for reply in [await server.stream.next("complete_reply") for _ in range(2)]}
    assert told == {"result 49": outcome_pb2.RECEIPT_RECORDED, "result 1": outcome_pb2.RECEIPT_CONFLICT}
    assert (await done).result_id == "result 49"


def trajectory(name: str, request: rollout_pb2.InitRequest) -> list[attach_pb2.ServerFrame]:
    """The events of a rollout of one chat, with its tokens."""
    reply = pb.ChatResponse(
        message=message_pb2.Message(role="assistant", text="fine"),
        finish_reason="stop",
        tokens=tokens_pb2.TokenBlock(ids=[2], logprobs=[-0.5]),
        prompt=tokens_pb2.TokenBlock(ids=[1]),
    )
    head = outcome_pb2.RolloutOutcome(
        rollout_id=request.rollout_id, attempt=1, result_id="any", status=outcome_pb2.OUTCOME_STATUS_COMPLETED
    )
    kinds: list[dict[str, Any]] = [
        {"chat_requested": {"sample": "main", "chat_number": 1, "messages": request.spec.messages}},
        {"chat_answered": {"sample": "main", "chat_number": 1, "response": reply}},
        {"ended": {"outcome": head}},
    ]
    return [event(name, number, request.rollout_id, **kind) for number, kind in enumerate(kinds, 1)]
