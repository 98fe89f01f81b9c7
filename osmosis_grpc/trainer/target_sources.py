"""The sources of a trainer's server addresses: a list, a name in DNS, a file, or a function.

A fixed list never changes. The trainer reads the other sources regularly, and uses the newest result. If a source
cannot be read, its last result stays in use.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from osmosis_grpc.network.credentials import Credentials
from osmosis_grpc.network.network import Network
from osmosis_grpc.network.target_policy import split_target
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.supervise import System

log = logging.getLogger(__name__)

FindTargets = Callable[[], Awaitable[Sequence[str]]]
"""Returns the HOST:PORT of each current agent server."""
Named = str | Path | FindTargets
"""An agent server by HOST:PORT, or a source of agent servers."""

DNS, FILE = "dns:///", "file://"
FORMS = "HOST:PORT, dns:///NAME:PORT or the path of a file"
"""The formats of an entry, for error messages."""
FILE_PERIOD = 1.0
"""A file is read again after this many seconds."""
FUNCTION_PERIOD = 2.0
"""A function is called again this many seconds after it has returned."""
FIRST_LOOK = 5.0
"""If a source takes longer than this many seconds, the trainer starts without it."""
SHORTEST_PERIOD = 1.0
"""When connections end, a source is read again, but at most once in this many seconds."""
SETTLED = 0.1
"""A changed file is used only when it has not changed for this many seconds, because it may be half-written."""
MAX_TARGETS = 4096
"""A list with more servers than this is rejected."""


@dataclass(frozen=True, slots=True)
class Target:
    """The address of an agent server."""

    address: str
    """HOST:PORT."""
    certificate_name: str = ""
    """The name in the server's certificate; empty if that is the host of `address`."""


class NoList(Exception):
    """A source cannot be read now. The message has the source and the reason."""


class WrongList(ValueError):
    """The list of a source is invalid. The message names the source and the line."""


class TargetSource:
    """One source. `look` returns its list, or raises NoList or WrongList.

    If `period` is None, the list never changes.
    """

    def __init__(self, name: str, look: Callable[[], Awaitable[list[Target]]], period: float | None = None) -> None:
        self.name = name
        """The source, as the user wrote it."""
        self.period = period
        self.targets: list[Target] | None = None
        """The newest list; None before the first one."""
        self.problem = ""
        """Why the last read returned no servers, or "" if it returned some."""
        self._look = look
        self._due = asyncio.Event()

    async def first_look(self) -> None:
        """Read the source for the first time. Raises WrongList."""
        try:
            async with asyncio.timeout(FIRST_LOOK):
                await self._take()
        except TimeoutError:
            self._failed(f"{self.name}: no answer yet")

    async def look(self) -> bool:
        """Read the source once. Return whether the list has changed. A repeated problem is logged only once."""
        try:
            return await self._take()
        except WrongList as error:
            self._failed(str(error))
            return False

    async def _take(self) -> bool:
        try:
            targets = list(dict.fromkeys(await self._look()))
        except NoList as error:
            self._failed(str(error))
            return False
        if len(targets) > MAX_TARGETS:
            raise WrongList(f"{self.name} names {len(targets)} servers; at most {MAX_TARGETS} are possible")
        if self.problem and targets:
            log.info("%s names %d servers", self.name, len(targets))
            self.problem = ""
        elif not targets:
            self._failed(f"{self.name} names no server")
        changed = self.targets is None or set(targets) != set(self.targets)
        self.targets = targets
        return changed

    def _failed(self, problem: str) -> None:
        if problem != self.problem:
            self.problem = problem
            kept = f"; its last list of {len(self.targets)} servers counts" if self.targets else ""
            log.warning("%s%s", problem, kept if "names no server" not in problem else "; rollouts wait for one")

    def hurry(self) -> None:
        """Read the source again soon, because a connection has ended."""
        self._due.set()

    async def watch(self, changed: Callable[[], None]) -> None:
        """Read the source regularly, and call `changed` after each change."""
        assert self.period is not None
        while True:
            await asyncio.sleep(min(SHORTEST_PERIOD, self.period))
            try:
                async with asyncio.timeout(max(0.0, self.period - SHORTEST_PERIOD)):
                    await self._due.wait()
            except TimeoutError:
                pass
            self._due.clear()
            if await self.look():
                changed()


