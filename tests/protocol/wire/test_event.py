"""Every kind of trajectory event has a fixture here and survives there and back."""

from dataclasses import MISSING, fields, replace
from typing import get_args

import numpy as np
import pytest

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import event_pb2 as pb
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import rollout_pb2
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import (
    Annotation,
    Callback,
    ChatPurpose,
    ChatRef,
    ChatResponse,
    ChatReward,
    EarlierRun,
    EndedBy,
    EventKind,
    Failure,
    Fork,
    Group,
    InitRequest,
    OutcomeStatus,
    RaggedTensor,
    Receipt,
    RolloutOutcome,
    RolloutRequest,
    Sample,
    Segment,
    SegmentAnnotation,
    SplitReason,
    Tensor,
    TokenBlock,
    TraceContext,
    TrajectoryEvent,
    VersionSpan,
    events,
)
from osmosis_grpc.protocol.wire.event import event_from_wire, event_to_wire, kind_to_bytes, origin_from_bytes
from osmosis_grpc.protocol.wire.rollout import MAX_METADATA_BYTES, init_from_wire

USER = {"role": "user", "content": [{"type": "text", "text": "2+3?"}], "vendor": None}
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": 3}'}, "index": 0}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
SEGMENT = Segment(
    ids=np.arange(3, dtype="<u4"),
    logprobs=np.zeros(2, dtype="<f4"),
    mask_runs=(1, 2),
    chats=(1,),
    sampled_extras={"entropy": Tensor.of(np.float32([0.5, 1.5]))},
    token_extras={"sampling_mask": RaggedTensor.of([[], [1, 2], [3]], "uint32")},
    incomplete_extras=("temperature",),
)
INIT = InitRequest(
    request=RolloutRequest(rollout_id="r", messages=[USER], metadata={"n": 1}),
    callback=Callback(target="127.0.0.1:1", credential="the-secret-token", state=b"the-secret-state", run_id="run-1"),
    trace=TraceContext("00-aa", "v=1"),
)
RESPONSE = ChatResponse(
    message={"role": "assistant", "content": None, "tool_calls": [CALL]},
    finish_reason="tool_calls",
    usage={"prompt_tokens": 7, "details": {"cached": 1}},
    tokens=TokenBlock.of([5, 6], [-0.5, np.nan], {"entropy": Tensor.of(np.float32([1.5, 2.5]))}),
    prompt_ids=np.array([1, 2, 3], dtype="<u4"),
    prompt_extras={"sampling_mask": RaggedTensor.of([[7], [], [8, 9]], "uint32")},
    prompt_prefix=4,
    versions=(VersionSpan("v1", 1), VersionSpan("v2", 1)),
    extra={"matched_stop": 1},
)
COMPLETION = RolloutOutcome(
    rollout_id="r",
    attempt=2,
    result_id="abc",
    status=OutcomeStatus.COMPLETED,
    finish_reason="stop",
    reward=0.5,
    reward_components={"format": 1.0, "correct": 0.0},
    samples={
        "main": Sample(
            messages=[USER],
            segments=(SEGMENT,),
            reward=0.5,
            reward_components={"format": 1.0, "correct": 0.0},
            chat_rewards=(ChatReward(chat_number=1, reward=0.25, reward_components={"short": 1.0}),),
            policy="solver",
            parent=ChatRef("plan", 3),
            train=True,
        )
    },
    extra_fields={"a": 1},
    omitted=("samples[main].messages",),
    agent_version="3f2a0c9d1b7e",
    from_journal=EarlierRun(1700000000.25, "p0", True, "greeter", "3f2a0c9d1b7e", "9c1b0c9d1b7e", ("server.py",)),
)

