"""Histories for tests of the oracles: one good history, and changes that break a promise or explain a break."""

from collections.abc import Callable
from typing import Any

from tests.simulation.history import History
from tests.simulation.judge import findings
from tests.simulation.oracles.sampling import logprob_of

IDS = (11, 12, 13)


class Story:
    """A history that grows by lines (seconds, who, op, details), and can be changed before it is written."""

    def __init__(self) -> None:
        self.lines: list[tuple[float, str, str, dict[str, Any]]] = []

    def add(self, time: float, who: str, op: str, **details: Any) -> "Story":
        self.lines.append((time, who, op, details))
        return self

    def change(self, op: str, **details: Any) -> "Story":
        """Changes details of the records of an operation."""
        found = [line for line in self.lines if line[2] == op]
        assert found, op
        for line in found:
            line[3].update(details)
        return self

    def without(self, op: str) -> "Story":
        self.lines = [line for line in self.lines if line[2] != op]
        return self

    def judged(self) -> list[str]:
        self.lines.sort(key=lambda line: line[0])
        clock = [0.0]
        history = History(lambda: clock[0])
        for time, who, op, details in self.lines:
            clock[0] = time
            rollout = "" if op in GLOBAL else details.get("rollout", "r1")
            attempt = 0 if op in GLOBAL else details.get("attempt", 1)
            history.note(
                who, op, rollout, attempt, **{k: v for k, v in details.items() if k not in ("rollout", "attempt")}
            )
        return [finding.oracle for finding in findings(history)]


GLOBAL = {
    *("configured", "crash", "restart", "close", "forget", "faults over", "capacity", "left", "cut"),
    *("clock jump", "commit", "commit failed", "logged", "asked to stop"),
}
"""The operations that concern no single rollout."""


def good() -> Story:
    """One rollout with one chat, accepted, run, completed and delivered."""
    story = Story()
    story.add(0.0, "trainer-1", "configured", settings=(("ledger", True), ("ttl", 7200.0)))
    story.add(0.0, "server-1", "configured", settings=(("journal", True), ("max_concurrent", 2)))
    story.add(1.0, "trainer-1", "submitted", agent="traveller", plan=())
    story.add(1.1, "trainer-1", "called", call=1, method="Init", to="server-1", argument="spec")
    story.add(1.2, "server-1", "run", agent="traveller", run=1)
    story.add(1.3, "trainer-1", "answered", call=1, method="Init", status="OK", value=(True,))
    story.add(1.4, "server-1", "asked", sample="main", chat=1, run=1)
    story.add(1.5, "trainer-1", "sampled", sample="main", chat=1, draw="d1")
    story.add(1.6, "trainer-1", "replied", sample="main", chat=1, draw="d1", ids=IDS)
    story.add(1.7, "server-1", "got", sample="main", chat=1, draw="d1", run=1)
    story.add(1.8, "server-1", "returned", run=1, reward=1.0)
    story.add(1.9, "trainer-1", "events begin", reader=1, number=1)
    story.add(2.0, "trainer-1", "event", reader=1, number=1, kind="Accepted")
    story.add(2.1, "trainer-1", "event", reader=1, number=2, kind="Started")
    story.add(2.2, "server-1", "called", call=2, method="Complete", to="trainer-1", argument=("x1", "COMPLETED"))
    segments = ((0, *IDS), (1, 3), (1,), tuple(map(logprob_of, IDS)))
    story.add(
        2.3,
        "trainer-1",
        "applied",
        result="x1",
        status="COMPLETED",
        reason="stop",
        boundary=None,
        retryable=None,
        reward=1.0,
        samples=(("main", (segments,)),),
    )
    story.add(2.4, "server-1", "answered", call=2, method="Complete", status="OK", value="RECORDED")
    story.add(2.5, "trainer-1", "confirmed", result="x1")
    story.add(3.0, "network", "faults over")
    story.add(4.0, "server-1", "in journal", state="COMPLETED", settled=True, receipts=("RECORDED",), events=(1, 9, 9))
    story.add(4.0, "server-1", "left", what="running", count=0)
    story.add(4.0, "server-1", "capacity", running=2, max_concurrent=2, queued=2, max_queued=2, abandoned=0)
    return story


Change = Callable[[Story], Story]


def plus(*lines: tuple[float, str, str, dict[str, Any]]) -> Change:
    """Adds records: time, who, op, details."""

    def change(story: Story) -> Story:
        for time, who, op, details in lines:
            story.add(time, who, op, **details)
        return story

    return change


def again(time: float, op: str, **details: Any) -> Change:
    """Adds a second record of an operation, with other details."""

    def change(story: Story) -> Story:
        first = next(line for line in story.lines if line[2] == op)
        return story.add(time, first[1], op, **{**first[3], **details})

    return change


def changed(op: str, **details: Any) -> Change:
    return lambda story: story.change(op, **details)


def without(*ops: str) -> Change:
    def change(story: Story) -> Story:
        for op in ops:
            story.without(op)
        return story

    return change


def late(story: Story) -> Story:
    """Moves the end of the rollout an hour back."""
    ends = ("applied", "confirmed", "answered", "in journal", "left", "capacity")
    story.lines = [(time + 3600.0 if op in ends else time, who, op, d) for time, who, op, d in story.lines]
    return story


def crash(who: str, time: float) -> Change:
    return plus((time, who, "crash", {"where": "any time"}))


def run(time: float, who: str, number: int, attempt: int = 1) -> Change:
    """Adds a second run of the agent, with its end."""
    own = {"run": number, "attempt": attempt}
    return plus(
        (time, who, "run", {**own, "agent": "traveller"}), (time + 0.01, who, "returned", {**own, "reward": 1.0})
    )


def sampling(time: float, draw: str) -> Change:
    """Adds another sampling of the chat, with its reply."""
    name = {"sample": "main", "chat": 1, "draw": draw}
    return plus((time, "trainer-1", "sampled", name), (time + 0.01, "trainer-1", "replied", {**name, "ids": IDS}))


def call(
    number: int, time: float, who: str, method: str, to: str, argument: Any, value: Any, attempt: int = 1
) -> Change:
    """Adds a call with its answer."""
    own = {"call": number, "method": method, "attempt": attempt}
    return plus(
        (time, who, "called", {**own, "to": to, "argument": argument}),
        (time + 0.1, who, "answered", {**own, "status": "OK", "value": value}),
    )


def logged(who: str, message: str, text: str, time: float = 6.0) -> Change:
    """Adds a log line of level ERROR. `message` is the text of the code."""
    return plus((time, who, "logged", {"message": message, "text": text}))


def segments_of(ids: tuple[int, ...], chats: tuple[int, ...] = (1,), logprobs: tuple[float, ...] | None = None) -> Any:
    known = tuple(map(logprob_of, ids)) if logprobs is None else logprobs
    return (("main", (((0, *ids), (1, len(ids)), chats, known),)),)
