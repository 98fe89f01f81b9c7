"""What was promised, checked against what happened: the history of all processes, and the journal they left.

Each promise is a small function over the evidence; a breach is reported with the promise's name and the lines of the
history that show it.
"""

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from osmosis_grpc.engine.recovery import CONVICTED
from osmosis_grpc.protocol.types import Receipt, events
from osmosis_grpc.protocol.wire.event import kind_from_bytes, kind_to_bytes
from osmosis_grpc.storage.state_folders import worker_folders
from tests.faults.kill_loop.history import Line

SHOWN = 12
"""Lines shown of a rollout."""
RANDOM = "any time"
"""The window of a kill from outside."""
SERVERS = ("server", "worker")
"""Whose kill ends rollouts that are running. With several workers, the server is their supervisor."""
TAKEN = (Receipt.RECORDED, Receipt.ALREADY_RECORDED)


@dataclass(slots=True)
class Kept:
    """A rollout, as the journal has it."""

    rollout_id: str
    attempt: int
    accept_time: float
    end_time: float | None
    settled: bool
    delivered: list[tuple[float, events.Delivered]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Break:
    """A promise that was not kept."""

    promise: str
    what: str
    lines: tuple[Line, ...]

    def __str__(self) -> str:
        return "\n    ".join((f"{self.promise}: {self.what}", *map(str, self.lines)))


class Evidence:
    """All there is to judge by. `expected` are the digests of an undisturbed run, by rollout."""

    def __init__(
        self,
        lines: Sequence[Line],
        journal: Sequence[Kept],
        expected: Mapping[str, str],
        replayable: set[str],
        *,
        workers: bool = False,
    ) -> None:
        self.lines, self.journal, self.expected, self.replayable = lines, journal, expected, replayable
        self._workers = workers
        """Whether the server has several workers."""
        self.of: dict[str, list[Line]] = defaultdict(list)
        """A rollout's lines."""
        self.by_op: dict[str, list[Line]] = defaultdict(list)
        for line in lines:
            self.by_op[line.op].append(line)
            if line.id:
                self.of[line.id].append(line)
        self.kills = self.by_op["killed"]
        self.applied: dict[str, list[Line]] = defaultdict(list)
        for line in self.by_op["applied"]:
            self.applied[line.id].append(line)

    def broke(self, promise: str, what: str, rollout_id: str, *ops: str) -> Break:
        """A break, with the rollout's lines of these kinds."""
        lines = [line for line in self.of[rollout_id] if not ops or line.op in ops]
        return Break(promise, f"rollout {rollout_id}: {what}", tuple(lines[-SHOWN:]))

    # The promises.

    def ends_once(self) -> Iterator[Break]:
        """What was accepted, or asked for, ends: exactly one outcome of it is applied."""
        for name in sorted({kept.rollout_id for kept in self.journal} | set(self.expected)):
            if not self.applied[name]:
                yield self.broke("lost", "no outcome was applied", name)

    def applied_once(self) -> Iterator[Break]:
        """No rollout has two results, and none comes again that was confirmed."""
        for name, lines in self.applied.items():
            if len(lines) > 1:
                yield self.broke("applied twice", f"{len(lines)} results were applied", name, "applied", "confirmed")
        confirmed: dict[str, Line] = {}
        for line in self.lines:
            if line.op == "confirmed":
                confirmed.setdefault(line.id, line)
            elif line.op == "again" and line.id in confirmed:
                yield self.broke("applied twice", "it came again after its confirmation", line.id, "again", "confirmed")

    def recorded_once(self) -> Iterator[Break]:
        """RECORDED is said once of an attempt; in the end everything is delivered, and taken.

        Not so an attempt that a higher one has replaced: a worker that comes back may only then hear of it, by the
        answer to its next chat, and the loop ends with the last outcome.
        """
        for kept in self.journal:
            outcomes = [delivered.receipt for _, delivered in kept.delivered]
            if outcomes.count(Receipt.RECORDED) > 1:
                yield self.broke("recorded once", "RECORDED came twice", kept.rollout_id, "applied", "confirmed")
            replaced = any(line.key[0] > kept.attempt for line in self.applied[kept.rollout_id])
            if not replaced and not (kept.settled and any(outcome in TAKEN for outcome in outcomes)):
                broken = ", ".join(str(outcome) for outcome in outcomes) or "nothing"
                yield self.broke("delivered", f"the journal says {broken}", kept.rollout_id)

    def sampled_once(self) -> Iterator[Break]:
        """A chat is sampled once; after the trainer's death again, if nobody had the first reply."""
        deaths = [line.number for line in self.kills if line.key[0] == "trainer"]
        sampled: dict[tuple[object, ...], list[Line]] = defaultdict(list)
        for line in self.by_op["sampled"]:
            sampled[line.id, *line.key].append(line)
        for (name, *_), lines in sampled.items():
            for first, second in pairwise(lines):
                if not any(first.number < death < second.number for death in deaths):
                    yield Break("sampled twice", f"rollout {name}: one process sampled a chat twice", (first, second))
        given: dict[tuple[object, ...], list[Line]] = defaultdict(list)
        for line in self.by_op["got"]:
            given[line.id, *line.key].append(line)
        for (name, *_), lines in given.items():
            if len({line.outcome for line in lines}) > 1:
                yield Break("sampled twice", f"rollout {name}: a chat has two replies", tuple(lines[:SHOWN]))

    def replayed_equal(self) -> Iterator[Break]:
        """A rollout that continues after a crash ends as if there had been none.

        One that was killed again and again may end FAILED (crashed_server): see recovery.py.
        """
        for name in sorted(self.replayable):
            for line in self.applied[name]:
                if line.outcome.get("reason") == "crashed_server" and self._in_a_crash_loop(name, line):
                    continue
                if line.outcome["status"] != "COMPLETED":
                    yield self.broke("replayed", "it did not complete", name, "applied", "run", "returned", "killed")
                elif line.outcome["digest"] != self.expected[name]:
                    yield self.broke("replayed", "its tokens are not those of the undisturbed run", name)

    def _in_a_crash_loop(self, name: str, end: Line) -> bool:
        """Whether the server was killed as often between a rollout's first run and its end as ends it for good.

        Only the journal knows in which processes it ran without a new reply: a process may die between the start of
        the agent and the agent's first line, and the agent sees a reply before it is on disk.
        """
        began = min((line.number for line in self.by_op["run"] if line.id == name), default=end.number)
        deaths = sum(kill.key[0] in SERVERS and began < kill.number < end.number for kill in self.kills)
        return deaths >= CONVICTED

    def fails_as_promised(self) -> Iterator[Break]:
        """What cannot go on fails at the server's restart and may be tried again; everything else completes."""
        for name in sorted(set(self.expected) - self.replayable):
            for line in self.applied[name]:
                broken = line.outcome
                fine = broken["digest"] == self.expected[name] and broken["status"] == "COMPLETED"
                cut = (broken["status"], broken.get("boundary"), broken.get("retryable"))
                stopped = cut == ("FAILED", "server", True) and broken["reason"] in (
                    ("restart", "shutdown") if self._workers else ("restart",)
                )
                if not fine and not stopped:
                    yield self.broke("fails as promised", "another end than COMPLETED or FAILED (server)", name)

    def attempt_kept(self) -> Iterator[Break]:
        """A journal forgets nothing: no rollout has to be started anew.

        Workers share the slots of a trainer. A worker that comes back with fewer slots gives up rollouts whose Init it
        has not answered; these go to another one with a higher attempt.
        """
        for name, lines in self.applied.items():
            if not self._workers and any(line.key[0] != 1 for line in lines):
                yield self.broke("attempt kept", "it needed another attempt", name, "applied", "run", "killed")
        for line in self.by_op["refused"]:
            yield self.broke("accepted", "it was refused", line.id)

    def broken(self) -> list[Break]:
        """All promises that were not kept."""
        promises = (
            self.ends_once,
            self.applied_once,
            self.recorded_once,
            self.sampled_once,
            self.replayed_equal,
            self.fails_as_promised,
            self.attempt_kept,
        )
        return [found for promise in promises for found in promise()]

    # Figures.

    def killed_after_third_chat(self) -> int:
        """Rollouts that go on which a kill of the server met after their third reply, and before their return."""
        third: dict[str, set[int]] = defaultdict(set)
        """By rollout the server processes in which it stands there."""
        met: set[str] = set()
        for line in self.lines:
            if line.op == "got" and line.key == ["main", 3]:
                third[line.id].add(line.pid)
            elif line.op == "returned":
                third.pop(line.id, None)
            elif line.op == "killed" and line.key[0] in SERVERS:
                met |= {name for name, pids in third.items() if line.key[2] in pids}
        return len(met & self.replayable)

    def windows_shown(self) -> dict[str, int]:
        """Kills of the server, by window, of which history and journal show that they met it."""
        kills = [kill for kill in self.kills if kill.key[0] == "server"]
        return dict(Counter(kill.key[1] for kill in kills if self._met_its_window(kill)))

    def _met_its_window(self, kill: Line) -> bool:
        _, window, pid = kill.key
        if window == "chat.open":  # a chat is asked in that process and not answered there
            asked, got = (
                Counter(
                    (line.id, *line.key) for line in self.by_op[op] if line.pid == pid and line.number < kill.number
                )
                for op in ("asked", "got")
            )
            return asked != got
        if window not in SHOWS:
            return False
        holds, op, happened = SHOWS[window]
        before = {line.id for line in self.by_op[op] if line.number < kill.number}
        return any(holds(kept, kill.t) and (kept.rollout_id in before) == happened for kept in self.journal)

    def redeliveries(self) -> list[float]:
        """Seconds from the starts of servers to the first delivery of what the one before left undelivered."""
        starts = [line for line in self.lines if line.op == "start" and line.key[0] == "server"]
        found = []
        for start, until in zip(starts[1:], [*(line.t for line in starts[2:]), float("inf")], strict=False):
            left = [kept for kept in self.journal if kept.end_time is not None and kept.end_time < start.t]
            times = [t for kept in left for t, _ in kept.delivered if start.t < t < until]
            if times:
                found.append(min(times) - start.t)
        return found


SHOWS: Mapping[str, tuple[Callable[[Kept, float], bool], str, bool]] = {
    # It is accepted, and has not begun to run.
    "init.committed": (lambda kept, t: kept.accept_time < t, "run", False),
    # It has begun, and its result is committed after this kill only.
    "result.before": (lambda kept, t: kept.end_time is None or kept.end_time > t, "run", True),
    # Its result is committed, and not applied.
    "result.committed": (lambda kept, t: kept.end_time is not None and kept.end_time < t, "applied", False),
    # Its result is applied, and the journal hears of it after this kill only.
    "outcome.before": (lambda kept, t: all(at > t for at, _ in kept.delivered), "applied", True),
}
"""What shows that a kill met its window, by the failpoint: the journal has such a rollout at that time, and a line of
this kind stands before the kill, or does not."""


def kept_in(state: Path) -> list[Kept]:
    """What the journals of a server and of its workers have, their processes gone."""
    return [kept for folder in (state, *worker_folders(state).values()) for kept in _kept_in(folder)]


def _kept_in(journal: Path) -> list[Kept]:
    number, _ = kind_to_bytes(events.Delivered(Receipt.RECORDED, "", 1))
    with closing(sqlite3.connect(journal / "journal.db")) as database:
        columns = "sequence, rollout_id, attempt, accept_time, end_time, settled"
        rows = {row[0]: Kept(*row[1:]) for row in database.execute(f"SELECT {columns} FROM rollouts")}
        for sequence, t, body in database.execute("SELECT sequence, time, body FROM events WHERE kind = ?", (number,)):
            delivered = kind_from_bytes(number, body)
            assert isinstance(delivered, events.Delivered)
            rows[sequence].delivered.append((t, delivered))
    return list(rows.values())
