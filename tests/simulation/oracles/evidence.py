"""Orders a history for the oracles: by rollout, by operation, and by the lives of its processes."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tests.simulation.history import Record

DEATHS = ("crash", "close", "forget", "restart")
"""The operations that end a process, or show that it has ended. A close ends it some time later."""
DISK_FAULTS = ("commit failed", "disk full")
AttemptKey = tuple[str, int]
ChatName = tuple[str, int, str, int]
"""Rollout id, attempt, sample, chat number."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A promise that was not kept."""

    oracle: str
    rollout: str
    what: str
    records: tuple[Record, ...] = ()

    def __str__(self) -> str:
        of = f"rollout {self.rollout}: " if self.rollout else ""
        return "\n".join([f"{self.oracle}: {of}{self.what}", *(f"  {record}" for record in self.records)])


class Evidence:
    """The records of a run, by what the oracles ask for."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.records = _at_their_workers(list(records))
        self.by_op: dict[str, list[Record]] = defaultdict(list)
        self.of: dict[str, list[Record]] = defaultdict(list)
        """The records of each rollout."""
        for record in self.records:
            self.by_op[record.op].append(record)
            if record.rollout:
                self.of[record.rollout].append(record)
        self.calls = {record["call"]: record for record in self.by_op["called"]}
        """The calls of Init, Cancel and Complete, by number."""
        self.answers = {record["call"]: record for record in self.by_op["answered"]}
        """The answers to these calls, by the number of the call."""
        self._broken_disks = {record.who.removeprefix("disk of ") for op in DISK_FAULTS for record in self.by_op[op]}
        self._deaths: dict[str, list[int]] = defaultdict(list)
        for op in DEATHS:
            for record in self.by_op[op]:
                self._deaths[record.who].append(record.number)
        for numbers in self._deaths.values():
            numbers.sort()
        self.settings = {record.who: dict(record["settings"]) for record in self.by_op["configured"]}
        """The settings of each process, by name."""
        self.forgetful = {
            who for who, own in self.settings.items() if not own.get("ledger", True) or not own.get("journal", True)
        }
        """The processes without a disk: they forget everything when they end."""
        self.undecided = 0
        """How many searches for an order of calls were given up. The oracle of linearizability counts them."""

    def deaths(self, who: str) -> list[Record]:
        """Returns the records that show the deaths of a process, in order."""
        return [self.records[number - 1] for number in self._deaths.get(who, ())]

    def life(self, who: str, number: int) -> int:
        """Returns how often a process had died before a record."""
        return bisect_right(self._deaths.get(who, ()), number)

    def seconds_to_death(self, who: str, since: Record) -> float:
        """Returns how many simulated seconds a process runs from a record to its next death; infinity without one.

        The time for which it is stopped does not count.
        """
        numbers = self._deaths.get(who, [])
        position = bisect_right(numbers, since.number)
        if position == len(numbers):
            return float("inf")
        return self.seconds(who, since, self.records[numbers[position] - 1])

    def seconds(self, who: str, since: Record, until: Record) -> float:
        """Returns how many simulated seconds a process runs between two records. Its stops do not count."""
        ran, resumed = 0.0, since.time
        stops = (r for r in (*self.by_op["stop"], *self.by_op["continue"]) if r.who == who)
        for record in sorted(stops, key=lambda record: record.number):
            if since.number < record.number < until.number:
                ran += record.time - resumed if record.op == "stop" else 0.0
                resumed = record.time
        return ran + until.time - resumed

    def forgot_between(self, who: str, first: int, second: int) -> bool:
        """Returns whether a process without a disk died between two records."""
        return who in self.forgetful and self.died_between(who, first, second)

    def lost_its_disk(self, who: str, first: int, second: int) -> bool:
        """Returns whether a process forgot everything between two records: it lost its disk, or died without one."""
        lost = any(record.who == who and first < record.number < second for record in self.by_op["forget"])
        return lost or self.forgot_between(who, first, second)

    def was_forgotten(self, rollout: str, number: int) -> bool:
        """Returns whether the trainer of a rollout has no ledger and had died before a record.

        Its application asks for the rollout again under the same attempt, while a server may still run it.
        """
        trainer = self.trainer_of(rollout)
        return trainer in self.forgetful and self.life(trainer, number) > 1

    def trainer_of(self, rollout: str) -> str:
        """Returns the trainer that asks for a rollout; empty if none does."""
        return next((record.who for record in self.ops_of(rollout, "submitted")), "")

    def died_between(self, who: str, first: int, second: int) -> bool:
        """Returns whether a process died between two records."""
        return self.life(who, first) != self.life(who, second)

    def wall_time(self, who: str, record: Record) -> float:
        """Returns the seconds of the wall clock of a process at a record. It differs from the true one by its jumps."""
        jumps = (jump for jump in self.by_op["clock jump"] if jump.who == who and jump.number < record.number)
        return record.time + sum(jump["seconds"] for jump in jumps)

    def disk_failed(self, who: str) -> bool:
        """Returns whether a commit of a process has failed. Without a working disk it promises less."""
        return who in self._broken_disks

    def ops_of(self, rollout: str, *ops: str) -> list[Record]:
        """Returns the records of a rollout with these operations."""
        return [record for record in self.of[rollout] if record.op in ops]

    def plan(self, rollout: str) -> tuple[str, ...]:
        """Returns the words of a rollout's plan."""
        return tuple(word for record in self.ops_of(rollout, "submitted") for word in record["plan"])

    def any_fault(self, *ops: str, who: str = "") -> bool:
        """Returns whether one of these faults happened, to one process or to any."""
        return any(record.who == who or not who for op in ops for record in self.by_op[op])


def chat_name(record: Record) -> ChatName:
    """Returns which chat a record is about."""
    return record.rollout, record.attempt, record["sample"], record["chat"]


def _at_their_workers(records: list[Record]) -> list[Record]:
    """Return the records with each Init and Cancel at the worker that has its rollout.

    A callback trainer calls one worker, which passes the call on. The rollout is at the worker that runs it or sends
    its outcome; all calls for it reach this worker. An attachment's calls are at its own worker.
    """
    settings = {record.who: dict(record["settings"]) for record in records if record.op == "configured"}
    routed = {who: own["routed"] for who, own in settings.items() if own.get("routed")}
    attached = {who for who, own in settings.items() if own.get("transport", "callback") != "callback"}
    if not routed:
        return records
    holders: dict[tuple[str, str], str] = {}
    for record in records:
        if record.who in routed and (record.op == "run" or (record.op == "called" and record["method"] == "Complete")):
            holders.setdefault((routed[record.who], record.rollout), record.who)

    def placed(record: Record) -> Record:
        if record.op != "called" or record["to"] not in routed or record.who in attached:
            return record
        holder = holders.get((routed[record["to"]], record.rollout), record["to"])
        return replace(record, details={**record.details, "to": holder})

    return [placed(record) for record in records]
