"""The frame stream with two ends joined in memory, on a clock of its own: frames in, frames and state out."""

import asyncio
import re
from contextlib import asynccontextmanager
from itertools import pairwise

import grpc
import pytest

from osmosis_grpc.network.frame_stream import LONGEST_PAUSE, READ_STEPS, FrameStream
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import attach_pb2 as pb
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import chat_pb2, rollout_pb2, services_pb2
from osmosis_grpc.protocol.errors import InvalidArgument, ResourceExhausted, Unavailable
from osmosis_grpc.protocol.stream import stream_machine, waiting_frames
from osmosis_grpc.protocol.stream.stream_machine import (
    ANSWER_LIMIT,
    CHECKS,
    EVENT_LIMIT,
    HEARTBEAT,
    HELLO_TIMEOUT,
    LEAVE_TIMEOUT,
    MAX_ANSWERS,
    SILENCE,
)
from osmosis_grpc.protocol.stream.undecodable import decode_or_mark
from osmosis_grpc.protocol.stream.waiting_frames import MAX_BATCH_BYTES, MAX_FRAMES, OutgoingFrames
from osmosis_grpc.protocol.wire.attach import server_frame, trainer_frame
from osmosis_grpc.testing import stream_pair
from tests.network.virtual_time import elapse, virtually

HELLO = trainer_frame("hello", pb.TrainerHello(attachment_id="a"))
REPLY_HELLO = server_frame("hello", pb.ServerHello())
WINDOW = trainer_frame("window", pb.TrainerWindow())
INIT = trainer_frame("init", rollout_pb2.InitRequest())
REPLY = trainer_frame("chat_reply", pb.ChatReply(response=chat_pb2.ChatResponse()))
TRAINER_BEAT, SERVER_BEAT = trainer_frame("heartbeat", pb.Heartbeat()), server_frame("heartbeat", pb.Heartbeat())


def window(n):
    return trainer_frame("window", pb.TrainerWindow(max_open_chats=n))


def event(size):
    return server_frame("event", pb.EventFrame(id="x" * size))


def kinds(message):
    """The kinds of the frames of a written message."""
    decoded = services_pb2.AttachResponse.FromString(message)
    return [frame.WhichOneof("frame") for frame in decoded.frames]


def joined(capacity=1):
    """The trainer's end and the server's."""
    messages = services_pb2.AttachRequest, services_pb2.AttachResponse
    return stream_pair(*(decode_or_mark(message.FromString) for message in messages), capacity=capacity)


def trainer_stream(end):
    return FrameStream(end, TRAINER_BEAT, waits=True)


def server_stream(end):
    return FrameStream(end, SERVER_BEAT, waits=False)


class Received(dict):
    """Handlers that keep each frame: its kind and the frame."""

    def __init__(self, on_frame=lambda kind: None):
        self.frames = []
        super().__init__({kind: self._keeper(kind, on_frame) for kind in pb.TrainerFrame.DESCRIPTOR.fields_by_name})
        self.update({kind: self._keeper(kind, on_frame) for kind in pb.ServerFrame.DESCRIPTOR.fields_by_name})

    def _keeper(self, kind, on_frame):
        def keep(frame):
            self.frames.append((kind, frame))
            on_frame(kind)

        return keep

    @property
    def kinds(self):
        return [kind for kind, _ in self.frames]


@asynccontextmanager
async def running(stream, handlers):
    """The task of run(); it is ended on the way out."""
    task = asyncio.ensure_future(stream.run(handlers))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def iterations(count):
    """Returns after so many iterations of the event loop."""
    for _ in range(count):
        await asyncio.sleep(0)


async def settled():
    """Returns when no task is ready any more: the clock has moved."""
    await elapse(0.001)


# What goes out: frames in, messages out.

