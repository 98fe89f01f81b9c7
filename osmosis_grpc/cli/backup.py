"""The backup command: copies a server's state folder and a trainer's ledger, even while they are in use."""

import sqlite3
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from osmosis_grpc.cli.place import state_folder
from osmosis_grpc.protocol.errors import LedgerError
from osmosis_grpc.protocol.types.outcome import printable
from osmosis_grpc.serve.json_output import records, say_error
from osmosis_grpc.storage import JournalError
from osmosis_grpc.storage.backup import copied_schemas, copy_ledger, copy_workers, new_folder
from osmosis_grpc.storage.find_damage import Examined, examine

PROGRESS = 5.0
"""Seconds between two progress lines."""
MB = 1_000_000


@dataclass
class _Progress:
    """Prints on stderr how much of a file has been copied."""

    file: Path
    _said: float = field(default_factory=time.monotonic)

    def __call__(self, done: int, total: int) -> None:
        if time.monotonic() >= self._said + PROGRESS:
            self._said = time.monotonic()
            print(f"backup: {done // MB:,} of {total // MB:,} MB of {self.file}", file=sys.stderr)


def back_up(target: str, state_dir: str | None, ledger: str | None, *, json: bool) -> int:
    """Copy the state folder and the ledger, or only the ledger if no folder is named. Return the exit code."""
    state = None if state_dir is None and ledger is not None else state_folder("backup", state_dir)
    with records(json) as out:
        try:
            with new_folder(Path(target)) as new:
                if state is not None:
                    copy_workers(state, new, _Progress)
                if ledger is not None:
                    copy_ledger(Path(ledger), new, _Progress(Path(ledger)))
                found = [examine(path, schema) for path, schema in copied_schemas(new)]
        except FileNotFoundError as error:
            option = "--ledger FILE names the ledger of a trainer"
            if error.filename != ledger:
                option = "--state-dir DIR names the folder of a server"
            return _refused(f"there is no {error.filename}; {option}")
        except OSError as error:
            return _refused(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        except (JournalError, LedgerError, sqlite3.Error) as error:
            return _refused(str(error))
        for one in found:
            path = Path(target) / one.path.relative_to(new)
            out.write("copied", kind=one.kind, file=str(path), sound=dict(one.sound), damaged=len(one.damaged))
            out.say(printable(f"{one.kind} {path}: {_content(one)}"))
        if state is not None:
            out.say(printable(f"start a server with it: osmosis-grpc serve --state-dir {target} -m MODULE:ATTR"))
        return int(any(not one.is_sound for one in found))


def _content(one: Examined) -> str:
    rows = ", ".join(f"{count} {name}" for name, count in sorted(one.sound.items()))
    return rows if one.is_sound else f"{rows}; DAMAGED, as the original is; for the damage: osmosis-grpc doctor"


def _refused(problem: str) -> int:
    say_error(f"backup: {printable(problem)}; nothing was copied")
    return 2
