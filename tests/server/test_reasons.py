"""Every refused call has an ErrorInfo with a reason, and a failed rollout has a reason and a place."""

import re
from pathlib import Path

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from osmosis_grpc.policies.scripted import EchoPolicy
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import annotation_pb2, control_pb2
from osmosis_grpc.protocol._gen.osmosis.rollout.v1.services_pb2_grpc import RolloutServiceStub, TrainerServiceStub
from osmosis_grpc.protocol.wire.status import DOMAIN
from osmosis_grpc.testing.raw import detail_of, server_frames
from osmosis_grpc.testing.raw.trainer_frames import init
from tests.processes import ROOT
from tests.server.attached import Talk


def reason_of(status):
    """The reason of a status, in the domain of the protocol."""
    info = detail_of(status, error_details_pb2.ErrorInfo)
    assert info is not None, status
    assert (info.domain, DOMAIN) == ("osmosis.rollout", "osmosis.rollout")
    return info.reason


async def refused(call):
    """The reason with which a call is refused."""
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    raw = dict(iter(error.value.trailing_metadata()))["grpc-status-details-bin"]
    status = status_pb2.Status.FromString(raw)
    assert status.code == error.value.code().value[0]
    return reason_of(status)


async def first_of(stream):
    return await anext(aiter(stream))


def request(rollout_id="r", attempt=1, **fields):
    made = init(rollout_id, turns=1, **fields).init
    made.attempt = attempt
    made.callback.target = "127.0.0.1:9"
    return made


async def test_every_refused_call_has_a_reason(serve, stack):
    server = await serve(Talk(), max_concurrent=1, max_queued=0)
    stub = RolloutServiceStub(await stack.enter_async_context(grpc.aio.insecure_channel(server.address)))
    await stub.Init(request(attempt=2))
    cases = {
        "INVALID_FIELD": [
            stub.Init(request("a/b")),
            stub.Cancel(control_pb2.CancelRequest()),
            first_of(stub.StreamEvents(control_pb2.StreamEventsRequest(rollout_id="r", cursor="x"))),
        ],
        "ATTEMPT_SUPERSEDED": [stub.Init(request(attempt=1))],
        "SPEC_DIFFERS": [stub.Init(request(attempt=2, label="other"))],
        "AT_CAPACITY": [stub.Init(request("full"))],
        "NOT_FOUND": [stub.Init(request("loop", agent_loop="nobody"))],
        "ROLLOUT_UNKNOWN": [
            stub.GetRollout(control_pb2.GetRolloutRequest(rollout_id="nobody")),
            first_of(stub.StreamEvents(control_pb2.StreamEventsRequest(rollout_id="nobody"))),
            stub.Annotate(annotation_pb2.AnnotateRequest(rollout_id="nobody", annotation={"id": "a"})),
        ],
        "JOURNAL_CHANGED": [first_of(stub.StreamEvents(control_pb2.StreamEventsRequest(cursor="other.7")))],
    }
    for reason, calls in cases.items():
        for call in calls:
            assert await refused(call) == reason
    undecodable = stub_of_bytes(stack, server.address, "Init")
    assert await refused((await undecodable)(b"\xff\xff")) == "MALFORMED_FRAME"
    await server.drain()
    assert await refused(stub.Init(request("late"))) == "DRAINING"


async def stub_of_bytes(stack, address, method):
    channel = await stack.enter_async_context(grpc.aio.insecure_channel(address))
    return channel.unary_unary(f"/osmosis.rollout.v1.RolloutService/{method}")


async def test_a_trainers_refusals_have_reasons(train, stack):
    trainer = await train(EchoPolicy())
    stub = TrainerServiceStub(await stack.enter_async_context(grpc.aio.insecure_channel(trainer.address)))
    headers = (("authorization", f"Bearer {trainer.callback().credential}"),)

    def chat(number, text="hello", **fields):
        asked = server_frames.chat(init("r").init, number, **fields).chat
        asked.full.messages.add(role="user", text=text)
        return asked

    await stub.Chat(chat(1), metadata=headers)
    assert await refused(stub.Chat(chat(1, "other"), metadata=headers)) == "CHAT_DIFFERS"
    delta = server_frames.chat(init("r").init, 5, delta=server_frames.delta(4, "more")).chat
    assert await refused(stub.Chat(delta, metadata=headers)) == "UNKNOWN_CHAT"
    assert await refused(stub.Chat(chat(1))) == "UNAUTHENTICATED"
    complete = server_frames.complete(init("r").init).complete
    complete.outcome.attempt = 1
    await stub.Complete(complete, metadata=headers)
    assert await refused(stub.Chat(chat(2), metadata=headers)) == "ROLLOUT_ENDED"
    await stub.Chat(chat(1, attempt=3), metadata=headers)
    assert await refused(stub.Chat(chat(1, attempt=2), metadata=headers)) == "ATTEMPT_SUPERSEDED"


def test_the_proto_lists_every_reason_of_the_code():
    """A reason in the code is in the list of error.proto."""
    listed = set(re.findall(r"[A-Z][A-Z_]+", (ROOT / "proto/osmosis/rollout/v1/error.proto").read_text()))
    sources = [path.read_text() for path in Path(ROOT / "osmosis_grpc").rglob("*.py") if "_gen" not in path.parts]
    given = {reason for source in sources for reason in re.findall(r'\breason="([A-Z_]+)"', source)}
    assert len(given) >= 6
    assert given <= listed