FIXTURES: list[EventKind] = [
    events.Accepted(INIT, [TOOL]),
    events.Started(1.25, "3f2a0c9d1b7e"),
    events.Resumed(17),
    events.ChatRequested(
        sample="main",
        chat_number=2,
        parent_chat=1,
        messages=[USER],
        params={"temperature": 0.5, "min_p": 0.1},
        tools=[TOOL],
        purpose=ChatPurpose.JUDGE,
        policy="judge",
        passed={"temperature": 0.0, "min_p": 0.1},
    ),
    events.ChatAnswered(
        sample="main", chat_number=2, response=RESPONSE, latency=0.125, recorded_event=2**33, forked=True
    ),
    events.ChatFailed(sample="main", chat_number=2, code=14, message="away", will_retry=True),
    events.ToolCalled(CALL, "main", 2),
    events.ToolReturned(
        tool_call_id="c1",
        name="add",
        message={"role": "tool", "content": "5", "tool_call_id": "c1"},
        error="oh",
        latency=0.5,
        sample="main",
        chat_number=2,
    ),
    events.Logged("note", {"a": [1, 1.0, True, None]}, "judge", 3),
    events.SampleAdded("judge", "critic", ChatRef("main", 2), False),
    events.SegmentClosed(
        sample="main", index=1, chats=(1, 3), tokens=9, sampled_tokens=4, drift_index=0, split=SplitReason.TOKENS_DIFFER
    ),
    events.CancelAsked("because"),
    events.Graded("main", 0.0, 2, "format"),
    events.Ended(COMPLETION, EndedBy("p1", "0123456789abcdef")),
    events.Delivered(Receipt.CONFLICT, "expired", 3),
    events.Annotated(
        Annotation(
            id="step-3",
            author="trainer",
            time=1_700_000_000.5,
            segments=(SegmentAnnotation(sample="main", logprobs=[-0.5], entropies=[1.5], advantages=[0.25]),),
            advantage=0.5,
            trained=False,
            dropped_reason="too old",
            weight_step="3",
            reward=0.75,
            sample="main",
            labels=("short", "wrong"),
            note="see the log",
        )
    ),
]
SPARSE: list[EventKind] = [
    events.Accepted(InitRequest(request=RolloutRequest(rollout_id="r", messages=[])), []),
    events.Started(),
    events.Resumed(),
    events.ChatRequested(sample="main", chat_number=1, messages=[]),
    events.ChatRequested(sample="main", chat_number=1, messages=[], tools=[]),
    events.ChatAnswered(sample="main", chat_number=1, response=ChatResponse(message={"role": "assistant"})),
    events.ChatFailed(sample="main", chat_number=1),
    events.ToolCalled({}),
    events.ToolReturned(tool_call_id="", name=""),
    events.Logged("note"),
    events.SegmentClosed(sample="main", index=0),
    events.CancelAsked(),
    events.Graded("main"),
    events.Ended(RolloutOutcome(rollout_id="r", status=OutcomeStatus.FAILED, failure=Failure("agent", "x"))),
    events.Delivered(),
    events.Annotated(Annotation(id="a")),
]


def told(kind: EventKind) -> EventKind:
    """What is left of a kind on purpose: no secrets, and only an outcome's head."""
    match kind:
        case events.Accepted(init, tools):
            callback = init.callback and replace(init.callback, credential="", state=b"")
            return events.Accepted(replace(init, callback=callback), tools)
        case events.Ended(outcome, by):
            samples = {n: replace(s, messages=[], segments=()) for n, s in outcome.samples.items()}
            return events.Ended(replace(outcome, samples=samples), by)
    return kind


def without_sizes(kind: EventKind) -> EventKind:
    """A kind without what only the wire adds."""
    match kind:
        case events.Accepted(init, tools):
            return events.Accepted(replace(init, digest=b"", size=0), tools)
        case events.ChatAnswered(response=response):
            return replace(kind, response=replace(response, size=0))
    return kind


def name(kind: EventKind) -> str:
    return type(kind).__name__


def trip(kind: EventKind) -> EventKind:
    event = TrajectoryEvent("r", 3, 2**40, 1_700_000_000.0, kind)
    wire = event_to_wire(event)
    back = event_from_wire(pb.TrajectoryEvent.FromString(wire.SerializeToString()))
    assert (back.rollout_id, back.attempt, back.event_number, back.time) == ("r", 3, 2**40, 1_700_000_000.0)
    return back.kind


