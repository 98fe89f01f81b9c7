"""Oracles of outcomes: none is lost, none is applied twice, each says what happened, and each delivery ends."""

from collections.abc import Iterator

from tests.simulation.history import Record
from tests.simulation.oracles.evidence import Evidence, Finding
from tests.simulation.oracles.forgetting import begun_after_its_result, expired_between


def nothing_lost(evidence: Evidence) -> Iterator[Finding]:
    """Every rollout that an application asks for ends there: with an outcome, or with an error."""
    for rollout, records in evidence.of.items():
        submitted = [record for record in records if record.op == "submitted"]
        over = [record for record in records if record.op in ("applied", "refused")]
        if submitted and not over:
            yield Finding("nothing lost", rollout, "its application got no outcome and no error", tuple(submitted))


def applied_once(evidence: Evidence) -> Iterator[Finding]:
    """An attempt has one result at its application, and none comes again after its confirmation."""
    for rollout in evidence.of:
        results: dict[int, Record] = {}
        confirmed: dict[str, Record] = {}
        for record in evidence.ops_of(rollout, "applied", "again", "confirmed"):
            if record.op == "confirmed":
                confirmed.setdefault(record["result"], record)
                continue
            first = results.setdefault(record.attempt, record)
            before = confirmed.get(record["result"])
            ledger = evidence.settings.get(record.who, {}).get("ledger")
            if first["result"] != record["result"]:
                yield Finding("applied once", rollout, "an attempt has two results", (first, record))
            elif before is not None and ledger and evidence.died_between(record.who, before.number, record.number):
                what = "an outcome came again in a later process, after its confirmation"
                yield Finding("applied once", rollout, what, (before, record))


def recorded_is_applied(evidence: Evidence) -> Iterator[Finding]:
    """A result that a trainer has answered RECORDED reaches its application, and RECORDED is said once of it."""
    said: dict[tuple[str, str], Record] = {}
    for record in evidence.by_op["answered"]:
        if record["method"] == "Complete" and record["value"] == "RECORDED":
            call = evidence.calls[record["call"]]
            key = record.rollout, call["argument"][0]
            before = said.setdefault(key, record)
            if before is record or evidence.forgot_between(call["to"], before.number, record.number):
                continue
            if not expired_between(evidence, record.rollout, before, record):
                yield Finding("recorded is applied", record.rollout, "RECORDED was said twice", (before, record))
    for (rollout, result), record in said.items():
        applied = [other for other in evidence.ops_of(rollout, "applied") if other["result"] == result]
        newer = [r for r in evidence.ops_of(rollout, "applied", "submitted", "called") if r.attempt > record.attempt]
        given_up = evidence.ops_of(rollout, "given up")
        if not applied and not newer and not given_up and evidence.ops_of(rollout, "submitted"):
            what = f"result {result} was answered RECORDED, and its application never got it"
            yield Finding("recorded is applied", rollout, what, (record,))


def no_old_attempt(evidence: Evidence) -> Iterator[Finding]:
    """After an application has applied an attempt, or asked for a higher one, it gets no lower attempt."""
    for rollout in evidence.of:
        highest: Record | None = None
        for record in evidence.ops_of(rollout, "submitted", "applied"):
            if highest is not None and record.op == "applied" and record.attempt < highest.attempt:
                what = f"attempt {record.attempt} was applied after attempt {highest.attempt}"
                yield Finding("no old attempt", rollout, what, (highest, record))
            if highest is None or record.attempt > highest.attempt:
                highest = record


def fair_end(evidence: Evidence) -> Iterator[Finding]:
    """Each outcome has a cause in the history: its agent, a cancel, a deadline, or a fault that explains it."""
    for record in evidence.by_op["applied"]:
        why_not = _unexplained(evidence, record)
        if why_not:
            yield Finding("fair end", record.rollout, why_not, (record,))
    for record in evidence.by_op["refused"]:
        why_not = _unexplained_error(evidence, record)
        if why_not:
            yield Finding("fair end", record.rollout, why_not, (record,))


SERVER_FAULTS = ("crash", "close", "forget", "drain", "commit failed", "disk full")
REFUSALS: dict[str, tuple[str, ...]] = {
    "Unavailable": ("cut", "half open", "partition", "lost", "stop", "clock jump", "window", *SERVER_FAULTS),
    "Internal": ("commit failed", "disk full"),
    "LedgerError": ("commit failed", "disk full"),
}
"""The faults that explain an error of the application, by its type. A server or network that fails may end a rollout
with Unavailable after `lost_after`, or after `max_attempts` losses."""
TRAINER_AWAY = ("cut", "half open", "partition", "crash", "close", "stop", "lost", "forget")
CAUSES: dict[tuple[str, str], tuple[str, ...]] = {
    ("server", "restart"): ("crash", "close", "commit failed"),
    ("server", "shutdown"): ("close", "drain"),
    ("server", "internal"): ("commit failed", "disk full"),
    ("agent", "crashed_server"): ("crash",),
    ("trainer", "trainer_lost"): ("half open", "partition", "crash", "close", "stop", "forget"),
    ("trainer", "error"): (*TRAINER_AWAY, "commit failed", "disk full"),
    ("server", "error"): (*TRAINER_AWAY, "commit failed", "disk full"),
}
"""The faults that explain a FAILED outcome, by its boundary and its finish reason."""


