"""What excuses a second sampling, run or result, and what does not: each excuse is as narrow as the promise."""

import pytest

from tests.simulation.stories import Change, again, call, changed, crash, good, plus, run, sampling, without

SUPERSEDED = {"status": "CANCELLED", "reason": "superseded"}
REPLAY = {"status": "FAILED", "boundary": "server", "reason": "replay"}
OWN = {"sample": "main", "chat": 1, "run": 11}


def earlier_process(*more: tuple[float, str, str, dict]) -> Change:
    """Adds an earlier process of the trainer. It had a reply to the chat; then the server lost its disk."""
    return plus(
        (-20.0, "trainer-1", "submitted", {"agent": "traveller", "plan": ()}),
        (-19.9, "trainer-1", "called", {"call": 11, "method": "Init", "to": "server-1", "argument": "spec"}),
        (-19.8, "server-1", "run", {"agent": "traveller", "run": 11}),
        (-19.7, "trainer-1", "answered", {"call": 11, "method": "Init", "status": "OK", "value": (True,)}),
        (-19.6, "server-1", "asked", OWN),
        (-19.5, "trainer-1", "sampled", {"sample": "main", "chat": 1, "draw": "d0"}),
        (-19.4, "trainer-1", "replied", {"sample": "main", "chat": 1, "draw": "d0", "ids": (1, 2)}),
        (-19.3, "server-1", "got", {**OWN, "draw": "d0"}),
        (-18.0, "server-1", "forget", {}),
        *more,
        (-16.0, "trainer-1", "close", {}),
        (-15.0, "trainer-1", "restart", {}),
    )


GIVEN_UP = (-17.0, "trainer-1", "given up", {})
HIGHER = (-16.9, "trainer-1", "called", {"call": 12, "method": "Init", "to": "server-1", "argument": "", "attempt": 2})
CANCELLED = (-17.0, "trainer-1", "asks to cancel", {})
DROPPED = (-16.5, "trainer-1", "crash", {"where": "after a COMMIT, before the event loop knows it of its ledger"})


def found(story):
    """The server still had the rollout: it answered the second Init with "found"."""
    for _, _, op, details in story.lines:
        if op == "answered" and details["call"] == 1:
            details["value"] = (False,)
    return story


def recorded_again(time: float) -> Change:
    return call(3, time, "server-1", "Complete", "trainer-1", ("x1", "COMPLETED"), "RECORDED")


def jump(time: float, seconds: float) -> Change:
    return plus((time, "trainer-1", "clock jump", {"seconds": seconds}))


def start(time: float) -> Change:
    return plus((time, "trainer-1", "restart", {}))


def second_attempt(story):
    """The application asks for attempt 2, and cancels it before a server has it. Then the trainer dies."""
    story.add(2.6, "trainer-1", "submitted", attempt=2, agent="traveller", plan=())
    story.add(2.7, "trainer-1", "asks to cancel")
    again(2.8, "applied", attempt=2, result="", status="CANCELLED", reason="cancelled", samples=())(story)
    return crash("trainer-1", 2.9)(story)


def no_ledger(story):
    """The trainer has no ledger, and had another process before."""
    settings = {"trainer-1": (("ledger", False),), "server-1": (("journal", True), ("max_concurrent", 2))}
    for _, who, op, details in story.lines:
        if op == "configured":
            details["settings"] = settings[who]
    return plus((-1.0, "trainer-1", "crash", {"where": "any time"}), (-0.5, "trainer-1", "restart", {}))(story)


def reported(status: str) -> Change:
    """Changes the status that the server reports."""

    def change(story):
        for _, _, op, details in story.lines:
            if op == "called" and details["call"] == 2:
                details["argument"] = ("x1", status)
        return story

    return change


def refused_chat(time: float) -> Change:
    return plus((time, "server-1", "chat raised", {**OWN, "error": "Aborted"}))


KNOWN = call(3, 3.0, "server-1", "Complete", "trainer-1", ("x1", "COMPLETED"), "ALREADY_RECORDED")
REFUSED = plus(
    (1.61, "server-1", "called", {"call": 4, "method": "Complete", "to": "trainer-1", "argument": ("x1", "COMPLETED")}),
    (1.62, "server-1", "answered", {"call": 4, "method": "Complete", "status": "ABORTED", "value": ""}),
)
FULL = plus((1.0, "disk of server-1", "commit failed", {"store": "journal", "error": "the disk is full"}))
SWALLOWS = [changed("submitted", plan=("swallow",)), crash("server-1", 1.85), run(1.86, "server-1", 12)]

