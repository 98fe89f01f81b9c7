"""Frames as bytes: joined they are what protobuf itself makes of the message; and what a hello may not say."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import attach_pb2 as pb
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import chat_pb2, error_pb2, outcome_pb2, rollout_pb2, services_pb2
from osmosis_grpc.protocol.errors import Aborted, FailedPrecondition, InvalidArgument, ResourceExhausted, UnknownChat
from osmosis_grpc.protocol.types import ChatResponse, TokenBlock, VersionSpan
from osmosis_grpc.protocol.wire.attach import (
    chat_reply_frame,
    check_protocol,
    check_trainer_hello,
    refusal,
    refused,
    server_frame,
    trainer_frame,
)
from osmosis_grpc.protocol.wire.chat import reply_bytes
from osmosis_grpc.protocol.wire.control import PROTOCOL
from osmosis_grpc.protocol.wire.protobuf_encoding import head

# The sizes at which a varint of a length takes another byte, and those around them.
BORDERS = [size + near for size in (0, 2**7, 2**14, 2**21) for near in range(-12, 4) if size + near >= 0]
SIZES = st.one_of(st.sampled_from(BORDERS), st.integers(0, 300))
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
REFS = st.lists(st.builds(pb.RolloutRef, rollout_id=TEXT, attempt=st.integers(0, 2**32 - 1)), max_size=5)


def filled(size: int) -> chat_pb2.ChatRequest:
    return chat_pb2.ChatRequest(rollout_id="r", state=b"s" * size)


TRAINER = {
    "hello": st.builds(pb.TrainerHello, attachment_id=TEXT, max_open_chats=st.integers(0, 2**32 - 1)),
    "open_rollouts": st.builds(pb.OpenRollouts, rollouts=REFS),
    "init": st.builds(
        lambda size: rollout_pb2.InitRequest(spec=rollout_pb2.RolloutSpec(metadata_json="x" * size)), SIZES
    ),
    "cancel": st.builds(pb.CancelFrame, id=TEXT),
    "chat_reply": st.builds(
        pb.ChatReply, rollout_id=TEXT, attempt=st.integers(0, 9), chat_number=st.integers(0, 2**32 - 1)
    ),
    "complete_reply": st.builds(pb.CompleteReply, rollout_id=TEXT, receipt=st.integers(0, 3)),
    "subscribe": st.builds(pb.Subscribe, id=TEXT, tokens=st.booleans()),
    "unsubscribe": st.builds(pb.Unsubscribe, id=TEXT),
    "window": st.builds(pb.TrainerWindow, max_open_chats=st.integers(0, 2**32 - 1)),
    "heartbeat": st.builds(pb.Heartbeat),
    "annotate": st.builds(pb.AnnotateFrame, id=TEXT),
    "goodbye": st.builds(pb.Goodbye),
    "unknown_frame": st.builds(pb.UnknownFrame, frame_number=st.integers(0, 2**32 - 1)),
}
SERVER = {
    "hello": st.builds(pb.ServerHello, journal_id=TEXT, agent_loops=st.lists(TEXT, max_size=3)),
    "unknown_rollouts": st.builds(pb.UnknownRollouts, rollouts=REFS),
    "init_reply": st.builds(pb.InitReply, rollout_id=TEXT, attempt=st.integers(0, 9)),
    "cancel_reply": st.builds(pb.CancelReply, id=TEXT),
    "chat": st.builds(filled, SIZES),
    "complete": st.builds(lambda size: outcome_pb2.CompleteRequest(state=b"s" * size), SIZES),
    "event": st.builds(pb.EventFrame, id=TEXT),
    "unsubscribed": st.builds(pb.Unsubscribed, id=TEXT, status=st.builds(error_pb2.Status, code=st.integers(0, 16))),
    "window": st.builds(pb.ServerWindow, max_open_rollouts=st.integers(0, 2**32 - 1)),
    "heartbeat": st.builds(pb.Heartbeat),
    "draining": st.builds(pb.Draining),
    "goodbye": st.builds(pb.Goodbye, kept=REFS),
    "abandon_chat": st.builds(chat_pb2.AbandonChatRequest, rollout_id=TEXT),
    "annotate_reply": st.builds(pb.AnnotateReply, id=TEXT),
    "unknown_frame": st.builds(pb.UnknownFrame, frame_number=st.integers(0, 2**32 - 1)),
}


def of_kinds(kinds):
    named = [st.tuples(st.just(kind), messages) for kind, messages in kinds.items()]
    return st.lists(st.one_of(named), max_size=6)


def test_every_kind_of_frame_is_tried():
    assert set(TRAINER) == {field.name for field in pb.TrainerFrame.DESCRIPTOR.fields}
    assert set(SERVER) == {field.name for field in pb.ServerFrame.DESCRIPTOR.fields}


@given(of_kinds(TRAINER))
def test_a_trainers_frames_joined_are_the_message(frames):
    joined = b"".join(trainer_frame(kind, message) for kind, message in frames)
    own = [pb.TrainerFrame(**{kind: message}) for kind, message in frames]
    for answer in (services_pb2.AttachRequest, services_pb2.AcceptResponse):
        assert joined == answer(frames=own).SerializeToString()
    assert list(services_pb2.AttachRequest.FromString(joined).frames) == own


@given(of_kinds(SERVER))
def test_a_servers_frames_joined_are_the_message(frames):
    joined = b"".join(server_frame(kind, message) for kind, message in frames)
    own = [pb.ServerFrame(**{kind: message}) for kind, message in frames]
    for question in (services_pb2.AttachResponse, services_pb2.AcceptRequest):
        assert joined == question(frames=own).SerializeToString()
    assert list(services_pb2.AttachResponse.FromString(joined).frames) == own


@pytest.mark.parametrize("size", BORDERS)
def test_a_frame_of_any_size(size):
    request = filled(size)
    own = services_pb2.AttachResponse(frames=[pb.ServerFrame(chat=request)]).SerializeToString()
    assert server_frame("chat", request) == own


@given(
    name=st.tuples(TEXT, st.integers(1, 2**32 - 1), TEXT, st.integers(1, 2**32 - 1)),
    text=SIZES,
    ids=st.one_of(st.none(), SIZES.filter(lambda size: size < 2**17)),
    logprobs=st.booleans(),
    prompt=st.one_of(st.none(), st.integers(0, 70)),
    prefix=st.integers(0, 2**32 - 1),
    version=st.booleans(),
)
@example(("", 1, "", 1), 0, None, False, None, 0, False)
@example(("r", 1, "main", 1), 2**14, 2**12, True, 2**12, 1, True)
def test_the_bytes_of_a_reply_equal_plain_protobuf(name, text, ids, logprobs, prompt, prefix, version):
    tokens = None if ids is None else TokenBlock.of(range(ids), [-0.5] * ids if logprobs else None)
    response = ChatResponse(
        message={"role": "assistant", "content": "x" * text, "y": None},
        usage={"prompt_tokens": 1},
        tokens=tokens,
        prompt_ids=None if prompt is None else TokenBlock.of(range(prompt)).ids,
        prompt_prefix=prefix,
        versions=(VersionSpan("v", ids or 0),) if version else (),
        extra={"a": 1},
    )
    raw = reply_bytes(response)
    wire = chat_pb2.ChatResponse.FromString(raw)
    rollout_id, attempt, sample, number = name
    reply = pb.ChatReply(rollout_id=rollout_id, attempt=attempt, sample=sample, chat_number=number, response=wire)
    frame = chat_reply_frame(*name, raw)
    [back] = services_pb2.AttachRequest.FromString(frame).frames
    assert back == pb.TrainerFrame(chat_reply=reply)
    if ids != 0 and prompt != 0:  # an empty array has its tag and length
        assert len(frame) == services_pb2.AttachRequest(frames=[back]).ByteSize()


@given(st.integers(1, 15), st.one_of(st.sampled_from(BORDERS), st.integers(0, 2**40)))
def test_a_head_is_read_as_it_was_written(number, length):
    tag, *digits = head(number, length)
    assert (tag >> 3, tag & 7) == (number, 2)
    assert [digit >> 7 for digit in digits] == [1] * (len(digits) - 1) + [0]  # a varint ends where no more follows
    assert sum((digit & 0x7F) << 7 * place for place, digit in enumerate(digits)) == length


@pytest.mark.parametrize(
    "error", [UnknownChat("main", 7), ResourceExhausted("full", retry_after=0.5), Aborted("old", attempt=3)]
)
def test_a_refusal_keeps_its_message_and_details(error):
    [frame] = services_pb2.AttachRequest.FromString(chat_reply_frame("r", 1, "main", 2, error)).frames
    assert frame.chat_reply.WhichOneof("result") == "status"
    back = refused(frame.chat_reply.status)
    assert type(back) is type(error)
    assert (str(back), back.retry_after) == (str(error), error.retry_after)
    for name in ("sample", "chat_number", "attempt"):
        assert getattr(back, name, None) == getattr(error, name, None)
    assert refusal(back) == frame.chat_reply.status


GOOD = pb.TrainerHello(attachment_id="x" * 16, protocol_min=PROTOCOL[0], protocol_max=PROTOCOL[1])


@pytest.mark.parametrize("attachment_id", ["x" * 16, "ü" * 256, "a/b" * 10])
def test_an_attachment_id_may_be_anything_readable(attachment_id):
    hello = pb.TrainerHello(attachment_id=attachment_id, protocol_min=PROTOCOL[0], protocol_max=PROTOCOL[1])
    check_trainer_hello(hello)


@pytest.mark.parametrize("attachment_id", ["", "x" * 15, "x" * 257, "x" * 15 + "\n", "\x00" * 20, "x" * 16 + "\u2028"])
def test_an_attachment_id_out_of_bounds_is_refused_by_name(attachment_id):
    hello = pb.TrainerHello()
    hello.CopyFrom(GOOD)
    hello.attachment_id = attachment_id
    with pytest.raises(InvalidArgument) as refusal_:
        check_trainer_hello(hello)
    assert refusal_.value.violations[0][0] == "hello.attachment_id"


@pytest.mark.parametrize("kind", [pb.TrainerHello, pb.ServerHello])
@pytest.mark.parametrize(
    ("least", "most", "fits"),
    [
        (PROTOCOL[0], PROTOCOL[1], True),
        (0, 99, True),
        (PROTOCOL[1], 99, True),
        (PROTOCOL[1] + 1, 99, False),
        (0, PROTOCOL[0] - 1, False),
        (0, 0, False),
    ],
)
def test_a_version_in_common_is_needed(kind, least, most, fits):
    hello = kind(protocol_min=least, protocol_max=most)
    if fits:
        check_protocol(hello)
        return
    with pytest.raises(FailedPrecondition):
        check_protocol(hello)
