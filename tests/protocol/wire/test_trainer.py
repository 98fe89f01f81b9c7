"""Chats and outcomes between server and trainer, there and back; and what is refused by name."""

from dataclasses import MISSING, fields, replace

import numpy as np
import pytest

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import chat_pb2 as pb
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import message_pb2, outcome_pb2, tokens_pb2
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import ChatPurpose, ChatRequest, ChatResponse, Receipt, Tensor, TokenBlock, VersionSpan
from osmosis_grpc.protocol.wire.chat import PURPOSES, RECEIPTS, chat_bytes, chat_from_wire, reply_bytes, reply_from_wire

# The first three are found by the trainer, tools_overridden is whether there are tools, the rest is of the call.
NOT_ON_THE_WIRE = {
    "parent_chat",
    "prefix_len",
    "known_ids",
    "known_reply",
    "tools_overridden",
    "timeout",
    "credential",
    "version",
}
CHAT = ChatRequest(
    rollout_id="r",
    attempt=2,
    sample="judge",
    chat_number=7,
    messages=[{"role": "user", "content": None, "x": 1.0}],
    params={"temperature": 0.5, "min_p": 0.1},
    tools=[{"type": "function", "function": {"name": "f"}}],
    purpose=ChatPurpose.JUDGE,
    policy="critic",
    state=b"\x00state",
)
REPLY = ChatResponse(
    message={"role": "assistant", "content": "5", "reasoning_content": None},
    finish_reason="length",
    usage={"prompt_tokens": 2**40, "completion_tokens": 2, "details": {"cached": 1}},
    tokens=TokenBlock.of([5, 6], [-0.5, np.nan], {"entropy": Tensor.of(np.float32([1.5, 2.5]))}),
    prompt_ids=np.array([1, 2, 3], dtype="<u4"),
    prompt_prefix=4,
    versions=(VersionSpan("v1", 1), VersionSpan("v2", 1)),
    extra={"matched_stop": 1},
)


def over_the_wire(message):
    return type(message).FromString(message.SerializeToString())


def named(call, message) -> str:
    """The field that a refusal names."""
    with pytest.raises(InvalidArgument) as refusal:
        call(over_the_wire(message))
    return refusal.value.violations[0][0]


def same(one: ChatResponse, other: ChatResponse) -> None:
    for field in fields(ChatResponse):
        if field.name not in ("size", "wire"):
            mine, others = getattr(one, field.name), getattr(other, field.name)
            assert type(mine) is type(others), field.name
            assert np.array_equal(mine, others), field.name


def test_the_fixtures_tell_every_field():
    for fixture in (CHAT, REPLY):
        for field in fields(fixture):
            if field.name not in {*NOT_ON_THE_WIRE, "size", "wire"} and field.default is not MISSING:
                assert not np.array_equal(getattr(fixture, field.name), field.default), field.name


@pytest.mark.parametrize(
    "chat",
    [CHAT, replace(CHAT, tools=[]), replace(CHAT, tools=None, params={}), ChatRequest(rollout_id="r", messages=[])],
)
def test_a_chat_survives(chat):
    back = chat_from_wire(over_the_wire(pb.ChatRequest.FromString(chat_bytes(chat))))
    assert back == replace(chat, tools_overridden=chat.tools is not None)
    assert chat_from_wire(over_the_wire(pb.ChatRequest.FromString(chat_bytes(chat))), 1.5).timeout == 1.5
    kept = chat_from_wire(pb.ChatRequest.FromString(chat_bytes(chat)), keep=True).wire
    assert pb.ChatRequest.FromString(kept) == pb.ChatRequest.FromString(chat_bytes(chat))


HISTORY = [
    {"role": "user", "content": "2+3?"},
    {"role": "assistant", "content": "5"},
    {"role": "user", "content": "+1?"},
]


@pytest.mark.parametrize("parent_chat", [0, 1])
@pytest.mark.parametrize("delta", [False, True])
def test_a_delta_has_only_the_new_messages(delta, parent_chat):
    whole = replace(
        CHAT, messages=HISTORY, parent_chat=parent_chat, prefix_len=2 * parent_chat, known_ids=np.arange(3, dtype="<u4")
    )
    wire = over_the_wire(pb.ChatRequest.FromString(chat_bytes(whole, delta=delta)))
    back = chat_from_wire(wire)
    refers = bool(delta and parent_chat)
    assert wire.WhichOneof("history") == ("delta" if refers else "full")
    assert back.parent_chat == parent_chat
    assert (back.prefix_len, back.known_ids) == (0 if refers else 2 * parent_chat, None)
    assert list(back.messages) == (HISTORY[2:] if refers else HISTORY)


@pytest.mark.parametrize("tools_overridden", [False, True])
@pytest.mark.parametrize("all_tools", [False, True])
@pytest.mark.parametrize("tools", [None, [], CHAT.tools])
def test_the_rollouts_tools_can_be_left_out(tools, all_tools, tools_overridden):
    chat = replace(CHAT, tools=tools, tools_overridden=tools_overridden)
    back = chat_from_wire(over_the_wire(pb.ChatRequest.FromString(chat_bytes(chat, all_tools=all_tools))))
    assert back.tools == (tools if all_tools or tools_overridden else None)
    assert back.tools_overridden == (back.tools is not None)


def test_an_unset_field_has_its_default():
    chat = chat_from_wire(pb.ChatRequest(rollout_id="r", sample="main", chat_number=1, full=pb.FullHistory()))
    assert (chat.attempt, chat.tools, chat.params, chat.purpose) == (1, None, {}, ChatPurpose.POLICY)


