"""The supervisor of `serve --workers`: starts the workers, restarts those that end, and forwards signals to them."""

import asyncio
import logging
import os
import secrets
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from osmosis_grpc.serve.json_output import Records, say_error
from osmosis_grpc.serve.workers.plan import Plan
from osmosis_grpc.serve.workers.worker_process import WorkerProcess
from osmosis_grpc.supervise import SYSTEM, Backoff, OnFailure, Supervisor, job

if TYPE_CHECKING:
    from osmosis_grpc.settings.settings import RolloutServerSettings

log = logging.getLogger(__name__)

KEEP = job("serve.keep_worker", OnFailure.FAIL_OWNER)
RESTART = job("serve.restart_workers", OnFailure.FAIL_OWNER)
WAIT = job("serve.wait_for_worker", OnFailure.FAIL_OWNER)

PAUSES = 0.2, 30.0
"""The first and the longest pause, in seconds, before a worker is restarted."""
STABLE = 60.0
"""If a worker has run for more than this many seconds, the pauses start again with the first one."""
STARTS = 5
"""While the server starts, it gives up when a worker has ended this many times without being ready."""
SAID_WHY = (1, 2)
"""The exit codes of a worker that has found a mistake, such as a wrong option, and has printed it."""
KILL_AFTER = 10.0
"""Workers that still run this many seconds after the drain limit, or after the second signal, are killed."""


