"""Which frames are handled first, and how many messages are read ahead."""

import pytest

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import attach_pb2 as pb
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import chat_pb2, error_pb2, rollout_pb2
from osmosis_grpc.protocol.stream.waiting_frames import (
    FIRST_AT_ONCE,
    MAX_FRAMES,
    MORE_FOR_EACH,
    OTHERS_AT_ONCE,
    READ_AHEAD,
    ReceivedFrames,
)

REPLY = pb.TrainerFrame(chat_reply=pb.ChatReply(response=chat_pb2.ChatResponse()))
REFUSAL = pb.TrainerFrame(chat_reply=pb.ChatReply(status=error_pb2.Status()))
INIT = pb.TrainerFrame(init=rollout_pb2.InitRequest())
CANCEL = pb.TrainerFrame(cancel={})
CHAT = pb.ServerFrame(chat=chat_pb2.ChatRequest())
ABANDON = pb.ServerFrame(abandon_chat=chat_pb2.AbandonChatRequest(chat_number=1))
ABANDON_ALL = pb.ServerFrame(abandon_chat=chat_pb2.AbandonChatRequest())
STARTED = pb.ServerFrame(init_reply=pb.InitReply(response=rollout_pb2.InitResponse()))
REFUSED = pb.ServerFrame(init_reply=pb.InitReply(status=error_pb2.Status()))
COMPLETE = pb.ServerFrame(complete={})
LATER = pb.TrainerFrame()


def taken(*frames):
    received = ReceivedFrames()
    received.add(frames, 100)
    return [kind for kind, _ in received.take()]


def test_a_reply_is_handled_before_inits_and_cancels():
    assert taken(INIT, CANCEL, REPLY) == ["chat_reply", "init", "cancel"]


def test_a_refusal_of_a_chat_is_handled_after_the_cancel_before_it():
    assert taken(CANCEL, REFUSAL) == ["cancel", "chat_reply"]


def test_chats_are_handled_before_outcomes_and_in_order_with_their_abandonment():
    assert taken(COMPLETE, CHAT, ABANDON, CHAT) == ["chat", "abandon_chat", "chat", "complete"]


def test_an_outcome_is_handled_before_the_rollout_is_superseded():
    assert taken(COMPLETE, ABANDON_ALL) == ["complete", "abandon_chat"]


def test_a_chat_does_not_overtake_the_response_to_its_init():
    assert taken(COMPLETE, REFUSED, STARTED, CHAT) == ["init_reply", "chat", "complete", "init_reply"]


def test_a_frame_of_a_later_version_keeps_its_place():
    assert taken(LATER, INIT) == ["", "init"]


@pytest.mark.parametrize(
    ("other", "at_once"), [(INIT, 2), (COMPLETE, 2), (CANCEL, OTHERS_AT_ONCE)], ids=["init", "complete", "cancel"]
)
def test_both_kinds_are_taken_each_time_and_few_at_once(other, at_once):
    received = ReceivedFrames()
    received.add([REPLY] * 20 + [other] * at_once + [other] * 3, 4000)
    sizes = []
    while received:
        kinds = [kind for kind, _ in received.take()]
        sizes.append((kinds.count("chat_reply"), len(kinds) - kinds.count("chat_reply")))
    assert sizes[:2] == [(FIRST_AT_ONCE, at_once), (20 - FIRST_AT_ONCE, min(at_once, 3))]


@pytest.mark.parametrize(("waiting", "at_once"), [(MORE_FOR_EACH - 1, 8), (10 * MORE_FOR_EACH, 18), (MAX_FRAMES, 32)])
def test_more_of_the_others_are_taken_if_many_wait(waiting, at_once):
    assert len(taken(*[CANCEL] * waiting)) == at_once


def test_it_is_full_until_enough_frames_are_taken():
    received = ReceivedFrames()
    received.add([CANCEL] * 2 * OTHERS_AT_ONCE, READ_AHEAD - 1)
    assert not received.full
    received.add([REPLY], 1)
    assert received.full
    received.take()
    assert not received.full
    assert received.bytes > 0
    received.take()
    assert received.bytes == 0


def test_it_is_full_of_many_small_frames():
    received = ReceivedFrames()
    received.add([LATER] * MAX_FRAMES, 4 * MAX_FRAMES)
    assert received.full
    received.take()
    assert not received.full


def test_an_empty_message_and_a_cleared_queue_count_nothing():
    received = ReceivedFrames()
    received.add([], READ_AHEAD)
    assert (received.bytes, bool(received)) == (0, False)
    received.add([INIT, REPLY], READ_AHEAD)
    received.clear()
    assert (received.bytes, bool(received), received.take()) == (0, False, [])