def sources_of(
    servers: Named | Sequence[Named],
    credentials: Credentials,
    *,
    network: Network,
    system: System,
    resolve_every: float,
) -> list[TargetSource]:
    """Return the sources in the argument `servers` of a Trainer. Raises ValueError naming an invalid one."""
    rows = [servers] if isinstance(servers, str | Path) or callable(servers) else list(servers)
    fixed: list[Target] = []
    sources = []
    for row in rows:
        if callable(row):
            name = getattr(row, "__name__", type(row).__name__)
            sources.append(TargetSource(f"{name}()", partial(_called, row, name, credentials), FUNCTION_PERIOD))
        elif isinstance(row, str) and row.startswith(DNS):
            host, port = _split(row.removeprefix(DNS), row, FORMS)
            credentials.check_target(f"{host}:{port}")
            look = partial(_resolved, row, host, port, credentials, network)
            sources.append(TargetSource(row, look, resolve_every))
        elif (path := _path_of(row)) is not None:
            sources.append(TargetSource(str(row), partial(_read, path, credentials, system), FILE_PERIOD))
        else:
            fixed.append(_target(str(row), credentials, FORMS))
    return [TargetSource("the list", partial(_listed, fixed)), *sources] if fixed else sources


def _path_of(row: str | Path) -> Path | None:
    if isinstance(row, Path):
        return row
    if row.startswith(FILE):
        return Path(row.removeprefix(FILE))
    is_path = row.startswith(("/", "./", "../", "~/")) or (":" not in row and ("/" in row or Path(row).is_file()))
    return Path(row).expanduser() if is_path else None


def _split(text: str, whole: str, forms: str) -> tuple[str, int]:
    """Return the host and the port of HOST:PORT. Raises ValueError, which lists the `forms` that are allowed."""
    try:
        return split_target(text, "target")
    except InvalidArgument:
        file = f"; a file that does not exist yet is ./{whole}" if ":" not in whole and forms == FORMS else ""
        raise ValueError(f"target: {whole!r} is not {forms}, for example 127.0.0.1:50051{file}") from None


def _target(text: str, credentials: Credentials, forms: str = "HOST:PORT") -> Target:
    _split(text, text, forms)
    credentials.check_target(text)
    return Target(text)


async def _listed(targets: list[Target]) -> list[Target]:
    return targets


async def _called(find: FindTargets, name: str, credentials: Credentials) -> list[Target]:
    try:
        return [_target(text, credentials) for text in await find()]
    except Exception as error:
        raise NoList(f"{name}() has no list: {type(error).__name__}: {error}") from error


async def _resolved(name: str, host: str, port: int, credentials: Credentials, network: Network) -> list[Target]:
    """Return one target for each address of a name. If the name has IPv4 addresses, ignore its IPv6 addresses."""
    try:
        found = sorted(await network.resolve(host))
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise NoList(f"{name} does not resolve: {reason}") from None
    ips = [ip for ip in found if ":" not in ip] or found
    if not ips:
        raise NoList(f"{name} does not resolve: it has no address")
    return [Target(f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}", host) for ip in ips]


async def _read(path: Path, credentials: Credentials, system: System) -> list[Target]:
    """Return the targets of a file: one a line, with comments after #."""
    text = await _settled(path, system)
    targets = []
    for number, line in enumerate(text.split("\n"), 1):
        if row := line.partition("#")[0].strip():
            try:
                targets.append(_target(row, credentials))
            except ValueError as error:
                raise WrongList(f"{path}, line {number}: {str(error).removeprefix('target: ')}") from None
    return targets


async def _settled(path: Path, system: System) -> str:
    text = None
    while True:
        try:
            again = await system.run(path.read_text, "utf-8")
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise NoList(f"{path} cannot be read: {reason}") from None
        if again == text:
            return again
        text = again
        await asyncio.sleep(SETTLED)
