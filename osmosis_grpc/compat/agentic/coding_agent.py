"""The coding agent: explores a repository in a sandbox, edits it, and runs its tests."""

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from osmosis_grpc.agent.context import RolloutContext
from osmosis_grpc.compat.agentic.built_in_agent import BuiltInAgent
from osmosis_grpc.compat.agentic.config import check
from osmosis_grpc.compat.agentic.episode import Episode, Report, RunCalls
from osmosis_grpc.compat.agentic.reply_formats import FORMATS, Call, Unreadable
from osmosis_grpc.compat.agentic.snapshots import Snapshots
from osmosis_grpc.compat.agentic.tools import ToolResult
from osmosis_grpc.protocol.errors import GradingError, InvalidArgument
from osmosis_grpc.protocol.types import Message
from osmosis_grpc.protocol.types.outcome import clip
from osmosis_grpc.supervise import SYSTEM
from osmosis_grpc.tools.file_editor import lines_of
from osmosis_grpc.tools.sandbox import RunResult, Sandbox, SandboxFileError
from osmosis_grpc.tools.sandbox.port import LISTED

PHASE = "phase"
"""The event of a new phase: explore, edit or test."""
MOST_FILES = 5_000
MOST_BYTES = 64 * 1024 * 1024
"""A repository has at most MOST_FILES files and this many bytes."""
TEST_SECONDS = 300.0
DEPTH = 32
"""The patch covers this many levels of folders."""
_MODULE = re.compile(r"(?:^|\s)-m\s+([\w.]+)")
LEFT_OUT = frozenset({".git", "__pycache__", ".pytest_cache", "node_modules", ".venv"})
"""Names of files and folders that are neither copied nor in the patch."""
_PHASES = {"file_editor": "edit", "search": "explore", "bash_executor": "test", "python_executor": "test"}
PROMPT = """\
You work on a repository in the current folder. First explore it: view and search its files. Then edit the files, and
run the tests with bash_executor. When the tests pass, call finish with a short description of the change."""
TOOLS: Mapping[str, Mapping[str, Any]] = {"bash_executor": {}, "file_editor": {}, "search": {}, "finish": {}}


