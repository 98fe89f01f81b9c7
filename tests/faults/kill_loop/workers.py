"""Kills single workers and the supervisor of a running server, and sends it SIGHUP, as a seed chooses."""

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from tests.faults.kill_loop.history import History
from tests.faults.kill_loop.promises import RANDOM
from tests.faults.kill_loop.victims import Victim

LONGEST = 4.0
"""Seconds between two deeds, if no rollout ends meanwhile."""
UNREADY = 0.4
"""How often a deed does not wait until the server is ready."""
BEFORE_READY = 4
"""The most workers that are killed before a server is ready. It gives up a first start when one has died 5 times."""
HURRY = 3.0
"""With fewer rollouts than this for each deed that is left, kills come first, and wait for nothing."""


def shares(kills: int) -> dict[str, int]:
    """How many kills of a total each kind of process gets. SIGHUPs come as often as kills of the supervisor."""
    return {"worker": kills - 2 * (kills // 5), "server": kills // 5, "trainer": kills // 5}


class Disturber:
    """Disturbs the server until its share is done. `applied` tells how many rollouts have ended."""

    def __init__(
        self,
        server: Victim,
        history: History,
        kills: Mapping[str, int],
        seed: str,
        applied: Callable[[], int],
        left: Callable[[], float],
    ) -> None:
        self.done: Counter[str] = Counter()
        self._before_ready: Counter[int] = Counter()
        """The workers killed before their server was ready, by its process id."""
        self._wanted = {"worker": kills["worker"], "server": kills["server"], "hangup": kills["server"]}
        self._server = server
        self._history = history
        self._random = random.Random(seed)
        self._applied = applied
        self._left = left

    @property
    def missing(self) -> int:
        """How many deeds are not done."""
        return sum(self._wanted.values()) - self.done.total()

    async def live(self) -> None:
        """Do one deed after another, a few rollouts apart."""
        draw = self._random
        while self.missing:
            hurry = self._left() < HURRY
            left = {kind: wanted - self.done[kind] for kind, wanted in self._wanted.items()}
            kills = [kind for kind, count in left.items() for _ in range(count) if not (hurry and kind == "hangup")]
            kind = draw.choice(kills or ["hangup"])
            until = self._applied() + (0 if hurry else draw.uniform(0, self._left() / 2))
            if kind == "hangup" or (draw.random() > UNREADY and not hurry):
                await self._server.ready.wait()
            with suppress(TimeoutError):
                async with asyncio.timeout(LONGEST):
                    while self._applied() < until:
                        await asyncio.sleep(0.02)  # between two looks at the history
            await asyncio.sleep(draw.uniform(0, 0.1))  # a deed comes at any moment of a rollout
            self.done[kind] += self._do(kind)

    def _do(self, kind: str) -> bool:
        process = self._server.process
        if process is None or process.returncode is not None:
            return False
        if kind == "server":
            process.kill()
        elif kind == "hangup":
            if not self._server.ready.is_set():  # its start is not over, and no handler of the signal is there
                return False
            process.send_signal(signal.SIGHUP)
            self._history.note("hangup")
        else:
            workers = self._workers(process.pid)
            early = not self._server.ready.is_set()
            if not workers or (early and self._before_ready[process.pid] == BEFORE_READY):
                return False
            self._before_ready[process.pid] += early
            pid = self._random.choice(workers)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self._history.note("killed", "", "worker", RANDOM, pid)
                return True
            return False
        return True

    def _workers(self, supervisor: int) -> list[int]:
        with suppress(OSError):
            return [*map(int, Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split())]
        return []
