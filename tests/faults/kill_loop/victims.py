"""Processes that are killed and started again, at places and times that a seed chooses."""

import asyncio
import random
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import Broken
from benchmarks.processes import environment_with
from tests.faults.kill_loop.history import VARIABLE, History
from tests.faults.kill_loop.promises import RANDOM

REACHED = 5.0
"""Seconds in which a failpoint is reached, or the process is killed from outside."""


@dataclass(frozen=True, slots=True)
class Window:
    """A place to be killed at, or any time."""

    name: str
    per_rollout: float
    """How often a rollout passes it."""
    share: float = 1.0
    """How often it is chosen, against others."""


class Schedule:
    """Which kill comes next: every window gets its share, soon enough that the rollouts last for all of them.

    `pace` tells how many rollouts may end until the next kill, `start` how many seconds a process takes to start.
    """

    def __init__(
        self, windows: Sequence[Window], kills: int, seed: str, pace: Callable[[], float], start: float
    ) -> None:
        self.by_window: Counter[str] = Counter()
        self.wanted = kills
        self._windows = windows
        self._random = random.Random(seed)
        self._pace = pace
        self._start = start

    @property
    def kills(self) -> int:
        """How many there were."""
        return self.by_window.total()

    def draw(self) -> tuple[Window, int, float]:
        """A window, the passing of it that is the last, and, for any time, seconds from the start or readiness.

        Negative seconds count from the start. Not to be asked when there are kills enough.
        """
        random = self._random
        window = min(self._windows, key=lambda w: (self.by_window[w.name] / w.share, random.random()))
        pace = max(1.0, self._pace())
        nth = random.randint(1, max(1, round(2 * pace * window.per_rollout) - 1))
        if random.random() < 0.75:
            return window, nth, random.uniform(0.0, 0.25 + pace / 60)
        return window, nth, -random.uniform(0.1, 1.0) * self._start


class Victim:
    """One process, life after life. `who` is server or trainer; the server says when it is ready."""

    def __init__(self, who: str, command: Sequence[str], folder: Path, history: History, schedule: Schedule) -> None:
        self.lives = 0
        self.early_deaths = 0
        """Before it was ready."""
        self.process: asyncio.subprocess.Process | None = None
        self.ready = asyncio.Event()
        """Set while a server serves."""
        self._who = who
        self._command = command
        self._folder = folder
        self._history = history
        self.schedule = schedule
        self._log = folder / f"{who}.log"
        self._read = 0

    async def live(self, over: asyncio.Event) -> None:
        """Start the process after each end, until it ends by itself. Stop it when `over` is set."""
        while not over.is_set():
            code = await self._one_life(over)
            if code == 0:
                return
            if code != -signal.SIGKILL:
                raise Broken(f"the {self._who} ended with code {code}:\n{self._log.read_text()[-3000:]}")

    def kill(self) -> None:
        """End what still runs."""
        if self.process is not None and self.process.returncode is None:
            self.process.kill()

    async def _one_life(self, over: asyncio.Event) -> int:
        schedule = self.schedule
        window, nth, seconds = schedule.draw() if schedule.kills < schedule.wanted else (None, 0, 0.0)
        armed = window is not None and window.name != RANDOM
        failpoint = f"{window.name}:{nth}" if window is not None and armed else ""
        self._history.note("start", "", self._who, outcome=failpoint)
        self.lives += 1
        self.ready.clear()
        with self._log.open("ab") as log:
            process = self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                *self._command,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                cwd=self._folder,
                env=environment_with({VARIABLE: str(self._folder / "history.jsonl"), "OSMOSIS_FAILPOINT": failpoint}),
            )
        ended, finished = asyncio.create_task(process.wait()), asyncio.create_task(over.wait())

        async def either(timeout: float | None = None) -> None:
            await asyncio.wait({ended, finished}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)

        is_ready = self._who == "trainer"
        if window is not None and not armed and seconds < 0:
            await asyncio.wait({ended}, timeout=-seconds)
        else:
            assert process.stdout is not None
            if not is_ready and await process.stdout.readline():
                is_ready = True
                self.ready.set()
                self._history.note("ready", "", self._who)
            if window is not None:
                await either(REACHED if armed else seconds)
        if window is not None and not ended.done() and not over.is_set():
            process.kill()
        await either()
        finished.cancel()
        if not ended.done():
            process.terminate()
        code = await ended
        self.ready.clear()
        if code == -signal.SIGKILL:
            name = self._failpoint() or RANDOM
            schedule.by_window[name] += 1
            self.early_deaths += not is_ready
            self._history.note("killed", "", self._who, name, process.pid)
        return code

    def _failpoint(self) -> str:
        """What its last words say that it was killed at."""
        with self._log.open() as log:
            log.seek(self._read)
            found = re.findall(r"^killed at failpoint (\S+)$", log.read(), re.MULTILINE)
            self._read = log.tell()
        return found[-1] if found else ""


async def start_takes() -> float:
    """Seconds from the start of a process to its first own work, on this machine and now."""
    began = time.monotonic()
    imports = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "import osmosis_grpc.serve.command, osmosis_grpc.server, osmosis_grpc.trainer",
        env=environment_with({}),
    )
    if await imports.wait():
        raise Broken("a process that only imports osmosis_grpc does not end well")
    return time.monotonic() - began
