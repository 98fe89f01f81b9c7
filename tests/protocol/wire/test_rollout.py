"""What starts a rollout and how it ended, there and back; and what is refused by name."""

import math
from dataclasses import MISSING, fields, replace

import pytest
from google.protobuf.duration_pb2 import Duration
from hypothesis import given
from hypothesis import strategies as st

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import message_pb2, outcome_pb2, tokens_pb2
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import rollout_pb2 as pb
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import Callback, Fork, Group, InitRequest, RolloutRequest, TraceContext
from osmosis_grpc.protocol.types.requests import differing_fields
from osmosis_grpc.protocol.wire.rollout import MAX_METADATA_BYTES, check_size, init_from_wire, init_to_wire

NOT_ON_THE_WIRE = {"server_url", "api_key"}  # they come with the HTTP contract
INIT = InitRequest(
    request=RolloutRequest(
        rollout_id="rollout 1-2",
        messages=[{"role": "user", "content": "2+3?", "vendor": None}],
        completion_params={"temperature": 0.5, "max_tokens": 9, "min_p": 0.1},
        pin_completion_params=True,
        max_turns=0,
        max_tokens_total=77,
        metadata={"a": [1, 1.0, None]},
        label="",
        attempt=3,
        agent_loop="calculator",
        group=Group("g", 2, 8),
        priority=-4,
        agent_timeout=1.5,
        grader_timeout=2.5,
        tool_server_url="http://tools",
        idempotency_key="key",
        evaluation=True,
        fork=Fork("r0", 3, "main", 2),
    ),
    callback=Callback(target="127.0.0.1:1", credential="secret-token", state=b"\x00secret-state", run_id="run-1"),
    trace=TraceContext("00-aa-bb-01", "vendor=1"),
)


def over_the_wire(message):
    return type(message).FromString(message.SerializeToString())


def named(call, *args) -> str:
    """The field that a refusal names."""
    with pytest.raises(InvalidArgument) as refusal:
        call(*args)
    return refusal.value.violations[0][0]


def test_the_fixture_tells_every_field():
    for field in fields(RolloutRequest):
        if field.name not in NOT_ON_THE_WIRE and field.default is not MISSING:
            assert getattr(INIT.request, field.name) != field.default, field.name


def test_a_request_survives():
    wire = over_the_wire(init_to_wire(INIT))
    back = init_from_wire(wire)
    assert replace(back, digest=b"", size=0) == INIT
    assert back.size == wire.ByteSize()


def test_a_request_that_says_little_survives():
    init = InitRequest(request=RolloutRequest(rollout_id="r", messages=[]))
    back = init_from_wire(over_the_wire(init_to_wire(init)))
    assert replace(back, digest=b"", size=0) == init


def test_an_unset_field_has_its_default():
    request = init_from_wire(pb.InitRequest(rollout_id="r")).request
    assert (request.attempt, request.max_turns, request.max_tokens_total) == (1, 10, 8192)
    assert (request.label, request.group, request.agent_timeout) == (None, None, None)
    assert (request.tool_server_url, request.idempotency_key, request.metadata) == (None, None, {})


def test_secrets_are_left_out_on_request():
    wire = init_to_wire(INIT, secrets=False)
    assert wire.callback.target == "127.0.0.1:1"
    assert b"secret" not in wire.SerializeToString()
    assert "secret" not in repr(INIT)


def test_secrets_travel_with_the_request():
    data = init_to_wire(INIT).SerializeToString()
    assert b"secret-token" in data
    assert b"\x00secret-state" in data


# Another value for every field of the spec.
OTHER = {
    "agent_loop": "other",
    "max_turns": 10,
    "max_tokens_total": 8192,
    "messages": [message_pb2.Message(role="user", text="2+4?")],
    "metadata_json": '{"a":[true,1,null]}',
    "sampling": message_pb2.SamplingParams(temperature=0.25),
    "label": "x",
    "group": outcome_pb2.Group(id="g", index=3, size=8),
    "priority": 0,
    "agent_timeout": Duration(seconds=2),
    "grader_timeout": Duration(seconds=2),
    "tool_server_url": "http://other",
    "idempotency_key": "other",
    "evaluation": False,
    "pin_sampling": False,
    "fork": pb.Fork(rollout_id="r0", attempt=2, chat=tokens_pb2.ChatRef(sample="main", chat_number=4)),
}


def changed(name: str, value=None) -> pb.InitRequest:
    message = init_to_wire(INIT)
    part, given = (message.spec, pb.RolloutSpec) if name in OTHER else (message, pb.InitRequest)
    part.ClearField(name)
    if value is not None:
        part.MergeFrom(given(**{name: value}))
    return message


