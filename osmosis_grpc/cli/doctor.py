"""The doctor command: reports the damage in a journal and in a ledger."""

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from osmosis_grpc.cli.state import state_folder

if TYPE_CHECKING:
    from osmosis_grpc.serve.records import Records
    from osmosis_grpc.storage.examine import Examined, Finding
    from osmosis_grpc.storage.sqlite.file_schema import Schema

WIDTH = 80


def doctor(
    state_dir: Annotated[
        str | None,
        typer.Option("--state-dir", metavar="DIR", help="A server's state folder. Default: ./.osmosis/state"),
    ] = None,
    ledger: Annotated[str | None, typer.Option("--ledger", metavar="FILE", help="A trainer's ledger.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Only JSON records on stdout.")] = False,
) -> None:
    """Report the damage in a journal or a ledger: the rollouts, the rows, and what is wrong with them.

    It changes nothing, and a server or trainer may be using the file. With --ledger alone it examines no journal.

    Exit codes: 0 no damage, 1 damage, 2 a file cannot be read.
    """
    from osmosis_grpc.serve.records import records
    from osmosis_grpc.storage.journal.schema import FILE, JOURNAL
    from osmosis_grpc.storage.ledger.schema import LEDGER

    wanted = []
    if state_dir is not None or ledger is None:
        try:
            wanted.append((state_folder(state_dir) / FILE, JOURNAL))
        except ValueError as error:
            _say(f"doctor: {error}", err=True)
            raise typer.Exit(2) from None
    if ledger is not None:
        wanted.append((Path(ledger), LEDGER))
    code = 0
    with records(json) as out:
        for path, schema in wanted:
            found = _examined(path, schema)
            if found is not None:
                _report(found, out, text=not json)
            code = max(code, 2 if found is None else 0 if found.is_sound else 1)
    raise typer.Exit(code)


def _examined(path: Path, schema: "Schema") -> "Examined | None":
    import sqlite3

    from osmosis_grpc.errors import LedgerError
    from osmosis_grpc.storage import JournalError
    from osmosis_grpc.storage.examine import examine

    try:
        return examine(path, schema)
    except FileNotFoundError:
        _say(f"doctor: there is no {schema.kind} {path}", err=True)
    except (JournalError, LedgerError) as error:
        _say(f"doctor: {error}", err=True)
    except (OSError, sqlite3.Error) as error:
        _say(f"doctor: the {schema.kind} {path} cannot be read: {error}", err=True)
    return None


def _report(found: "Examined", out: "Records", *, text: bool) -> None:
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
    if not text:
        return
    _say(f"{found.kind} {found.path}: {'sound' if found.is_sound else 'damaged'}")
    if found.structure:
        _wrapped(f"the file: {found.structure}")
    if found.lost:
        _wrapped(f"rows that cannot be read: {found.lost}")
    for one in found.damaged:
        _wrapped(_line(one))
    _wrapped(f"sound: {', '.join(f'{count} {name}' for name, count in sorted(found.sound.items()))}")


def _line(one: "Finding") -> str:
    name = f"{one.rollout_id}" + (f" attempt {one.attempt}" if one.attempt else "")
    row = f"row {one.row} of {one.table}" if one.row else one.table
    return ": ".join(filter(None, (name, row, one.what)))


def _wrapped(line: str) -> None:
    _say(textwrap.fill(line, WIDTH, initial_indent="  ", subsequent_indent="      ", break_on_hyphens=False))


def _say(line: str, *, err: bool = False) -> None:
    typer.echo(line.encode("utf-8", "replace").decode(), err=err)
