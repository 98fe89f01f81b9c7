"""Reads the machine's description, and a process's time and memory from /proc."""

import os
import platform
from importlib import metadata
from typing import Any


def machine() -> dict[str, Any]:
    """Return the machine and the relevant versions."""
    versions = {found.name: found.version for found in metadata.distributions()}
    return {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": platform.system(),
        "processor": _processor(),
        "packages": {name: versions.get(name) for name in ("grpcio", "protobuf", "aiohttp", "uvicorn", "numpy")},
    }


def cpu_seconds(pid: int) -> float:
    """Return the processor time that a process has used, user and system."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_rss_mb(pid: int) -> float:
    """Return the peak memory of a process, in MB of 1,000,000 bytes."""
    with open(f"/proc/{pid}/status") as file:
        kibibytes = next(int(line.split()[1]) for line in file if line.startswith("VmHWM:"))
    return kibibytes * 1024 / 1e6


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()
