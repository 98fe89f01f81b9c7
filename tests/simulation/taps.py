"""Reads the messages of the simulated network, and records the calls that they make.

A tap is outside the product: it sees bytes when a process hands them to the network, and when another process takes
them. Init, Cancel and Complete become `called` and `answered`, over an attachment as with callbacks. With `verbose`,
every message of a rollout is recorded, too. A tap changes nothing, so a run can be repeated with it.
"""

import hashlib
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from google.rpc import code_pb2

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import control_pb2, outcome_pb2, rollout_pb2, services_pb2
from tests.simulation.history import History

TRAINER_SERVICE, ROLLOUT_SERVICE = "/osmosis.rollout.v1.TrainerService/", "/osmosis.rollout.v1.RolloutService/"
MESSAGES: Mapping[tuple[str, bool], Any] = {
    (ROLLOUT_SERVICE + "Init", True): rollout_pb2.InitRequest,
    (ROLLOUT_SERVICE + "Init", False): rollout_pb2.InitResponse,
    (ROLLOUT_SERVICE + "Cancel", True): control_pb2.CancelRequest,
    (ROLLOUT_SERVICE + "Cancel", False): control_pb2.CancelResponse,
    (TRAINER_SERVICE + "Complete", True): outcome_pb2.CompleteRequest,
    (TRAINER_SERVICE + "Complete", False): outcome_pb2.CompleteResponse,
    (ROLLOUT_SERVICE + "Attach", True): services_pb2.AttachRequest,
    (ROLLOUT_SERVICE + "Attach", False): services_pb2.AttachResponse,
    (TRAINER_SERVICE + "Accept", True): services_pb2.AcceptRequest,
    (TRAINER_SERVICE + "Accept", False): services_pb2.AcceptResponse,
}
"""The messages that are read, by method and whether the caller of the method sends them."""
SETTLED = {"OK", "ABORTED", "ALREADY_EXISTS", "NOT_FOUND", "INVALID_ARGUMENT", "FAILED_PRECONDITION"}
"""The statuses that say what the call did. After any other one, the call counts as unanswered."""
STALE = 1.0
"""The simulated seconds in which a side can still use a window that has become smaller."""
DISPOSITIONS = {
    number: name.removeprefix("CANCEL_DISPOSITION_") for name, number in control_pb2.CancelDisposition.items()
}
RECEIPTS = {number: name.removeprefix("RECEIPT_") for name, number in outcome_pb2.Receipt.items()}
STATUSES = {number: name.removeprefix("OUTCOME_STATUS_") for name, number in outcome_pb2.OutcomeStatus.items()}
STATES = {number: name.removeprefix("ROLLOUT_STATE_") for name, number in rollout_pb2.RolloutState.items()}


@dataclass(slots=True)
class Seen:
    """A message on its way."""

    stream: "_Stream"
    sender: str
    receiver: str
    frames: list[tuple[str, Any]]
    """The kind and the message of each frame; the method and the message of a unary call."""


@dataclass(slots=True)
class _Stream:
    """What is open on one call of the network: an RPC, or a stream of frames."""

    inits: dict[tuple[str, int], deque[int]] = field(default_factory=dict)
    """The unanswered Inits, by rollout and attempt. Their answers come in order."""
    completes: dict[tuple[str, int, str], deque[int]] = field(default_factory=dict)
    unary: tuple[str, int, str, int] | None = None
    window: int | None = None
    earlier_windows: list[tuple[int, float]] = field(default_factory=list)
    """Larger windows that may still be used, each until a simulated second. One message can make it smaller twice."""
    chats: dict[tuple[str, int, str, int], None] = field(default_factory=dict)