class Workers:
    """The workers of one server. run() ends after a signal, or if a worker cannot start while the server starts."""

    def __init__(self, plan: Plan, options: "RolloutServerSettings", env: Mapping[str, str], out: Records) -> None:
        self._plan = plan
        self._limit = options.drain_timeout
        self._env = env
        self._out = out
        self._command = [sys.executable, "-m", "osmosis_grpc.serve", *arguments(sys.argv[1:])]
        self._secret = secrets.token_hex(32)
        self._supervisor = Supervisor("the supervisor of the workers", lambda error: self._stop.set())
        self._stop = asyncio.Event()
        self._at_once = asyncio.Event()
        """Set by the second signal."""
        self._signals: list[int] = []
        self.started = False
        """Whether all workers have been ready."""
        self._one_was_ready = False
        self._code = 0
        self._draining = False
        """Whether an administrator is draining the server."""
        self._rolling = self._roll_again = False
        locks = {worker: lock.descriptor for worker, lock in plan.locks.items()}
        self._workers = [
            WorkerProcess(worker, port, locks.get(worker, -1), leaving=worker >= plan.accepting)
            for worker, port in plan.ports.items()
        ]

    async def run(self) -> int:
        """Run the workers, and return the exit code."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop, number)
        loop.add_signal_handler(signal.SIGHUP, self._on_restart)
        tasks: list[asyncio.Task[None]] = []
        try:
            for group in (self._workers[:1], self._workers):  # the first one alone prints an error of the options
                new = group[len(tasks) :]
                tasks += [self._supervisor.start(KEEP, partial(self._keep, worker)) for worker in new]
                while not self._stop.is_set() and (missing := [each for each in group if not each.ready.is_set()]):
                    await self._either(missing[0].ready)
            if not self._stop.is_set():
                self.started = True
                self._say_ready()
            await self._stop.wait()
            await self._end(tasks)
        finally:
            loop.remove_signal_handler(signal.SIGHUP)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # otherwise it would end this process, with another exit code
            for worker in self._workers:
                worker.kill()
            await self._supervisor.close()
        if len(self._signals) > 1:
            return 128 + self._signals[-1]
        return 1 if self._supervisor.failure is not None else self._code

    async def _keep(self, worker: WorkerProcess) -> None:
        """Run a worker, and restart it when it ends."""
        backoff = Backoff(*PAUSES, system=SYSTEM)
        clock = asyncio.get_running_loop().time
        deaths = 0
        while not self._stop.is_set():
            began = clock()
            code = await worker.run(self._command, self._env, self._place(worker), self._heard)
            if self._stop.is_set():
                self._code = self._code or (0 if code in (0, 128 + signal.SIGTERM, 128 + signal.SIGINT) else 1)
                return
            if worker.settled:
                self._forget(worker)
                return
            deaths = 0 if worker.said_ready else deaths + 1
            if deaths and not self.started and (code in SAID_WHY or deaths == STARTS):
                self._give_up(worker, code, deaths)
                return
            if worker.restarting:
                worker.restarting = False
                continue
            if clock() - began > STABLE:
                backoff.reset()
            pause = backoff.next()
            log.warning("worker %d ended with exit code %d; it starts again in %.1f s", worker.index, code, pause)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), pause)

    def _give_up(self, worker: WorkerProcess, code: int, deaths: int) -> None:
        """End the server because a worker cannot start. Log this unless the worker has printed why."""
        if code not in SAID_WHY:
            log.error(
                "worker %d ended %d times before it was ready, at last with exit code %d; the server ends",
                *(worker.index, deaths, code),
            )
        self._code = code or 1
        self._stop.set()

    def _place(self, worker: WorkerProcess) -> dict[str, Any]:
        return {
            "index": worker.index,
            "accepting": self._plan.accepting,
            "secret": self._secret,
            "sockets": str(self._plan.sockets),
            "lock": worker.lock,
            "draining": self._draining,
            **self._ports(),
        }

    def _ports(self) -> dict[str, Any]:
        return {"ports": {worker.index: worker.port for worker in self._workers}}

    def _heard(self, worker: WorkerProcess, message: dict[str, Any]) -> None:
        event = message.pop("event")
        if event == "text":
            worker.banner = message["text"]
        elif event == "ready":
            worker.said_ready = message
            worker.ready.set()
            self._one_was_ready = True
            log.info("worker %d is ready", worker.index, extra={"port": worker.port, "pid": worker.pid})
        elif event == "stopped":
            worker.said_stopped = message
        elif event == "problem" and self._one_was_ready:
            log.error("worker %d does not start: %s", worker.index, message["text"].removeprefix("serve: "))
        elif event == "problem":
            say_error(message["text"])
        elif event == "drain":
            self._draining = message["on"]
        elif event == "settled":
            worker.settled = True

    def _forget(self, worker: WorkerProcess) -> None:
        log.info("worker %d has left, because its rollouts of an earlier --workers are settled", worker.index)
        self._workers.remove(worker)
        for other in self._workers:
            other.tell(**self._ports())

    def _say_ready(self) -> None:
        first = self._workers[0]
        rows = [{"worker": worker.index, "port": worker.port, "pid": worker.pid} for worker in self._workers]
        self._out.write("ready", **first.said_ready | {"pid": os.getpid(), "workers": rows})
        ports = ", ".join(str(worker.port) for worker in self._workers)
        self._out.say(f"{first.banner}\n  workers {len(rows)} processes, with the gRPC ports {ports}")
        for worker in self._workers:
            if worker.leaving:
                log.info("worker %d is beyond --workers; it finishes its rollouts and leaves", worker.index)

    async def _either(self, event: asyncio.Event) -> None:
        """Wait for an event, or until the server is to stop."""
        waits = [self._supervisor.start(WAIT, each.wait) for each in (event, self._stop)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    # Signals.

    def _on_stop(self, number: int) -> None:
        """Forward a signal. The second is sent as the other kind, because pending signals of one kind are merged."""
        self._signals.append(number)
        (self._at_once if self._stop.is_set() else self._stop).set()
        second = signal.SIGINT if self._signals[0] == signal.SIGTERM else signal.SIGTERM
        for worker in self._workers:
            worker.signal(number if len(self._signals) == 1 else second)

    async def _end(self, tasks: Sequence["asyncio.Task[None]"]) -> None:
        """Wait until all workers have stopped. Kill a worker that does not stop in time."""
        if self.started:
            self._out.write("draining", limit=self._limit)
        for worker in self._workers:
            if not self._signals:  # a worker could not start, or this process has failed
                worker.signal(signal.SIGTERM)
        ended = asyncio.gather(*tasks, return_exceptions=True)
        at_once = self._supervisor.start(WAIT, self._at_once.wait)
        limit = self._limit + KILL_AFTER if self.started else KILL_AFTER
        for lock in self._plan.locks.values():
            lock.stop_by(time.time() + limit + 2 * KILL_AFTER)
        waits: list[asyncio.Future[Any]] = [ended, at_once]
        await asyncio.wait(waits, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        if at_once.done():
            await asyncio.wait([ended], timeout=KILL_AFTER)
        killed = [worker for worker in self._workers if worker.alive]
        for worker in killed:
            log.error("worker %d did not stop, and is killed", worker.index)
            worker.kill()
            self._code = self._code or 1
        if killed:
            await asyncio.wait([ended], timeout=KILL_AFTER)
        if self.started:
            names = ("undelivered", "abandoned", "kept")
            sums = {name: sum(worker.said_stopped.get(name, 0) for worker in self._workers) for name in names}
            self._out.write("stopped", **sums)

    def _on_restart(self) -> None:
        if not self.started or self._stop.is_set():
            return
        if self._rolling:
            self._roll_again = True
            return
        self._rolling = True
        self._supervisor.start(RESTART, self._roll)

    async def _roll(self) -> None:
        """Restart the workers one by one, each when the one before is ready again."""
        log.info("SIGHUP: the workers restart, one by one")
        for worker in [worker for worker in self._workers if not worker.leaving]:
            await self._either(worker.ready)
            if self._stop.is_set():
                return
            worker.restarting = True
            worker.ready.clear()
            worker.tell(restart=True)
            await self._either(worker.ready)
        self._rolling = False
        log.info("all workers have restarted")
        if self._roll_again:
            self._roll_again = False
            self._on_restart()


def arguments(given: list[str]) -> list[str]:
    """Return the arguments of a command line without the command's name."""
    return given[1:] if given[:1] == ["serve"] else given


def run_workers(options: "RolloutServerSettings", plan: Plan, env: Mapping[str, str], out: Records) -> int:
    """Run the workers of a plan until a signal, and return the exit code."""
    workers: list[Workers] = []

    async def run() -> int:
        workers.append(Workers(plan, options, env, out))
        return await workers[0].run()

    try:
        return asyncio.run(run())
    finally:
        plan.close(started=bool(workers) and workers[0].started)
