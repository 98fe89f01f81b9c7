"""Checks this machine for doctor: versions, extras, the state folder, certificates and ports.

It imports neither gRPC nor protobuf, because a wrong version of them is one of the problems that it finds.
"""

import os
import re
import shutil
import socket
import ssl
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from osmosis_grpc.cli.source import sets_options
from osmosis_grpc.protocol.errors import DISTRIBUTION, install
from osmosis_grpc.settings.server_options import ServerOptions
from osmosis_grpc.storage.lock_file import holder_of, is_held

if TYPE_CHECKING:
    from osmosis_grpc.settings.settings import RolloutServerSettings

GIB = 1024**3
SOON = 7 * 86_400.0
"""A certificate that expires within so many seconds is a problem."""
FOR_DEVELOPMENT = ("adapters", "dev")
"""Extras that users do not need."""
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?([^;]*)(?:;.*extra == ['\"]([^'\"]+)['\"])?")
_BOUND = re.compile(r"(>=|<)\s*([0-9.]+)")


@dataclass(frozen=True, slots=True)
class Check:
    """The result of a check."""

    name: str
    found: str
    """For people."""
    problem: bool = False
    fix: str = ""
    """The command that ends the problem; empty if there is none."""


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
    """Yield what each port of the settings is for, and the port. Port 0 is a free one, so there is nothing to check."""
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
    for name, packages in sorted(extras.items()):
        yield from _extra(name, packages)


def _package(name: str, wanted: str) -> Check:
    try:
        found = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Check(name, "not installed", True, install(f"{name}{wanted}"))
    return _version(name, found, wanted, install(f"{name}{wanted}"))


def _version(name: str, version: str, wanted: str, fix: str = "") -> Check:
    if _fits(version, wanted):
        return Check(name, version)
    return Check(name, f"{version}, and {wanted} is needed", True, fix)


def _extra(name: str, packages: list[Check]) -> Iterator[Check]:
    """Yield the state of an extra, and then its packages with wrong versions. A missing extra is no problem."""
    missing = [each.name for each in packages if each.found == "not installed"]
    if missing:
        yield Check(f"extra {name}", f"not installed, it needs {', '.join(missing)}")
        return
    yield Check(f"extra {name}", "installed")
    yield from (each for each in packages if each.problem)


def _fits(found: str, wanted: str) -> bool:
    """Return whether a version is within the bounds of a requirement, such as >=6.31.1,<8."""
    version = _numbers(found)
    bounds = [(sign, _numbers(text)) for sign, text in _BOUND.findall(wanted)]
    return all(version >= bound if sign == ">=" else version < bound for sign, bound in bounds)


def _numbers(text: str) -> tuple[int, ...]:
    """Return the numbers at the beginning of a version, without zeros at their end."""
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
    """Return when a certificate of the settings expires. It is a problem if that is soon."""
    name = f"certificate {path}"
    try:
        # ssl has no public name for it, and another interpreter may not have it.
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
    """Return whether a server can listen on a port. A used port is no problem: perhaps the server uses it."""
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
