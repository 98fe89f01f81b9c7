"""The oracle of the log: the product writes a line of level ERROR only when a fault explains it."""

from collections.abc import Callable, Iterator, Mapping

from tests.simulation.history import Record
from tests.simulation.oracles.evidence import DISK_FAULTS, Evidence, Finding


def errors_explained(evidence: Evidence) -> Iterator[Finding]:
    """Each line of level ERROR has an explanation in EXPLAINED."""
    for record in evidence.by_op["logged"]:
        explained = EXPLAINED.get(record["message"])
        if explained is None or not explained(evidence, record):
            yield Finding("errors explained", record.rollout, f"{record.who} logs an error", (record,))


def _disk_failed(evidence: Evidence, record: Record) -> bool:
    """Returns whether a commit of this process has failed until now, or the process dies now in a transaction."""
    disk = {record.who, f"disk of {record.who}"}
    failed = (fault for op in DISK_FAULTS for fault in evidence.by_op[op] if fault.who in disk)
    crashes = (crash for crash in evidence.deaths(record.who) if crash.op == "crash" and crash.time == record.time)
    return any(fault.time <= record.time for fault in failed) or any(
        crash["where"].startswith("in a transaction") for crash in crashes
    )


def _ended_otherwise(evidence: Evidence, record: Record) -> bool:
    """Returns whether an application has the end of the rollout. Its trainer then takes no other outcome."""
    rollout = record["text"].removeprefix("the outcome of rollout ").partition(" ")[0]
    ended = evidence.ops_of(rollout, "applied", "refused")
    return bool(ended) and ended[0].number < record.number


def _without_disk(evidence: Evidence, record: Record) -> bool:
    """Returns whether a server without a journal was asked to end."""
    asked = (stop for stop in evidence.by_op["asked to stop"] if stop.who == record.who and stop.number < record.number)
    return record.who in evidence.forgetful and any(asked)


EXPLAINED: Mapping[str, Callable[[Evidence, Record], bool]] = {
    "the %s %s cannot be written: %s; trying again": _disk_failed,
    "the outcome of rollout %s expired undelivered after %d tries": _ended_otherwise,
    "%d outcomes were not delivered and are lost with this process": _without_disk,
}
"""What explains an error, by the text of the code."""
