"""The doctor command: checks this machine, and reports the damage in a journal and in a ledger.

It imports what reads the files only after its checks, because the import fails if protobuf is too old.
"""

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from osmosis_grpc.cli.machine_checks import Check, checks
from osmosis_grpc.cli.screen import wrapped
from osmosis_grpc.cli.usual_folder import state_folder, usual_folder
from osmosis_grpc.protocol.errors import LedgerError
from osmosis_grpc.protocol.types.outcome import printable
from osmosis_grpc.serve.json_output import Records, records, say_error
from osmosis_grpc.storage.state_folders import worker_folders

if TYPE_CHECKING:
    from osmosis_grpc.storage.find_damage import Examined, Finding

WIDTH = 80
JOURNAL = "journal.db"
Kind = Literal["journal", "ledger"]


def examine_all(state_dir: str | None, ledger: str | None, *, json: bool) -> int:
    """Check this machine, and examine the journal, the ledger, or both. Return the exit code."""
    folder: Path | None = None
    if state_dir is not None:
        folder = state_folder("doctor", state_dir)
    elif ledger is None:
        folder = usual_folder("doctor")
    wanted: list[tuple[Path, Kind]] = [(Path(ledger), "ledger")] if ledger is not None else []
    if folder is not None and (state_dir is not None or (folder / JOURNAL).exists()):
        others = [other / JOURNAL for other in worker_folders(folder).values()]
        wanted[:0] = [(folder / JOURNAL, "journal"), *((path, "journal") for path in others if path.exists())]
    with records(json) as out:
        found = list(checks(folder))
        _say_checks(found, out)
        code = int(any(check.problem for check in found))
        return max(code, _examine_files(wanted, out, sound=not code))


def _say_checks(found: Sequence[Check], out: Records) -> None:
    out.say("this machine")
    for check in found:
        out.write("checked", name=check.name, found=check.found, problem=check.problem, fix=check.fix or None)
        _say(f"{'PROBLEM: ' if check.problem else ''}{check.name}: {check.found}", out)
        if check.fix:
            out.say(f"      {printable(check.fix)}")


def _examine_files(wanted: Sequence[tuple[Path, Kind]], out: Records, *, sound: bool) -> int:
    """Report the damage in files, and return the exit code. `sound` says that the checks have found no problem."""
    if not wanted:
        return 0
    try:
        import osmosis_grpc.storage.find_damage  # noqa: F401
    except Exception as error:
        if sound:
            raise
        say_error(f"doctor: no file is examined, because the packages cannot be imported: {printable(str(error))}")
        return 2
    code = 0
    for path, kind in wanted:
        found = _examined(path, kind)
        if found is not None:
            _report(found, out)
        code = max(code, 2 if found is None else 0 if found.is_sound else 1)
    return code


def _examined(path: Path, kind: Kind) -> "Examined | None":
    from osmosis_grpc.storage import JournalError
    from osmosis_grpc.storage.find_damage import examine
    from osmosis_grpc.storage.journal import schema as journal
    from osmosis_grpc.storage.ledger.rows import LEDGER

    try:
        return examine(path, journal.JOURNAL if kind == "journal" else LEDGER)
    except FileNotFoundError:
        problem = f"there is no {kind} {path}"
    except (JournalError, LedgerError) as error:
        problem = str(error)
    except (OSError, sqlite3.Error) as error:
        problem = f"the {kind} {path} cannot be read: {error}"
    say_error(f"doctor: {problem}")
    return None


def _report(found: "Examined", out: Records) -> None:
    for one in found.damaged:
        out.write("damaged", kind=found.kind, file=str(found.path), **one._asdict())
    out.write(
        "examined",
        kind=found.kind,
        file=str(found.path),
        structure=found.structure or None,
        sound=dict(found.sound),
        damaged=len(found.damaged),
    )
    out.say(f"{found.kind} {found.path}: {'sound' if found.is_sound else 'damaged'}")
    lines = [f"the file: {found.structure}"] if found.structure else []
    lines += [_line(one) for one in found.damaged]
    lines.append(f"sound: {', '.join(f'{count} {name}' for name, count in sorted(found.sound.items()))}")
    for line in lines:
        _say(line, out)


def _say(line: str, out: Records) -> None:
    """Print a line of a section."""
    for piece in wrapped(line, WIDTH - 2, more=4):
        out.say(f"  {piece}")


def _line(one: "Finding") -> str:
    name = f"{one.rollout_id}" + (f" attempt {one.attempt}" if one.attempt else "")
    row = f"row {one.row} of {one.table}" if one.row else one.table
    return ": ".join(filter(None, (name, row, one.what)))
