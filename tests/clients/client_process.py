"""A client as a process, with the command line and the output of a trainer under test (docs/conformance.md)."""

import asyncio
import json
from typing import Any

from tests.clients.builds import CLIENTS

SCRIPT = CLIENTS / "calculator.json"
SCRIPTED: dict[str, Any] = json.loads(SCRIPT.read_text())
"""The rollouts of the script by id."""


class ClientProcess:
    """Used as `async with ClientProcess(command, "--mode", "attach", ...) as client`."""

    def __init__(self, command: list[str], *arguments: str) -> None:
        self.lines: list[dict[str, Any]] = []
        """The JSON objects that it has printed."""
        self._command = [*command, *arguments]
        self._process: asyncio.subprocess.Process
        self._reading: asyncio.Task[None]

    async def __aenter__(self) -> "ClientProcess":
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(*self._command, stdin=pipe, stdout=pipe, stderr=pipe)
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        self._reading.cancel()

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            self.lines.append(json.loads(line))

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Returns the objects of one kind."""
        return [line for line in self.lines if line["event"] == kind]

    async def leave(self) -> int:
        """Ends the input, and waits until the client has left. Returns its exit code, and raises if it wrote errors."""
        assert self._process.stdin is not None
        assert self._process.stderr is not None
        self._process.stdin.close()
        async with asyncio.timeout(60):
            code = await self._process.wait()
            await self._reading
        errors = await self._process.stderr.read()
        assert not errors, errors.decode()
        return code
