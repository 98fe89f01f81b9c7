"""One simulated run: the world of a seed, from its start to the records of what is left."""

import asyncio
import contextvars
import gc
import logging
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from tests.simulation.error_log import errors_recorded
from tests.simulation.faults import Faults
from tests.simulation.foreign_trainer import ForeignTrainer
from tests.simulation.history import History
from tests.simulation.loop import SimulatedLoop, Stuck
from tests.simulation.network import Network
from tests.simulation.plan import Plan, plan_of
from tests.simulation.processes import Process, Randomness
from tests.simulation.programs import ServerProgram, TrainerProgram
from tests.simulation.taps import Taps

FINISH = 3_000.0
"""When faults are over, everything finishes within so many simulated seconds."""
LAST_EVENTS = 70.0
"""Readers have so many simulated seconds for their last events, when every rollout is done."""
FASTEST = 0.005
"""The longest time of a commit when the faults are over, in seconds."""
CLOSE = 120.0
"""Each program ends in good order within so many simulated seconds."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that the product must not do."""

    what: str
    error: BaseException | None = None


class World:
    """The programs, the network and the history of one seed. `folder` is for their disks."""

    def __init__(self, plan: Plan, randomness: Randomness, folder: Path, *, verbose: bool = False) -> None:
        self.plan = plan
        self.randomness = randomness
        self.folder = folder
        self.loop = SimulatedLoop()
        self.loop.set_exception_handler(self._unhandled)
        self.history = History(self.loop.time)
        taps = Taps(self.history, self.loop.time, verbose=verbose)
        slow = "slow network" in plan.conditions
        self.network = Network(
            self.loop, randomness, taps, latency=0.02 if slow else 0.0005, jitter=0.5 if slow else 0.02
        )
        if "lossy calls" in plan.conditions:
            self.network.lossy = 0.05
        self.findings: list[Finding] = []
        self.processes: list[Process] = []
        self.changed = asyncio.Event()
        self.calm = False
        """Whether the faults are over."""
        self.next_run = count(1).__next__
        self.next_reader = count(1).__next__
        self._draws = count(1)
        self._hosts = count(1)
        self.first_workers = [ServerProgram(self, server, self.new_host()) for server in plan.servers]
        """The process of each server to which trainers connect first."""
        self.servers = [
            *self.first_workers,
            *(
                ServerProgram(self, first.plan, first.host, worker)
                for first in self.first_workers
                for worker in range(1, first.plan.workers)
            ),
        ]
        """All processes of all servers."""
        self.trainers = [
            TrainerProgram(self, trainer, self.new_host(), [self.first_workers[n] for n in trainer.servers])
            for trainer in plan.trainers
        ]
        for trainer in self.trainers:
            if trainer.plan.transport == "accept":
                plans = [plan.servers[number] for number in trainer.plan.servers]
                for server in self.servers:
                    if server.plan in plans:
                        server.connect.append(trainer.address)
        self.foreign = ForeignTrainer(self, self.new_host()) if "foreign trainer" in plan.conditions else None
        self.faults = Faults(self)

    def next_draw(self) -> str:
        """Returns the name of the next sampling."""
        return f"d{next(self._draws)}"

    def new_host(self) -> str:
        """Returns an address that no program has."""
        number = next(self._hosts)
        return f"127.0.{1 + number // 250}.{1 + number % 250}"

    def found(self, what: str, error: BaseException | None = None) -> None:
        """Records a finding."""
        self.findings.append(Finding(what, error))

    def later(self, seconds: float, call: Callable[[], Any]) -> None:
        """Calls a function of the simulation after a pause."""
        self.loop.call_later(seconds, call, context=contextvars.Context())

    def run(self) -> None:
        """Runs the world to its end."""
        try:
            with errors_recorded(self.history, self.folder):
                self.loop.run_until_complete(self._run())
        except Stuck as error:
            self.found(str(error), error)

    async def _run(self) -> None:
        for program in (*self.servers, *self.trainers):
            self.history.note(program.name, "configured", settings=program.settings)
            program.start()
        if self.foreign is not None:
            self.foreign.start()
        for trainer in self.trainers:
            if trainer.plan.until is not None:
                self.later(trainer.plan.until, trainer.end)
        await self.faults.run()
        self._end_faults()
        if await self._finished():
            await self._close()
        for process in self.processes:
            if not process.dead:
                process.kill()
        for program in (*self.servers, *self.trainers):
            if program.disk is not None:
                program.disk.kill()
            program.record_left()

    def _end_faults(self) -> None:
        """Heals everything, and starts every program that does not run."""
        self.calm = True
        self.history.note("network", "faults over")
        self.network.heal()
        self.network.lossy = 0.0
        for program in (*self.servers, *self.trainers):
            if program.process is not None and program.process.frozen:
                program.process.resume()
            if program.disk is not None:
                program.disk.crash, program.disk.failures, program.disk.full = None, 0, False
                program.disk.slowest = FASTEST
            program.start()
        for trainer in self.trainers:
            trainer.rename(trainer.ever_named)
        for server in self.first_workers:
            if server.listed < server.plan.workers:
                server.listed = server.plan.workers
                server.end()
        for server in self.servers:
            if server.server is not None and server.alive:
                server.call(server.server.end_drain)
        for trainer in self.trainers:
            if trainer.trainer is not None and trainer.alive:
                running = trainer.trainer

                async def resume(running: Any = running) -> None:
                    running.resume()

                trainer.call(resume)

    async def _finished(self) -> bool:
        """Waits until every rollout is done, and no server has work left. Records what does not finish."""
        try:
            async with asyncio.timeout(FINISH):
                while any(trainer.application.unfinished for trainer in self.trainers):
                    self.changed.clear()
                    await self.changed.wait()
                while self.foreign is not None and self.foreign.unfinished:
                    self.changed.clear()
                    await self.changed.wait()
                while any(self._left(server) for server in self.servers):
                    await asyncio.sleep(0.5)  # the clock is simulated
                until = self.loop.now + LAST_EVENTS
                while any(trainer.application.reading for trainer in self.trainers) and self.loop.now < until:
                    await asyncio.sleep(0.5)  # the clock is simulated
        except TimeoutError:
            for trainer in self.trainers:
                for rollout in trainer.application.unfinished:
                    self.found(f"{rollout.rollout_id} does not finish within {FINISH:g} s after the last fault")
            for server in self.servers:
                if left := self._left(server):
                    self.found(f"{server.name} has work left {FINISH:g} s after the last fault: {left}")
            return False
        return True

    def _left(self, program: ServerProgram) -> str:
        if program.server is None or not program.alive:
            return "it does not run"
        if program.ending:  # it may have given up rollouts, which its next process ends
            return "it is ending"
        left = program.server.engine.capacity()
        rows = {"running": left.running, "queued": left.queued, "undelivered": left.undelivered}
        return ", ".join(f"{number} {what}" for what, number in rows.items() if number)

    async def _close(self) -> None:
        for program in (*self.trainers, *self.servers):
            if not await program.close(CLOSE):
                self.found(f"{program.name} does not end within {CLOSE:g} s")

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.found(f"unhandled: {context.get('message')}: {error!r}", error)

    def close(self) -> None:
        """Drops the tasks of all processes, and closes the loop."""
        for process in self.processes:
            process.kill()
        for program in (*self.servers, *self.trainers):
            if program.disk is not None:
                program.disk.kill()
        self.loop.set_exception_handler(lambda loop, context: None)  # tasks end unfinished now
        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
        try:
            self.loop.close()
            for process in self.processes:
                process.forget()
            self.network.connections.clear()
            self.network.listeners.clear()
            self.processes.clear()
            self.servers.clear()
            self.first_workers.clear()
            self.trainers.clear()
            self.foreign = None
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # a killed process leaves coroutines that never began
                gc.collect()
        finally:
            sys.unraisablehook = hook
        shutil.rmtree(self.folder, ignore_errors=True)


def world_of(seed: int, folder: Path, *, rollouts: int = 32, verbose: bool = False) -> World:
    """Returns the world of a seed. Call run(), look at it, and call close(). With `verbose`, it records messages."""
    randomness = Randomness(seed)
    plan = plan_of(seed, randomness, rollouts=rollouts)
    return World(plan, randomness, folder / f"seed-{seed}", verbose=verbose)


@contextmanager
def quiet() -> Iterator[None]:
    """Switches the log lines of the product off. A world makes thousands, and its history says more."""
    loggers = [logging.getLogger(name) for name in ("osmosis_grpc", "asyncio")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
