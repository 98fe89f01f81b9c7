"""Starts a trainer under test and reads the JSON objects that it prints."""

import asyncio
import contextlib
import json
import os
import shlex
import signal
from collections.abc import Callable, Mapping
from typing import Any

from osmosis_grpc.supervise import OnFailure, child, job
from osmosis_grpc.testing.conformance.trace import Trace

READ = job("testing.conformance.output", OnFailure.RAISE)
LACKS = 3
"""The exit code of a trainer that lacks a mode or an option."""
STOP = 2.0
"""Seconds between SIGTERM and SIGKILL."""
KEPT_ERRORS = 4000
"""So many of the last characters of stderr are in the report."""


class TrainerProcess:
    """One process of the trainer under test."""

    def __init__(self, process: asyncio.subprocess.Process, trace: Trace) -> None:
        self.lines: list[dict[str, Any]] = []
        """The objects that came, in order."""
        self.errors = ""
        """The end of stderr."""
        self._process = process
        self._trace = trace
        self._news = asyncio.Condition()
        self._tasks = [child(READ, self._read_lines()), child(READ, self._read_errors())]

    @classmethod
    async def start(cls, command: str, options: Mapping[str, Any], trace: Trace) -> "TrainerProcess":
        """Start a command with options. Raises OSError if it cannot be started."""
        arguments = [*shlex.split(command)]
        for name, value in options.items():
            arguments += [f"--{name}", str(value)]
        trace.add("->", "start", " ".join(arguments))
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *arguments, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True, limit=64 * 1024 * 1024
        )
        return cls(process, trace)

    @property
    def exit_code(self) -> int | None:
        """The exit code; None while the process runs."""
        return self._process.returncode

    async def until(self, condition: Callable[[], Any]) -> None:
        """Wait until a condition holds. It is checked after each line, and at the end of the output."""
        async with self._news:
            await self._news.wait_for(condition)

    async def leave(self) -> None:
        """End the standard input: the trainer leaves when its rollouts have ended."""
        assert self._process.stdin is not None
        self._trace.add("->", "the end of stdin")
        self._process.stdin.close()

    async def ended(self) -> int:
        """Wait for the end of the process and return its exit code."""
        return await self._process.wait()

    async def stop(self) -> None:
        """Stop the process and its children, with SIGTERM and then with SIGKILL."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, number)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(STOP):
                        await self._process.wait()
        for task in self._tasks:
            task.cancel()

    async def _read_lines(self) -> None:
        assert self._process.stdout is not None
        async for raw in self._process.stdout:
            with contextlib.suppress(ValueError):
                found = json.loads(raw)
                if isinstance(found, dict) and "event" in found:
                    self._trace.add("<-", "printed", found)
                    async with self._news:
                        self.lines.append(found)
                        self._news.notify_all()
        await self._process.wait()
        async with self._news:
            self._news.notify_all()

    async def _read_errors(self) -> None:
        assert self._process.stderr is not None
        while data := await self._process.stderr.read(65536):
            self.errors = (self.errors + data.decode(errors="replace"))[-KEPT_ERRORS:]