@pytest.mark.parametrize(
    "reply",
    [
        REPLY,
        ChatResponse(message={"role": "assistant"}, finish_reason=""),
        replace(REPLY, tokens=TokenBlock.of([]), versions=(), prompt_ids=np.empty(0, "<u4")),
        replace(REPLY, tokens=None, versions=()),
        replace(REPLY, usage={}),
        replace(REPLY, versions=(VersionSpan("one for all", 1),)),
    ],
    ids=["full", "sparse", "empty arrays", "no tokens", "empty usage", "one version"],
)
def test_a_reply_survives(reply):
    wire = pb.ChatResponse.FromString(reply_bytes(reply))
    back = reply_from_wire(wire)
    same(back, reply)
    assert back.size == wire.ByteSize()


def test_replies_can_be_compared():
    assert replace(REPLY, prompt_ids=REPLY.prompt_ids.copy()) == REPLY
    assert replace(REPLY, prompt_ids=np.array([1, 2, 4], dtype="<u4")) != REPLY


def chat_message(**changes) -> pb.ChatRequest:
    return pb.ChatRequest(
        **{"rollout_id": "r", "sample": "main", "chat_number": 1, "full": pb.FullHistory(), **changes}
    )


def full(*messages: message_pb2.Message) -> dict[str, pb.FullHistory]:
    return {"full": pb.FullHistory(messages=messages)}


BAD_JSON = message_pb2.Message(role="user", extra_json='{"a":NaN}')
BAD_TOOLS = message_pb2.Tools(tools=[message_pb2.Tool(), message_pb2.Tool(extra_json="[]")])
BAD_CHATS = [
    ("rollout_id", {"rollout_id": ""}),
    ("rollout_id", {"rollout_id": "a/b"}),
    ("sample", {"sample": ""}),
    ("sample", {"sample": "x" * 257}),
    ("sample", {"sample": "a\0b"}),
    ("chat_number", {"chat_number": 0}),
    ("history", {"full": None}),
    ("delta.parent_chat", {"full": None, "delta": pb.DeltaHistory()}),
    (
        "delta.messages[0].role",
        {"full": None, "delta": pb.DeltaHistory(parent_chat=1, messages=[message_pb2.Message(role="robot")])},
    ),
    ("full.messages[1].role", full(message_pb2.Message(role="user"), message_pb2.Message(role="robot"))),
    ("full.messages[0].extra_json", full(BAD_JSON)),
    ("sampling.temperature", {"sampling": message_pb2.SamplingParams(temperature=-1)}),
    ("sampling.top_p", {"sampling": message_pb2.SamplingParams(top_p=float("nan"))}),
    ("sampling.max_tokens", {"sampling": message_pb2.SamplingParams(max_tokens=0)}),
    ("tools.tools[1].extra_json", {"tools": BAD_TOOLS}),
    ("purpose", {"purpose": 9}),
]


@pytest.mark.parametrize(("field", "changes"), BAD_CHATS, ids=[field for field, _ in BAD_CHATS])
def test_a_chat_out_of_bounds_is_refused_by_name(field, changes):
    assert named(chat_from_wire, chat_message(**changes)) == field


def reply_message(**changes) -> pb.ChatResponse:
    return pb.ChatResponse(**{"message": message_pb2.Message(role="assistant"), **changes})


ONE = tokens_pb2.TokenBlock(ids=[1])
BAD_REPLIES = [
    ("message.role", {"message": None}),
    ("message.role", {"message": message_pb2.Message(role="user")}),
    ("message.extra_json", {"message": message_pb2.Message(role="assistant", extra_json="1")}),
    ("tokens.logprobs", {"tokens": tokens_pb2.TokenBlock(ids=[1, 2], logprobs=[-1])}),
    ("tokens.logprobs", {"tokens": tokens_pb2.TokenBlock(ids=[1], logprobs=[0.5])}),
    ("tokens.logprobs", {"tokens": tokens_pb2.TokenBlock(ids=[1], logprobs=[-np.inf])}),
    ("prompt.logprobs", {"prompt": tokens_pb2.TokenBlock(ids=[1, 2], logprobs=[-1])}),
    ("usage.total_tokens", {"usage": message_pb2.Usage(total_tokens=-1)}),
    ("usage.extra_json", {"usage": message_pb2.Usage(extra_json="{")}),
    ("versions", {"tokens": ONE, "versions": [tokens_pb2.VersionSpan(tokens=1), tokens_pb2.VersionSpan(tokens=1)]}),
    ("extra_json", {"extra_json": '{"a":1,"a":2}'}),
]


@pytest.mark.parametrize(("field", "changes"), BAD_REPLIES, ids=[field for field, _ in BAD_REPLIES])
def test_a_reply_out_of_bounds_is_refused_by_name(field, changes):
    assert named(reply_from_wire, reply_message(**changes)) == field


def test_every_purpose_and_outcome_is_known():
    assert {PURPOSES.read(number, "purpose") for number in pb.ChatPurpose.values()} == set(ChatPurpose)
    for purpose in ChatPurpose:
        assert PURPOSES.read(PURPOSES.numbers[purpose], "purpose") is purpose
    assert {RECEIPTS.names.get(number) for number in outcome_pb2.Receipt.values()} == {*Receipt, None}
    for outcome in Receipt:
        assert RECEIPTS.names.get(RECEIPTS.numbers[outcome]) is outcome
    assert RECEIPTS.names.get(99) is None
