"""What a tap reads of the frames and calls that the product really sends."""

import pytest

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import attach_pb2 as pb
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import chat_pb2, control_pb2, error_pb2, outcome_pb2, rollout_pb2
from osmosis_grpc.protocol.wire.attach import server_frame, trainer_frame
from tests.simulation.history import History
from tests.simulation.taps import ROLLOUT_SERVICE, TRAINER_SERVICE, Taps

ATTACH, ACCEPT = ROLLOUT_SERVICE + "Attach", TRAINER_SERVICE + "Accept"
OK, ABORTED, UNAVAILABLE = 0, 10, 14


class Wire:
    """A stream of frames between trainer-1 and server-1 that the trainer has opened, or (Accept) the server."""

    def __init__(self, method: str = ATTACH) -> None:
        self.now = 0.0
        self.history = History(lambda: self.now)
        self.taps = Taps(self.history, lambda: self.now)
        self.method = method

    def trainer(self, *frames: tuple[str, object], arrives: bool = True) -> None:
        data = b"".join(trainer_frame(kind, message) for kind, message in frames)
        self._send("trainer-1", "server-1", data, self.method == ATTACH, arrives)

    def server(self, *frames: tuple[str, object], arrives: bool = True) -> None:
        data = b"".join(server_frame(kind, message) for kind, message in frames)
        self._send("server-1", "trainer-1", data, self.method == ACCEPT, arrives)

    def _send(self, sender: str, receiver: str, data: bytes, request: bool, arrives: bool) -> None:
        seen = self.taps.sent("stream", sender, receiver, self.method, request=request, data=data)
        if arrives:
            self.taps.arrived(seen)

    def ops(self) -> list[tuple[str, ...]]:
        return [
            (
                r.who,
                r.op,
                r["method"],
                r["status"] if r.op == "answered" else "",
                r["value"] if r.op == "answered" else "",
            )
            for r in self.history
            if r.op in ("called", "answered")
        ]


def init(attempt: int = 1) -> rollout_pb2.InitRequest:
    return rollout_pb2.InitRequest(rollout_id="r1", attempt=attempt)


def init_reply(code: int = OK, *, created: bool = True) -> pb.InitReply:
    reply = pb.InitReply(rollout_id="r1", attempt=1)
    if code:
        reply.status.CopyFrom(error_pb2.Status(code=code))
    else:
        reply.response.created = created
    return reply


@pytest.mark.parametrize("method", [ATTACH, ACCEPT])
def test_an_init_and_its_answer_are_a_call(method):
    wire = Wire(method)
    wire.trainer(("init", init()))
    wire.server(("init_reply", init_reply()))
    assert wire.ops() == [("trainer-1", "called", "Init", "", ""), ("trainer-1", "answered", "Init", "OK", (True,))]


def test_an_answer_that_does_not_arrive_is_no_answer():
    wire = Wire()
    wire.trainer(("init", init()))
    wire.server(("init_reply", init_reply()), arrives=False)
    assert [op for _, op, *_ in wire.ops()] == ["called"]


@pytest.mark.parametrize(("code", "status"), [(ABORTED, "ABORTED"), (UNAVAILABLE, None)])
def test_a_refusal_counts_if_it_says_what_the_call_did(code, status):
    wire = Wire()
    wire.trainer(("init", init()))
    wire.server(("init_reply", init_reply(code)))
    assert [row[3] for row in wire.ops() if row[1] == "answered"] == ([status] if status else [])


def test_the_status_of_a_stream_is_no_answer_to_its_frames():
    wire = Wire()
    wire.trainer(("init", init()))
    wire.taps.ended("stream", "ABORTED")
    assert [op for _, op, *_ in wire.ops()] == ["called"]


def test_a_cancel_has_the_disposition_of_the_newest_attempt():
    wire = Wire()
    wire.trainer(("cancel", pb.CancelFrame(id="1", request=control_pb2.CancelRequest(rollout_id="r1"))))
    rows = [control_pb2.CancelResult(rollout_id="r1", attempt=a, disposition=d) for a, d in ((2, 1), (1, 2))]
    reply = pb.CancelReply(id="1", response=control_pb2.CancelResponse(results=rows))
    wire.server(("cancel_reply", reply))
    assert wire.ops()[-1] == ("trainer-1", "answered", "Cancel", "OK", ("CANCELLED", "UNSPECIFIED"))


def test_a_repeated_cancel_may_be_answered_for_its_first_frame():
    wire = Wire()
    for _ in range(2):
        wire.trainer(("cancel", pb.CancelFrame(id="1", request=control_pb2.CancelRequest(rollout_id="r1"))))
    for _ in range(2):
        wire.server(("cancel_reply", pb.CancelReply(id="1", response=control_pb2.CancelResponse())))
    calls = [record["call"] for record in wire.history]
    assert calls[:2] == calls[2:]


