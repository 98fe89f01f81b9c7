"""One rollout of the coding agent: its repository, its phases, the files that it changes, its tests and its patch."""

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from osmosis_grpc.agent.context import RolloutContext
from osmosis_grpc.agentic.episode import Episode, Report, RunCalls
from osmosis_grpc.agentic.reading import Call, Unreadable
from osmosis_grpc.agentic.snapshots import Snapshots
from osmosis_grpc.agentic.tool_calls import ToolResult
from osmosis_grpc.errors import InvalidArgument
from osmosis_grpc.supervise import SYSTEM
from osmosis_grpc.tools.file_editor.text_edits import lines_of
from osmosis_grpc.tools.sandbox import Sandbox, SandboxError
from osmosis_grpc.types import Message

PHASE = "phase"
"""The event of a new phase: explore, edit or test."""
MOST_FILES = 5_000
MOST_BYTES = 64 * 1024 * 1024
"""The largest repository."""
TEST_SECONDS = 300.0
LEFT_OUT = frozenset({".git", "__pycache__", ".pytest_cache", "node_modules", ".venv"})
"""Folders that are not copied, and not in the patch."""
_PHASES = {"file_editor": "edit", "search": "explore", "bash_executor": "test", "python_executor": "test"}


class CodingEpisode(Episode):
    """Puts the files into the sandbox, notes the phases, and runs the tests at the end.

    `repository` is a folder of the server. The request's metadata can have `files`, path to text, and `test_command`,
    which replaces the agent's.
    """

    def __init__(
        self,
        context: RolloutContext,
        sandbox: Sandbox,
        repository: Path | None,
        test_command: str,
        snapshots: Snapshots | None,
    ) -> None:
        self._context, self._sandbox, self._repository = context, sandbox, repository
        self._snapshots = snapshots
        metadata = context.request.metadata
        self._test_command = str(metadata.get("test_command") or test_command)
        self._given: Any = metadata.get("files") or {}
        self._before: dict[str, bytes] = {}
        self._phases: list[str] = []
        self._touched: dict[str, None] = {}

    async def begin(self) -> None:
        """Copy the files into the sandbox. Raises InvalidArgument for files that cannot be copied."""
        if self._repository is not None:
            self._before = await SYSTEM.run(read_folder, self._repository)
        if not isinstance(self._given, Mapping) or not all(isinstance(text, str) for text in self._given.values()):
            raise InvalidArgument("metadata.files", "is not an object of paths and texts")
        self._before |= {str(path): text.encode("utf-8", "surrogatepass") for path, text in self._given.items()}
        for path, data in self._before.items():
            await self._sandbox.write_file(path, data, most_bytes=MOST_BYTES)
        if self._snapshots is not None:
            await self._snapshots.begin()

    async def asking(self, number: int) -> None:
        """Save the sandbox."""
        if self._snapshots is not None:
            await self._snapshots.asking(number)

    async def act(self, number: int, reply: Message, calls: Sequence[Any], run: RunCalls) -> list[ToolResult]:
        """Run the calls, unless the rollout runs again and their results are saved."""
        if self._snapshots is None:
            return await run()
        return await self._snapshots.act(number, reply, calls, run)

    def acted(self, calls: Sequence[Call | Unreadable], results: Sequence[ToolResult]) -> None:
        """Note the phase of each call, and the files that it changed."""
        for call, result in zip(calls, results, strict=True):
            arguments = call.arguments if isinstance(call, Call) else {}
            phase = "explore" if arguments.get("command") == "view" else _PHASES.get(call.name)
            if phase and (not self._phases or self._phases[-1] != phase):
                self._phases.append(phase)
                self._context.log_event(PHASE, phase=phase, sample="main")
            if call.name == "file_editor" and phase == "edit" and not result.error:
                self._touched[str(arguments.get("path"))] = None

    async def end(self) -> Report:
        """Run the tests, and return the patch, the phases, the files, and the reward of the tests."""
        if self._snapshots is not None:
            await self._snapshots.catch_up()
        report: dict[str, Any] = {"phases": self._phases, "files_touched": list(self._touched)}
        report["patch"] = await self._patch()
        if not self._test_command:
            return Report(extra_fields=report)
        tests = await self._sandbox.run(self._test_command, seconds=TEST_SECONDS)
        report["tests"] = {
            "command": self._test_command,
            "exit_code": tests.exit_code,
            "timed_out": tests.timed_out,
            "output": (tests.stdout + tests.stderr).decode("utf-8", "replace")[-4000:],
        }
        return Report(1.0 if tests.exit_code == 0 else 0.0, report)

    async def _patch(self) -> str:
        """Return the changes of all text files as a unified diff."""
        after: dict[str, bytes] = {}
        for found in await self._sandbox.list_files(depth=32):
            if not found.is_folder and LEFT_OUT.isdisjoint(found.path.split("/")) and found.bytes <= MOST_BYTES:
                try:
                    after[found.path] = await self._sandbox.read_file(found.path, most_bytes=MOST_BYTES)
                except SandboxError:  # a file that the agent has made unreadable is not in the patch
                    continue
        return await SYSTEM.run(patch_of, self._before, after)


def patch_of(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> str:
    """Return the unified diff between two folders, path to content. Binary files are left out."""
    lines: list[str] = []
    for path in sorted({*before, *after}):
        if before.get(path) == after.get(path) or b"\0" in before.get(path, b"") + after.get(path, b""):
            continue
        old, new = (lines_of(side.get(path, b"").decode("utf-8", "replace")) for side in (before, after))
        names = (f"a/{path}" if path in before else "/dev/null", f"b/{path}" if path in after else "/dev/null")
        for line in difflib.unified_diff(old, new, *names):
            lines.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(lines)


def read_folder(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder, path to content. Links are left out. Raises InvalidArgument for a large folder."""
    found: dict[str, bytes] = {}
    total = 0
    for path in sorted(folder.rglob("*")):
        inner = path.relative_to(folder)
        if path.is_symlink() or not path.is_file() or not LEFT_OUT.isdisjoint(inner.parts):
            continue
        total += path.stat().st_size
        if len(found) >= MOST_FILES or total > MOST_BYTES:
            raise InvalidArgument("repository", f"{folder} has more than {MOST_FILES} files or {MOST_BYTES} bytes")
        found[inner.as_posix()] = path.read_bytes()
    return found
