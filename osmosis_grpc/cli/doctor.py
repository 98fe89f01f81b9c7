"""The doctor command: reports the damage in a journal and in a ledger."""

import sqlite3
import textwrap
from pathlib import Path

from osmosis_grpc.cli.state_folder import state_folder
from osmosis_grpc.errors import LedgerError
from osmosis_grpc.serve.json_output import Records, records, say_error
from osmosis_grpc.storage import JournalError
from osmosis_grpc.storage.find_damage import Examined, Finding, examine
from osmosis_grpc.storage.journal.schema import FILE, JOURNAL
from osmosis_grpc.storage.ledger.schema import LEDGER
from osmosis_grpc.storage.sqlite.file_schema import Schema

WIDTH = 80


def examine_all(state_dir: str | None, ledger: str | None, *, json: bool) -> int:
    """Report the damage in the journal, the ledger, or both. Return the exit code."""
    wanted = [(Path(ledger), LEDGER)] if ledger is not None else []
    if state_dir is not None or ledger is None:
        wanted.insert(0, (state_folder("doctor", state_dir) / FILE, JOURNAL))
    code = 0
    with records(json) as out:
        for path, schema in wanted:
            found = _examined(path, schema)
            if found is not None:
                _report(found, out)
            code = max(code, 2 if found is None else 0 if found.is_sound else 1)
    return code


def _examined(path: Path, schema: Schema) -> Examined | None:
    try:
        return examine(path, schema)
    except FileNotFoundError:
        problem = f"there is no {schema.kind} {path}"
    except (JournalError, LedgerError) as error:
        problem = str(error)
    except (OSError, sqlite3.Error) as error:
        problem = f"the {schema.kind} {path} cannot be read: {error}"
    say_error(f"doctor: {problem}")
    return None


def _report(found: Examined, out: Records) -> None:
    for one in found.damaged:
        out.write("damaged", kind=found.kind, file=str(found.path), **one._asdict())
    out.write(
        "examined",
        kind=found.kind,
        file=str(found.path),
        structure=found.structure or None,
        sound=dict(found.sound),
        damaged=len(found.damaged),
        unreadable=found.lost,
    )
    out.say(f"{found.kind} {found.path}: {'sound' if found.is_sound else 'damaged'}")
    lines = [f"the file: {found.structure}"] if found.structure else []
    lines += [f"rows that cannot be read: {found.lost}"] if found.lost else []
    lines += [_line(one) for one in found.damaged]
    lines.append(f"sound: {', '.join(f'{count} {name}' for name, count in sorted(found.sound.items()))}")
    for line in lines:
        out.say(textwrap.fill(line, WIDTH, initial_indent="  ", subsequent_indent="      ", break_on_hyphens=False))


def _line(one: Finding) -> str:
    name = f"{one.rollout_id}" + (f" attempt {one.attempt}" if one.attempt else "")
    row = f"row {one.row} of {one.table}" if one.row else one.table
    return ": ".join(filter(None, (name, row, one.what)))
