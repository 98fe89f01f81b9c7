"""Writes a file or a folder to the disk."""

import os
from pathlib import Path


def fsync(path: Path) -> None:
    """Make the content of a file, or the names in a folder, survive a power cut. Raises OSError."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
