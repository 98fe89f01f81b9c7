"""The doctor command: checks this machine, and reports the damage in a journal and in a ledger.

The checks import neither gRPC nor protobuf, because wrong versions of these are among the problems that they find. The
code that reads the files is imported after the checks.
"""

import os
import re
import shutil
import socket
import sqlite3
import ssl
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from osmosis_grpc.cli.place import sets_options, state_folder, usual_folder
from osmosis_grpc.cli.screen import wrapped
from osmosis_grpc.protocol.errors import DISTRIBUTION, LedgerError, install
from osmosis_grpc.protocol.types.outcome import printable
from osmosis_grpc.serve.json_output import Records, records, say_error
from osmosis_grpc.settings.server_options import ServerOptions
from osmosis_grpc.storage.lock_file import holder_of, is_held
from osmosis_grpc.storage.state_folders import worker_folders

if TYPE_CHECKING:
    from osmosis_grpc.settings.settings import RolloutServerSettings
    from osmosis_grpc.storage.find_damage import Examined, Finding

GIB = 1024**3
SOON = 7 * 86_400.0
"""A certificate that expires within so many seconds is a problem."""
FOR_DEVELOPMENT = ("adapters", "browser", "deploy", "dev")
"""Extras that users do not need."""
MISSING = "not installed"
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?([^;]*)(?:;.*extra == ['\"]([^'\"]+)['\"])?")
_BOUND = re.compile(r"(>=|<)\s*([0-9.]+)")
WIDTH = 80
JOURNAL = "journal.db"
Kind = Literal["journal", "ledger"]


@dataclass(frozen=True, slots=True)
class Check:
    """The result of a check."""

    name: str
    found: str
    """The result as text."""
    problem: bool = False
    fix: str = ""
    """The command that solves the problem, or "" if there is none."""


def checks(folder: Path | None) -> Iterator[Check]:
    """Yield the results of all checks. `folder` is the state folder; None if there is none to check."""
    yield from _versions()
    if folder is not None:
        yield _folder(folder)
        yield from _server(folder)
    ports = [("gRPC", ServerOptions.grpc_port), ("HTTP", ServerOptions.http_port)]
    if sets_options():
        from pydantic import ValidationError

        from osmosis_grpc.settings.settings import get_settings, problems

        try:
            server = get_settings().server
        except ValidationError as error:
            yield Check("settings", problems(error), True)
        else:
            ports = list(_ports(server))
            yield from (_certificate(path) for path in (server.tls_cert, server.trainer_cert) if path is not None)
    for what, port in ports:
        yield _port(what, port)


def _ports(server: "RolloutServerSettings") -> Iterator[tuple[str, int]]:
    """Yield the use and the number of each port in the settings. Port 0 is left out: the system chooses a free port."""
    if server.grpc_port:
        yield from (
            (f"gRPC of worker {worker}" if server.workers > 1 else "gRPC", server.grpc_port + worker)
            for worker in range(server.workers)
        )
    if server.http_port and not server.no_http:
        yield "HTTP", server.http_port
    if server.metrics_port:
        yield "metrics", server.metrics_port
    if server.view and server.view_port:
        yield "viewer", server.view_port


def _server(folder: Path) -> Iterator[Check]:
    from osmosis_grpc.storage.journal.schema import LOCK

    lock = folder / LOCK  # it has the id of the process
    if not is_held(lock):
        return
    with suppress(OSError):
        yield Check("server of the state folder", f"process {holder_of(lock).process}")


def _versions() -> Iterator[Check]:
    try:
        known = metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        yield Check(DISTRIBUTION, "not installed by pip, so the versions that it needs are unknown")
        return
    yield Check(DISTRIBUTION, known.version)
    python = ".".join(map(str, sys.version_info[:3]))
    yield _version("python", python, str(known.metadata["Requires-Python"] or ""))
    extras: dict[str, list[Check]] = {}
    for text in known.requires or ():
        read = _REQUIREMENT.match(text)
        if read is None or read[3] in FOR_DEVELOPMENT:
            continue
        check = _package(read[1], read[2].strip())
        if read[3] is None:
            yield check
        else:
            extras.setdefault(read[3], []).append(check)
    missing = {name for name, packages in extras.items() if any(each.found == MISSING for each in packages)}
    for title, names in (("installed", extras.keys() - missing), ("not installed", missing)):
        if names:
            yield Check(f"extras {title}", ", ".join(sorted(names)))
    for name in sorted(extras.keys() - missing):
        yield from (each for each in extras[name] if each.problem)


def _package(name: str, wanted: str) -> Check:
    try:
        found = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Check(name, MISSING, True, install(f"{name}{wanted}"))
    return _version(name, found, wanted, install(f"{name}{wanted}"))


def _version(name: str, version: str, wanted: str, fix: str = "") -> Check:
    if _fits(version, wanted):
        return Check(name, version)
    return Check(name, f"{version}, and {wanted} is needed", True, fix)


def _fits(found: str, wanted: str) -> bool:
    """Return whether a version is within the bounds of a requirement, such as >=6.31.1,<8."""
    version = _numbers(found)
    bounds = [(sign, _numbers(text)) for sign, text in _BOUND.findall(wanted)]
    return all(version >= bound if sign == ">=" else version < bound for sign, bound in bounds)


def _numbers(text: str) -> tuple[int, ...]:
    """Return the leading numbers of a version, without trailing zeros."""
    found = re.match(r"\d+(?:\.\d+)*", text)
    numbers = [int(part) for part in found[0].split(".")] if found else []
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def _folder(folder: Path) -> Check:
    name = f"state folder {folder}"
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir():
        return Check(name, f"{place} is not a folder", True)
    if not os.access(place, os.W_OK | os.X_OK):
        return Check(name, f"{place} cannot be written", True)
    free = f"{shutil.disk_usage(place).free / GIB:.1f} GiB free"
    return Check(name, f"writable, {free}" if place is folder else f"not there yet and can be made, {free}")


def _certificate(path: Path) -> Check:
    """Check when a certificate expires. It is a problem if that is within SOON."""
    name = f"certificate {path}"
    try:
        # ssl has no public function for this, and other Python implementations may lack the private one.
        from _ssl import _test_decode_cert  # type: ignore[attr-defined]

        end = ssl.cert_time_to_seconds(str(_test_decode_cert(str(path))["notAfter"]))
    except ImportError:
        return Check(name, "this Python cannot tell when it expires")
    except OSError as error:
        return Check(name, f"it cannot be read: {error.args[-1]}", True)
    day = time.strftime("%Y-%m-%d", time.gmtime(end))
    if end <= time.time():
        return Check(name, f"expired on {day}", True)
    return Check(name, f"valid until {day}", end < time.time() + SOON)


def _port(what: str, port: int) -> Check:
    """Check whether a server could listen on a port. A port in use is no problem: perhaps the server itself uses it."""
    name = f"port {port} ({what})"
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("127.0.0.1", port))
        except PermissionError:
            return Check(name, "not allowed for this user")
        except OSError:
            return Check(name, "in use")
    return Check(name, "free")


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
    """Report the damage in files, and return the exit code. `sound` is whether the checks have found no problem."""
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
    for piece in wrapped(line, WIDTH - 2, more=4):
        out.say(f"  {piece}")


def _line(one: "Finding") -> str:
    name = f"{one.rollout_id}" + (f" attempt {one.attempt}" if one.attempt else "")
    row = f"row {one.row} of {one.table}" if one.row else one.table
    return ": ".join(filter(None, (name, row, one.what)))