def test_a_repeated_cancel_names_its_first_frame_unless_its_id_is_that_of_another_process():
    wire = Wire()
    for rollout in ("r1", "r1", "r2"):
        wire.trainer(("cancel", pb.CancelFrame(id="1", request=control_pb2.CancelRequest(rollout_id=rollout))))
    first = next(iter(wire.history))["call"]
    assert [record["argument"] for record in wire.history] == ["", ("repeats", first), ""]
    wire.server(("cancel_reply", pb.CancelReply(id="1", response=control_pb2.CancelResponse())))
    assert [record.rollout for record in wire.history if record.op == "answered"] == ["r2"]


def test_an_outcome_is_a_call_of_the_server():
    wire = Wire()
    outcome = outcome_pb2.RolloutOutcome(rollout_id="r1", attempt=1, result_id="x", status=1)
    wire.server(("complete", outcome_pb2.CompleteRequest(outcome=outcome)))
    wire.trainer(("complete_reply", pb.CompleteReply(rollout_id="r1", attempt=1, result_id="x", receipt=1)))
    assert wire.ops()[-1] == ("server-1", "answered", "Complete", "OK", "RECORDED")
    assert next(iter(wire.history))["argument"] == ("x", "COMPLETED")


def test_a_unary_call_is_answered_or_ends_with_its_status():
    history = History(lambda: 0.0)
    taps = Taps(history, lambda: 0.0)
    for number, code in enumerate(("OK", "ABORTED", "UNAVAILABLE")):
        seen = taps.sent(number, "t", "s", ROLLOUT_SERVICE + "Init", request=True, data=init().SerializeToString())
        taps.arrived(seen)
        if code == "OK":
            answer = rollout_pb2.InitResponse(created=True).SerializeToString()
            taps.arrived(taps.sent(number, "s", "t", ROLLOUT_SERVICE + "Init", request=False, data=answer))
        taps.ended(number, code)
    assert [record["status"] for record in history if record.op == "answered"] == ["OK", "ABORTED"]


def test_a_server_with_more_chats_than_the_window_is_seen():
    wire = Wire()
    wire.trainer(("hello", pb.TrainerHello(max_open_chats=2)))
    for number in (1, 2, 2):
        wire.server(("chat", chat_pb2.ChatRequest(rollout_id="r1", attempt=1, sample="main", chat_number=number)))
    assert not beyond(wire)
    wire.trainer(("chat_reply", pb.ChatReply(rollout_id="r1", attempt=1, sample="main", chat_number=1)))
    wire.server(("chat", chat_pb2.ChatRequest(rollout_id="r1", attempt=1, sample="main", chat_number=3)))
    assert not beyond(wire)
    wire.server(("chat", chat_pb2.ChatRequest(rollout_id="r1", attempt=1, sample="main", chat_number=4)))
    assert beyond(wire) == 1
    wire.trainer(("window", pb.TrainerWindow(max_open_chats=9)))
    wire.server(("chat", chat_pb2.ChatRequest(rollout_id="r1", attempt=1, sample="main", chat_number=5)))
    assert beyond(wire) == 1
    wire.trainer(("window", pb.TrainerWindow(max_open_chats=1)))
    wire.now = 5.0
    wire.server(("chat", chat_pb2.ChatRequest(rollout_id="r1", attempt=1, sample="main", chat_number=6)))
    assert beyond(wire) == 2


def beyond(wire: Wire) -> int:
    return sum(record.op == "beyond window" for record in wire.history)


def test_a_window_that_shrinks_twice_in_one_message_is_still_used_for_a_moment():
    wire, windows = Wire(), [pb.TrainerWindow(max_open_chats=count) for count in (2, 1, 0)]
    wire.trainer(("window", windows[0]))
    wire.trainer(("window", windows[1]), ("window", windows[2]))
    for number in (1, 2):
        wire.server(("chat", chat_pb2.ChatRequest(rollout_id="r1", attempt=1, sample="main", chat_number=number)))
    assert not beyond(wire)
    wire.now += 10.0
    wire.server(("chat", chat_pb2.ChatRequest(rollout_id="r1", attempt=1, sample="main", chat_number=3)))
    assert beyond(wire) == 1


def test_a_verbose_tap_shows_every_message_of_a_rollout():
    history = History(lambda: 0.0)
    taps = Taps(history, lambda: 0.0, verbose=True)
    chat = chat_pb2.ChatRequest(rollout_id="r1", attempt=1, sample="main", chat_number=3)
    taps.sent("stream", "server-1", "trainer-1", ATTACH, request=False, data=server_frame("chat", chat))
    assert "-> trainer-1: chat main/3" in history.story("r1")