def asking(**fields) -> pb.InitRequest:
    """An Init with these fields, of its own or of its spec."""
    spec = {name: fields.pop(name) for name in pb.RolloutSpec.DESCRIPTOR.fields_by_name if name in fields}
    return pb.InitRequest(**{"rollout_id": "r", "spec": pb.RolloutSpec(**spec), **fields})


def test_every_field_of_the_spec_is_tried():
    assert set(OTHER) == set(pb.RolloutSpec.DESCRIPTOR.fields_by_name)


@pytest.mark.parametrize("name", sorted(OTHER.keys() - {"agent_loop"}))  # the engine compares agent loops
def test_two_specs_differ_in_exactly_the_fields_that_differ(name):
    digest = init_from_wire(init_to_wire(INIT)).digest
    for message in (changed(name, OTHER[name]), changed(name)):
        assert differing_fields(digest, init_from_wire(message).digest) == [f"spec.{name}"]


DEFAULTS = {
    "max_turns": 10,
    "max_tokens_total": 8192,
    "metadata_json": " {} ",
    "sampling": message_pb2.SamplingParams(),
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_a_default_may_be_left_out_or_spelt_out(name):
    assert init_from_wire(asking()).digest == init_from_wire(asking(**{name: DEFAULTS[name]})).digest


@pytest.mark.parametrize("text", ['{"b":[1,2.5],"a":1e2}', '{ "a": 100.0, "b": [1.0, 25e-1] }'])
def test_json_is_compared_by_value(text):
    one = init_from_wire(asking(metadata_json='{"a":100,"b":[1,2.5]}'))
    assert one.digest == init_from_wire(asking(metadata_json=text)).digest
    other = init_from_wire(asking(metadata_json='{"a":100,"b":[true,2.5]}'))
    assert differing_fields(one.digest, other.digest) == ["spec.metadata_json"]


@pytest.mark.parametrize(
    "message",
    [
        changed("callback"),
        changed("trace_context"),
        changed("callback", pb.Callback(target="x:1", credential="other", state=b"other")),
        changed("trace_context", pb.TraceContext(traceparent="other")),
    ],
)
def test_callback_and_trace_are_not_part_of_the_spec(message):
    assert init_from_wire(message).digest == init_from_wire(init_to_wire(INIT)).digest


def test_attempt_0_is_attempt_1():
    none, zero, one, two = (
        init_from_wire(pb.InitRequest(rollout_id="r", **attempt)).request.attempt
        for attempt in ({}, {"attempt": 0}, {"attempt": 1}, {"attempt": 2})
    )
    assert (none, zero, one, two) == (1, 1, 1, 2)


def test_reading_changes_nothing_in_the_message():
    message = pb.InitRequest(rollout_id="r", callback=pb.Callback(target="x:1"))
    before = message.SerializeToString()
    init_from_wire(message)
    assert message.SerializeToString() == before


# tests/protocol/types/test_values.py has all kinds of wrong ids.
BAD_IDS = ["", " ", "x" * 257, "a/b", "a\0b"]
GOOD_IDS = ["x" * 256, "字 ü", "%2F"]


@pytest.mark.parametrize("bad", BAD_IDS, ids=ascii)
def test_a_bad_id_is_refused_by_name(bad):
    assert named(init_from_wire, pb.InitRequest(rollout_id=bad)) == "rollout_id"
    assert named(init_from_wire, asking(group=outcome_pb2.Group(id=bad))) == "spec.group.id"
    if bad:
        assert named(init_from_wire, asking(idempotency_key=bad)) == "spec.idempotency_key"


@pytest.mark.parametrize("good", GOOD_IDS, ids=ascii)
def test_a_good_id_passes(good):
    message = asking(rollout_id=good, group=outcome_pb2.Group(id=good), idempotency_key=good)
    assert init_from_wire(message).request.rollout_id == good


USER, ROBOT = message_pb2.Message(role="user"), message_pb2.Message(role="robot")
BAD_REQUESTS = [
    ("spec.messages[1].role", {"messages": [USER, ROBOT]}),
    ("spec.messages[0].extra_json", {"messages": [message_pb2.Message(role="user", extra_json="[]")]}),
    ("spec.metadata_json", {"metadata_json": "{"}),
    ("spec.metadata_json", {"metadata_json": "[]"}),
    ("spec.metadata_json", {"metadata_json": '{"a":NaN}'}),
    ("spec.metadata_json", {"metadata_json": '{"a":"\\ud800"}'}),
    ("spec.metadata_json", {"metadata_json": '{"a":1,"a":2}'}),
    ("spec.metadata_json", {"metadata_json": '{"a":' + "[" * 256 + "]" * 256 + "}"}),
    ("spec.sampling.temperature", {"sampling": message_pb2.SamplingParams(temperature=math.nan)}),
    ("spec.sampling.temperature", {"sampling": message_pb2.SamplingParams(temperature=-1)}),
    ("spec.sampling.top_p", {"sampling": message_pb2.SamplingParams(top_p=1.5)}),
    ("spec.sampling.max_tokens", {"sampling": message_pb2.SamplingParams(max_tokens=0)}),
    ("spec.sampling.extra_json", {"sampling": message_pb2.SamplingParams(extra_json='{"a":1e999}')}),
    ("spec.group.index", {"group": outcome_pb2.Group(id="g", index=4, size=4)}),
    ("spec.agent_timeout", {"agent_timeout": Duration()}),
    ("spec.agent_timeout", {"agent_timeout": Duration(seconds=-1)}),
    ("spec.agent_timeout", {"agent_timeout": Duration(nanos=-1)}),
    ("spec.agent_timeout", {"agent_timeout": Duration(nanos=2**31 - 1)}),
    ("spec.agent_timeout", {"agent_timeout": Duration(seconds=2**62)}),
    ("spec.grader_timeout", {"grader_timeout": Duration()}),
    ("callback.target", {"callback": pb.Callback()}),
    ("callback.credential", {"callback": pb.Callback(target="x:1", credential="a\r\nb: c")}),
    ("callback.credential", {"callback": pb.Callback(target="x:1", credential="ü")}),
    ("callback.run_id", {"callback": pb.Callback(target="x:1", run_id="a\nb")}),
    ("callback.run_id", {"callback": pb.Callback(target="x:1", run_id="r" * 257)}),
    ("callback.tls.server_name", {"callback": pb.Callback(target="x:1", tls=pb.CallbackTls(server_name="a\nb"))}),
    ("trace_context.traceparent", {"trace_context": pb.TraceContext(traceparent="a\nb")}),
    ("trace_context.tracestate", {"trace_context": pb.TraceContext(traceparent="a", tracestate="x" * 5000)}),
]


@pytest.mark.parametrize(("field", "bad"), BAD_REQUESTS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_field_out_of_bounds_is_refused_by_name(field, bad):
    assert named(init_from_wire, over_the_wire(asking(**bad))) == field


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("rollout_id", {"rollout_id": "a/b"}),
        ("chat.sample", {"chat": {"chat_number": 1}}),
        ("chat.chat_number", {"chat": {"sample": "main"}}),
    ],
)
def test_a_fork_out_of_bounds_is_refused_by_name(field, bad):
    fork = {"rollout_id": "r0", "chat": {"sample": "main", "chat_number": 1}} | bad
    assert named(init_from_wire, over_the_wire(asking(fork=pb.Fork(**fork)))) == f"spec.fork.{field}"


