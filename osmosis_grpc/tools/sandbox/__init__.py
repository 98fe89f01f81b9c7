"""Sandboxes, which run the programs of a rollout isolated from the server."""

from osmosis_grpc.tools.sandbox.folder_archive import read_note
from osmosis_grpc.tools.sandbox.limits import SandboxLimits
from osmosis_grpc.tools.sandbox.local import LocalSandbox, LocalSnapshot
from osmosis_grpc.tools.sandbox.port import (
    FileInfo,
    Isolation,
    Protection,
    RunResult,
    Sandbox,
    SandboxError,
    SandboxFileError,
    SandboxLost,
    SandboxRefused,
    Snapshot,
)

__all__ = [
    "FileInfo",
    "Isolation",
    "LocalSandbox",
    "LocalSnapshot",
    "Protection",
    "RunResult",
    "Sandbox",
    "SandboxError",
    "SandboxFileError",
    "SandboxLimits",
    "SandboxLost",
    "SandboxRefused",
    "Snapshot",
    "read_note",
]
