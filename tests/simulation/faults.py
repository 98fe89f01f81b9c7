"""The faults of a simulated run. Each kind that the plan turns on has a task and a random stream of its own."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

from osmosis_grpc.protocol.errors import AlreadyExists, CallError
from tests.simulation.application import Application
from tests.simulation.committer import Crash, Disk
from tests.simulation.programs import Program, ServerProgram, TrainerProgram

if TYPE_CHECKING:
    from tests.simulation.world import World


SLOWEST_COMMIT = 0.5
"""The longest time of a commit, or of its report, on a slow disk, in seconds."""


class Faults:
    """Makes the faults of a world until stop()."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.made: Counter[str] = Counter()
        """How often each kind of fault was made."""
        self._makers: dict[str, Callable[[Random], Awaitable[bool] | bool]] = {
            "cut": self._cut,
            "half open": self._half_open,
            "partition": lambda draw: self._partition(draw, both=True),
            "one-way partition": lambda draw: self._partition(draw, both=False),
            "stop": self._stop,
            "crash server": lambda draw: self._crash(draw, world.servers),
            "crash trainer": lambda draw: self._crash(draw, world.trainers),
            "crash at a commit": self._crash_at_commit,
            "disk error": self._disk_error,
            "disk full": self._disk_full,
            "slow disk": self._slow_disk,
            "clock jump": self._clock_jump,
            "drain": self._drain,
            "restart in good order": self._restart,
            "forget": self._forget,
            "readdress": self._readdress,
            "rename": self._rename,
            "worker list": self._worker_list,
            "rolling restart": self._rolling_restart,
            "pause": self._pause,
            "cancel": self._cancel,
            "supersede": self._supersede,
            "duplicate": self._duplicate,
            "conflict": self._conflict,
            "spike": self._spike,
        }

    async def run(self) -> None:
        """Makes faults until the plan's end of faults."""
        world = self._world
        tasks = [
            asyncio.create_task(self._repeat(kind, mean))
            for kind, mean in world.plan.faults.items()
            if kind in self._makers
        ]
        await asyncio.sleep(world.plan.faults_until)  # the clock is simulated
        for task in tasks:
            task.cancel()

    async def _repeat(self, kind: str, mean: float) -> None:
        draw = self._world.randomness(f"fault {kind}")
        while True:
            await asyncio.sleep(draw.expovariate(1 / mean))  # the clock is simulated
            made = self._makers[kind](draw)
            if made is True or (made is not False and await made):
                self.made[kind] += 1

    # The network.

    def _cut(self, draw: Random) -> bool:
        network = self._world.network
        if not network.connections:
            return False
        connection = draw.choice(list(network.connections))
        self._note(connection.client.name, "cut", to=connection.server.name)
        first, second = connection.cut_client, connection.cut_server
        if draw.random() < 0.5:
            first, second = second, first
        first()
        network.loop.call_later(draw.random() * 0.1, second, context=network.context)
        return True

    def _half_open(self, draw: Random) -> bool:
        connections = [one for one in self._world.network.connections if one.open_for_client and one.open_for_server]
        if not connections:
            return False
        connection = draw.choice(connections)
        self._note(connection.client.name, "half open", to=connection.server.name)
        self._world.network.half_open(connection)
        return True

    async def _partition(self, draw: Random, *, both: bool) -> bool:
        world = self._world
        first, second = draw.choice(world.servers), draw.choice(world.trainers)
        pairs = [(first.host, second.host), (second.host, first.host)]
        if not both:
            pairs = [draw.choice(pairs)]
        for source, target in pairs:
            self._note("network", "partition", to=f"{target} from {source}")
        world.network.block(pairs)
        seconds = draw.expovariate(1 / 8.0)
        await asyncio.sleep(seconds)  # the clock is simulated
        if seconds > 20.0:
            for connection in list(world.network.connections):
                if (connection.client.host, connection.server.host) in pairs:
                    connection.cut()
        world.network.heal(pairs)
        for source, target in pairs:
            self._note("network", "heal", to=f"{target} from {source}")
        return True

    async def _spike(self, draw: Random) -> bool:
        network = self._world.network
        usual, network.jitter = network.jitter, draw.uniform(0.5, 5.0)
        self._note("network", "spike", seconds=round(network.jitter, 3))
        await asyncio.sleep(draw.expovariate(1 / 3.0))  # the clock is simulated
        network.jitter = usual
        return True

    # The processes.

    def _program(self, draw: Random, programs: list[Any]) -> Program | None:
        alive = [program for program in programs if program.alive and not program.process.frozen]
        return draw.choice(alive) if alive else None

    async def _stop(self, draw: Random) -> bool:
        program = self._program(draw, [*self._world.servers, *self._world.trainers])
        if program is None or program.process is None:
            return False
        process = program.process
        self._note(program.name, "stop")
        process.stop()
        await asyncio.sleep(draw.expovariate(1 / 8.0))  # the clock is simulated
        if not process.dead:
            process.resume()
            self._note(program.name, "continue")
        return True

    def _crash(self, draw: Random, programs: list[Any]) -> bool:
        program = self._program(draw, programs)
        if program is None:
            return False
        program.kill("any time", silently=draw.random() < 0.2)
        self._world.later(draw.expovariate(1 / 1.5), program.start)
        return True

    async def _drain(self, draw: Random) -> bool:
        program = self._program(draw, self._world.servers)
        if not isinstance(program, ServerProgram) or program.server is None:
            return False
        server = program.server
        self._note(program.name, "drain")
        program.call(server.drain)
        await asyncio.sleep(draw.expovariate(1 / 4.0))  # the clock is simulated
        if program.alive and program.server is server:
            self._note(program.name, "drain cancelled")
            program.call(server.end_drain)
        return True

    def _restart(self, draw: Random) -> bool:
        program = self._program(draw, [*self._world.servers, *self._world.trainers])
        if program is None:
            return False
        if isinstance(program, ServerProgram):
            program.drain_limit = draw.choice((0.0, 1.0, 10.0))
        program.end()
        return True

    def _forget(self, draw: Random) -> bool:
        program = self._program(draw, self._world.servers)
        if not isinstance(program, ServerProgram):
            return False
        program.forget()
        self._world.later(draw.expovariate(1 / 1.5), program.start)
        return True

    def _readdress(self, draw: Random) -> bool:
        program = self._program(draw, [one for one in self._world.trainers if one.plan.transport != "accept"])
        if program is None:
            return False
        program.kill("and comes back at another address")
        program.host = self._world.new_host()
        self._note(program.name, "readdress")
        self._world.later(draw.expovariate(1 / 1.5), program.start)
        return True

    # The set of servers.

    def _rename(self, draw: Random) -> bool:
        """Changes the list of servers of a trainer."""
        found = [one for one in self._world.trainers if one.plan.transport != "accept"]
        if not found:
            return False
        program = draw.choice(found)
        servers = self._world.first_workers
        named = draw.sample(servers, draw.randint(1, len(servers)))
        if set(named) == set(program.named):
            return False
        program.rename(named)
        return True

    def _worker_list(self, draw: Random) -> bool:
        """Changes how many workers a server has, as a restart with another --workers does."""
        program = self._program(draw, [one for one in self._world.first_workers if one.plan.workers > 1])
        if not isinstance(program, ServerProgram):
            return False
        listed = draw.choice([count for count in range(1, program.plan.workers + 1) if count != program.listed])
        self._note(program.name, "more workers" if listed > program.listed else "fewer workers", listed=listed)
        program.listed = listed
        program.drain_limit = draw.choice((0.0, 1.0))
        program.end()
        return True

    async def _rolling_restart(self, draw: Random) -> bool:
        """Restarts the workers of a server, one after the other."""
        first = self._program(draw, [one for one in self._world.first_workers if one.plan.workers > 1])
        if not isinstance(first, ServerProgram):
            return False
        self._note(first.name, "rolling restart")
        for worker in [one for one in self._world.servers if one.plan is first.plan]:
            if worker.alive:
                worker.drain_limit = draw.choice((0.0, 1.0))
                worker.end()
                await asyncio.sleep(draw.expovariate(1 / 2.0))  # the clock is simulated
        return True

    # Disks and clocks.

    def _disk_of(self, draw: Random) -> tuple[Program, Disk] | None:
        """Returns a running program and its disk, if it uses one."""
        program = self._program(draw, [one for one in (*self._world.servers, *self._world.trainers) if one.durable])
        return None if program is None or program.disk is None else (program, program.disk)

    def _crash_at_commit(self, draw: Random) -> bool:
        found = self._disk_of(draw)
        if found is not None:
            found[1].crash = draw.choice(tuple(Crash))
        return found is not None

    def _disk_error(self, draw: Random) -> bool:
        found = self._disk_of(draw)
        if found is not None:
            found[1].failures += draw.choice((1, 1, 2, 5, 20))
        return found is not None

    async def _disk_full(self, draw: Random) -> bool:
        found = self._disk_of(draw)
        if found is None:
            return False
        program, disk = found
        disk.full = True
        self._note(program.name, "disk full", store="journal or ledger")
        await asyncio.sleep(draw.expovariate(1 / 4.0))  # the clock is simulated
        disk.full = False
        self._note(program.name, "disk free", store="journal or ledger")
        return True

    async def _slow_disk(self, draw: Random) -> bool:
        """Makes a journal or a ledger slow. So a crash often comes between a message and the commit before it."""
        found = self._disk_of(draw)
        if found is None:
            return False
        program, disk = found
        usual, disk.slowest = disk.slowest, draw.uniform(0.05, SLOWEST_COMMIT)
        self._note(program.name, "slow disk", seconds=round(disk.slowest, 3))
        await asyncio.sleep(draw.expovariate(1 / 4.0))  # the clock is simulated
        if draw.random() < 0.5 and program.disk is disk:
            disk.crash = draw.choice((Crash.BEFORE, Crash.DURING))
            await asyncio.sleep(2 * disk.slowest)  # the clock is simulated
        disk.slowest = usual
        return True

    def _clock_jump(self, draw: Random) -> bool:
        program: Program = draw.choice([*self._world.servers, *self._world.trainers])
        seconds = draw.choice((-5_000.0, -10.0, 10.0, 3_600.0, 7_200.0))
        program.jump(seconds)
        self._note(program.name, "clock jump", seconds=seconds)
        return True

    # The application.

    def _running(self, draw: Random) -> tuple[TrainerProgram, Application, Any] | None:
        """Returns a trainer, its application, and one of its unfinished rollouts."""
        program = self._program(draw, [one for one in self._world.trainers if one.trainer is not None])
        if not isinstance(program, TrainerProgram) or not program.application.asked:
            return None
        return program, program.application, draw.choice(program.application.asked)

    async def _pause(self, draw: Random) -> bool:
        program = self._program(draw, [one for one in self._world.trainers if one.trainer is not None])
        if not isinstance(program, TrainerProgram) or program.trainer is None:
            return False
        trainer, idle = program.trainer, draw.random() < 0.3

        async def pause() -> None:
            async with asyncio.timeout(5.0):
                await trainer.pause(idle=idle)

        self._note(program.name, "pause")
        program.call(pause)
        await asyncio.sleep(draw.expovariate(1 / 2.0))  # the clock is simulated
        version = draw.randint(1, 9)

        async def resume() -> None:
            trainer.resume(version=version)

        if program.alive and program.trainer is trainer:
            self._note(program.name, "resume")
            program.call(resume)
        return True

    def _cancel(self, draw: Random) -> bool:
        found = self._running(draw)
        if found is None:
            return False
        program, application, plan = found
        trainer = program.trainer
        assert trainer is not None
        by_prefix = draw.random() < 0.2
        for other in application.asked if by_prefix else [plan]:
            if other.rollout_id.startswith(plan.rollout_id):
                self._note(program.name, "asks to cancel", other.rollout_id)
        program.call(lambda: trainer.cancel(prefix=plan.rollout_id) if by_prefix else trainer.cancel(plan.rollout_id))
        return True

    def _supersede(self, draw: Random) -> bool:
        found = self._running(draw)
        if found is None:
            return False
        program, application, plan = found
        application.attempts[plan.rollout_id] = application.attempts.get(plan.rollout_id, 1) + 1
        self._ask(program, application.request(plan), "asks to supersede")
        return True

    def _duplicate(self, draw: Random) -> bool:
        found = self._running(draw)
        if found is None:
            return False
        program, application, plan = found
        self._ask(program, application.request(plan), "asks twice")
        return True

    def _conflict(self, draw: Random) -> bool:
        found = self._running(draw)
        if found is None:
            return False
        program, application, plan = found
        trainer = program.trainer
        assert trainer is not None
        if plan.rollout_id not in trainer.scheduler.rollouts:
            return False
        request = replace(application.request(plan), messages=[{"role": "user", "content": "something else"}])
        self._note(program.name, "asks otherwise", plan.rollout_id)

        async def ask() -> None:
            try:
                await trainer.rollout(request)
            except AlreadyExists:
                return
            if plan.rollout_id in trainer.scheduler.rollouts:
                self._world.found(f"{plan.rollout_id} ran with two requests")

        program.call(ask)
        return True

    def _ask(self, program: TrainerProgram, request: Any, op: str) -> None:
        """Asks for a rollout beside the application's own call, and gives its outcome to the application."""
        trainer = program.trainer
        assert trainer is not None
        self._note(program.name, op, request.rollout_id, request.attempt)

        async def ask() -> None:
            try:
                await program.application.take(await trainer.rollout(request))
            except CallError:
                return

        program.call(ask)

    def _note(self, who: str, op: str, rollout: str = "", attempt: int = 0, **details: Any) -> None:
        self._world.history.note(who, op, rollout, attempt, **details)
