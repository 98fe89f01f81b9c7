"""Counts which states, transitions, answers, and faults in which phase of a rollout the seeds have met."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import get_args

from osmosis_grpc.protocol.types import events
from tests.simulation.history import Record
from tests.simulation.operations import OPERATIONS

PHASES = (
    "asked for",
    "sent",
    "accepted",
    "running",
    "chat open",
    "chat sampled",
    "returned",
    "outcome sent",
    "applied",
)
"""The phases of an attempt, as an observer sees them."""
PHASE_AFTER: Mapping[str, str] = {
    "submitted": "asked for",
    "run": "running",
    "asked": "chat open",
    "sampled": "chat sampled",
    "got": "running",
    "chat raised": "running",
    "returned": "returned",
    "raised": "returned",
    "stopped agent": "returned",
    "applied": "applied",
}
FAILURES = ("error", "restart", "shutdown", "trainer_lost", "crashed_server", "replay")
"""The finish reasons of failed rollouts."""
FAULTS = (
    *("crash", "stop", "close", "cut", "half open", "partition", "commit failed", "forget", "drain", "clock jump"),
    *("unnamed", "fewer workers"),
)
"""The faults that are counted by the phases of the rollouts that they meet."""
SETS = (
    *("named", "named again", "unnamed", "more workers", "fewer workers", "rolling restart"),
    *("run of a worker", "run of a passed call"),
)
"""Changes of the set of servers. The last two are runs of an agent on another worker than the first: those of all
trainers, and those of callback trainers, whose Init another worker has passed on."""
KNOWN: Mapping[str, Sequence[str]] = {
    "answer to Init": ("OK created", "OK found", "ABORTED", "ALREADY_EXISTS"),
    "answer to Cancel": (
        *(f"CANCELLED {state}" for state in ("ACCEPTED", "QUEUED", "RUNNING", "REPORTING")),
        *(f"ALREADY_ENDED {state}" for state in ("COMPLETED", "FAILED", "CANCELLED", "DEADLINE_EXCEEDED")),
        "UNKNOWN",
    ),
    "answer to Complete": ("RECORDED", "ALREADY_RECORDED", "CONFLICT", "ABORTED"),
    "outcome": (
        "COMPLETED stop",
        "CANCELLED cancelled",
        "DEADLINE_EXCEEDED timeout",
        *(f"FAILED {reason}" for reason in FAILURES),
    ),
    "end of a delivery": ("RECORDED", "ALREADY_RECORDED", "CONFLICT", "superseded", "expired"),
    "event": tuple(kind.__name__ for kind in get_args(events.EventKind) if kind is not events.Annotated),
    "run of an agent": ("first", "again in the same attempt", "of a higher attempt"),
    "transition": (
        *(f"{one} > {other}" for one, other in pairwise(PHASES[:4])),
        "running > chat open",
        "chat open > chat sampled",
        "chat sampled > running",
        "running > returned",
        "chat open > returned",
        "chat sampled > returned",
        "returned > outcome sent",
        "accepted > outcome sent",
        "outcome sent > applied",
        "returned > running",
        "chat open > running",
    ),
    "set of servers": SETS,
    "fault": tuple(f"{fault} while {phase}" for fault in FAULTS for phase in PHASES[:-1]),
}
"""What can be met, by group. Anything else that is met is counted, too."""


class Coverage:
    """The counts of all runs so far. Its size does not grow with the runs."""

    def __init__(self) -> None:
        self.counts: dict[str, Counter[str]] = defaultdict(Counter)

    def add(self, records: Iterable[Record]) -> None:
        """Count one history."""
        for group, name in _met(records):
            self.counts[group][name] += 1

    def merge(self, counts: Mapping[str, Mapping[str, int]]) -> None:
        """Add the counts of another run."""
        for group, own in counts.items():
            self.counts[group].update(own)

    def missing(self, group: str) -> list[str]:
        """Returns what was never met, of what is known."""
        return [name for name in KNOWN[group] if not self.counts[group][name]]

    def report(self) -> str:
        """Returns a text with all counts, and with what was never met."""
        lines = []
        for group, known in KNOWN.items():
            met = len(known) - len(self.missing(group))
            lines.append(f"{group}: {met} of {len(known)}")
            if group != "fault":
                counts = ", ".join(f"{name} {count}" for name, count in sorted(self.counts[group].items()))
                lines.append(f"  {counts}")
            if missing := self.missing(group):
                lines.append(f"  never: {', '.join(missing)}")
        return "\n".join(lines)


def _met(records: Iterable[Record]) -> Iterator[tuple[str, str]]:
    phases: dict[tuple[str, int], str] = {}
    highest: dict[str, int] = {}
    runs: set[tuple[str, int]] = set()
    asked: dict[str, set[str]] = {}
    """The processes to which the Inits of each rollout were sent."""
    for record in records:
        key = record.rollout, record.attempt
        if record.op == "called" and record["method"] == "Init":
            asked.setdefault(record.rollout, set()).add(record["to"])
        if record.op == "answered":
            yield f"answer to {record['method']}", _answer(record)
        elif record.op == "applied":
            yield "outcome", f"{record['status']} {record['reason']}"
        elif record.op == "in journal":
            yield from (("end of a delivery", receipt) for receipt in record["receipts"])
        elif record.op == "event":
            yield "event", record["kind"]
        elif record.op == "run":
            higher = record.attempt > highest.get(record.rollout, record.attempt)
            yield "run of an agent", _run(key in runs, higher)
            runs.add(key)
            if "-w" in record.who:
                yield "set of servers", "run of a worker"
                if record.rollout in asked and record.who not in asked[record.rollout]:
                    yield "set of servers", "run of a passed call"
            highest[record.rollout] = max(highest.get(record.rollout, 0), record.attempt)
        elif record.op in FAULTS:
            yield from (("fault", f"{record.op} while {phase}") for phase in set(phases.values()))
        if record.op in SETS:
            yield "set of servers", record.op
        phase = _phase(record)
        if phase is not None and record.op in OPERATIONS:
            before = phases.get(key)
            if before is not None and before != phase:
                yield "transition", f"{before} > {phase}"
            phases[key] = phase
            if phase == "applied":
                del phases[key]


def _phase(record: Record) -> str | None:
    if record.op == "called":
        return {"Init": "sent", "Complete": "outcome sent"}.get(record["method"])
    if record.op == "answered" and record["method"] == "Init" and record["status"] == "OK":
        return "accepted" if record["value"] == (True,) else None
    return PHASE_AFTER.get(record.op)


def _answer(record: Record) -> str:
    if record["status"] != "OK":
        return str(record["status"])
    value = record["value"]
    if record["method"] == "Init":
        return "OK created" if value[0] else "OK found"
    if record["method"] == "Cancel":
        return value[0] if value[0] == "UNKNOWN" else " ".join(value)
    return str(value)


def _run(again: bool, higher: bool) -> str:
    return "again in the same attempt" if again else "of a higher attempt" if higher else "first"
