"""Records what happens in a simulated run, in order, and prints the part that concerns one rollout.

The simulator and its agents, policies, networks and disks write the records. A run is judged by its history alone
(`oracles`), so a record says what an outside observer sees, and never what the product believes.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.simulation.operations import OPERATIONS

CAPACITY = 400_000
"""The most records of a run. A run that writes more does not come to an end."""
BEFORE, AFTER = 1.0, 2.0
"""The simulated seconds before and after a rollout in which faults are shown with it."""


class HistoryFull(AssertionError):
    """A run has written more records than any run that comes to an end."""


@dataclass(frozen=True, slots=True)
class Record:
    """One thing that happened."""

    number: int
    """The position in the history, from 1."""
    time: float
    """Simulated seconds since the start of the run."""
    who: str
    """The process or device: trainer-1, server-2, network, disk of server-2."""
    op: str
    """A name of OPERATIONS."""
    rollout: str
    """The rollout id; empty for what concerns no single rollout."""
    attempt: int
    """The attempt; 0 if it has none."""
    details: Mapping[str, Any]
    """Strings, numbers, None, and tuples of these."""

    def __getitem__(self, name: str) -> Any:
        return self.details[name]

    def __str__(self) -> str:
        operation = OPERATIONS[self.op]
        values = dict.fromkeys(operation.details, "") | {"attempt": self.attempt}
        values |= {name: _short(value) for name, value in self.details.items()}
        of = f"{self.rollout}.{self.attempt} " if self.rollout else ""
        return f"{self.number:>7} {self.time:12.4f}  {self.who:<12} {of}{operation.text.format(**values)}"


class History:
    """The records of one run. `now` returns the simulated seconds."""

    def __init__(self, now: Callable[[], float], capacity: int = CAPACITY) -> None:
        self._now = now
        self._capacity = capacity
        self._records: list[Record] = []
        self._calls = 0

    def note(self, who: str, op: str, rollout: str = "", attempt: int = 0, **details: Any) -> None:
        """Append a record. Raises HistoryFull beyond the capacity."""
        number = len(self._records) + 1
        if number > self._capacity:
            raise HistoryFull(f"the run has written {self._capacity} records and does not end")
        self._records.append(Record(number, self._now(), who, op, rollout, attempt, details))

    def call(self, who: str, to: str, method: str, rollout: str, attempt: int = 0, argument: Any = "") -> int:
        """Record that `who` calls Init, Cancel or Complete. Returns the number of the call, for `answer`."""
        self._calls += 1
        self.note(who, "called", rollout, attempt, call=self._calls, method=method, to=to, argument=argument)
        return self._calls

    def answer(
        self, who: str, call: int, method: str, rollout: str, attempt: int, status: str = "OK", value: Any = ""
    ) -> None:
        """Record that the caller has the answer: a status, and the value of an OK."""
        self.note(who, "answered", rollout, attempt, call=call, method=method, status=status, value=value)

    def __iter__(self) -> Iterator[Record]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def digest(self) -> str:
        """Returns a hash of all records in order. Equal runs have equal digests."""
        found = hashlib.blake2b(digest_size=16)
        for record in self._records:
            details = sorted(record.details.items())
            found.update(
                repr((f"{record.time:.9f}", record.who, record.op, record.rollout, record.attempt, details)).encode()
            )
        return found.hexdigest()

    def of(self, rollout: str) -> list[Record]:
        """Returns the records of one rollout."""
        return [record for record in self._records if record.rollout == rollout]

    def text(self) -> str:
        """Returns all records, a line each. Faults are marked with "!"."""
        return "\n".join(map(_line, self._records))

    def story(self, rollout: str, most: int = 400) -> str:
        """Returns one rollout's records and the faults around them, a line each, at most `most` lines.

        Faults are marked with "!". With more records the middle is left out.
        """
        own = self.of(rollout)
        if not own:
            return f"the history has no record of rollout {rollout}"
        since, until = own[0].time - BEFORE, own[-1].time + AFTER
        shown = [
            record
            for record in self._records
            if record.rollout == rollout
            or (not record.rollout and OPERATIONS[record.op].fault and since <= record.time <= until)
        ]
        lines = [_line(record) for record in shown]
        if len(lines) > most:
            half = most // 2
            lines[half:-half] = [f"  ... {len(lines) - 2 * half} records are left out ..."]
        return "\n".join(lines)


def _line(record: Record) -> str:
    return ("! " if OPERATIONS[record.op].fault else "  ") + str(record)


def _short(value: Any, most: int = 100) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= most else text[: most - 3] + "..."
