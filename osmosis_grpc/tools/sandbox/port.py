"""The protocol Sandbox, through which tools run programs and use files.

`LocalSandbox` runs programs on this machine. Other implementations run them in a container or a pod.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, Self

from osmosis_grpc.protocol.errors import ToolExecutionError, ToolUnavailable

SECONDS = 30.0
"""The default time limit of a program."""
OUTPUT_BYTES = 64 * 1024
"""The default limit of standard output, and of standard error."""
FILE_BYTES = 1024 * 1024
"""The default limit of a file that is read or written."""
LISTED = 10_000
"""At most this many files and folders are listed."""


class Protection(StrEnum):
    """One kind of separation between the programs of a sandbox and the machine."""

    USER = "user"
    """Programs run as a user that has no privileges, owns nothing outside, and belongs to this sandbox alone."""
    NETWORK = "network"
    """Programs have no network. They cannot connect to a server on this machine either."""
    PROCESSES = "processes"
    """Programs cannot see or signal a process outside."""
    FILES = "files"
    """Programs see the system's programs and libraries, which they cannot change, and the sandbox's own folders."""
    LIMITS = "limits"
    """CPU time, memory of a process, size of a file, open files and the number of processes are limited."""


@dataclass(frozen=True, slots=True)
class Isolation:
    """The isolation that is in force in a sandbox."""

    method: str
    """The method, such as "bubblewrap" or "kubernetes"."""
    protections: frozenset[Protection]
    reason: str = ""
    """Why a protection is missing."""

    def __str__(self) -> str:
        missing = sorted(set(Protection) - self.protections)
        text = f"{self.method}: {', '.join(sorted(self.protections)) or 'none'}"
        reason = f" ({self.reason})" if self.reason else ""
        return f"{text}; not in force: {', '.join(missing)}{reason}" if missing else text

    def require(self, required: Collection[Protection], *, named: bool = False) -> None:
        """Check the isolation.

        Args:
            required: The protections that must be in force.
            named: Whether the caller has chosen the method, for the advice in the error.

        Raises:
            SandboxRefused: A required protection is not in force.
        """
        missing = frozenset(required) - self.protections
        if missing:
            raise SandboxRefused(self, missing, named=named)


def protections_of(names: Collection[Protection | str]) -> frozenset[Protection]:
    """Return the protections with these names, the option `require` of a sandbox. Raises ValueError."""
    if isinstance(names, str):
        raise ValueError(f"require: {names!r} is a text; give a list, such as {[names]!r}")
    known = [each.value for each in Protection]
    for each in names:
        if each not in known:
            raise ValueError(f"require: {each!r} is not one of {', '.join(known)}")
    return frozenset(Protection(each) for each in names)


class SandboxError(ToolExecutionError):
    """An operation of a sandbox failed. The text names the path or the option."""


class SandboxRefused(SandboxError):
    """A sandbox does not start, because a required protection cannot be in force."""

    def __init__(self, isolation: Isolation, missing: frozenset[Protection], *, named: bool = False) -> None:
        self.isolation = isolation
        self.missing = missing
        names = ", ".join(sorted(missing))
        what, advice = "this machine", "see docs/sandbox.md"
        if named:
            what = f'method="{isolation.method}"'
            advice = "leave out `method` to get the best one of this machine"
        super().__init__(f"require: {what} cannot give {names} ({isolation}); {advice}, or require less")


class SandboxFileError(SandboxError):
    """A file of a sandbox cannot be read or written. The text names its path."""


class SandboxLost(SandboxError, ToolUnavailable):
    """The machine of a sandbox failed: it is gone, cannot be reached, or has no resources left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The end of a program."""

    exit_code: int
    """As in a shell: 127 if there is no such program, 128 plus the number of the signal that has ended it."""
    stdout: bytes
    """The newest output, up to the limit."""
    stderr: bytes
    stdout_truncated: bool = False
    """Whether older output was dropped."""
    stderr_truncated: bool = False
    timed_out: bool = False
    """Whether the time limit ended the program. Then the exit code is 137."""
    disk_full: bool = False
    """Whether the limit of the sandbox's folder ended the program. Then the exit code is 137."""
    seconds: float = 0.0
    """How long the program ran."""


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file or folder of a sandbox."""

    path: str
    """Relative to the working folder, with slashes."""
    is_folder: bool
    bytes: int = 0


class Sandbox(Protocol):
    """Runs programs in a private working folder, and reads and writes its files. Use it with `async with`.

    A path is relative to the working folder, or absolute below `folder`. Any other path, or one that contains a
    symbolic link, raises SandboxFileError. After the `async with`, no process and no file of the sandbox is left.
    """

    @property
    def isolation(self) -> Isolation:
        """The isolation in force. Known within the `async with`."""

    @property
    def folder(self) -> str:
        """The working folder as its programs see it."""

    @property
    def python(self) -> str:
        """The Python interpreter for programs. Raises SandboxError if there is none."""

    async def __aenter__(self) -> Self:
        """Start the sandbox. Raises SandboxRefused, and SandboxError if it cannot be started."""

    async def __aexit__(self, *exc: object) -> None: ...

    async def close(self) -> None:
        """End every program and remove the folder. Does nothing the second time."""

    async def run(
        self,
        command: str | Sequence[str],
        *,
        stdin: bytes = b"",
        seconds: float = SECONDS,
        environment: Mapping[str, str] | None = None,
        cwd: str = ".",
        output_bytes: int = OUTPUT_BYTES,
    ) -> RunResult:
        """Run a program to its end. No process of it is left afterwards, even if the caller is cancelled.

        Several programs can run at once, with the same folder and limits. When one ends, the others continue. A program
        waits for a snapshot that is being made.

        Args:
            command: The words of a command, or a text that runs in a shell.
            stdin: Its standard input.
            seconds: The program is killed after this time.
            environment: Added to the sandbox's own variables.
            cwd: The folder in which it runs.
            output_bytes: Only this many bytes at the end of standard output, and of standard error, are kept.

        Raises:
            SandboxLost: No program can be started.
            SandboxFileError: `cwd` is not a folder of the sandbox.
        """

    async def read_file(self, path: str, *, most_bytes: int = FILE_BYTES) -> bytes:
        """Return the content of a file.

        Args:
            path: The file.
            most_bytes: The most bytes that it may have.

        Raises:
            SandboxFileError: It cannot be read, or has more bytes.
        """

    async def write_file(self, path: str, data: bytes, *, most_bytes: int = FILE_BYTES) -> None:
        """Write a file as a whole, and make its folders. A reader sees the old or the new content.

        Args:
            path: The file. The permissions of an old file stay.
            data: The content.
            most_bytes: The most bytes that it may have.

        Raises:
            SandboxFileError: It cannot be written, or has more bytes.
        """

    async def remove_file(self, path: str) -> None:
        """Remove a file. Raises SandboxFileError, for example if there is no such file."""

    async def list_files(self, path: str = ".", *, depth: int = 1) -> list[FileInfo]:
        """Return the files and folders of a folder, without links, sorted by path. At most LISTED are returned.

        Args:
            path: The folder. For a file, the file itself is returned.
            depth: The levels of folders; 2 includes the content of its folders.

        Raises:
            SandboxFileError: There is no such folder.
        """

    async def snapshot(self) -> "Snapshot":
        """Copy the working folder. Raises SandboxError while a program runs, and if the folder is too large.

        Programs, writes and removals that start during the copy wait for it.
        """


class Snapshot(Protocol):
    """A copy of a sandbox's working folder. Used as `async with`, which removes it at the end."""

    @property
    def bytes(self) -> int:
        """The bytes of the copy."""

    def fork(self) -> Sandbox:
        """Return a new sandbox, not started, whose working folder begins as this copy."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc: object) -> None: ...

    async def close(self) -> None:
        """Remove the copy. Does nothing the second time."""


def check_program(argv: Sequence[str], environment: Mapping[str, str]) -> None:
    """Raise SandboxError if no machine can run a program with these words and variables."""
    if not argv or any("\0" in text for text in [*argv, *environment, *environment.values()]):
        raise SandboxError("command, environment: it is empty, or has a null character")
    if any(not name or "=" in name for name in environment):
        raise SandboxError("environment: the name of a variable is empty, or has =")


def check_sandbox(given: Any, tool: str) -> None:
    """Raise ValueError, which names the tool, if `given` is not a sandbox."""
    if isinstance(given, type) or not callable(getattr(given, "run", None)):
        raise ValueError(f"sandbox: the tool {tool} needs one, for example LocalSandbox(); {given!r:.60} is none")