class CodingEpisode(Episode):
    """Copies the files into the sandbox, logs the phases, and runs the tests at the end.

    `repository` is a folder on the server. The request's metadata can add `files`, a dict of paths to texts, and can
    replace the agent's command with `test_command`.
    """

    def __init__(
        self,
        context: RolloutContext,
        sandbox: Sandbox,
        repository: Path | None,
        test_command: str,
        snapshots: Snapshots,
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
        await self._snapshots.begin()

    async def asking(self, number: int) -> None:
        """Save a snapshot of the sandbox."""
        await self._snapshots.asking(number)

    async def act(self, number: int, reply: Message, calls: Sequence[Any], run: RunCalls) -> list[ToolResult]:
        """Run the calls, or return their saved results if this rollout runs again."""
        return await self._snapshots.act(number, reply, calls, run)

    def acted(self, calls: Sequence[Call | Unreadable], results: Sequence[ToolResult]) -> None:
        """Record the phase of each call, and the files that it edits."""
        for call, result in zip(calls, results, strict=True):
            arguments = call.arguments if isinstance(call, Call) else {}
            phase = "explore" if arguments.get("command") == "view" else _PHASES.get(call.name)
            if phase and (not self._phases or self._phases[-1] != phase):
                self._phases.append(phase)
                self._context.log_event(PHASE, phase=phase, sample="main")
            if call.name == "file_editor" and phase == "edit" and not result.error:
                self._touched[str(arguments.get("path"))] = None

    async def end(self) -> Report:
        """Make the patch, run the tests, and report both with the phases, the edited files and the reward."""
        await self._snapshots.catch_up()
        report: dict[str, Any] = {"phases": self._phases, "files_touched": list(self._touched)}
        report["patch"], left_out = await self._patch()
        if left_out:
            report["patch_left_out"] = left_out
        if not self._test_command:
            return Report(extra_fields=report)
        tests = await self._sandbox.run(self._test_command, seconds=TEST_SECONDS)
        problem = not_run(self._test_command, tests)
        if problem:
            raise GradingError(f"test_command: {problem}")
        report["tests"] = {
            "command": self._test_command,
            "exit_code": tests.exit_code,
            "timed_out": tests.timed_out,
            "disk_full": tests.disk_full,
            "output": (tests.stdout + tests.stderr).decode("utf-8", "replace")[-4000:],
        }
        return Report(1.0 if tests.exit_code == 0 else 0.0, report)

    async def _patch(self) -> tuple[str, str]:
        """Return the changes of all text files as a unified diff, and what the diff leaves out (empty if nothing)."""
        after: dict[str, bytes] = {}
        before = dict(self._before)
        unread: list[str] = []
        listed = await self._sandbox.list_files(depth=DEPTH)
        for found in listed:
            if not LEFT_OUT.isdisjoint(found.path.split("/")):
                continue
            if found.is_folder:
                if found.path.count("/") == DEPTH - 1:
                    unread.append(f"{found.path}/")
                continue
            try:
                after[found.path] = await self._sandbox.read_file(found.path, most_bytes=MOST_BYTES)
            except SandboxFileError:  # it is too large, or the agent has made it unreadable
                unread.append(found.path)
                before.pop(found.path, None)
        left_out = clip(", ".join(unread))
        if len(listed) >= LISTED:  # files after the last one listed are unknown, not removed
            left_out = f"all files after {listed[-1].path}, because there are more than {LISTED}"
            before = {path: data for path, data in before.items() if path <= listed[-1].path}
        return await SYSTEM.run(patch_of, before, after), left_out


def patch_of(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> str:
    """Return the unified diff of two folders, each a dict of paths to contents. Binary files are left out."""
    lines: list[str] = []
    for path in sorted({*before, *after}):
        if before.get(path) == after.get(path) or b"\0" in before.get(path, b"") + after.get(path, b""):
            continue
        old, new = (lines_of(side.get(path, b"").decode("utf-8", "replace")) for side in (before, after))
        names = (f"a/{path}" if path in before else "/dev/null", f"b/{path}" if path in after else "/dev/null")
        for line in difflib.unified_diff(old, new, *names):
            lines.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(lines)


def not_run(command: str, ended: RunResult) -> str:
    """Return why a test command did not run at all, or an empty string if it ran."""
    if ended.timed_out or ended.disk_full:
        return ""
    last = ended.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
    module = _MODULE.search(command)
    missing = module is not None and last.endswith(f": No module named {module[1]}")
    if missing or ended.exit_code in (126, 127):  # the exit codes of a shell that cannot run a command
        return f"{command!r} did not run in the sandbox, exit code {ended.exit_code}: {last}"
    return ""


def read_folder(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder as a dict from path to content. Links are left out.

    Raises InvalidArgument if the folder is too large, or if a part of it cannot be read.
    """
    found: dict[str, bytes] = {}
    total = 0

    def refuse(error: OSError) -> None:
        raise InvalidArgument("repository", f"{error.filename or folder} cannot be read: {error.strerror}") from None

    for place, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = sorted(set(folders) - LEFT_OUT)
        for path in (Path(place, name) for name in sorted(names)):
            if path.is_symlink() or not path.is_file() or path.name in LEFT_OUT:
                continue
            try:
                total += path.stat().st_size
                if len(found) >= MOST_FILES or total > MOST_BYTES:
                    limits = f"{MOST_FILES} files or {MOST_BYTES} bytes"
                    raise InvalidArgument("repository", f"{folder} has more than {limits}")
                found[path.relative_to(folder).as_posix()] = path.read_bytes()
            except OSError as error:
                refuse(error)
    return found


class CodingAgent(BuiltInAgent):
    """An agent for models with native tool calls. Each rollout works on a copy of a repository in its own sandbox.

    `repository` is a folder, which is not changed. `test_command` runs at the end of a rollout: the reward is 1.0 if it
    succeeds, otherwise 0.0. With `snapshots`, the sandbox is saved at each turn, so that a rollout can be forked.
    `system_prompt` replaces the agent's own prompt.
    """

    agent_type = "coding"
    reply_format = FORMATS["native"]

    def __init__(
        self,
        max_steps: int = 10,
        max_tokens_per_step: int = 16000,
        temperature: float = 0.7,
        tools_config: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        repository: str | None = None,
        test_command: str = "",
        snapshots: bool = False,
        max_parse_errors: int = 3,
        system_prompt: str = PROMPT,
    ) -> None:
        super().__init__(
            max_steps, max_tokens_per_step, temperature, TOOLS if tools_config is None else tools_config,
            max_parallel_calls=1, max_parse_errors=max_parse_errors, system_prompt=system_prompt,
        )  # fmt: skip
        if not self.toolbox.needs_sandbox:
            raise InvalidArgument("tools_config", "names no tool that works in a sandbox, such as file_editor")
        check("snapshots", bool, snapshots)
        if repository is not None and not Path(repository).is_dir():
            raise InvalidArgument("repository", f"{repository!r} is not a folder")
        self.repository = None if repository is None else Path(repository)
        """The folder whose files each rollout gets."""
        self.test_command = test_command
        """Runs at the end of a rollout. The reward is 1.0 if it succeeds, otherwise 0.0. Empty means no reward."""
        self.replayable = snapshots
        """Whether the sandbox is saved at each turn, so that a rollout can be forked and continues after a crash."""

    def episode(self, context: RolloutContext, sandbox: Sandbox | None) -> Episode:
        """Return the hooks that copy the repository, save snapshots and run the tests."""
        assert sandbox is not None
        snapshots = Snapshots(context, sandbox, self.replayable)
        return CodingEpisode(context, sandbox, self.repository, self.test_command, snapshots)
