"""Annotate, as an RPC and as a frame."""

from contextlib import asynccontextmanager

import grpc
import pytest

from osmosis_grpc.network.client_calls import error_of
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import annotation_pb2 as pb
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import attach_pb2, control_pb2
from osmosis_grpc.protocol._gen.osmosis.rollout.v1.services_pb2_grpc import RolloutServiceStub
from osmosis_grpc.server import AgentServer, ServerSecurity, attached_requests
from osmosis_grpc.testing.raw import RawTrainer
from tests.server.attached import Talk, plays
from tests.storage.disk import Disk


@asynccontextmanager
async def service(server):
    async with grpc.aio.insecure_channel(server.address) as channel:
        yield RolloutServiceStub(channel)


async def finished(trainer, rollout_id="r", turns=2):
    """Runs a rollout to its end."""
    await trainer.attach()
    await trainer.start(rollout_id, turns=turns)
    return await trainer.finish()


@pytest.fixture
def disk(monkeypatch):
    disk = Disk(monkeypatch)
    yield disk
    disk.go()


def request(rollout_id="r", attempt=0, **fields):
    return pb.AnnotateRequest(
        rollout_id=rollout_id, attempt=attempt, annotation=pb.Annotation(**({"id": "a"} | fields))
    )


async def refusal(call):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return error_of(caught.value)


async def test_an_annotation_after_the_end_is_an_event_and_is_stored_once(tmp_path):
    async with (
        AgentServer([Talk()], port=0, state_dir=tmp_path) as server,
        RawTrainer(server.address) as trainer,
        service(server) as stub,
    ):
        await finished(trainer)
        segment = pb.SegmentAnnotation(sample="main", logprobs=[-0.5, -0.25], entropies=[1.5, 2.5], advantages=[1, -1])
        sent = request(
            author="trl",
            segments=[segment],
            advantage=0.5,
            trained=True,
            weight_step="17",
            reward=0.25,
            labels=["short"],
            note="better than the last",
        )
        answers = [await stub.Annotate(sent) for _ in range(2)]
        assert [answer.created for answer in answers] == [True, False]
        assert answers[0].event_number == answers[1].event_number
        stream = stub.StreamEvents(control_pb2.StreamEventsRequest(rollout_id="r"))
        last = [response.event async for response in stream][-1]
        assert last.event_number == answers[0].event_number
        assert last.annotated.annotation.HasField("time")
        last.annotated.annotation.ClearField("time")
        assert last.annotated.annotation == sent.annotation
        known = await stub.GetRollout(control_pb2.GetRolloutRequest(rollout_id="r"))
        assert known.rollout.last_event_number == last.event_number
        assert known.rollout.outcome.reward == 1.0, "the outcome is as it was"


async def test_another_annotation_under_the_same_id_is_refused(serve):
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer, service(server) as stub:
        await finished(trainer)
        await stub.Annotate(request(note="one"))
        error = await refusal(stub.Annotate(request(note="two")))
        assert (error.status_code, error.reason) == (409, "ALREADY_EXISTS")
        assert "'a'" in str(error)
        assert (await stub.Annotate(request(id="b", note="two"))).created


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"id": ""}, "annotation.id"),
        ({"id": "x" * 257}, "annotation.id"),
        ({"author": "x" * 257}, "annotation.author"),
        ({"labels": ["x"] * 65}, "annotation.labels"),
        ({"advantage": float("nan")}, "annotation.advantage"),
        ({"reward": float("inf")}, "annotation.reward"),
        ({"sample": "main"}, "annotation.sample"),
        ({"sample": "other", "reward": 1.0}, "annotation.sample"),
        ({"segments": [{"sample": "other"}]}, "annotation.segments[0].sample"),
        ({"segments": [{"sample": "main", "index": 1}]}, "annotation.segments[0].index"),
        ({"segments": [{"sample": "main", "logprobs": [0.0]}]}, "annotation.segments[0].logprobs"),
        ({"segments": [{"sample": "main", "entropies": [0.0] * 3}]}, "annotation.segments[0].entropies"),
        ({"segments": [{"sample": "main", "advantages": [0.0, float("nan")]}]}, "annotation.segments[0].advantages"),
    ],
)
async def test_a_wrong_annotation_is_refused_naming_the_field(serve, fields, path):
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer, service(server) as stub:
        await finished(trainer)
        error = await refusal(stub.Annotate(request(**fields)))
        assert error.status_code == 400
        assert [name for name, _ in error.violations] == [path]
        assert (await stub.Annotate(request())).created, "nothing was stored before"