def _unexplained(evidence: Evidence, record: Record) -> str:
    rollout, status, plan = record.rollout, record["status"], evidence.plan(record.rollout)
    own = [other for other in evidence.of[rollout] if other.attempt == record.attempt]
    if status == "COMPLETED":
        rewards = {other["reward"] for other in own if other.op == "returned"}
        if not rewards:
            return "it is COMPLETED, and no run of its agent returned"
        return "" if record["reward"] in rewards else f"its reward is none of {sorted(map(str, rewards))}"
    if status == "CANCELLED":
        cancels = [o for o in evidence.by_op["called"] if o["method"] == "Cancel" and o.rollout in ("", rollout)]
        # An application also cancels by prefix: the cancel of r3 can meet r30.
        asked = [o for o in evidence.by_op["asks to cancel"] if rollout.startswith(o.rollout)]
        if cancels or asked or (record["reason"] == "superseded" and _superseded_before(evidence, record)):
            return ""
        return "it is CANCELLED, and no caller has cancelled it"
    if status == "DEADLINE_EXCEEDED":
        return "" if "deadline" in plan else "its time ran out, though it had enough"
    if record["boundary"] == "agent" and any(other.op == "raised" for other in own):
        return ""
    if any(other.op == "policy failed" and other["error"] != "Unavailable" for other in own):
        return ""  # a chat is asked again after Unavailable
    if record["reason"] == "replay" and _lost_replies(evidence, record):
        return ""
    if record["reason"] in ("restart", "shutdown") and _continues(evidence, record):
        return f"it is {status} ({record['reason']}), though its agent is replayable and its server has a journal"
    causes = CAUSES.get((record["boundary"], record["reason"]))
    if causes is None:
        return f"it is {status} ({record['boundary']}, {record['reason']}), which no plan and no fault explains"
    return "" if evidence.any_fault(*causes) else f"it is {status} ({record['reason']}) without such a fault"


def _superseded_before(evidence: Evidence, record: Record) -> bool:
    """Returns whether an earlier process of a trainer without a ledger refused a chat of this attempt as superseded."""
    refused = [r for r in evidence.ops_of(record.rollout, "chat raised") if r["error"] == "Aborted"]
    own = (other for other in refused if other.attempt == record.attempt)
    return any(evidence.forgot_between(record.who, other.number, record.number) for other in own)


def _lost_replies(evidence: Evidence, record: Record) -> bool:
    """Returns whether the agent of a rollout got other replies when it ran again, so that its questions differ.

    Either its server's disk failed and its trainer without a ledger died, so that both have lost replies. Or the agent
    goes on after the error of a chat, and the chat has a reply when it is asked again.
    """
    if "swallow" in evidence.plan(record.rollout):
        failed = (other for other in evidence.ops_of(record.rollout, "chat raised") if other.attempt == record.attempt)
        return any(evidence.died_between(other.who, other.number, record.number) for other in failed)
    return evidence.was_forgotten(record.rollout, record.number) and any(
        evidence.disk_failed(who) for who in _senders(evidence, record)
    )


def _senders(evidence: Evidence, record: Record) -> set[str]:
    """Returns the servers that sent an outcome."""
    calls = (call for call in evidence.ops_of(record.rollout, "called") if call["method"] == "Complete")
    return {call.who for call in calls if call["argument"][0] == record["result"]}


def _continues(evidence: Evidence, record: Record) -> bool:
    """Returns whether the server that sent an outcome continues the rollout after its restarts."""
    agents = {other["agent"] for other in evidence.ops_of(record.rollout, "submitted")}
    senders = _senders(evidence, record)
    durable = all(evidence.settings.get(who, {}).get("journal") and not evidence.disk_failed(who) for who in senders)
    return agents == {"traveller"} and bool(senders) and durable


def _unexplained_error(evidence: Evidence, record: Record) -> str:
    plan = evidence.plan(record.rollout)
    if record["error"] in ("Superseded", "Aborted"):
        higher = [r for r in evidence.of[record.rollout] if r.attempt > record.attempt or "superseded" in plan]
        return "" if higher else "it was superseded, and there is no higher attempt"
    if record["error"] in plan:
        return ""
    causes = REFUSALS.get(record["error"])
    if causes is None or not evidence.any_fault(*causes):
        return f"its application got {record['error']}, which no plan and no fault explains: {record['text']}"
    return ""


def delivered(evidence: Evidence) -> Iterator[Finding]:
    """At the end every rollout in a journal is settled, and each delivery ended with a receipt or a good reason.

    A server whose disk failed has delivered from memory, and its journal does not know it.
    """
    for record in evidence.by_op["in journal"]:
        if evidence.disk_failed(record.who) or evidence.was_forgotten(record.rollout, record.number):
            continue
        if not record["settled"]:
            yield Finding("delivered", record.rollout, "the journal has it unsettled at the end", (record,))
            continue
        receipts = [receipt for receipt in record["receipts"] if receipt not in ("superseded", "expired")]
        if sum(receipt == "RECORDED" for receipt in receipts) > 1:
            yield Finding("delivered", record.rollout, "the journal has two receipts RECORDED", (record,))
        # The foreign trainer repeats an Init also when it has the outcome. A server that forgot it runs it again.
        foreign = not evidence.ops_of(record.rollout, "submitted")
        if "CONFLICT" not in receipts or (foreign and evidence.any_fault("forget", who=record.who)):
            continue
        if not begun_after_its_result(evidence, record.rollout, record.attempt):
            yield Finding("delivered", record.rollout, "the trainer has another result of this attempt", (record,))


def credentials_gone(evidence: Evidence) -> Iterator[Finding]:
    """No file of credentials is left on a server that has nothing to deliver."""
    undelivered = {record.who for record in evidence.by_op["in journal"] if not record["settled"]}
    for record in evidence.by_op["credentials"]:
        if record.who in undelivered:
            continue
        yield Finding("credentials gone", record.rollout, "a file of credentials is left", (record,))
