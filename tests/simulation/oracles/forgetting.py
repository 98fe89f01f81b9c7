"""Finds where a trainer may forget a rollout without breaking a promise.

There are two such places. A rollout that was cancelled while no server had it ends without an outcome, and its trainer
drops it. And a trainer keeps what was confirmed for `ttl` seconds of the wall clock, which can jump.
"""

from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

from tests.simulation.history import Record
from tests.simulation.oracles.evidence import Evidence

UNREPORTED = 0.02
"""An application knows of a commit of its trainer's ledger after so many simulated seconds."""


class Drop(NamedTuple):
    """A moment from which on a trainer may have no attempt of a rollout."""

    since: int
    """The number of a record. The same process still refuses lower attempts, and knows the replies."""
    death: int | None
    """The number of the record of the next death of the trainer; None if it does not die."""
    at_server: bool
    """Whether a server may still have the rollout. Then it goes on when the application asks for the rollout again."""


def drops(evidence: Evidence, rollout: str) -> Iterator[Drop]:
    """Yields when the trainer of a rollout may have dropped an attempt that has no outcome.

    Cancelling the last call that waits for a rollout cancels it ("given up"). If no server has it, the trainer drops
    it, so the same request begins a new rollout. An outcome without a result id comes from the trainer itself, which
    has dropped the rollout, too. If the trainer has begun a higher attempt by itself before, a server that it could not
    reach may still have a lower attempt. When an application cancels a rollout and the trainer dies right after the
    commit that drops it, the application does not know that it has ended, and asks for it again.
    """
    trainer = evidence.trainer_of(rollout)
    deaths = evidence.deaths(trainer)
    own_attempts = evidence.ops_of(rollout, "runs again")
    for record in evidence.ops_of(rollout, "given up", "applied"):
        if record.op == "given up" or not record["result"]:
            death = next((death.number for death in deaths if death.number > record.number), None)
            yield Drop(record.number, death, any(again.number < record.number for again in own_attempts))
    cancels = [r for r in evidence.by_op["asks to cancel"] if r.who == trainer and rollout.startswith(r.rollout)]
    for death in deaths:
        if any(cancel.number < death.number for cancel in cancels) and _unreported(evidence, death):
            yield Drop(death.number, death.number, True)


def _unreported(evidence: Evidence, death: Record) -> bool:
    """Returns whether a trainer has crashed right after a commit of its ledger."""
    if death.op != "crash":
        return False
    if death["where"].startswith("after") and death["where"].endswith("of its ledger"):
        return True
    commits = evidence.by_op["commit"]
    last = bisect_left(commits, death.number, key=lambda commit: commit.number)
    first = bisect_left(commits, death.time - UNREPORTED, key=lambda commit: commit.time)
    return any(commit.who == f"disk of {death.who}" for commit in commits[first:last])


def begun_anew(evidence: Evidence, rollout: str, first: int, second: int) -> bool:
    """Returns whether a rollout may have begun as a new one between two records.

    Its trainer has dropped it, and then sent an Init that was not answered with "found". Or it is `taken_up`.
    """
    if taken_up(evidence, rollout, first, second):
        return True
    inits = [r for r in evidence.ops_of(rollout, "called") if r["method"] == "Init" and first < r.number <= second]
    found = {call for call, answer in evidence.answers.items() if answer["value"] == (False,)}
    return any(
        first < drop.since < init.number and init["call"] not in found
        for init in inits
        for drop in drops(evidence, rollout)
    )


def asked_before(evidence: Evidence, record: Record) -> int:
    """Returns the number of the newest record before `record` at which the application asks for its rollout.

    A trainer can still send an Init right after the application has given the rollout up.
    """
    asked = [one.number for one in evidence.ops_of(record.rollout, "submitted") if one.number <= record.number]
    return asked[-1] if asked else record.number


def taken_up(evidence: Evidence, rollout: str, first: int, second: int) -> bool:
    """Returns whether a server may go on with a rollout that its trainer has dropped between two records.

    The application has asked for the rollout again, so the trainer answers the chats of this server, without replies of
    before.
    """
    asked = [record.number for record in evidence.ops_of(rollout, "submitted")]
    return any(
        drop.at_server and first < drop.since < number <= second
        for drop in drops(evidence, rollout)
        for number in asked
    )


def begun_anew_elsewhere(evidence: Evidence, rollout: str, attempt: int, who: str) -> bool:
    """Returns whether an attempt of a server may have begun as a new rollout on another server, before or after it."""
    begun: dict[str, int] = {}
    for record in evidence.ops_of(rollout, "run"):
        if record.attempt == attempt:
            begun.setdefault(record.who, record.number)
    own = begun.pop(who, 0)
    return any(begun_anew(evidence, rollout, *sorted((own, other))) for other in begun.values())


def begun_after_its_result(evidence: Evidence, rollout: str, attempt: int, who: str) -> bool:
    """Returns whether a server has begun an attempt again whose result the application has.

    A trainer renews the callback of a result that the server has not delivered: it sends the Init again. If the server
    loses its disk right before, the Init begins the attempt.
    """
    result = next((r.number for r in evidence.ops_of(rollout, "applied") if r.attempt == attempt), None)
    if result is None:
        return False
    forgot = [record.number for record in evidence.by_op["forget"] if record.who == who]
    inits = [r for r in evidence.ops_of(rollout, "called") if (r["method"], r["to"]) == ("Init", who)]
    answers = evidence.answers
    created = {init.number for init in inits if init["call"] in answers and answers[init["call"]]["value"] == (True,)}
    return any(result < number and any(lost < number for lost in forgot) for number in created)


def expiries(evidence: Evidence, rollout: str) -> Iterator[int]:
    """Yields the starts at which the trainer of a rollout may have forgotten its confirmed result, by record.

    The application confirms a result. That of a rollout that was given up needs no confirmation.
    """
    trainer = evidence.trainer_of(rollout)
    if not any(jump.who == trainer for jump in evidence.by_op["clock jump"]):
        return
    ttl = evidence.settings[trainer].get("ttl", float("inf"))
    given_up = next((record.number for record in evidence.ops_of(rollout, "given up")), float("inf"))
    over = [
        evidence.wall_time(trainer, record)
        for record in evidence.ops_of(rollout, "confirmed", "called")
        if record.op == "confirmed" or (record["method"] == "Complete" and record.number > given_up)
    ]
    for start in evidence.by_op["restart"]:
        if start.who == trainer and any(evidence.wall_time(trainer, start) - then >= ttl for then in over):
            yield start.number