def test_every_kind_has_a_row_a_field_and_a_fixture():
    kinds = set(get_args(EventKind))
    assert {type(kind) for kind in FIXTURES} == kinds
    assert {type(kind) for kind in SPARSE} | {events.SampleAdded} == kinds
    written = [event_to_wire(TrajectoryEvent("r", 1, 1, 0.0, kind)).WhichOneof("kind") for kind in FIXTURES]
    known = {field.name for field in pb.TrajectoryEvent.DESCRIPTOR.oneofs_by_name["kind"].fields}
    assert set(written) == known
    assert len(known) == len(kinds)


@pytest.mark.parametrize("kind", FIXTURES, ids=name)
def test_the_fixture_tells_every_field(kind):
    for field in fields(kind):
        if field.default is not MISSING:
            assert getattr(kind, field.name) != field.default, field.name
        elif field.default_factory is not MISSING:
            assert getattr(kind, field.name) != field.default_factory(), field.name


@pytest.mark.parametrize("kind", FIXTURES + SPARSE, ids=name)
def test_every_kind_survives(kind):
    back = trip(kind)
    assert type(back) is type(kind)
    assert without_sizes(back) == told(kind)


def test_an_answer_survives_in_every_part():
    response = trip(events.ChatAnswered(sample="main", chat_number=1, response=RESPONSE)).response
    for field in fields(ChatResponse):
        if field.name != "size":
            assert np.array_equal(getattr(response, field.name), getattr(RESPONSE, field.name)), field.name


def test_every_kind_can_be_compared():
    for kind in FIXTURES:
        assert replace(kind) == kind
        assert all(kind != other for other in FIXTURES if other is not kind)
    assert trip(FIXTURES[4]) != replace(FIXTURES[4], response=replace(RESPONSE, prompt_ids=np.zeros(3, "<u4")))


def test_the_group_and_the_fork_are_read_without_the_rest_of_the_request():
    for group, fork in ((Group("g", 1, 4), Fork("original", 2)), (None, None)):
        request = replace(INIT.request, group=group, fork=fork)
        _, body = kind_to_bytes(events.Accepted(replace(INIT, request=request), [TOOL]))
        assert origin_from_bytes(body) == (group, fork)


def test_secrets_are_in_no_event():
    event = TrajectoryEvent("r", 1, 1, 0.0, events.Accepted(INIT))
    assert b"the-secret" not in event_to_wire(event).SerializeToString()
    assert "the-secret" not in repr(event)
    callback = trip(event.kind).init.callback
    assert (callback.target, callback.credential, callback.state) == ("127.0.0.1:1", "", b"")


def test_a_kind_of_a_newer_protocol_is_refused_by_name():
    newer = pb.TrajectoryEvent(rollout_id="r", event_number=7)
    newer.MergeFromString(bytes([0xFA, 0x01, 0x00]))  # field 31
    with pytest.raises(InvalidArgument) as refusal:
        event_from_wire(newer)
    assert refusal.value.violations[0][0] == "kind"
    assert "7" in str(refusal.value)


def test_an_accepted_request_can_be_read_with_any_limits():
    """An event is a record: the reader's own limits and unserved fields do not count."""
    large = rollout_pb2.InitRequest(
        rollout_id="r", spec=rollout_pb2.RolloutSpec(metadata_json='{"a":"' + "x" * MAX_METADATA_BYTES + '"}')
    )
    init = init_from_wire(large)
    assert len(trip(events.Accepted(init)).init.request.metadata["a"]) == MAX_METADATA_BYTES


def test_a_request_that_a_newer_server_accepted_can_be_read():
    request = rollout_pb2.InitRequest(rollout_id="r", callback=rollout_pb2.Callback(target="x:1"))
    request.spec.grader_timeout.seconds = 5
    request.callback.tls.server_name = "x"
    event = pb.TrajectoryEvent(rollout_id="r", event_number=1, accepted=pb.AcceptedEvent(request=request))
    assert event_from_wire(event).kind.init.request.grader_timeout == 5