def test_attempt_0_of_a_fork_is_read_as_1():
    chat = tokens_pb2.ChatRef(sample="main", chat_number=1)
    read, spelt = (init_from_wire(asking(fork=pb.Fork(rollout_id="r0", attempt=n, chat=chat))) for n in (0, 1))
    assert read.request.fork == spelt.request.fork == Fork("r0", 1)
    assert read.digest == spelt.digest


def test_a_refusal_never_shows_the_credential():
    callback = pb.Callback(target="x:1", credential="secret\n")
    with pytest.raises(InvalidArgument) as refusal:
        init_from_wire(pb.InitRequest(rollout_id="r", callback=callback))
    assert "secret" not in str(refusal.value)


def test_metadata_is_limited_in_bytes():
    text = '{"a":"üüüü"}'
    message = asking(metadata_json=text)
    assert len(text) < len(text.encode())
    check_size(message, len(text.encode()))
    assert init_from_wire(message).request.metadata == {"a": "üüüü"}
    assert named(check_size, message, len(text.encode()) - 1) == "spec.metadata_json"
    large = asking(metadata_json='{"a":"' + "x" * MAX_METADATA_BYTES + '"}')
    assert named(check_size, large) == "spec.metadata_json"


@given(st.floats(1e-9, 1e9))
def test_any_timeout_survives(seconds):
    init = InitRequest(request=RolloutRequest(rollout_id="r", agent_timeout=seconds))
    back = init_from_wire(init_to_wire(init)).request.agent_timeout
    assert back == pytest.approx(seconds, rel=1e-12, abs=1e-9)
