"""Bad input: INVALID_ARGUMENT that names the field, nothing started, and the server goes on."""

import asyncio

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2

from osmosis_grpc.policies import ToolCallingMock
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import chat_pb2, control_pb2, message_pb2, outcome_pb2, rollout_pb2
from osmosis_grpc.protocol._gen.osmosis.rollout.v1.services_pb2_grpc import RolloutServiceStub, TrainerServiceStub
from tests.credentials import shown

USER = message_pb2.Message(role="user", text="What is 1 + 1?")
SERVICE = "/osmosis.rollout.v1.RolloutService"


def changed(**fields):
    """A good request with some fields replaced. Fields of RolloutSpec go into its spec."""

    def build(trainer):
        request = rollout_pb2.InitRequest(rollout_id="bad", spec=rollout_pb2.RolloutSpec(messages=[USER]))
        request.callback.target = trainer.address
        request.callback.credential = trainer.callback().credential
        for name, value in fields.items():
            part = request.spec if name in rollout_pb2.RolloutSpec.DESCRIPTOR.fields_by_name else request
            part.ClearField(name)
            part.MergeFrom(type(part)(**{name: value}))
        return request

    return build


def sampling(**params):
    return changed(sampling=message_pb2.SamplingParams(**params))


BAD_INITS = {
    "empty id": (changed(rollout_id=""), "rollout_id"),
    "blank id": (changed(rollout_id="  "), "rollout_id"),
    "257 characters": (changed(rollout_id="x" * 257), "rollout_id"),
    "one dot": (changed(rollout_id="."), "rollout_id"),
    "two dots": (changed(rollout_id=".."), "rollout_id"),
    "slash": (changed(rollout_id="a/b"), "rollout_id"),
    "backslash": (changed(rollout_id="a\\b"), "rollout_id"),
    "NUL": (changed(rollout_id="a\x00b"), "rollout_id"),
    "newline": (changed(rollout_id="a\n[INFO] forged"), "rollout_id"),
    "bad group id": (changed(group=outcome_pb2.Group(id="..")), "spec.group.id"),
    "index beyond the group": (changed(group=outcome_pb2.Group(id="g", index=4, size=4)), "spec.group.index"),
    "metadata over its limit": (changed(metadata_json='{"x": "' + "y" * 2**20 + '"}'), "spec.metadata_json"),
    "metadata is not JSON": (changed(metadata_json="{nope"), "spec.metadata_json"),
    "metadata is a list": (changed(metadata_json="[]"), "spec.metadata_json"),
    "metadata with NaN": (changed(metadata_json='{"x": NaN}'), "spec.metadata_json"),
    "metadata with a surrogate": (changed(metadata_json='{"x": "\\ud800"}'), "spec.metadata_json"),
    "metadata too deep": (changed(metadata_json='{"x":' * 300 + "1" + "}" * 300), "spec.metadata_json"),
    "wrong role": (changed(messages=[message_pb2.Message(role="robot", text="x")]), "spec.messages[0].role"),
    "no role": (changed(messages=[USER, message_pb2.Message(text="x")]), "spec.messages[1].role"),
    "extra is not JSON": (
        changed(messages=[message_pb2.Message(role="user", extra_json="{")]),
        "spec.messages[0].extra_json",
    ),
    "negative temperature": (sampling(temperature=-1.0), "spec.sampling.temperature"),
    "NaN temperature": (sampling(temperature=float("nan")), "spec.sampling.temperature"),
    "infinite temperature": (sampling(temperature=float("inf")), "spec.sampling.temperature"),
    "top_p above 1": (sampling(top_p=1.5), "spec.sampling.top_p"),
    "NaN top_p": (sampling(top_p=float("nan")), "spec.sampling.top_p"),
    "negative max_tokens": (sampling(max_tokens=-5), "spec.sampling.max_tokens"),
    "no max_tokens": (sampling(max_tokens=0), "spec.sampling.max_tokens"),
    "timeout of zero": (changed(agent_timeout=Duration()), "spec.agent_timeout"),
    "negative timeout": (changed(agent_timeout=Duration(seconds=-1)), "spec.agent_timeout"),
    "grader timeout": (changed(grader_timeout=Duration(seconds=1)), "spec.grader_timeout"),
    "TLS name that fits no header": (
        changed(callback=rollout_pb2.Callback(target="127.0.0.1:1", tls=rollout_pb2.CallbackTls(server_name="a\nb"))),
        "callback.tls.server_name",
    ),
    "no callback": (lambda trainer: rollout_pb2.InitRequest(rollout_id="bad"), "callback"),
    "empty target": (changed(callback=rollout_pb2.Callback()), "callback.target"),
    "metadata address": (changed(callback=rollout_pb2.Callback(target="169.254.169.254:80")), "callback.target"),
    "unix target": (changed(callback=rollout_pb2.Callback(target="unix:/tmp/x")), "callback.target"),
}


