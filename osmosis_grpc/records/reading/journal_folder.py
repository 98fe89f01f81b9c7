"""Opens and searches the folder of a journal, which a server may be using, and caches the rollouts of lists."""

import contextlib
import difflib
import shlex
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from osmosis_grpc.protocol.errors import DataLoss, InvalidArgument
from osmosis_grpc.protocol.types import JournaledRollout, RolloutInfo
from osmosis_grpc.records.reading.journal_info import Progress, damaged_info, ended_info, header, settled_header
from osmosis_grpc.records.reading.source_port import DamagedRollout, NoRollout, SourceError
from osmosis_grpc.storage import JournalError, Reader
from osmosis_grpc.storage.journal.rows import RolloutRow

NEAR = 5
"""How many known ids the message about an unknown id suggests."""
LOOKED_AT = 10_000
"""How many of the newest rollouts are searched for these suggestions."""
MOST = 5_000
"""About how many rollouts are cached."""


def doctor_hint(folder: Path) -> str:
    """Return the advice to examine a folder."""
    return f"for details: osmosis-grpc doctor --state-dir {shlex.quote(str(folder))}"


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[Reader]:
    """Yield a Reader of the journal in a folder. Raises SourceError if opening it, or a read in the block, fails."""
    try:
        reader = Reader.look(folder)
        try:
            yield reader
        finally:
            reader.close()
    except JournalError as error:
        raise SourceError(f"{error}; --from names a state folder or a run") from None
    except (sqlite3.Error, InvalidArgument, DataLoss) as error:
        raise SourceError(f"{folder} cannot be read: {error}; {doctor_hint(folder)}") from None


def unknown_rollout(rollout_id: str, folder: Path, known: list[str]) -> NoRollout:
    """Return the error for an unknown id. `known` are the newest known ids."""
    return NoRollout(f"there is no rollout {rollout_id} in {folder}; {_near(rollout_id, known)}")


def find_attempt(reader: Reader, folder: Path, rollout_id: str, attempt: int = 0) -> JournaledRollout:
    """Return an attempt of a rollout, the newest by default. Raises SourceError if it is missing or damaged."""
    entries = {entry.init.request.attempt: entry for entry in reader.find(rollout_id)}
    if not entries:
        raise unknown_rollout(rollout_id, folder, reader.newest(LOOKED_AT))
    entry = entries.get(attempt or max(entries))
    if entry is None:
        known = ", ".join(map(str, sorted(entries)))
        raise NoRollout(f"rollout {rollout_id} has no attempt {attempt}; it has: {known}")
    if entry.damage:
        raise DamagedRollout(f"rollout {rollout_id} is damaged: {entry.damage}; {doctor_hint(folder)}")
    return entry


def _near(rollout_id: str, known: list[str]) -> str:
    """Return a hint with known ids that are similar to a given id, or else with the newest ids."""
    near = difflib.get_close_matches(rollout_id, known, NEAR, 0.5)
    near = near or [name for name in known if rollout_id in name][:NEAR]
    if near:
        return f"similar ids: {', '.join(near)}"
    return f"the newest are: {', '.join(known[:NEAR])}" if known else "there is none at all"


@dataclass(slots=True)
class _Known:
    """A cached rollout, valid as long as its row in the journal does not change."""

    row: RolloutRow
    info: RolloutInfo
    """The state. For an unfinished rollout, it lacks what only the events show."""
    damage: str = ""
    progress: Progress = field(default_factory=Progress)
    read_from: float = 0.0
    """`progress` includes the events from this time on, in Unix seconds; 0 if it includes all events."""
    read_to: int = 0
    """`progress` includes the events up to this position in the journal."""


class Seen:
    """A cache of rollouts, by the folder of the journal and the number of the rollout."""

    def __init__(self) -> None:
        self._known: dict[tuple[Path, int], _Known] = {}
        self._lock = threading.Lock()

    def infos(self, reader: Reader, rows: Sequence[RolloutRow], folder: Path) -> list[RolloutInfo]:
        """Return the states of the rollouts with these rows of a folder's journal."""
        with self._lock:
            if len(self._known) + len(rows) > MOST:
                self._known.clear()
            found = [self._of(reader, row, folder) for row in rows]
            unfinished = {each.row.sequence: each for each in found if each.row.end_time is None and not each.damage}
            _go_on(reader, unfinished)
            return [_info(each) if each.row.sequence in unfinished else each.info for each in found]

    def _of(self, reader: Reader, row: RolloutRow, folder: Path) -> _Known:
        known = self._known.get((folder, row.sequence))
        if known is None or known.row != row:
            known = _read(reader, row, folder)
            if not known.damage:
                self._known[folder, row.sequence] = known
        return known


def _read(reader: Reader, row: RolloutRow, folder: Path) -> _Known:
    wrong = row.wrong()
    if row.settled and not wrong:
        try:
            return _Known(row, settled_header(row, *reader.origin(row)))
        except DataLoss:  # the message is in the entry
            pass
    entry = reader.entry(row, wrong, outcome=False)
    if entry.end_time is not None:
        return _Known(row, ended_info(entry), entry.damage)
    if entry.damage:
        return _Known(row, damaged_info(entry, doctor_hint(folder)), entry.damage)
    return _Known(row, header(entry))


def _go_on(reader: Reader, unfinished: dict[int, _Known]) -> None:
    read = {sequence: each.read_to for sequence, each in unfinished.items() if each.read_to}
    for sequence, trail in reader.open_trails(list(unfinished), read).items():
        known = unfinished[sequence]
        if not trail.after:
            known.progress, known.read_from = Progress(), trail.read_from
        for event in trail.events:
            known.progress.add(event)
        known.read_to = max(known.read_to, trail.read_to)


def _info(known: _Known) -> RolloutInfo:
    info = known.progress.of(known.info)
    return replace(info, progress_time=max(info.progress_time or 0.0, known.read_from))