RUNS_AGAIN = (-17.5, "trainer-1", "runs again", {"attempt": 2, "why": "its server cannot be reached"})
STILL_THERE = [found, without("forget"), crash("server-1", -14.0)]
ENDS_HERE = changed("applied", result="", status="CANCELLED", reason="cancelled", samples=())
LEFT = plus((1.61, "trainer-1", "given up", {}))
OTHER_EVENT = plus(
    (-20.0, "trainer-1", "events begin", {"reader": 9, "number": 1}),
    (-19.9, "trainer-1", "event", {"reader": 9, "number": 1, "kind": "Queued"}),
    (-18.0, "server-1", "forget", {}),
    (-16.0, "trainer-1", "crash", {"where": "any time"}),
    (-15.0, "trainer-1", "restart", {}),
)
AGAIN_RUNNING = plus(
    (1.31, "trainer-1", "events begin", {"reader": 9, "number": 1}),
    (1.32, "trainer-1", "event", {"reader": 9, "number": 1, "kind": "Queued"}),
    (1.34, "trainer-1", "called", {"call": 13, "method": "Init", "to": "server-1", "argument": "spec"}),
    (1.35, "trainer-1", "answered", {"call": 13, "method": "Init", "status": "OK", "value": (True,)}),
)
LOST_RUNNING = plus((1.33, "server-1", "forget", {}))
UNANSWERED = plus(
    (1.02, "trainer-1", "called", {"call": 12, "method": "Init", "to": "server-2", "argument": "spec"}),
    (1.04, "server-2", "run", {"agent": "traveller", "run": 12}),
    (1.06, "server-2", "forget", {}),
)
CONFLICT = plus(
    (
        3.5,
        "server-2",
        "in journal",
        {"state": "FAILED", "settled": True, "receipts": ("CONFLICT",), "events": (1, 2, 2)},
    )
)

HIGHER_RUN = plus(
    (-20.0, "server-1", "run", {"agent": "traveller", "run": 21, "attempt": 2}),
    (-19.0, "server-1", "stopped agent", {"run": 21, "attempt": 2}),
    (-17.0, "server-1", "crash", {"where": "any time"}),
    (-16.5, "server-1", "restart", {}),
)
UNWRITTEN = plus((-18.0, "disk of server-1", "commit failed", {"store": "journal", "error": "the disk is full"}))
LOST = plus((2.75, "server-1", "forget", {}))
RENEWED = plus(
    (2.8, "trainer-1", "called", {"call": 12, "method": "Init", "to": "server-1", "argument": "spec"}),
    (2.85, "trainer-1", "answered", {"call": 12, "method": "Init", "status": "OK", "value": (True,)}),
    (
        3.5,
        "server-1",
        "in journal",
        {"state": "FAILED", "settled": True, "receipts": ("CONFLICT",), "events": (1, 2, 2)},
    ),
)


def other_server(*more: tuple[float, str, str, dict]) -> Change:
    """Adds an earlier process of the trainer. Another server began the attempt then, and goes on when it starts."""
    return plus(
        (-20.0, "trainer-1", "submitted", {"agent": "traveller", "plan": ()}),
        (-19.8, "server-2", "run", {"agent": "traveller", "run": 11}),
        *more,
        (-16.0, "trainer-1", "close", {}),
        (-15.0, "trainer-1", "restart", {}),
        (-14.0, "server-2", "crash", {"where": "any time"}),
        (-13.0, "server-2", "run", {"agent": "traveller", "run": 12}),
        (2.9, "server-2", "crash", {"where": "any time"}),
    )


def delivered_by_two(story):
    """The application stops waiting, so it does not get x1. It gets the result x2 of another server."""
    moved = {"applied": 2.85, "confirmed": 2.9}
    story.lines = [(moved.get(op, time), who, op, details) for time, who, op, details in story.lines]
    story.change("applied", result="x2").change("confirmed", result="x2")
    return call(3, 2.8, "server-2", "Complete", "trainer-1", ("x2", "COMPLETED"), "RECORDED")(LEFT(story))


def cancelled_twice(argument) -> Change:
    """Adds a cancel and its repetition with one answer. The rollout ends between the two."""

    def change(story):
        first = {"method": "Cancel", "attempt": 0}
        story.add(1.8, "trainer-1", "called", call=5, to="server-1", argument="", **first)
        story.add(2.3, "trainer-1", "called", call=6, to="server-1", argument=argument, **first)
        story.add(2.5, "trainer-1", "answered", call=5, status="OK", value=("ALREADY_ENDED", "CANCELLED"), **first)
        return changed("applied", status="CANCELLED", reason="cancelled")(reported("CANCELLED")(story))

    return change


EXCUSED: dict[str, list[Change]] = {
    "the trainer has forgotten the first result": [delivered_by_two, jump(2.65, 7200.0), start(2.7)],
    "the answer to a cancel may be that to its repetition": [cancelled_twice(("repeats", 5))],
    "given up too long ago, so it begins anew": [earlier_process(GIVEN_UP), jump(-16.5, 7200.0)],
    "what was confirmed is too old": [jump(2.65, 7200.0), start(2.7), recorded_again(2.8)],
    "an attempt without a result was not stored": [second_attempt, KNOWN],
    "a trainer without a ledger had superseded it": [
        no_ledger,
        refused_chat(-2.0),
        reported("CANCELLED"),
        changed("applied", **SUPERSEDED),
    ],
    "a trainer without a ledger and a full disk have lost replies": [no_ledger, FULL, changed("applied", **REPLAY)],
    "a trainer without a ledger and a full disk have lost an attempt": [no_ledger, HIGHER_RUN, UNWRITTEN],
    "an agent goes on after an error": [*SWALLOWS, refused_chat(1.75), changed("applied", **REPLAY)],
    "an attempt that the trainer began by itself died with it": [REFUSED, crash("trainer-1", 1.65)],
    "the callback of a recorded result is renewed at a server that has lost it": [LOST, RENEWED],
    "the callback of a running attempt is renewed at a server that has lost it": [AGAIN_RUNNING, LOST_RUNNING],
    "a reader gets an error": [
        plus((1.95, "trainer-1", "events failed", {"reader": 1, "error": "NotFound"}), (90.0, "trainer-1", "close", {}))
    ],
}
"""Changes of the good history after which no oracle finds anything."""