class Taps:
    """The taps of one network. `now` returns the simulated seconds."""

    def __init__(self, history: History, now: Callable[[], float], *, verbose: bool = False) -> None:
        self._history = history
        self._now = now
        self._verbose = verbose
        self._streams: dict[Hashable, _Stream] = {}
        self._cancels: dict[tuple[str, str, str], deque[tuple[int, str, int]]] = {}
        """The unanswered cancel frames, by both processes and the frame's id.

        A trainer that repeats a cancel, also on its next stream, uses the same id. So the next answer with this id may
        be the one to its first frame.
        """

    def sent(
        self, call: Hashable, sender: str, receiver: str, method: str, *, request: bool, data: bytes
    ) -> Seen | None:
        """Read a message that a process sends. Returns what to pass to `arrived`; None if it is of no interest.

        `call` identifies the RPC, `request` says whether the RPC's caller sends.
        """
        message_type = MESSAGES.get((method, request))
        if message_type is None or (sender.startswith("server-") and receiver.startswith("server-")):
            return None  # a call that one worker passes on to another is not a call of a trainer
        message = message_type.FromString(data)
        stream = self._streams.setdefault(call, _Stream())
        if hasattr(message, "frames"):
            frames = [(kind, getattr(frame, kind)) for frame in message.frames if (kind := frame.WhichOneof("frame"))]
        else:
            frames = [(method.rpartition("/")[2] + ("" if request else " answer"), message)]
        seen = Seen(stream, sender, receiver, frames)
        for kind, body in frames:
            if kind in SENT:
                SENT[kind](self, seen, body)
            self._show("sent", kind, seen, body)
        if hasattr(message, "frames"):
            stream.unary = None  # the status of a stream is not an answer to its frames
        return seen

    def arrived(self, seen: Seen) -> None:
        """Record that the receiver has taken a message."""
        for kind, body in seen.frames:
            if kind in ARRIVED:
                ARRIVED[kind](self, seen, body)
            self._show("arrived", kind, seen, body)

    def ended(self, call: Hashable, code: str = "OK") -> None:
        """Forget an RPC, and record the status that ended a unary call at its caller. `code` is the status's name."""
        stream = self._streams.pop(call, None)
        if stream is not None and stream.unary is not None and code != "OK":
            method, number, rollout, attempt = stream.unary
            self.answer("", number, method, rollout, attempt, code)

    def answer(
        self, who: str, call: int, method: str, rollout: str, attempt: int, status: str, value: Any = ""
    ) -> None:
        """Record an answer, unless it leaves open what the call did."""
        if status in SETTLED:
            self._history.answer(who, call, method, rollout, attempt, status, value)

    def _show(self, op: str, kind: str, seen: Seen, body: Any) -> None:
        if not self._verbose or kind in ("heartbeat", "event"):
            return
        who, other = (seen.sender, {"to": seen.receiver}) if op == "sent" else (seen.receiver, {"sender": seen.sender})
        body = getattr(body, "outcome", getattr(body, "request", getattr(body, "spec", body)))
        rollout = getattr(body, "rollout_id", "")
        what = "/".join(str(getattr(body, name)) for name in ("sample", "chat_number") if hasattr(body, name))
        if hasattr(body, "status") and hasattr(body.status, "code") and body.HasField("status"):
            what += f" {code_pb2.Code.Name(body.status.code)}: {body.status.message}"
        self._history.note(who, op, rollout, getattr(body, "attempt", 0), kind=kind, what=what, **other)

    # Messages as they are sent.

    def _call(self, seen: Seen, method: str, rollout: str, attempt: int, argument: Any) -> int:
        return self._history.call(seen.sender, seen.receiver, method, rollout, attempt, argument)

    def on_init(self, seen: Seen, message: Any) -> None:
        attempt = message.attempt or 1
        number = self._call(seen, "Init", message.rollout_id, attempt, spec_digest(message))
        seen.stream.inits.setdefault((message.rollout_id, attempt), deque()).append(number)
        seen.stream.unary = "Init", number, message.rollout_id, attempt

    def on_cancel(self, seen: Seen, message: Any) -> None:
        request = getattr(message, "request", message)
        of = request.rollout_id, request.attempt
        waiting: deque[tuple[int, str, int]] = deque()
        if request is not message:
            waiting = self._cancels.setdefault((seen.sender, seen.receiver, message.id), waiting)
            if waiting and waiting[0][1:] != of:  # the ids of another process of this trainer begin anew
                waiting.clear()
        number = self._call(seen, "Cancel", *of, ("repeats", waiting[0][0]) if waiting else "")
        waiting.append((number, *of))
        seen.stream.unary = "Cancel", number, request.rollout_id, request.attempt

    def on_complete(self, seen: Seen, message: Any) -> None:
        outcome = message.outcome
        status = STATUSES.get(outcome.status, str(outcome.status))
        number = self._call(seen, "Complete", outcome.rollout_id, outcome.attempt, (outcome.result_id, status))
        key = outcome.rollout_id, outcome.attempt, outcome.result_id
        seen.stream.completes.setdefault(key, deque()).append(number)
        seen.stream.unary = "Complete", number, outcome.rollout_id, outcome.attempt

    def on_chat(self, seen: Seen, message: Any) -> None:
        stream = seen.stream
        key = message.rollout_id, message.attempt, message.sample, message.chat_number
        if key in stream.chats:
            return
        earlier = [window for window, until in stream.earlier_windows if self._now() < until]
        window = max([stream.window or 0, *earlier])
        if stream.window is not None and len(stream.chats) >= window:
            self._history.note(
                seen.sender,
                "beyond window",
                *key[:2],
                chat=f"{key[2]}/{key[3]}",
                to=seen.receiver,
                open=len(stream.chats),
                window=window,
            )
        stream.chats[key] = None

    def on_abandon(self, seen: Seen, message: Any) -> None:
        stream, of = seen.stream, (message.rollout_id, message.attempt)
        for key in [key for key in stream.chats if key[:2] == of]:
            if message.sample in ("", key[2]) and message.chat_number in (0, key[3]):
                del stream.chats[key]

    # Messages as they are taken.

    def on_window(self, seen: Seen, message: Any) -> None:
        stream = seen.stream
        if not hasattr(message, "max_open_chats"):
            return  # the window of a server is for rollouts
        if stream.window is not None and message.max_open_chats < stream.window:
            now = self._now()
            stream.earlier_windows = [row for row in stream.earlier_windows if now < row[1]]
            stream.earlier_windows.append((stream.window, now + STALE))
        stream.window = message.max_open_chats

    def on_hello(self, seen: Seen, message: Any) -> None:
        if hasattr(message, "max_open_chats") and message.HasField("max_open_chats"):
            self.on_window(seen, message)

    def on_chat_reply(self, seen: Seen, message: Any) -> None:
        seen.stream.chats.pop((message.rollout_id, message.attempt, message.sample, message.chat_number), None)

    def on_init_reply(self, seen: Seen, message: Any) -> None:
        key = message.rollout_id, message.attempt
        calls = seen.stream.inits.get(key)
        if calls:
            failed = message.WhichOneof("result") != "response"
            status = code_pb2.Code.Name(message.status.code) if failed else "OK"
            value = "" if failed else (message.response.created,)
            self.answer(seen.receiver, calls.popleft(), "Init", *key, status, value)

    def on_cancel_reply(self, seen: Seen, message: Any) -> None:
        calls = self._cancels.get((seen.receiver, seen.sender, message.id))
        if calls:
            found = calls.popleft()
            failed = message.WhichOneof("result") != "response"
            status = code_pb2.Code.Name(message.status.code) if failed else "OK"
            self.answer(seen.receiver, found[0], "Cancel", *found[1:], status, _cancelled(message.response))

    def on_complete_reply(self, seen: Seen, message: Any) -> None:
        calls = seen.stream.completes.get((message.rollout_id, message.attempt, message.result_id))
        if calls:
            failed = message.WhichOneof("result") == "status"
            status = code_pb2.Code.Name(message.status.code) if failed else "OK"
            value = "" if failed else RECEIPTS.get(message.receipt, str(message.receipt))
            self.answer(seen.receiver, calls.popleft(), "Complete", message.rollout_id, message.attempt, status, value)

    def on_unary(self, seen: Seen, message: Any) -> None:
        if seen.stream.unary is None:
            return
        method, number, *of = seen.stream.unary
        value = {
            "Init": lambda: (message.created,),
            "Cancel": lambda: _cancelled(message),
            "Complete": lambda: RECEIPTS.get(message.receipt, str(message.receipt)),
        }[method]()
        self.answer(seen.receiver, number, method, *of, "OK", value)


