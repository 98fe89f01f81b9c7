"""Reads the machine's description."""

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


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()
