"""Finds where a trainer may forget a rollout without breaking a promise.

There are two such places. If a rollout ends without an outcome while no server had it, its trainer drops it. And a
trainer keeps what was confirmed for `ttl` seconds of the wall clock, which can jump.
"""

from bisect import bisect_left
from collections.abc import Iterator

from tests.simulation.history import Record
from tests.simulation.oracles.evidence import Evidence

UNREPORTED = 0.02
"""An application knows of a commit of its trainer's ledger after so many simulated seconds."""


def drops(evidence: Evidence, rollout: str) -> Iterator[int]:
    """Yields the deaths of a trainer before which it may have dropped an attempt, by the number of the record.

    A rollout that no server had is dropped if the last call that waits for it is cancelled ("given up"), or if it gets
    an outcome without a result id, which comes from the trainer itself. When an application cancels a rollout and the
    trainer dies right after the commit that drops it, the application does not know that it has ended.
    """
    trainer = evidence.trainer_of(rollout)
    deaths = evidence.deaths(trainer)
    for record in evidence.ops_of(rollout, "given up", "applied"):
        if record.op == "given up" or not record["result"]:
            yield from [death.number for death in deaths if death.number > record.number][:1]
    cancels = [r for r in evidence.by_op["asks to cancel"] if r.who == trainer and rollout.startswith(r.rollout)]
    for death in deaths:
        if any(cancel.number < death.number for cancel in cancels) and _unreported(evidence, death):
            yield death.number


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


def begun_after_its_result(evidence: Evidence, rollout: str, attempt: int) -> bool:
    """Returns whether a server has begun an attempt again whose result the application has; see begun_anew()."""
    result = next((r.number for r in evidence.ops_of(rollout, "applied") if r.attempt == attempt), None)
    return result is not None and begun_anew(evidence, rollout, attempt, result)


def begun_anew(evidence: Evidence, rollout: str, attempt: int, since: int) -> bool:
    """Returns whether an Init has begun an attempt again after a record, at a server that had lost its disk.

    A trainer renews the callback of an attempt that its server knows: it sends the Init again. If the server loses its
    disk right before, the Init begins the attempt.
    """
    inits = [r for r in evidence.ops_of(rollout, "called") if r["method"] == "Init" and r.attempt == attempt]
    answers = [evidence.answers[init["call"]] for init in inits if init["call"] in evidence.answers]
    accepted = [answer.number for answer in answers if answer["value"] == (True,)]
    forgot = [record.number for record in evidence.by_op["forget"]]
    return any(number > since and any(min(accepted) < lost < number for lost in forgot) for number in accepted)


def expired_between(evidence: Evidence, rollout: str, first: Record, second: Record) -> bool:
    """Returns whether the trainer of a rollout may have forgotten its end between two records."""
    return any(first.number < start < second.number for start in expiries(evidence, rollout))


def expiries(evidence: Evidence, rollout: str) -> Iterator[int]:
    """Yields the starts at which the trainer of a rollout may have forgotten its end, by record.

    The end is the confirmation of a result, an error, or the moment at which the last call has given the rollout up.
    """
    trainer = evidence.trainer_of(rollout)
    if not any(jump.who == trainer for jump in evidence.by_op["clock jump"]):
        return
    ttl = evidence.settings[trainer].get("ttl", float("inf"))
    given_up = next((record.number for record in evidence.ops_of(rollout, "given up")), float("inf"))
    over = [
        evidence.wall_time(trainer, record)
        for record in evidence.ops_of(rollout, "confirmed", "given up", "refused", "called")
        if record.op != "called" or (record["method"] == "Complete" and record.number > given_up)
    ]
    for start in evidence.by_op["restart"]:
        if start.who == trainer and any(evidence.wall_time(trainer, start) - then >= ttl for then in over):
            yield start.number
