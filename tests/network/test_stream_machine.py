"""The rules of a stream as a table: inputs with times, and the outputs that follow. No test waits or reads a clock."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import attach_pb2 as pb
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import services_pb2
from osmosis_grpc.protocol.errors import Unavailable
from osmosis_grpc.protocol.stream import stream_machine, waiting_frames
from osmosis_grpc.protocol.stream.stream_machine import State, StreamMachine
from osmosis_grpc.protocol.stream.undecodable import decode_or_mark
from osmosis_grpc.protocol.stream.waiting_frames import MAX_FRAMES
from osmosis_grpc.protocol.wire.attach import trainer_frame

DECODE = decode_or_mark(services_pb2.AttachRequest.FromString)
ACCEPTED = {"", "window", "heartbeat", "goodbye"}
BEATS = [(seconds, "receive", "heartbeat") for seconds in range(10, 200, 10)]


def message(*kinds):
    """A message with a frame of each kind. The kind "" is a frame of a later version; "bad" makes bad bytes."""
    if "bad" in kinds:
        return DECODE(b"\xff")
    frames = [pb.TrainerFrame(**({kind: {}} if kind else {})) for kind in kinds]
    return DECODE(services_pb2.AttachRequest(frames=frames).SerializeToString())


class Player:
    """Plays inputs on a machine, and logs its outputs. Frames are words; a `stuck` write ends at `written`."""

    def __init__(self, *, waits=False, half_closes=False, stuck=False):
        self.machine = StreamMachine(b"beat ", waits=waits, half_closes=half_closes, now=0.0)
        self.log = []
        self._now = 0.0
        self._stuck = stuck
        self._writing = False
        self._state = self.machine.state
        machine = self.machine
        self._inputs = {
            "opener's hello": lambda: machine.expect_hello(self._now, alone=True),
            "second hello": lambda: machine.expect_hello(self._now, alone=False),
            "pace": lambda interval, timeout: machine.pace(interval, timeout, self._now),
            "receive": lambda *kinds: machine.receive(message(*kinds), 100 * len(kinds), self._now),
            "other closes": machine.received_end,
            "send": lambda *words: [machine.send(f"{word} ".encode()) for word in words],
            "answer": lambda *words: [machine.answer(f"{word} ".encode()) for word in words],
            "event": lambda *words: [machine.send_event(f"{word} ".encode()) for word in words],
            "end": lambda text="": machine.end(Unavailable(text) if text else None, self._now),
            "fail": lambda text: machine.fail(OSError(text)),
            "written": self._written,
            "write fails": self._write_failed,
            "early tick": lambda: machine.tick(self._now),
            "wait": lambda: None,
        }

    def play(self, steps):
        for time, name, *arguments in sorted(steps, key=lambda step: step[0]):
            while self.machine.timer <= time:
                self._now = self.machine.timer
                self.machine.tick(self._now)
                self._look()
            self._now = float(time)
            self._inputs[name](*arguments)
            self._look()
        return self.log

    def _written(self):
        self._writing = False
        self.machine.written(self._now)

    def _write_failed(self):
        self._writing = False
        self.machine.write_failed(OSError("the write failed"), self._now)

    def _look(self):
        machine = self.machine
        while frames := machine.next_frames(ACCEPTED):
            self._note("handles " + " ".join(kind or "unknown" for kind, _ in frames))
        while not self._writing and (sent := machine.next_message(self._now)) is not None:
            self._note(f"writes {sent.decode().strip()}")
            self._writing = True
            if not self._stuck:
                self._written()
        if machine.state is not self._state:
            self._state = machine.state
            error = machine.failure or machine.error if machine.state is State.ENDED else None
            self._note(machine.state.value + (f": {error}" if error else ""))

    def _note(self, text):
        self.log.append(f"{self._now:g} {text}")


ASKED = [(0, "opener's hello"), (1, "receive", "hello")]
TABLE = {
    # Hellos.
    "a hello opens the stream": ({}, ASKED, ["0 hello", "1 open"]),
    "a hello is sent before the other hello": (
        {},
        [(0, "send", "hello"), (0, "second hello"), (1, "receive", "hello")],
        ["0 writes hello", "0 hello", "1 open"],
    ),
    "the second hello may be followed": (
        {},
        [(0, "second hello"), (1, "receive", "hello", "window")],
        ["0 hello", "1 handles window", "1 open"],
    ),
    "the first may not": (
        {},
        [(0, "opener's hello"), (1, "receive", "hello", "window")],
        ["0 hello", "1 ended: hello: is not alone in its message"],
    ),
    "no hello": ({}, [(3, "opener's hello"), (60, "wait")], ["3 hello", "13 ended: hello: did not come within 10 s"]),
    "another first frame": (
        {},
        [(0, "opener's hello"), (1, "receive", "window")],
        ["0 hello", "1 ended: hello: is missing"],
    ),
    "an empty first message": ({}, [(0, "second hello"), (1, "receive")], ["0 hello", "1 ended: hello: is missing"]),
    "a tick before its time does nothing": ({}, [(3, "opener's hello"), (12, "early tick")], ["3 hello"]),
    "the stream ends before the hello": (
        {},
        [(0, "opener's hello"), (1, "other closes")],
        ["0 hello", "1 ended: the stream ended before a hello"],
    ),
    "a second hello": (
        {},
        [*ASKED, (2, "receive", "hello")],
        ["0 hello", "1 open", "2 ended: frames.hello: is not a kind of frame that this side accepts"],
    ),
    # Received frames.
    "frames are handled in order": (
        {},
        [(1, "receive", "window", "heartbeat"), (2, "receive", "goodbye")],
        ["1 handles window heartbeat", "2 handles goodbye"],
    ),
    "a frame of a later version": ({}, [(1, "receive", "", "window")], ["1 handles unknown window"]),
    "frames before a bad one": (
        {},
        [(1, "receive", "window", "init", "window")],
        ["1 handles window", "1 ended: frames.init: is not a kind of frame that this side accepts"],
    ),
    "too many frames": (
        {},
        [(1, "receive", *["window"] * (MAX_FRAMES + 1))],
        ["1 ended: frames: a message has 4097 frames, more than 4096"],
    ),
    "no message": ({}, [(1, "receive", "bad")], ["1 ended: the bytes are not a message"]),
    "slices": ({}, [(1, "receive", *["window"] * 15)], ["1 handles" + " window" * 8, "1 handles" + " window" * 7]),
    # Frames to send.
    "one message for all that waits": (
        {"stuck": True},
        [(1, "send", "a"), (1, "send", "b", "c"), (2, "written"), (3, "written")],
        ["1 writes a", "2 writes b c"],
    ),
    "events last": (
        {"stuck": True},
        [(1, "send", "a"), (1, "event", "e"), (1, "answer", "b"), (1, "send", "c"), (2, "written")],
        ["1 writes a", "2 writes b c e"],
    ),
    # Heartbeats and silence.
    "heartbeats after 15 s without a message": (
        {},
        [*BEATS[:6], (22, "send", "a"), (62, "wait")],
        [
            "10 handles heartbeat",
            "15 writes beat",
            "20 handles heartbeat",
            "22 writes a",
            "30 handles heartbeat",
            "40 writes beat",
            "40 handles heartbeat",
            "50 handles heartbeat",
            "55 writes beat",
            "60 handles heartbeat",
        ],
    ),
    "other times of heartbeats and silence": (
        {},
        [(0, "pace", 3, 6), (4, "receive", "heartbeat"), (20, "wait")],
        [
            "3 writes beat",
            "4 handles heartbeat",
            "6 writes beat",
            "9 writes beat",
            "11 ended: the other side sent nothing for 6 s",
        ],
    ),
    "silence": (
        {},
        [(3, "receive", "window"), (60, "wait")],
        [
            "3 handles window",
            "15 writes beat",
            "30 writes beat",
            "45 writes beat",
            "50 ended: the other side sent nothing for 45 s",
        ],
    ),
    "the other side reads nothing": (
        {"stuck": True},
        [(2, "send", "a"), *BEATS[:6], (60, "wait")],
        [
            "2 writes a",
            *(f"{n}0 handles heartbeat" for n in range(1, 5)),
            "50 finishing",
            "50 handles heartbeat",
            "52 ended: the other side read nothing for 45 s",
        ],
    ),
    "no heartbeats wait behind a stuck write": (
        {"stuck": True},
        [(2, "send", "a"), *BEATS[:4], (42, "written"), (46, "wait")],
        ["2 writes a", *(f"{n}0 handles heartbeat" for n in range(1, 5)), "45 writes beat"],
    ),
    # Answers.
    "a side that waits handles nothing while answers wait": (
        {"waits": True, "stuck": True, "ANSWER_LIMIT": 600, "MAX_ANSWERS": 700},
        [(1, "send", "a"), (2, "answer", "b", "c", "d"), (3, "receive", "window"), (4, "written"), (5, "written")],
        ["1 writes a", "4 writes b c d", "5 handles window"],
    ),
    "a finished write is the sign of life of a side that waits": (
        {"waits": True, "stuck": True, "ANSWER_LIMIT": 100_000},
        [
            (1, "send", "a"),
            *[(1, "answer", *[word * 300_000 for word in "bcdefgh"])],
            *[(after, "written") for after in (40, 80, 120)],
            (160, "wait"),
        ],
        [
            "1 writes a",
            f"40 writes {'b' * 300_000} {'c' * 300_000} {'d' * 300_000}",
            f"80 writes {'e' * 300_000} {'f' * 300_000} {'g' * 300_000}",
            f"120 writes {'h' * 300_000}",
        ],
    ),
    "a side that always reads handles frames while answers wait": (
        {"stuck": True, "ANSWER_LIMIT": 600},
        [(1, "send", "a"), (2, "answer", "b", "c", "d"), (3, "receive", "window")],
        ["1 writes a", "3 handles window"],
    ),
    "too many answers end its stream": (
        {"stuck": True, "ANSWER_LIMIT": 600, "MAX_ANSWERS": 2000},
        [(1, "send", "a"), (2, "answer", *"bcdefg"), (3, "answer", "h", "i")],
        ["1 writes a", "3 ended: 2064 bytes of answers wait to be read, more than 2000"],
    ),
    # How a stream ends.
    "the other side closes": ({}, [(1, "other closes"), (2, "receive", "window"), (3, "send", "a")], ["1 ended"]),
    "queued frames are sent before the error": (
        {"stuck": True},
        [
            (1, "send", "a"),
            (2, "send", "b"),
            (2, "end", "enough"),
            (2, "end", "too late"),
            (3, "written"),
            (3, "written"),
        ],
        ["1 writes a", "2 finishing", "3 writes b", "3 ended: enough"],
    ),
    "an end has a time limit": (
        {"stuck": True},
        [(1, "send", "a"), (2, "end", "enough"), (9, "wait")],
        ["1 writes a", "2 finishing", "4 ended: enough"],
    ),
    "frames are handled while the last ones are sent": (
        {"stuck": True},
        [(1, "send", "a"), (2, "end", "enough"), (3, "receive", "window"), (3, "other closes"), (3, "written")],
        ["1 writes a", "2 finishing", "3 handles window", "3 ended: enough"],
    ),
    "a side that leaves drops what comes, and waits until the other side has read": (
        {"half_closes": True},
        [(1, "send", "bye"), (1, "end"), (2, "receive", "bad"), (3, "send", "late"), (4, "other closes")],
        ["1 writes bye", "1 half_closed", "4 ended"],
    ),
    "an end with an error does not half-close": (
        {"half_closes": True},
        [(1, "send", "a"), (1, "end", "enough")],
        ["1 writes a", "1 ended: enough"],
    ),
    "this wait has a time limit": ({"half_closes": True}, [(1, "end"), (9, "wait")], ["1 half_closed", "6 ended"]),
    "leaving with a stuck write has a time limit": (
        {"half_closes": True, "stuck": True},
        [(1, "send", "a"), (1, "end"), (9, "wait")],
        ["1 writes a", "1 finishing", "6 ended"],
    ),
    "a servicer does not half-close": ({}, [(1, "send", "bye"), (1, "end")], ["1 writes bye", "1 ended"]),
    "no half-close after the other side has closed": (
        {"half_closes": True, "stuck": True},
        [(1, "send", "a"), (1, "end"), (2, "other closes"), (3, "written")],
        ["1 writes a", "1 finishing", "3 ended"],
    ),
    "an error after the half-close": (
        {"half_closes": True},
        [(1, "end"), (2, "fail", "cut")],
        ["1 half_closed", "2 ended: cut"],
    ),
    "a failure ends the stream at once": (
        {"stuck": True},
        [(1, "send", "a", "b"), (2, "fail", "a bug"), (3, "written"), (4, "fail", "another"), (5, "other closes")],
        ["1 writes a b", "2 ended: a bug"],
    ),
    "after a failed write the call's error counts": (
        {"stuck": True},
        [(1, "send", "a"), (2, "write fails"), (2, "send", "b"), (3, "receive", "window"), (3, "fail", "cut")],
        ["1 writes a", "2 broken", "3 handles window", "3 ended: cut"],
    ),
    "the call's error has a time limit": (
        {"stuck": True},
        [(1, "send", "a"), (2, "write fails"), (9, "wait")],
        ["1 writes a", "2 broken", "4 ended: the write failed"],
    ),
    "a failed last write": (
        {"stuck": True},
        [(1, "send", "a"), (2, "end", "enough"), (3, "write fails")],
        ["1 writes a", "2 finishing", "3 ended: enough"],
    ),
}


@pytest.mark.parametrize("case", TABLE)
def test_a_row(case, monkeypatch):
    options, steps, expected = TABLE[case]
    limits = {name: options[name] for name in options if name.isupper()}
    for name, size in limits.items():
        monkeypatch.setattr(stream_machine, name, size)
    log = Player(**{name: options[name] for name in options.keys() - limits.keys()}).play(steps)
    ends = [(line, wanted) for line, wanted in zip(log, expected, strict=False) if not line.startswith(wanted)]
    assert len(log) == len(expected), log
    assert not ends, log


def test_every_state_is_in_the_table():
    reached = {
        word for _, _, expected in TABLE.values() for line in expected for word in re.findall(r"^\S+ (\w+)", line)
    }
    assert reached >= {state.value for state in State}


def test_the_hello_is_kept():
    machine = StreamMachine(b"", waits=False, half_closes=False, now=0)
    machine.expect_hello(0, alone=True)
    hello = trainer_frame("hello", pb.TrainerHello(attachment_id="a"))
    machine.receive(DECODE(hello), len(hello), 1)
    assert machine.hello.attachment_id == "a"


def test_events_are_full_until_a_message_takes_them():
    machine = StreamMachine(b"", waits=False, half_closes=False, now=0)
    machine.send_event(b"x" * stream_machine.EVENT_LIMIT)
    assert machine.events_full
    machine.next_message(0)
    assert not machine.events_full


def test_a_frame_after_the_end_is_not_kept():
    machine = StreamMachine(b"", waits=False, half_closes=False, now=0)
    machine.fail(OSError("cut"))
    machine.fail(OSError("too late"))
    for add in (machine.send, machine.answer, machine.send_event):
        add(b"frame")
    assert not machine.outgoing
    assert str(machine.failure) == "cut"
    assert machine.timer == float("inf")


# Two machines joined by a pipe that loses nothing.

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["send", "answer", "send_event", "write", "finish", "deliver", "handle", "tick"]),
        st.integers(0, 1),
        st.integers(1, 20),
    ),
    max_size=120,
)


class Joined:
    """A side that waits and a side that always reads, and the messages between them."""

    def __init__(self):
        self.sides = [StreamMachine(BEAT, waits=waits, half_closes=False, now=0.0) for waits in (True, False)]
        self.sent = {"send": [[], []], "send_event": [[], []]}
        self.got = {"send": [[], []], "send_event": [[], []]}
        self.writing = [None, None]
        self.pipes = [[], []]
        """For each side, the messages that it has not read."""
        self.now = 0.0
        self._numbers = iter(range(1, 10**6))

    def step(self, name, side, count):
        machine, other = self.sides[side], 1 - side
        if name in ("send", "answer", "send_event"):
            row = self.sent["send_event" if name == "send_event" else "send"][side]
            for _ in range(count):
                row.append(next(self._numbers))
                events = name == "send_event"
                getattr(machine, name)(
                    trainer_frame("window" if not events else "unsubscribe", numbered(row[-1], events))
                )
        elif name == "write" and self.writing[side] is None:
            self.writing[side] = machine.next_message(self.now)
        elif name == "finish" and self.writing[side] is not None:
            self.pipes[other].append(self.writing[side])
            self.writing[side] = None
            machine.written(self.now)
        elif name == "deliver" and self.pipes[side] and not machine.incoming.full and not machine.paused:
            data = self.pipes[side].pop(0)
            machine.receive(DECODE(data), len(data), self.now)
        elif name == "handle":
            for kind, frame in machine.next_frames({"window", "unsubscribe", "heartbeat"}):
                if kind == "window":
                    self.got["send"][other].append(frame.max_open_chats)
                elif kind == "unsubscribe":
                    self.got["send_event"][other].append(int(frame.id))
        elif name == "tick":
            self.now += count / 20
            machine.tick(self.now)


BEAT = trainer_frame("heartbeat", pb.Heartbeat())


def numbered(number, event):
    return pb.Unsubscribe(id=str(number)) if event else pb.TrainerWindow(max_open_chats=number)


@given(STEPS, st.integers(1, 5), st.integers(0, 4000))
def test_every_frame_arrives_once_and_in_order(steps, batch, pause):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(waiting_frames, "MAX_FRAMES", batch)
        patch.setattr(stream_machine, "ANSWER_LIMIT", pause)
        joined = Joined()
        for step in steps:
            joined.step(*step)
        for _ in range(3 * (20 * len(steps) + 1)):
            for name in ("write", "finish", "deliver", "handle"):
                joined.step(name, 0, 1)
                joined.step(name, 1, 1)
            if joined.got == joined.sent:
                break
        assert joined.got == joined.sent
        assert [machine.state for machine in joined.sides] == [State.OPEN, State.OPEN]
