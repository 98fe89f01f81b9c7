"""The base class of Trainer: opens, pauses, measures and closes a trainer. Trainer adds the rollouts."""

from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from osmosis_grpc.network.credentials import Credentials
from osmosis_grpc.network.network import GRPC, Network
from osmosis_grpc.network.server_security import ServerSecurity
from osmosis_grpc.protocol.errors import FailedPrecondition, InvalidArgument, TrainerFailed
from osmosis_grpc.protocol.types import jsontext
from osmosis_grpc.protocol.types.json_values import to_json
from osmosis_grpc.protocol.types.outcome import Confirmable
from osmosis_grpc.storage.ledger import SqliteLedger
from osmosis_grpc.supervise import SYSTEM, ForkGuard, Supervisor, System
from osmosis_grpc.trainer.chats.policy_table import Policies, PolicyTable
from osmosis_grpc.trainer.chats.rollout_cache import SWEEP, RolloutCache
from osmosis_grpc.trainer.chats.sampler import entered, version_text
from osmosis_grpc.trainer.config import TrainerConfig
from osmosis_grpc.trainer.groups import GroupCounts
from osmosis_grpc.trainer.ledger_position import confirm
from osmosis_grpc.trainer.metrics import TrainerMetrics
from osmosis_grpc.trainer.scheduler import Scheduler
from osmosis_grpc.trainer.server_availability import Server
from osmosis_grpc.trainer.submissions import Submissions
from osmosis_grpc.trainer.target_sources import Named, sources_of
from osmosis_grpc.trainer.transports.attach.connections import AttachTransport
from osmosis_grpc.trainer.transports.callback.transport import CallbackTransport

if TYPE_CHECKING:
    from osmosis_grpc.observability.exposition import PrometheusCollector

TransportName = Literal["attach", "callback"]

TRANSPORTS: dict[str, type[AttachTransport] | type[CallbackTransport]] = {
    "attach": AttachTransport,
    "callback": CallbackTransport,
}


