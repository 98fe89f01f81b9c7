"""Saves the sandbox of a rollout at each turn, so that the rollout can be forked there and continues after a crash.

The file `turn-N.tar.gz` in the folder of the rollout has the working folder as it was before chat N, and the results of
all earlier tool calls. A rollout that runs again uses the saved results instead of running the tools. Before its first
new call, its sandbox gets the working folder of that turn.
"""

import contextlib
import json
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from osmosis_grpc.agent.context import RolloutContext
from osmosis_grpc.compat.agentic.episode import RunCalls
from osmosis_grpc.compat.agentic.tools import ToolResult, repeat_results
from osmosis_grpc.protocol.errors import SnapshotGone
from osmosis_grpc.protocol.types import Fork, Message, jsontext
from osmosis_grpc.supervise import SYSTEM
from osmosis_grpc.tools.sandbox import LocalSandbox, Sandbox, SandboxError, read_note

MOST_SNAPSHOTS = 100
MOST_BYTES = 256 * 1024 * 1024
"""The limits for the snapshots of one rollout. Beyond them, the oldest are deleted; the newest is always kept."""
NOT_SAVED = "snapshot not saved"
"""The event that reports a failed snapshot. The rollout continues."""
_NAME = re.compile(r"turn-(\d+)\.tar\.gz")

Turn = dict[str, Any]
"""A turn: its `reply` as text, and its `results`."""


class Snapshots:
    """The snapshots of one rollout. Saves none if they are not wanted, or if the server has no state folder."""

    def __init__(self, context: RolloutContext, sandbox: Sandbox, wanted: bool) -> None:
        self._context, self._sandbox, self._wanted = context, sandbox, wanted
        self._folder: Path | None = None
        self._saved: dict[str, Turn] = {}
        """The turns of an earlier run, or of the original of a fork, by number. Emptied before the first new call."""
        self._turns: dict[str, Turn] = {}
        self._behind = False
        """Whether the sandbox still has to be restored to this turn."""
        self._number = 0
        """The number of the newest chat."""

    async def begin(self) -> None:
        """Find the snapshots of an earlier run. For a fork, also take those of the original.

        Raises SnapshotGone if the fork cannot start, and SandboxError for a sandbox that cannot be saved.
        """
        if not self._wanted:
            return
        if not isinstance(self._sandbox, LocalSandbox):
            raise SandboxError(f"snapshots: a {type(self._sandbox).__name__} is not saved; use a LocalSandbox")
        folders, fork = self._context.folders, self._context.request.fork
        if fork is not None and folders.own is None and not folders.replays:
            raise SnapshotGone(f"{_original(fork)} is not saved, because the server has no state folder")
        if folders.own is None:
            return
        self._folder = folders.own
        found = await SYSTEM.run(_prepare, folders.own, folders.original, fork)
        if fork is not None and not found and folders.original is None:
            raise SnapshotGone(f"{_original(fork)} is on its server only; run the fork there")
        if fork is not None and max(found, default=0) < fork.chat_number:
            left = sorted(await SYSTEM.run(_found, folders.original)) if folders.original is not None else []
            raise SnapshotGone(
                f"{_original(fork)} is gone: it could not be saved, or the oldest snapshots were deleted; "
                f"fork at one of the chats {', '.join(map(str, left))}"
                if left
                else f"{_original(fork)} is gone: the agent ran without snapshots=True, or its snapshots were deleted"
            )
        if found:
            self._saved, self._behind = await SYSTEM.run(_turns_of, found[max(found)]), True

    async def asking(self, number: int) -> None:
        """Save the sandbox before a chat, unless the rollout is repeating saved turns."""
        self._number = number
        if self._folder is None or self._behind:
            return
        assert isinstance(self._sandbox, LocalSandbox)
        note = json.dumps(self._turns).encode("utf-8", "surrogatepass")
        try:
            await self._sandbox.save(_path(self._folder, number), note)
            await SYSTEM.run(_limit, self._folder)
        except (SandboxError, OSError) as error:
            self._context.log_event(NOT_SAVED, sample="main", error=str(error))

    async def act(self, number: int, reply: Message, calls: Sequence[Any], run: RunCalls) -> list[ToolResult]:
        """Return the saved results of a reply, or run its calls. Raises SnapshotGone."""
        if self._folder is None:
            return await run()
        text, saved = jsontext.canonical(reply), self._saved.get(str(number))
        if saved is not None and saved["reply"] == text:
            results = await repeat_results(calls, [ToolResult(**result) for result in saved["results"]])
        else:
            await self.catch_up()
            results = await run()
        self._turns[str(number)] = {"reply": text, "results": [asdict(result) for result in results]}
        return results

    async def catch_up(self) -> None:
        """Restore the working folder of this turn, if the sandbox is behind. Raises SnapshotGone."""
        if self._folder is None or not self._behind:
            return
        assert isinstance(self._sandbox, LocalSandbox)
        try:
            await self._sandbox.restore(_path(self._folder, self._number))
        except SandboxError as error:
            raise SnapshotGone(f"the snapshot of chat {self._number} cannot be used: {error}") from None
        self._saved, self._behind = {}, False


def _original(fork: Fork) -> str:
    return f"the sandbox of rollout {fork.rollout_id} at chat {fork.chat_number}"


def _path(folder: Path, number: int) -> Path:
    return folder / f"turn-{number}.tar.gz"


def _found(folder: Path) -> dict[int, Path]:
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return {}
    return {int(match[1]): folder / name for name in names if (match := _NAME.fullmatch(name))}


def _prepare(own: Path, original: Path | None, fork: Fork | None) -> dict[int, Path]:
    own.mkdir(mode=0o700, parents=True, exist_ok=True)
    if original is not None and fork is not None:
        for number, path in _found(original).items():
            if number <= fork.chat_number:
                with contextlib.suppress(FileNotFoundError):  # the original is deleted meanwhile
                    _take(path, own / path.name)
    return _found(own)


def _take(source: Path, target: Path) -> None:
    if target.exists():
        return
    new = target.with_name(f"{target.name}.new")
    new.unlink(missing_ok=True)
    try:
        os.link(source, new)
    except FileNotFoundError:
        raise
    except OSError:  # the folders are on two disks
        shutil.copyfile(source, new)
    new.replace(target)


def _turns_of(path: Path) -> dict[str, Turn]:
    try:
        turns: dict[str, Turn] = json.loads(read_note(path))
        return turns
    except (SandboxError, ValueError) as error:
        raise SnapshotGone(f"the snapshot {path} cannot be read: {error}") from None


def _limit(folder: Path) -> None:
    found = sorted(_found(folder).items())
    used = sum(path.stat().st_size for _, path in found)
    while len(found) > 1 and (len(found) > MOST_SNAPSHOTS or used > MOST_BYTES):
        _, path = found.pop(0)
        used -= path.stat().st_size
        path.unlink()