def violations(error):
    """The field paths that a failed call's details name."""
    raw = dict(iter(error.trailing_metadata()))["grpc-status-details-bin"]
    bad = error_details_pb2.BadRequest()
    assert any(detail.Unpack(bad) for detail in status_pb2.Status.FromString(raw).details)
    return [violation.field for violation in bad.field_violations]


async def refused(call):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


async def test_each_bad_init_is_refused_by_name_and_starts_nothing(serve, train):
    server, trainer = await serve(), await train(ToolCallingMock())
    async with grpc.aio.insecure_channel(server.address) as channel:
        stub = RolloutServiceStub(channel)
        for name, (build, field) in BAD_INITS.items():
            error = await refused(stub.Init(build(trainer)))
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, name
            assert violations(error) == [field], name
        await unharmed(stub, trainer)


async def unharmed(stub, trainer):
    """Nothing was started, and a good rollout still runs."""
    assert not (await stub.ListRollouts(control_pb2.ListRolloutsRequest())).rollouts
    await stub.Init(changed(rollout_id="good")(trainer))
    assert (await asyncio.wait_for(trainer.outcome("good"), 10)).status == "COMPLETED"


@pytest.mark.slow
async def test_undecodable_bytes_too_large_messages_and_unknown_names(serve, train):
    server, trainer = await serve(), await train(ToolCallingMock())
    own = (("grpc.max_send_message_length", -1),)
    async with grpc.aio.insecure_channel(server.address, options=own) as channel:
        stub = RolloutServiceStub(channel)
        for method in ("Init", "Cancel", "GetRollout", "ListRollouts"):
            error = await refused(channel.unary_unary(f"{SERVICE}/{method}")(b"\x0a\xff"))
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, method
            assert violations(error) == [""]
        stream = channel.unary_stream(f"{SERVICE}/StreamEvents")(b"\xff\xff\xff")
        assert (await refused(stream.read())).code() is grpc.StatusCode.INVALID_ARGUMENT
        health = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert (await refused(health(b"\x0a\xff"))).code() is grpc.StatusCode.INVALID_ARGUMENT

        large = changed(label="x" * (65 * 2**20))(trainer)
        assert (await refused(stub.Init(large))).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        unknown = await refused(stub.Init(changed(agent_loop="nobody")(trainer)))
        assert unknown.code() is grpc.StatusCode.NOT_FOUND
        assert "calculator" in unknown.details()
        missing = await refused(stub.GetRollout(control_pb2.GetRolloutRequest(rollout_id="nobody")))
        assert missing.code() is grpc.StatusCode.NOT_FOUND
        await unharmed(stub, trainer)


BAD_QUERIES = {
    "cancel nothing": ("Cancel", control_pb2.CancelRequest(), "selection"),
    "cancel without a selection": ("Cancel", control_pb2.CancelRequest(reason="why"), "selection"),
    "cancel a bad id": ("Cancel", control_pb2.CancelRequest(rollout_id="a/b"), "rollout_id"),
    "attempt of a group": ("Cancel", control_pb2.CancelRequest(group_id="g", attempt=1), "attempt"),
    "get a bad id": ("GetRollout", control_pb2.GetRolloutRequest(), "rollout_id"),
    "a foreign page": ("ListRollouts", control_pb2.ListRolloutsRequest(page_token="x"), "page_token"),
    "a state that is none": ("ListRollouts", control_pb2.ListRolloutsRequest(states=[99]), "states"),
    "a reward that is none": ("ListRollouts", control_pb2.ListRolloutsRequest(min_reward=float("nan")), "min_reward"),
    "a stall of no time": ("ListRollouts", control_pb2.ListRolloutsRequest(stalled=Duration()), "stalled"),
}


