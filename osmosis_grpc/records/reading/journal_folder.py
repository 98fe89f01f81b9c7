"""Reads the folder of a server's journal for commands that look into it. A server may be using it."""

import contextlib
import difflib
import shlex
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from osmosis_grpc.protocol.errors import DataLoss, InvalidArgument
from osmosis_grpc.protocol.types import JournaledRollout
from osmosis_grpc.records.reading.source_port import DamagedRollout, NoRollout, SourceError
from osmosis_grpc.storage import JournalError, Reader

NEAR = 5
"""The message about an unknown id names at most this many known ids."""
LOOKED_AT = 10_000
"""These known ids come from at most this many of the newest rollouts."""


def doctor_hint(folder: Path) -> str:
    """Return the advice to examine a folder."""
    return f"run osmosis-grpc doctor --state-dir {shlex.quote(str(folder))} for details"


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[Reader]:
    """Yield a Reader of the journal in a folder. Raises SourceError, also for an error of the block's reads."""
    try:
        reader = Reader.look(folder)
        try:
            yield reader
        finally:
            reader.close()
    except JournalError as error:
        raise SourceError(f"{error}; --state-dir names the folder that serve was given") from None
    except (sqlite3.Error, InvalidArgument, DataLoss) as error:
        raise SourceError(f"{folder} cannot be read: {error}; {doctor_hint(folder)}") from None


def unknown_rollout(rollout_id: str, folder: Path, known: list[str]) -> NoRollout:
    """Return the error for an unknown id. `known` are the newest ids."""
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
    """Return a text with known ids that are similar to the given id, or with the newest ids."""
    near = difflib.get_close_matches(rollout_id, known, NEAR, 0.5)
    near = near or [name for name in known if rollout_id in name][:NEAR]
    if near:
        return f"similar ids: {', '.join(near)}"
    return f"the newest are: {', '.join(known[:NEAR])}" if known else "there is none at all"
