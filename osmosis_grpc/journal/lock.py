"""One process for a folder."""

import fcntl
import os
from pathlib import Path

from osmosis_grpc.journal.schema import JournalError


class Lock:
    """Held from its making to close(), or to the process's end, however that comes."""

    def __init__(self, folder: Path) -> None:
        path = folder / "lock"
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(self._file, 32).decode(errors="replace").strip() or "unknown"
            os.close(self._file)
            raise JournalError(f"{folder} is in use by process {holder}: stop it, or choose another folder") from None
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, str(os.getpid()).encode(), 0)

    def close(self) -> None:
        """Let others in."""
        os.close(self._file)
