"""The limits of the programs of a local sandbox, and the shell script that sets them before a program starts."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

from osmosis_grpc.tools.sandbox.port import SandboxError

MB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    """What a program may use. Each value is a positive integer."""

    cpu_seconds: int = 120
    """CPU time of each process."""
    memory: int = 4096 * MB
    """Bytes of address space of each process. Programs such as node reserve more than they use."""
    file_bytes: int = 512 * MB
    """Bytes of a file that a program writes."""
    open_files: int = 512
    """Open files of each process."""
    processes: int = 128
    """Processes and threads of all programs together."""
    folder_bytes: int = 1024 * MB
    """Bytes of all files of the sandbox. A program that exceeds it is killed within about a second."""
    folder_files: int = 100_000
    """Files and folders of the sandbox. A program that exceeds it is killed within about a second."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{field.name}: {value!r} is not a positive integer")

    def check_folder(self, files: int, size: int) -> None:
        """Check the size of a folder.

        Args:
            files: The number of its files and folders.
            size: The bytes of its files.

        Raises:
            SandboxError: It is larger than the limits.
        """
        if files > self.folder_files or size > self.folder_bytes:
            limits = f"folder_bytes={self.folder_bytes} or folder_files={self.folder_files}"
            raise SandboxError(f"the working folder is larger than {limits}")


_SET = """
folder=$1; processes=$2; shift 2
cd -P -- "$folder" || exit 126
ulimit -c 0 && ulimit -t {cpu_seconds} && ulimit -v {kilobytes} || exit 126
ulimit -f {blocks} && ulimit -n {open_files} || exit 126
[ "$processes" = 0 ] || ulimit -u "$processes" 2>/dev/null || ulimit -p "$processes" || exit 126
unset folder processes
exec "$@"
"""
"""The option for the number of processes is -u in bash and -p in dash. Blocks have 512 bytes."""


def limited(limits: SandboxLimits, folder: str, argv: Sequence[str], *, count_processes: bool) -> list[str]:
    """Return the command that sets the limits, changes to a folder, and becomes the program.

    `count_processes` is false if other programs of the machine count for the same limit of processes.
    """
    script = _SET.format(
        cpu_seconds=limits.cpu_seconds,
        kilobytes=max(1, limits.memory // 1024),
        blocks=max(1, limits.file_bytes // 512),
        open_files=limits.open_files,
    )
    processes = limits.processes if count_processes else 0
    return ["/bin/sh", "-c", script, "sh", folder, str(processes), *argv]