async def test_a_running_rollout_is_annotated_without_segments(serve):
    async def run(ctx):
        await ctx.chat(ctx.request.messages)
        return ctx.complete([])

    server = await serve(plays(run))
    async with RawTrainer(server.address) as trainer, service(server) as stub:
        await trainer.attach()
        await trainer.start("r")
        chat = await trainer.chat()
        assert (await stub.Annotate(request(note="slow"))).created
        error = await refusal(stub.Annotate(request(id="b", segments=[{"sample": "main"}])))
        assert (error.reason, error.kind) == ("FAILED_PRECONDITION", "NOT_ENDED")
        await trainer.answer(chat)
        await trainer.finish()


async def test_unknown_rollouts_and_those_of_another_owner_are_not_found():
    security = ServerSecurity(tokens=["one=secret-1", "two=secret-2"])
    async with (
        AgentServer([Talk()], port=0, security=security) as server,
        service(server) as stub,
        RawTrainer(server.address) as trainer,
    ):
        trainer.metadata = mine = (("authorization", "Bearer secret-1"),)
        await finished(trainer)
        for wrong in (request("never"), request(attempt=2)):
            assert (await refusal(stub.Annotate(wrong, metadata=mine))).reason == "ROLLOUT_UNKNOWN"
        error = await refusal(stub.Annotate(pb.AnnotateRequest(rollout_id="r"), metadata=mine))
        assert [name for name, _ in error.violations] == ["annotation"]
        other = (("authorization", "Bearer secret-2"),)
        assert (await refusal(stub.Annotate(request(), metadata=other))).reason == "ROLLOUT_UNKNOWN"
        assert (await stub.Annotate(request(), metadata=mine)).created


async def test_annotations_as_frames(serve):
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer:
        await finished(trainer)
        for name, sent in (("one", request()), ("again", request()), ("other", request(note="x"))):
            await trainer.send(attach_pb2.TrainerFrame(annotate=attach_pb2.AnnotateFrame(id=name, request=sent)))
        answers = {}
        for _ in range(3):
            reply = await trainer.stream.next("annotate_reply")
            answers[reply.id] = reply
        assert [answers[name].response.created for name in ("one", "again")] == [True, False]
        assert answers["other"].status.code == grpc.StatusCode.ALREADY_EXISTS.value[0]


async def test_equal_annotations_at_once_are_one(tmp_path):
    async with AgentServer([Talk()], port=0, state_dir=tmp_path) as server, RawTrainer(server.address) as trainer:
        await finished(trainer)
        count = 50
        await trainer.send(
            *(
                attach_pb2.TrainerFrame(annotate=attach_pb2.AnnotateFrame(id=str(n), request=request(id=str(n % 2))))
                for n in range(count)
            )
        )
        answers = [await trainer.stream.next("annotate_reply") for _ in range(count)]
        assert sum(answer.response.created for answer in answers) == 2
        assert len({answer.response.event_number for answer in answers}) == 2


async def test_annotations_that_wait_for_the_disk_are_bounded(tmp_path, disk, monkeypatch):
    monkeypatch.setattr(attached_requests, "MAX_ANNOTATING", 50)
    async with AgentServer([Talk()], port=0, state_dir=tmp_path) as server, RawTrainer(server.address) as trainer:
        await finished(trainer)
        disk.hold()
        for name in ("one", "two"):
            ask = attach_pb2.AnnotateFrame(id=name, request=request(id=name, note="x" * 40))
            await trainer.send(attach_pb2.TrainerFrame(annotate=ask))
        refused = await trainer.stream.next("annotate_reply")
        assert (refused.id, refused.status.code) == ("two", grpc.StatusCode.RESOURCE_EXHAUSTED.value[0])
        disk.go()
        answered = await trainer.stream.next("annotate_reply")
        assert (answered.id, answered.response.created) == ("one", True)


async def test_what_the_disk_refuses_is_reported_and_can_be_sent_again_after_a_restart(tmp_path, disk):
    async with (
        AgentServer([Talk()], port=0, state_dir=tmp_path) as server,
        RawTrainer(server.address) as trainer,
        service(server) as stub,
    ):
        await finished(trainer)
        disk.failing = True
        error = await refusal(stub.Annotate(request()))
        assert (error.code, error.retryable) == (grpc.StatusCode.UNAVAILABLE.value[0], True)
        assert "disk is full" in str(error)
        disk.failing = False
    async with AgentServer([Talk()], port=0, state_dir=tmp_path) as server, service(server) as stub:
        assert (await stub.Annotate(request())).created