NOT_EXCUSED: dict[str, tuple[str, list[Change]]] = {
    "cancelled, and no call was given up": ("fair end", [ENDS_HERE]),
    "a second call gets the end of a rollout that is given up": ("fair end", [LEFT, ENDS_HERE]),
    "two servers deliver, and the first result is young": ("delivered once", [delivered_by_two, start(2.7)]),
    "a server goes on with what its trainer lost and dropped": (
        "one reply",
        [earlier_process(RUNS_AGAIN, GIVEN_UP), *STILL_THERE],
    ),
    "two servers run what was given up": ("one run", [other_server(GIVEN_UP)]),
    "two servers have the results of one attempt": ("delivered", [other_server(GIVEN_UP), CONFLICT]),
    "an event changes when the server loses its disk": ("events without gaps", [OTHER_EVENT]),
    "the callback of a running attempt is renewed, and no server has lost it": ("events without gaps", [AGAIN_RUNNING]),
    "a server forgets an Init that it has not answered": ("one run", [UNANSWERED]),
    "two cancels, and the second repeats nothing": ("linearizable", [cancelled_twice("")]),
    "it was given up, and begins anew as the same attempt": ("sampled once", [earlier_process(GIVEN_UP)]),
    "the same after a higher attempt": ("no late sampling", [earlier_process(GIVEN_UP, HIGHER)]),
    "its cancel has dropped it, and it begins anew": ("sampled once", [earlier_process(CANCELLED, DROPPED)]),
    "given up, and sampled again by the same process": (
        "sampled once",
        [plus((1.61, "trainer-1", "given up", {})), sampling(1.65, "d2")],
    ),
    "an application gets it twice": ("recorded is applied", [start(2.7), recorded_again(2.8)]),
    "a jump that is too short": ("recorded is applied", [jump(2.65, 7000.0), start(2.7), recorded_again(2.8)]),
    "a jump without a restart": ("recorded is applied", [jump(2.65, 7200.0), recorded_again(2.8)]),
    "a jump after the restart": ("linearizable", [start(2.65), jump(2.7, 7200.0), recorded_again(2.8)]),
    "a jump, and no confirmation": (
        "recorded is applied",
        [without("confirmed"), jump(2.65, 7200.0), start(2.7), recorded_again(2.8)],
    ),
    "a callback is renewed, and the server has lost nothing": ("delivered", [RENEWED]),
    "a callback is renewed, and the server loses its disk later": (
        "delivered",
        [RENEWED, plus((2.9, "server-1", "forget", {}))],
    ),
    "an outcome is refused, and no process ended": ("linearizable", [REFUSED]),
    "an attempt without a result, and no death": ("linearizable", [second_attempt, without("crash"), KNOWN]),
    "superseded, though the trainer has a ledger": (
        "fair end",
        [refused_chat(-2.0), crash("trainer-1", -1.0), changed("applied", **SUPERSEDED)],
    ),
    "reported as cancelled, and no chat was refused": ("linearizable", [reported("CANCELLED")]),
    "superseded by nobody": ("fair end", [no_ledger, changed("applied", **SUPERSEDED)]),
    "other replies, though the trainer has a ledger": ("fair end", [FULL, changed("applied", **REPLAY)]),
    "other replies, though the disk works": ("fair end", [no_ledger, changed("applied", **REPLAY)]),
    "an old attempt begins, though the disk works": ("attempts rise", [no_ledger, HIGHER_RUN]),
    "an old attempt begins, though the trainer has a ledger": ("attempts rise", [HIGHER_RUN, UNWRITTEN]),
    "other questions, though no chat failed": ("fair end", [*SWALLOWS, changed("applied", **REPLAY)]),
    "an outcome without a result comes twice": (
        "applied once",
        [changed("applied", result="", status="CANCELLED"), crash("trainer-1", 2.6), again(2.7, "applied", result="x")],
    ),
}
"""Changes of the good history that an oracle finds, by its name."""


@pytest.mark.parametrize("name", EXCUSED)
def test_what_no_promise_excludes_is_excused(name):
    story = good()
    for change in EXCUSED[name]:
        story = change(story)
    assert story.judged() == []


@pytest.mark.parametrize("name", NOT_EXCUSED)
def test_what_is_nearly_excused_is_found(name):
    oracle, changes = NOT_EXCUSED[name]
    story = good()
    for change in changes:
        story = change(story)
    assert oracle in story.judged()
