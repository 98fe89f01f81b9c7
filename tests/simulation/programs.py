"""The simulated programs: agent servers and trainers. A program runs as one process at a time, and keeps its disk."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_grpc.protocol.errors import CallError, LedgerError, TrainerFailed
from osmosis_grpc.protocol.types.server_info import Worker
from osmosis_grpc.server.app import AgentServer
from osmosis_grpc.server.config import ServerConfig
from osmosis_grpc.server.workers.siblings import WorkersConfig
from osmosis_grpc.storage import JournalError
from osmosis_grpc.storage.journal.schema import FILE
from osmosis_grpc.supervise import OnFailure, job
from osmosis_grpc.trainer import Trainer, TrainerConfig
from tests.simulation.agents import Passenger, Traveller
from tests.simulation.application import Application
from tests.simulation.committer import Disk
from tests.simulation.leftovers import record_journal, record_ledger
from tests.simulation.network import ProcessNetwork
from tests.simulation.plan import ServerPlan, TrainerPlan
from tests.simulation.policy import Policy
from tests.simulation.processes import Process
from tests.simulation.system import SimulatedSystem

if TYPE_CHECKING:
    from tests.simulation.world import World

WATCH = job("test.watch_program", OnFailure.RESTART)
SERVER_PORT, TRAINER_PORT = 50_051, 60_051
EXPECTED = (CallError, LedgerError, JournalError, TrainerFailed, OSError)
"""Errors with which a program may end when its disk fails. Any other error is a finding."""


class Program:
    """A program, its host and its disk. `restart_after` restarts it when it ends by itself."""

    def __init__(self, world: "World", name: str, host: str) -> None:
        self.world = world
        self.name = name
        self.host = host
        self.folder = world.folder / name
        self.process: Process | None = None
        self.system: SimulatedSystem
        self.closing = False
        """Whether it shall end for good, in good order."""
        self.disk: Disk | None = None
        """The disk of the newest process."""
        self.ahead = 0.0
        """How many seconds the wall clock of the host is ahead."""
        self._ended = asyncio.Event()
        self._stopping = asyncio.Event()

    @property
    def settings(self) -> tuple[tuple[str, Any], ...]:
        """What the oracles have to know about it."""
        raise NotImplementedError

    def record_left(self) -> None:
        """Records what is left on its disk, after its end."""
        raise NotImplementedError

    async def _main(self, process: Process) -> None:
        raise NotImplementedError

    durable = False
    """Whether it has a file of its own."""

    @property
    def alive(self) -> bool:
        """Whether a process of the program runs or is stopped."""
        return self.process is not None and not self.process.dead

    @property
    def ending(self) -> bool:
        """Whether the process was asked to end. Another one follows, unless the program is closed."""
        return self.alive and self._stopping.is_set()

    def start(self) -> None:
        """Starts a process, unless one is alive."""
        if self.alive or self.closing:
            return
        randomness = self.world.randomness
        self.disk = Disk(randomness(f"disk of {self.name}"), self._killed_at_commit, partial(self._note, "disk of "))
        self.system = SimulatedSystem(self.world.loop, randomness(f"system of {self.name}"), self.disk)
        self.system.ahead = self.ahead
        self._stopping, self._ended = asyncio.Event(), asyncio.Event()
        process = self.process = Process(self.world.loop, self.world.network, self.name, self.host)
        self.world.processes.append(process)
        self.world.history.note(self.name, "restart")
        process.start(self._run(process))

    async def _run(self, process: Process) -> None:
        try:
            await self._main(process)
            if not process.dead:
                self.world.history.note(self.name, "close")
        except Exception as error:
            if process.dead:  # the world has ended, and drops this coroutine
                return
            self.world.history.note(self.name, "crash", where=f"ends with {type(error).__name__}")
            if not isinstance(error, EXPECTED):
                self.world.found(f"{self.name} ended with {type(error).__name__}: {error}", error)
        if process is self.process and not process.dead:
            process.kill()
            if self.disk is not None:
                self.disk.kill()
            self.world.network.gone(process, silently=False)
            self._ended.set()
            if not self.closing:
                self.world.later(self.world.randomness("restarts").uniform(0.1, 2.0), self.start)

    def kill(self, where: str, *, silently: bool = False) -> None:
        """Ends the process at once."""
        if self.process is None or self.process.dead:
            return
        self.world.history.note(self.name, "crash", where=where)
        self.process.kill()
        if self.disk is not None:
            self.disk.kill()
        self.world.network.gone(self.process, silently=silently)

    def jump(self, seconds: float) -> None:
        """Moves the wall clock of the host."""
        self.ahead += seconds
        if self.alive:
            self.system.ahead = self.ahead

    def _note(self, device: str, op: str, **details: Any) -> None:
        self.world.history.note(f"{device}{self.name}", op, **details)

    def _killed_at_commit(self, where: str) -> None:
        self.kill(where)
        self.world.faults.made[f"crash {where}"] += 1
        self.world.later(self.world.randomness("restarts").uniform(0.1, 2.0), self.start)

    async def close(self, limit: float) -> bool:
        """Ends the program for good, in good order. Returns False if it does not end within `limit` seconds."""
        self.closing = True
        if not self.alive:
            return True
        self.world.history.note(self.name, "asked to stop")
        self._stopping.set()
        try:
            async with asyncio.timeout(limit):
                await self._ended.wait()
        except TimeoutError:
            return False
        return True

    def end(self) -> None:
        """Ends the process in good order. It starts again after a pause."""
        if self.alive:
            self.world.history.note(self.name, "asked to stop")
            self._stopping.set()

    def call(self, work: Callable[[], Awaitable[Any]]) -> None:
        """Runs a call as a task of the process. An error of the product that names its cause is expected."""

        async def run() -> None:
            try:
                await work()
            except (CallError, LedgerError, TrainerFailed, RuntimeError):
                return

        if self.process is not None and not self.process.dead:
            self.process.start(run(), f"{self.name} call")


class _AgentServer(AgentServer):
    network = ProcessNetwork()


class _Trainer(Trainer):
    network = ProcessNetwork()


class ServerProgram(Program):
    """An agent server, or one worker of it. Worker 0 has the name of the server."""

    def __init__(self, world: "World", plan: ServerPlan, host: str, worker: int = 0) -> None:
        super().__init__(world, f"{plan.name}-w{worker}" if worker else plan.name, host)
        self.plan = plan
        self.worker = worker
        self.listed = plan.workers
        """How many workers the hello of worker 0 names from its next start on."""
        self.durable = plan.journal
        self.connect: list[str] = []
        """The trainers to which it connects."""
        self.server: AgentServer | None = None
        self.drain_limit = 0.0
        self._capacity: dict[str, int] = {}

    @property
    def settings(self) -> tuple[tuple[str, Any], ...]:
        config = ServerConfig(**self.plan.config)
        return (
            ("journal", self.plan.journal),
            ("max_concurrent", config.max_concurrent),
            ("max_queued", config.queue_limit),
            ("owners", len(self.connect) + 1),
            ("trainer_grace", self.plan.config["trainer_grace"]),
            ("retry_delay", self.plan.config["retry_delay"]),
            ("routed", self.plan.name if self.plan.routed else ""),
        )

    def record_left(self) -> None:
        if self.plan.journal and (self.folder / FILE).exists():
            record_journal(self.world.history, self.name, self.folder)

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return f"{self.host}:{SERVER_PORT + self.worker}"

    async def _main(self, process: Process) -> None:
        workers = [Worker(SERVER_PORT + number) for number in range(self.listed)] if self.plan.workers > 1 else []
        agents = [kind(self.name, self.world.history, self.world.next_run) for kind in (Passenger, Traveller)]
        server = _AgentServer(
            agents,
            host=self.host,
            port=SERVER_PORT + self.worker,
            state_dir=self.folder if self.plan.journal else None,
            connect=self.connect,
            config=ServerConfig(**self.plan.config, reflection=False),
            workers=self._place(),
            system=self.system,
        )
        server.attachments.workers = lambda: workers
        async with server:
            server.attachments.workers = lambda: workers
            self.server = server
            server.supervisor.every(WATCH, 0.5, partial(self._note_capacity, server))
            failed = asyncio.Event()
            server.supervisor.add_listener(lambda error: failed.set())
            waits = [asyncio.create_task(self._stopping.wait()), asyncio.create_task(failed.wait())]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if server.supervisor.failure is not None:
                raise server.supervisor.failure
            await server.stop(self.drain_limit)

    def _place(self) -> WorkersConfig | None:
        """Returns the place of this worker, if the workers pass calls on. The folder of sockets is a name only."""
        if not self.plan.routed:
            return None
        count = self.plan.workers
        ports = {number: SERVER_PORT + number for number in range(count)}
        sockets = Path("sockets of", self.plan.name)
        return WorkersConfig(index=self.worker, ports=ports, accepting=count, secret="s", sockets=sockets)

    def _note_capacity(self, server: AgentServer) -> None:
        now = server.engine.capacity()
        values = {name: getattr(now, name) for name in ("running", "max_concurrent", "queued", "max_queued")}
        if values != self._capacity:
            self._capacity = values
            self.world.history.note(self.name, "capacity", abandoned=now.abandoned, **values)

    def start(self) -> None:
        if not self.alive:
            self.server = None  # that of the process before
        super().start()

    def forget(self) -> None:
        """Kills the process, and deletes the disk."""
        self.kill("and loses its disk")
        self.world.history.note(self.name, "forget")
        shutil.rmtree(self.folder, ignore_errors=True)


class TrainerProgram(Program):
    """A trainer and its application."""

    def __init__(self, world: "World", plan: TrainerPlan, host: str, servers: list[ServerProgram]) -> None:
        super().__init__(world, plan.name, host)
        self.plan = plan
        self.durable = plan.ledger
        self.trainer: Trainer | None = None
        self.application = Application(world, plan)
        self.named = servers
        """The servers that its list names now."""
        self.ever_named = list(servers)

    def rename(self, servers: list[ServerProgram]) -> None:
        """Changes its list of servers."""
        for server in servers:
            if server not in self.named:
                again = "named again" if server in self.ever_named else "named"
                self.world.history.note(self.name, again, server=server.name)
        for server in self.named:
            if server not in servers:
                self.world.history.note(self.name, "unnamed", server=server.name)
        self.named = servers
        self.ever_named += [server for server in servers if server not in self.ever_named]

    async def _find(self) -> list[str]:
        return [server.address for server in self.named]

    @property
    def address(self) -> str:
        """HOST:PORT for servers that connect, and for callbacks."""
        return f"{self.host}:{TRAINER_PORT}"

    async def _main(self, process: Process) -> None:
        world, plan = self.world, self.plan
        conditions = world.plan.conditions
        policy = Policy(
            self.name,
            world.history,
            world.next_draw,
            world.randomness(f"policy of {self.name}"),
            lambda: (
                10.0 if "slow policy" in conditions and not world.calm else 0.4,
                0.1 if "failing policy" in conditions and not world.calm else 0.0,
            ),
        )
        self.folder.mkdir(parents=True, exist_ok=True)
        trainer = _Trainer(
            self._servers(),
            policy,
            transport="callback" if plan.transport == "callback" else "attach",
            listen="" if plan.transport == "attach" else self.address,
            ledger=self.ledger,
            config=TrainerConfig(**plan.config),
            system=self.system,
        )
        async with trainer:
            self.trainer = trainer
            waits = [
                asyncio.create_task(self._stopping.wait()),
                asyncio.create_task(self.application.run(trainer, ledger=plan.ledger)),
            ]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for task in waits:
                task.cancel()
            await asyncio.wait(waits)
            if not waits[1].cancelled() and (error := waits[1].exception()) is not None:
                raise error

    def _servers(self) -> Any:
        """Returns the argument `servers` of the trainer."""
        if self.plan.transport == "accept":
            return []
        return self._find if "rename" in self.world.plan.faults else [server.address for server in self.named]

    def start(self) -> None:
        if not self.alive:
            self.trainer = None  # that of the process before
        super().start()

    @property
    def settings(self) -> tuple[tuple[str, Any], ...]:
        return (
            ("ledger", self.plan.ledger),
            ("ttl", TrainerConfig(**self.plan.config).ttl),
            ("transport", self.plan.transport),
        )

    def record_left(self) -> None:
        if self.ledger is not None and self.ledger.exists():
            record_ledger(self.world.history, self.name, self.ledger)

    @property
    def ledger(self) -> Path | None:
        """The file of the ledger."""
        return self.folder / "ledger" if self.plan.ledger else None
