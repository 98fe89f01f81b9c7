"""Sandboxes: they run the programs of a rollout apart from the server."""

from osmosis_grpc.tools.sandbox.port import (
    FileInfo,
    Isolation,
    Protection,
    RunResult,
    Sandbox,
    SandboxError,
    SandboxFileError,
    SandboxRefused,
    Snapshot,
)

__all__ = [
    "FileInfo",
    "Isolation",
    "Protection",
    "RunResult",
    "Sandbox",
    "SandboxError",
    "SandboxFileError",
    "SandboxRefused",
    "Snapshot",
]