SENT: Mapping[str, Callable[[Taps, Seen, Any], None]] = {
    "init": Taps.on_init,
    "Init": Taps.on_init,
    "cancel": Taps.on_cancel,
    "Cancel": Taps.on_cancel,
    "complete": Taps.on_complete,
    "Complete": Taps.on_complete,
    "chat": Taps.on_chat,
    "abandon_chat": Taps.on_abandon,
}
ARRIVED: Mapping[str, Callable[[Taps, Seen, Any], None]] = {
    "hello": Taps.on_hello,
    "window": Taps.on_window,
    "init_reply": Taps.on_init_reply,
    "cancel_reply": Taps.on_cancel_reply,
    "complete_reply": Taps.on_complete_reply,
    "chat_reply": Taps.on_chat_reply,
    "Init answer": Taps.on_unary,
    "Cancel answer": Taps.on_unary,
    "Complete answer": Taps.on_unary,
}


def spec_digest(init: Any) -> str:
    """Returns a text that is equal for equal specs."""
    return hashlib.blake2b(init.spec.SerializeToString(deterministic=True), digest_size=6).hexdigest()


def _cancelled(response: Any) -> tuple[str, str]:
    """Returns disposition and state of the highest attempt in an answer to a Cancel."""
    rows = sorted(response.results, key=lambda row: row.attempt)
    return (DISPOSITIONS[rows[-1].disposition], STATES[rows[-1].state]) if rows else ("UNKNOWN", "")