class TrainerLifecycle:
    """A trainer without the methods that run rollouts. See Trainer for the arguments."""

    network: Network = GRPC
    """The network of the trainer. A subclass can replace it."""

    def __init__(
        self,
        servers: Named | Sequence[Named],
        policy: Policies,
        *,
        transport: TransportName = "attach",
        listen: str = "",
        ledger: str | Path | None = None,
        credentials: Credentials | None = None,
        security: ServerSecurity | None = None,
        config: TrainerConfig | None = None,
        system: System = SYSTEM,
    ) -> None:
        if transport not in TRANSPORTS:
            raise ValueError(f"transport: {transport!r} is not one of {', '.join(TRANSPORTS)}")
        credentials = credentials or Credentials()
        self._config = config or TrainerConfig()
        self._sources = partial(
            sources_of,
            servers,
            credentials,
            network=self.network,
            system=system,
            resolve_every=self._config.resolve_every,
        )
        self._sources()  # checks the targets
        self._policies = PolicyTable(policy)
        self._make_transport = partial(
            TRANSPORTS[transport],
            listen=listen,
            credentials=credentials,
            security=security or ServerSecurity(),
            network=self.network,
            config=self._config,
        )
        self._ledger_path = ledger
        self._system = system
        self._submissions: Submissions | None = None
        self._transport: AttachTransport | CallbackTransport
        self._resources: AsyncExitStack
        self._guard: ForkGuard
        self.address = ""
        """HOST:PORT where the trainer listens, with the bound port. Empty if the trainer does not listen."""

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler, for tests. Its names may change. Raises RuntimeError if the trainer is not open."""
        return self._open.scheduler

    @property
    def _open(self) -> Submissions:
        if self._submissions is None:
            raise RuntimeError("the trainer is not open: use it inside `async with Trainer(...) as trainer:`")
        self._guard.check()
        return self._submissions

    async def __aenter__(self) -> Self:
        self._guard = ForkGuard("this Trainer")
        async with AsyncExitStack() as stack:
            stack.callback(self._guard.close)
            supervisor = Supervisor("the trainer", system=self._system)
            stack.push_async_callback(supervisor.close)
            ledger = None
            if self._ledger_path is not None:
                ledger = await SqliteLedger.open(self._ledger_path, self._config.ttl, supervisor)
                stack.push_async_callback(ledger.close)
            for policy in self._policies:
                await stack.enter_async_context(entered(policy))
            cache = RolloutCache(self._policies, ledger, supervisor)
            if self._config.otel:
                from osmosis_grpc.observability.spans import TrainerSpans

                cache.sampler.spans = TrainerSpans(content=self._config.otel_content)
            scheduler = Scheduler(cache, supervisor, config=self._config, ledger=ledger)
            submissions = self._submissions = Submissions(scheduler)
            stack.callback(submissions.close)
            supervisor.add_listener(lambda error: submissions.fail(TrainerFailed(supervisor.failed_job, error)))
            transport = self._transport = self._make_transport(scheduler, self._sources())
            transport.listen()
            self.address = transport.address
            kept = ledger.take_restored() if ledger is not None else []
            cache.restore(kept, cache.now())
            await transport.find_servers()
            transport.add_servers(kept)
            submissions.restore(kept)
            await transport.begin()
            ttl = self._config.ttl
            supervisor.every(SWEEP, min(60.0, ttl / 4), lambda: cache.sweep(cache.now() - ttl, keep=scheduler.rollouts))
            self._resources = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        try:
            await self._open.settle()
            await self.scheduler.servers.part()
            await self._transport.close()
        finally:
            await self._resources.aclose()

    @property
    def servers(self) -> list[Server]:
        """All agent servers, reachable or not."""
        return self.scheduler.servers.states()

    async def wait_for_server(self, timeout: float = 20.0, *, count: int = 1) -> None:
        """Wait until agent servers can be reached.

        Without this call, the first rollout waits up to `config.lost_after` seconds for a server.

        Args:
            timeout: The longest wait, in seconds.
            count: The number of servers to wait for.

        Raises:
            Unavailable: The time is over. The message has the problem of each server.
            CallError: All servers refuse permanently. This is raised at once.
        """
        await self.scheduler.servers.wait_for(count, timeout)

    async def write_note(self, name: str, value: Mapping[str, Any]) -> None:
        """Store a note of your program in the ledger, for example the state of a TaskSampler.

        Args:
            name: The name of the note. An earlier note with this name is replaced.
            value: A JSON object.

        Raises:
            FailedPrecondition: The trainer has no ledger.
            InvalidArgument: The value is not JSON, or the name begins with "osmosis_grpc.".
            LedgerError: The ledger cannot write.
        """
        if name.startswith("osmosis_grpc."):
            raise InvalidArgument("name", f"{name!r} is a note of the trainer itself; choose another name")
        text = jsontext.render(to_json(value, "value"))
        await self._ledger.write_note(name, text)

    def read_note(self, name: str) -> dict[str, Any] | None:
        """Return a note, even of an earlier process; None if there is none. Raises FailedPrecondition."""
        text = self._ledger.note(name)
        return None if text is None else jsontext.parse_object(text, "note")

    def position(self) -> dict[str, Any]:
        """Return the position of the ledger, for a checkpoint: the outcomes that you have received and not confirmed.

        Call this when your weights are trained on all of them. Write the checkpoint, and then confirm the position:

            position = trainer.position()
            torch.save({"model": model.state_dict(), "position": position}, "checkpoint.pt")
            await trainer.confirm(position)

        A process that continues from a checkpoint must confirm its position before the first rollout. Then the next
        requests get the same outcomes as if the earlier process had continued.

        Returns:
            A JSON object.

        Raises:
            FailedPrecondition: The trainer has no ledger.
        """
        return self._open.position.read(self._ledger)

    async def confirm(self, what: Confirmable | Mapping[str, Any]) -> None:
        """Record that you have used outcomes, so that the trainer does not yield them again. Idempotent.

        Args:
            what: An outcome, a group, or a return value of position().

        Raises:
            FailedPrecondition: A newer position is confirmed, or `what` is a position and the trainer has no ledger.
            InvalidArgument: `what` is a mapping that position() did not return.
            LedgerError: The ledger cannot write now. You can repeat the call.
        """
        if isinstance(what, Mapping):
            await confirm(self._ledger, what)
        else:
            await what.confirm()

    @property
    def _ledger(self) -> SqliteLedger:
        self._open  # noqa: B018 # raises outside of `async with`
        if self.scheduler.ledger is None:
            raise FailedPrecondition("the trainer has no ledger: give it one with ledger=FILE")
        return self.scheduler.ledger

    def pause(self, *, idle: bool = False) -> Awaitable[None]:
        """Stop servers from opening chats, for example while weights are swapped. Open chats are still answered.

        The call pauses the trainer at once, and returns an awaitable. With `idle`, the awaitable waits until no policy
        call is in flight, and raises FailedPrecondition if resume() is called before that. You can limit the wait with
        asyncio.timeout(). After a timeout, the trainer stays paused.

            await trainer.pause(idle=True)
            load_weights(step)
            trainer.resume(version=step)
        """
        self.scheduler.servers.pause()
        return self.scheduler.cache.sampler.idle(wait=idle)

    def resume(self, *, version: str | int | None = None) -> None:
        """Let servers open chats again, and set the policy's version; None keeps the version.

        The next policy calls get the version as ChatRequest.version. Replies without `versions` get this version. You
        can call resume() without a pause, for example to set the first version. Raises TypeError for a version that is
        neither a str nor an int.
        """
        if version is not None:
            self.scheduler.cache.sampler.version = version_text(version)
        self.scheduler.cache.sampler.resumed()
        self.scheduler.servers.resume()

    @property
    def group_counts(self) -> GroupCounts:
        """Counts of the groups of groups()."""
        return GroupCounts(**self._open.group_counts)

    def metrics(self) -> dict[str, float]:
        """Return counts, means and percentiles by name, for W&B, TensorBoard or MLflow. docs/trainers.md lists them.

        wandb.log(trainer.metrics(), step=step)
        """
        groups = {f"groups/{name}": float(count) for name, count in asdict(self.group_counts).items()}
        return groups | self.scheduler.cache.read_metrics(len(self.scheduler.rollouts))

    @property
    def source(self) -> TrainerMetrics:
        """The metrics as families, with histograms and RPCs, as in collector()."""
        return TrainerMetrics(self.scheduler.cache.metrics, self.metrics, self.scheduler.supervisor.failures)

    def collector(self) -> "PrometheusCollector":
        """Return the metrics as a collector for prometheus_client (the extra `server`).

        It also has histograms, and metrics of the trainer's RPCs. docs/observe.md lists all names. Raises
        MissingExtraError.

            prometheus_client.REGISTRY.register(trainer.collector())
            prometheus_client.start_http_server(9464, addr="127.0.0.1")
        """
        from osmosis_grpc.observability.exposition import PrometheusCollector

        return PrometheusCollector(self.source)