async def test_bad_queries(serve):
    server = await serve()
    async with grpc.aio.insecure_channel(server.address) as channel:
        stub = RolloutServiceStub(channel)
        for name, (method, request, field) in BAD_QUERIES.items():
            error = await refused(getattr(stub, method)(request))
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, name
            assert violations(error) == [field], name


BAD_STREAMS = {
    "a foreign cursor": (control_pb2.StreamEventsRequest(cursor="x"), "INVALID_ARGUMENT"),
    "another journal's": (control_pb2.StreamEventsRequest(cursor="deadbeef.5"), "FAILED_PRECONDITION"),
    "after without an id": (control_pb2.StreamEventsRequest(after_event=1), "INVALID_ARGUMENT"),
    "cursor with an id": (control_pb2.StreamEventsRequest(rollout_id="x", cursor="y"), "INVALID_ARGUMENT"),
    "nobody's": (control_pb2.StreamEventsRequest(rollout_id="nobody"), "NOT_FOUND"),
}


@pytest.mark.parametrize("name", BAD_STREAMS)
async def test_bad_streams(serve, name):
    server, (request, code) = await serve(), BAD_STREAMS[name]
    async with grpc.aio.insecure_channel(server.address) as channel:
        assert (await refused(RolloutServiceStub(channel).StreamEvents(request).read())).code().name == code


def chat(**fields):
    request = chat_pb2.ChatRequest(rollout_id="r", sample="main", chat_number=1)
    request.full.messages.append(USER)
    if "full" in fields:
        request.ClearField("full")
    for name, value in fields.items():
        request.MergeFrom(chat_pb2.ChatRequest(**{name: value}))
        if name == "chat_number":
            request.chat_number = value
    return request


def outcome(**fields):
    status = outcome_pb2.OUTCOME_STATUS_COMPLETED
    made = outcome_pb2.RolloutOutcome(rollout_id="r", result_id="x", status=status)
    made.MergeFrom(outcome_pb2.RolloutOutcome(**fields))
    return outcome_pb2.CompleteRequest(outcome=made)


def mismatched():
    request = outcome()
    segment = request.outcome.samples.add(name="main").segments.add()
    segment.ids.extend([1, 2, 3])
    segment.mask_runs.extend([1, 2])
    segment.logprobs.extend([-0.1])
    return request


BAD_CALLBACKS = {
    "chat number 0": ("Chat", chat(chat_number=0), "chat_number"),
    "no history": ("Chat", chat_pb2.ChatRequest(rollout_id="r", sample="main", chat_number=1), "history"),
    "delta on no chat": ("Chat", chat(delta=chat_pb2.DeltaHistory()), "delta.parent_chat"),
    "wrong role in a delta": (
        "Chat",
        chat(delta=chat_pb2.DeltaHistory(parent_chat=1, messages=[message_pb2.Message(role="robot")])),
        "delta.messages[0].role",
    ),
    "wrong role": (
        "Chat",
        chat(full=chat_pb2.FullHistory(messages=[message_pb2.Message(role="robot")])),
        "full.messages[0].role",
    ),
    "no status": (
        "Complete",
        outcome_pb2.CompleteRequest(outcome=outcome_pb2.RolloutOutcome(rollout_id="r")),
        "outcome.status",
    ),
    "NaN reward": ("Complete", outcome(reward=float("nan")), "outcome.reward"),
    "fewer logprobs than ids": ("Complete", mismatched(), "outcome.samples[main].segments[0].logprobs"),
}


async def test_the_trainer_refuses_by_name_too(train):
    trainer = await train(ToolCallingMock())
    async with grpc.aio.insecure_channel(trainer.address) as channel:
        stub = TrainerServiceStub(channel)
        for name, (method, request, field) in BAD_CALLBACKS.items():
            error = await refused(getattr(stub, method)(request, metadata=shown(trainer)))
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, name
            assert violations(error) == [field], name