BIG = b"x" * (MAX_BATCH_BYTES // 2 + 1)
QUEUES = {
    "nothing": ([], []),
    "one frame": (["a"], [["a"]]),
    "all in one message": (["a", "b", "c"], [["a", "b", "c"]]),
    "events last": ([("event", "e"), "a", ("answer", "b")], [["a", "b", "e"]]),
    "two large ones": ([BIG, BIG], [[BIG], [BIG]]),
    "a small one beside a large one": (["a", BIG, BIG, "b"], [["a", BIG], [BIG, "b"]]),
    "larger than a message": ([BIG * 3, "a"], [[BIG * 3], ["a"]]),
    "an event does not overtake": ([BIG, BIG, ("event", "e")], [[BIG], [BIG, "e"]]),
    "at most so many": (["a"] * (MAX_FRAMES + 1), [["a"] * MAX_FRAMES, ["a"]]),
}


@pytest.mark.parametrize("case", QUEUES)
def test_batches(case):
    frames, expected = QUEUES[case]
    queue = OutgoingFrames()
    for item in frames:
        kind, frame = item if isinstance(item, tuple) else ("", item)
        frame = frame if isinstance(frame, bytes) else frame.encode()
        queue.add_event(frame) if kind == "event" else queue.add(frame, answer=kind == "answer")
    batches = []
    while queue:
        batches.append(queue.batch())
    assert batches == [[f if isinstance(f, bytes) else f.encode() for f in batch] for batch in expected]
    assert (queue.answer_bytes, queue.event_bytes) == (0, 0)


def test_bytes_that_wait_are_counted_until_they_are_taken():
    queue = OutgoingFrames()
    queue.add(BIG)
    queue.add(BIG, answer=True)
    queue.add_event(b"event")
    waiting = queue.answer_bytes
    assert waiting > len(BIG)
    assert queue.event_bytes == 5
    assert queue.batch() == [BIG]
    assert (queue.answer_bytes, queue.event_bytes) == (waiting, 5), "the answer still waits"
    assert queue.batch() == [BIG, b"event"]
    assert (queue.answer_bytes, queue.event_bytes) == (0, 0)


# Hellos.

HELLOS = {
    "alone": ([HELLO], True, None),
    "a frame behind it": ([HELLO + WINDOW], True, "is not alone"),
    "the second hello may be followed": ([HELLO + WINDOW], False, None),
    "another frame": ([WINDOW], True, "is missing"),
    "no frame": ([b""], True, "is missing"),
    "no message": ([b"\xff"], True, "the bytes are not a message"),
    "too many": ([HELLO + WINDOW * MAX_FRAMES], False, "more than"),
}


@pytest.mark.parametrize("case", HELLOS)
@virtually
async def test_hello(case):
    messages, opener, problem = HELLOS[case]
    trainer, server = joined(capacity=4)
    for message in messages:
        await trainer.write(message)
    stream = server_stream(server)
    if problem is None:
        assert (await stream.hello(opener=opener)).attachment_id == "a"
        received = Received()
        async with running(stream, received):
            await settled()
        assert received.kinds == ([] if opener else ["window"]), "what came with the hello is handled"
    else:
        with pytest.raises(InvalidArgument, match=problem):
            await stream.hello(opener=opener)


@virtually
async def test_a_hello_has_a_time_limit():
    _, server = joined()
    stream = server_stream(server)
    with pytest.raises(InvalidArgument, match="did not come within 10 s"):
        await stream.hello(opener=True)
    assert asyncio.get_running_loop().time() == HELLO_TIMEOUT


@virtually
async def test_a_stream_may_end_before_the_hello():
    trainer, server = joined()
    await trainer.done_writing()
    with pytest.raises(Unavailable, match="before a hello"):
        await server_stream(server).hello(opener=True)


# Frames in both directions.


@virtually
async def test_frames_arrive_in_order_and_waiting_ones_share_a_message():
    trainer, server = joined()
    sending, receiving = (trainer_stream(trainer), server_stream(server))
    received = Received()
    async with running(sending, {}), running(receiving, received):
        for n in range(1, 101):
            sending.send(window(n))
        await settled()
    assert [frame.max_open_chats for _, frame in received.frames] == list(range(1, 101))
    assert len(trainer.written) == 1


@virtually
async def test_answers_go_out_while_a_long_message_is_handled():
    trainer, server = joined(capacity=100)
    stream = server_stream(server)
    received = Received(lambda kind: stream.answer(SERVER_BEAT))
    async with running(stream, received):
        await trainer.write(WINDOW * 64)
        await elapse(10 * LONGEST_PAUSE)
    assert len(received.frames) == 64
    assert len(server.written) > 1, "the first answers do not wait for the last frame"


@pytest.mark.parametrize(("ahead", "first"), [(waiting_frames.READ_AHEAD, True), (1, False)])
@virtually
async def test_a_reply_overtakes_the_other_frames_of_earlier_messages(ahead, first, monkeypatch):
    monkeypatch.setattr(waiting_frames, "READ_AHEAD", ahead)
    trainer, server = joined(capacity=100)
    received = Received()
    async with running(server_stream(server), received):
        await trainer.write(WINDOW * 64)
        await trainer.write(REPLY)
        await trainer.write(WINDOW)
        await settled()
    assert len(received.frames) == 66
    assert (received.kinds.index("chat_reply") < 63) is first, "a full queue reads nothing ahead"


@pytest.mark.parametrize(
    ("frame", "of_400"),
    [(INIT, (40, 200)), (REPLY, (380, 400))],
    ids=["few inits, because the next message perhaps has chats", "all replies"],
)
@virtually
async def test_what_is_handled_while_messages_come(frame, of_400):
    trainer, server = joined(capacity=100)
    received = Received()
    async with running(server_stream(server), received):
        for _ in range(20):
            await trainer.write(frame * 20)
            await iterations(READ_STEPS)
        assert of_400[0] <= len(received.frames) <= of_400[1]
        await settled()
    assert len(received.frames) == 400


@virtually
async def test_what_is_left_is_handled_soon_after_the_last_message():
    trainer, server = joined()
    received = Received()
    async with running(server_stream(server), received):
        await trainer.write(INIT * 10)
        await iterations(READ_STEPS)
        assert len(received.frames) == 2
        await iterations(3)
        assert len(received.frames) > 2


@virtually
async def test_a_frame_of_an_idle_stream_is_sent_at_once():
    trainer, _ = joined()
    stream = trainer_stream(trainer)
    async with running(stream, {}):
        await settled()
        stream.send(WINDOW)
        await iterations(1)
        assert len(trainer.written) == 1


@virtually
async def test_a_large_message_is_followed_by_a_pause_and_a_small_one_is_not():
    trainer, _ = joined(capacity=100)
    stream = trainer_stream(trainer)
    async with running(stream, {}):
        for frames, messages in ((1, 1), (100, 2)):
            for _ in range(frames):
                stream.send(WINDOW)
            await elapse(LONGEST_PAUSE / 2)
            assert len(trainer.written) == messages
        stream.send(WINDOW)
        await elapse(LONGEST_PAUSE / 4)
        assert len(trainer.written) == 2
        await elapse(LONGEST_PAUSE)
        assert len(trainer.written) == 3


@pytest.mark.parametrize("failed", [False, True])
@virtually
async def test_all_frames_are_handled_before_the_end_of_the_stream(failed):
    trainer, server = joined(capacity=100)
    received = Received()
    async with running(server_stream(server), received) as task:
        await trainer.write(WINDOW * 64)
        if failed:
            while not received.frames:
                await asyncio.sleep(0)
            trainer.cut()
        else:
            await trainer.done_writing()
        await asyncio.wait([task])
        assert len(received.frames) == 64
        if failed:
            assert isinstance(task.exception(), Unavailable)
        else:
            assert task.result() is None


BAD = {
    "of no kind": (pb.TrainerFrame().SerializeToString(), "frames.frame"),
    "not wanted here": (HELLO, "frames.hello"),
    "too many": (WINDOW * (MAX_FRAMES + 1), "more than 4096"),
    "no message": (b"\xff\xff", "not a message"),
}


@pytest.mark.parametrize("case", BAD)
@virtually
async def test_a_bad_message_ends_the_stream(case):
    message, problem = BAD[case]
    if case == "of no kind":
        message = services_pb2.AttachRequest(frames=[pb.TrainerFrame()]).SerializeToString()
    trainer, server = joined()
    stream = server_stream(server)
    await trainer.write(message)
    with pytest.raises(InvalidArgument, match=re.escape(problem)):
        await stream.run({"window": lambda frame: None})


@virtually
async def test_an_exception_of_a_handler_ends_the_stream():
    trainer, server = joined()
    await trainer.write(WINDOW)

    def fail(frame):
        raise KeyError("a bug")

    with pytest.raises(KeyError, match="a bug"):
        await server_stream(server).run({"window": fail})


# How a stream ends.


@pytest.mark.parametrize("queued", [0, 1, 5000])
@virtually
async def test_queued_frames_are_sent_before_the_end(queued):
    trainer, server = joined()
    sending, receiving = (trainer_stream(trainer), server_stream(server))
    received = Received()
    async with running(sending, {}) as task, running(receiving, received):
        for _ in range(queued):
            sending.send(WINDOW)
        error = Unavailable("enough")
        sending.end(error)
        sending.end(Unavailable("the first end counts"))
        assert await task is error
        await settled()
    assert received.kinds == ["window"] * queued


@virtually
async def test_leaving_half_closes_and_waits_until_the_other_side_has_ended():
    trainer, server = joined()
    sending, receiving = (trainer_stream(trainer), server_stream(server))
    received = Received()
    async with running(sending, {}) as left, running(receiving, received) as other:
        sending.send(WINDOW)
        sending.end(None)
        assert await other is None, "it reads the end"
        assert received.kinds == ["window"]
        await server.done_writing()
        assert await left is None
    assert asyncio.get_running_loop().time() < LEAVE_TIMEOUT


@virtually
async def test_leaving_does_not_wait_for_ever():
    trainer, _ = joined(capacity=4)
    stream = trainer_stream(trainer)
    stream.end(None)
    assert await stream.run({}) is None
    assert asyncio.get_running_loop().time() == LEAVE_TIMEOUT


@virtually
async def test_the_other_side_half_closes():
    trainer, server = joined()
    await trainer.write(WINDOW)
    received = Received()
    async with running(server_stream(server), received) as task:
        await trainer.done_writing()
        assert await task is None
    assert received.kinds == ["window"]


@pytest.mark.parametrize("reached", range(8))
@virtually
async def test_cut_at_each_point(reached):
    """Each message either arrived in full or not at all; both sides raise the error of the cut."""
    steps = ["open"] + [f"frame {n}" for n in range(1, 7)] + ["open again"]
    trainer, server = joined()
    sending, receiving = (trainer_stream(trainer), server_stream(server))
    received = Received()
    async with running(sending, Received()) as one, running(receiving, received) as other:
        for step in range(len(steps)):
            if step == reached:
                server.cut(Unavailable("cut here"))
                break
            sending.send(window(step + 1))
            receiving.send(SERVER_BEAT)
            await settled()
        for task in (one, other):
            with pytest.raises(Unavailable, match="cut here"):
                await task
    assert [frame.max_open_chats for _, frame in received.frames] == list(range(1, reached + 1))


@virtually
async def test_a_frame_that_is_being_written_is_lost_with_the_stream():
    trainer, server = joined()
    sending = trainer_stream(trainer)
    async with running(sending, {}) as task:
        for n in range(3):  # nobody reads: one arrives, one is being written, one waits
            sending.send(window(n))
            await settled()
        trainer.cut()
        with pytest.raises(Unavailable, match="was cut"):
            await task
    assert len(trainer.written) == 1
    with pytest.raises(Unavailable, match="was cut"):
        await server.read()


# Heartbeats and silence.


@virtually
async def test_heartbeats_go_out_while_nothing_else_does():
    trainer, server = joined(capacity=100)
    loop = asyncio.get_running_loop()
    sending, receiving = (trainer_stream(trainer), server_stream(server))
    times = []
    received = Received(lambda kind: times.append(loop.time()))
    async with running(sending, Received()) as one, running(receiving, received) as other:
        await elapse(4 * SILENCE)
        assert not one.done()
        assert not other.done()
    assert set(received.kinds) == {"heartbeat"}
    assert all(HEARTBEAT <= later - sooner <= HEARTBEAT + HEARTBEAT / CHECKS for sooner, later in pairwise(times))
    assert times[-1] > 4 * SILENCE - HEARTBEAT - HEARTBEAT / CHECKS


@virtually
async def test_any_frame_resets_the_silence():
    trainer, server = joined(capacity=100)
    sending = trainer_stream(trainer)
    async with running(sending, Received()) as task:
        for _ in range(20):
            await elapse(HEARTBEAT / 2)
            sending.send(WINDOW)
            await server.write(SERVER_BEAT)
        assert not task.done()
    assert all(TRAINER_BEAT not in message for message in trainer.written)


@virtually
async def test_silence_ends_the_stream():
    trainer, _ = joined(capacity=100)
    stream = trainer_stream(trainer)
    ended = await stream.run({})
    assert isinstance(ended, Unavailable)
    assert "the other side sent nothing for 45 s" in str(ended)
    assert SILENCE < asyncio.get_running_loop().time() <= SILENCE + HEARTBEAT / CHECKS + stream_machine.END_TIMEOUT


@virtually
async def test_a_side_that_sends_and_does_not_read_ends_the_stream():
    trainer, server = joined(capacity=1)
    stream = trainer_stream(trainer)
    async with running(stream, Received()) as task:
        stream.send(WINDOW)
        await settled()
        stream.send(WINDOW)  # there is no room for this one
        while not task.done():
            await server.write(SERVER_BEAT)
            await elapse(1)
        assert "the other side read nothing for 45 s" in str(await task)


# Bounds.

ANSWER = trainer_frame("chat_reply", pb.ChatReply(rollout_id="x" * 64 * 1024))
ASK = server_frame("window", pb.ServerWindow())


@virtually
async def test_a_side_that_pauses_reads_nothing_while_its_answers_wait():
    trainer, server = joined(capacity=1)
    stream = trainer_stream(trainer)
    received = Received(lambda kind: stream.answer(ANSWER))
    asked = 0
    async with running(stream, received) as task:

        async def ask():
            nonlocal asked
            while True:
                await server.write(ASK)
                asked += 1

        asking = asyncio.ensure_future(ask())
        await settled()
        before = len(received.frames)
        assert ANSWER_LIMIT <= before * len(ANSWER) < ANSWER_LIMIT + 2 * MAX_BATCH_BYTES
        assert asked <= before + 2, "the asker waits"
        await server.read()
        await server.read()
        await settled()
        assert len(received.frames) > before, "it reads on"
        await elapse(SILENCE / 2)
        assert not task.done()
        asking.cancel()


@virtually
async def test_a_side_that_always_reads_ends_the_stream_of_one_that_does_not():
    trainer, server = joined(capacity=1)
    stream = server_stream(server)
    answer = server_frame("init_reply", pb.InitReply(rollout_id="x" * 1024 * 1024))
    received = Received(lambda kind: stream.answer(answer))
    async with running(stream, received) as task:
        with pytest.raises(ResourceExhausted, match="wait to be read"):
            while not task.done():
                await asyncio.wait({asyncio.ensure_future(trainer.write(WINDOW)), task}, return_when="FIRST_COMPLETED")
            await task
    assert MAX_ANSWERS <= len(received.frames) * len(answer) < MAX_ANSWERS + 8 * len(answer)


@virtually
async def test_events_wait_for_space():
    trainer, server = joined(capacity=1)
    stream = server_stream(server)
    sent = 0
    frame = event(256 * 1024)

    async def follow():
        nonlocal sent
        while sent < 100:
            await stream.event_space()
            stream.send_event(frame)
            sent += 1

    async with running(stream, Received()):
        followers = [asyncio.ensure_future(follow()) for _ in range(3)]
        await settled()
        first = sent
        assert EVENT_LIMIT / len(frame) <= first < (EVENT_LIMIT + 3 * MAX_BATCH_BYTES) / len(frame)
        stream.send(SERVER_BEAT)
        got = []
        while len(got) < sent or sent < 100:
            message = await trainer.read()
            got += [f for f in message.frames if f.WhichOneof("frame") == "event"]
            await settled()
        await asyncio.gather(*followers)
    assert "heartbeat" in [kind for message in server.written[:5] for kind in kinds(message)], "it overtakes events"


@virtually
async def test_the_ends_of_a_pair():
    trainer, server = joined(capacity=2)
    await trainer.write(WINDOW)
    await trainer.write(HELLO)
    third = asyncio.ensure_future(trainer.write(WINDOW))
    await settled()
    assert trainer.written == [WINDOW, HELLO]
    assert (await server.read()).frames[0].WhichOneof("frame") == "window"
    await third
    await trainer.done_writing()
    assert [(await server.read()).frames[0].WhichOneof("frame") for _ in range(2)] == ["hello", "window"]
    assert await server.read() is grpc.aio.EOF
    assert await server.read() is grpc.aio.EOF
