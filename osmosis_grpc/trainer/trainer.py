"""Trainer: rollouts on any number of agent servers, over attachments or by callbacks."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Unpack

from osmosis_grpc.network.credentials import Credentials
from osmosis_grpc.network.network import GRPC, Network
from osmosis_grpc.network.server_security import ServerSecurity
from osmosis_grpc.protocol.errors import InvalidArgument, NotFound, TrainerFailed, Unavailable
from osmosis_grpc.protocol.types import Annotation, CancelResult, RolloutOutcome, RolloutRequest, TrajectoryEvent
from osmosis_grpc.storage.ledger import SqliteLedger
from osmosis_grpc.supervise import SYSTEM, ForkGuard, Supervisor, System
from osmosis_grpc.trainer import own_frames, unreachable_warnings
from osmosis_grpc.trainer.annotate import AnnotationFields, annotate
from osmosis_grpc.trainer.chats.chat_cache import SWEEP, ChatCache
from osmosis_grpc.trainer.chats.policy_table import Policies, PolicyTable
from osmosis_grpc.trainer.chats.sampler import entered, version_text
from osmosis_grpc.trainer.collector import TrainerMetrics
from osmosis_grpc.trainer.config import TrainerConfig
from osmosis_grpc.trainer.evaluate import Evaluation
from osmosis_grpc.trainer.groups import GroupCounts, GroupRun, OnFailure, OutcomeGroup
from osmosis_grpc.trainer.request_check import RolloutFields, check_selection, checked
from osmosis_grpc.trainer.run import EvaluationRun, Requests, Run, RunOptions, left_over
from osmosis_grpc.trainer.scheduler import Scheduler
from osmosis_grpc.trainer.server_availability import Server
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


class Trainer:
    """Runs rollouts on agent servers and answers their chats with a policy. Used with `async with`.

    `servers` are the agent servers. Each entry is one of:

    - HOST:PORT, a server.
    - "dns:///NAME:PORT": each address of the name is a server. The name is resolved again and again.
    - a Path, "./FILE" or "file:///PATH": each line of the file is HOST:PORT, with comments after #. The file is read
      again and again.
    - an async function that returns a list of HOST:PORT, such as osmosis_grpc.integrations.ray.ray_targets().

    New servers get rollouts at once. A server that is no longer named gets no new ones. `transport` is one of:

    - "attach": one stream to each server carries all messages. With `listen` (HOST:PORT), agent servers can also open
      the stream (`serve --connect`).
    - "callback": the trainer calls the servers, and the servers call the trainer at `listen`. The default of `listen`
      is a free port of 127.0.0.1.

    `policy` answers the chats. For agents that name several policies, it is a mapping from name to policy; the policy
    with the name "" answers the chats that name none. A chat with another name is refused with InvalidArgument.

    Port 0 in `listen` means a free port. `address` has the bound port.

    The file `ledger` stores the sent rollouts and the answers to chats. It stores each outcome until
    `await outcome.confirm()`. A trainer that is started again with the same ledger continues the rollouts of the
    earlier process; see unconfirmed(). Without a ledger, an outcome counts as recorded when the caller has received
    it, and a killed trainer forgets its rollouts.

    `credentials` are sent to `servers`: a token, and the files for TLS. `security` is for `listen`: the tokens that
    callers have to send, and the files for TLS. With callbacks the trainer makes a credential for each rollout.
    `system` has the clocks, random numbers, ids and threads; tests replace it.

    Raises OSError when the port is taken, LedgerError when the ledger cannot be opened, ValueError for a server that
    is none of the above, a file with a wrong line, an unknown transport, a mapping without a policy or an address that
    needs more security, TypeError for a policy that is not callable.
    """

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
        self._scheduler: Scheduler | None = None
        self._transport: AttachTransport | CallbackTransport
        self._resources: AsyncExitStack
        self._guard: ForkGuard
        self.address = ""
        """HOST:PORT where the trainer listens, with the bound port. Empty if the trainer does not listen."""

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler of an open trainer, for tests. Its names may change. Raises RuntimeError if it is not open."""
        if self._scheduler is None:
            raise RuntimeError("the trainer is not open: use it inside `async with Trainer(...) as trainer:`")
        self._guard.check()
        return self._scheduler

    async def __aenter__(self) -> "Trainer":
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
            cache = ChatCache(self._policies, ledger, supervisor)
            if self._config.otel:
                from osmosis_grpc.observability.trainer_spans import TrainerSpans

                cache.sampler.spans = TrainerSpans(content=self._config.otel_content)
            scheduler = self._scheduler = Scheduler(cache, supervisor, config=self._config, ledger=ledger)
            stack.callback(scheduler.close)
            supervisor.add_listener(lambda error: scheduler.fail(TrainerFailed(supervisor.failed_job, error)))
            transport = self._transport = self._make_transport(scheduler, self._sources())
            transport.listen()
            self.address = transport.address
            kept = ledger.take_restored() if ledger is not None else []
            cache.restore(kept, cache.now())
            await transport.find_servers()
            transport.add_servers(kept)
            scheduler.restore(kept)
            await transport.begin()
            ttl = self._config.ttl
            supervisor.every(
                unreachable_warnings.WARN_DRAINING, unreachable_warnings.EVERY, scheduler.warn_if_all_drain
            )
            supervisor.every(SWEEP, min(60.0, ttl / 4), lambda: cache.sweep(cache.now() - ttl, keep=scheduler.rollouts))
            self._resources = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        own_frames.hide(trace)
        try:
            await self.scheduler.settle()
            await self.scheduler.servers.part()
            await self._transport.close()
        finally:
            await self._resources.aclose()

    @property
    def servers(self) -> list[Server]:
        """All agent servers, reachable or not."""
        return [
            Server(
                s.name,
                s.attached,
                s.window,
                len(s.rollouts),
                s.identity.agent_loops,
                s.identity.version,
                s.identity.journal_id,
                s.retired,
            )
            for s in self.scheduler.servers
        ]

    async def wait_for_server(self, timeout: float = 20.0, *, count: int = 1) -> None:
        """Wait until `count` agent servers can be reached. Returns at once if they can.

        Without this call, the first rollout waits `config.lost_after` seconds. Raises Unavailable after `timeout`
        seconds, with what is known about each server. Raises the error of servers that refuse for good at once.
        """
        await self.scheduler.servers.wait_for(count, timeout)

    async def rollout(
        self, /, request: RolloutRequest | None = None, *, affinity_key: str = "", **changes: Unpack[RolloutFields]
    ) -> RolloutOutcome:
        """Run a rollout and wait for its outcome. Takes a RolloutRequest, or its fields by name.

        If a rollout with the same id is unfinished, waits for that rollout. If the ledger has its unconfirmed
        outcome, returns that outcome. Rollouts with the same `affinity_key` go to one server. Cancelling the
        last waiting call cancels the rollout. A call that comes before the cancelled rollout has ended gets the status
        CANCELLED, too.

        Raises InvalidArgument with the name of the field, AlreadyExists if another request uses the id, Superseded if
        a higher attempt replaces the rollout, Unavailable if there is no agent server, and the CallError of a server
        that refuses the rollout. If the rollout failed because the policy raised, raises the exception of the policy.
        """
        rollout = self.scheduler.submit(checked(request, changes), affinity_key=affinity_key)
        rollout.waiters += 1
        try:
            outcome = await asyncio.shield(rollout.done)
        finally:
            rollout.waiters -= 1
            if not rollout.waiters:
                self.scheduler.abandon(rollout)
        failure = rollout.failed_by(outcome)
        if failure is not None:
            failure.reraise()
        return outcome

    async def run(
        self,
        requests: Requests,
        *,
        group_size: int = 1,
        retries: int = 0,
        max_in_flight: int = 256,
        max_version_lag: int | None = None,
        colocate_groups: bool = False,
        progress: bool = False,
    ) -> AsyncGenerator[RolloutOutcome, None]:
        """Run rollouts, and yield each outcome when its rollout ends.

        Each request runs `group_size` times. If `group_size` is above 1, the request ID becomes the group ID with the
        members ID-0, ID-1, and so on. `colocate_groups` keeps a group's members on one server. A refused or superseded
        rollout is yielded as FAILED, with the reason. A rollout that fails runs again with a higher attempt, up to
        `retries` times, as in groups(). Leaving the loop cancels unfinished rollouts. With `progress`, stderr shows
        the progress: a bar on a terminal if rich is installed (the extra `server`), otherwise a line every few seconds.

        `max_version_lag` limits the age of tokens. When an outcome would be yielded, its oldest token may be so many
        versions behind the version of resume(). A rollout with an older token runs again with a higher attempt, and
        `group_counts` counts it as stale. The versions must be numbers.

        Raises TypeError and InvalidArgument for a wrong request, and InvalidArgument for two requests with one id. With
        `max_version_lag`, raises InvalidArgument for tokens without a version. If the policy raised and a whole group
        (or, without groups, a rollout) failed because of it, raises the exception of the policy. A CallError of the
        policy, such as Unavailable, is an answer to the agent and is not raised.
        """
        options = RunOptions(
            group_size=group_size,
            max_in_flight=max_in_flight,
            max_version_lag=max_version_lag,
            colocate_groups=colocate_groups,
            retries=retries,
            progress=progress,
        )
        async with aclosing(Run(self.scheduler, options).ended(requests)) as ended:
            async for _, outcome in ended:
                yield outcome

    async def groups(
        self,
        requests: Requests,
        group_size: int,
        *,
        retries: int = 1,
        on_failure: OnFailure = "drop_group",
        max_in_flight: int = 256,
        max_version_lag: int | None = None,
        colocate_groups: bool = False,
        progress: bool = False,
    ) -> AsyncGenerator[OutcomeGroup, None]:
        """Run each request as a group, as run() does, and yield each group when its last member ends.

        A member that does not complete runs again with a higher attempt, up to `retries` times. A member that was
        cancelled, or refused with a permanent error, does not run again. If the member still fails, `on_failure`
        decides. "drop_group" cancels the other members and yields nothing. "drop_member" yields the group without the
        member if at least two members complete. Dropped groups and members are logged and counted in `group_counts`;
        if every group was dropped, the loop ends with RolloutFailed, which has the last outcome. "raise" raises
        RolloutFailed, or the first exception of the policy at once. Leaving the loop cancels unfinished rollouts.
        `max_version_lag` works as in run(): when a group would be yielded, its stale members run again first.

        Raises ValueError, TypeError and InvalidArgument for wrong arguments, AlreadyExists for an id that this trainer
        has run before (Aborted for a lower attempt), LedgerError when the outcomes of a dropped group cannot be
        confirmed. If all members of a group failed because the policy raised, raises the exception of the policy; if
        all were refused, raises the error.
        """
        options = RunOptions(
            group_size=group_size,
            max_in_flight=max_in_flight,
            max_version_lag=max_version_lag,
            colocate_groups=colocate_groups,
            retries=retries,
            progress=progress,
        )
        run = GroupRun(self.scheduler, options, on_failure=on_failure)
        async with aclosing(run.groups(requests)) as groups:
            async for group in groups:
                yield group

    @property
    def group_counts(self) -> GroupCounts:
        """Counts of the groups of groups()."""
        return GroupCounts(**self.scheduler.group_counts)

    async def evaluate(
        self, requests: Requests, *, group_size: int = 1, max_in_flight: int = 64, colocate_groups: bool = False
    ) -> Evaluation:
        """Run rollouts that measure the policy, beside other rollouts, and return all outcomes with a summary.

        Each request runs `group_size` times, so the result has pass@k for each k up to `group_size`.

        The requests are sent with `evaluation=True`. The trainer, the servers and their files mark the outcomes as
        evaluations, and trainable_samples() and pad() leave them out. Servers take evaluations and other rollouts in
        the order of arrival. A request with a higher `priority` is ahead in a server's queue. Each id runs once, so a
        later evaluation of the same rows needs new ids. Raises the errors of run(), and InvalidArgument if there are no
        requests. Cancelling the call cancels unfinished rollouts.
        """
        options = RunOptions(group_size=group_size, max_in_flight=max_in_flight, colocate_groups=colocate_groups)
        async with aclosing(EvaluationRun(self.scheduler, options).ended(requests)) as ended:
            outcomes = tuple([outcome async for _, outcome in ended])
        if not outcomes:
            raise InvalidArgument("requests", "is empty, so there is nothing to measure")
        return Evaluation(outcomes=outcomes)

    async def unconfirmed(self) -> AsyncGenerator[RolloutOutcome, None]:
        """Yield the unconfirmed outcomes of an earlier process, and of the rollouts that it did not finish.

        The unconfirmed outcomes in the ledger come first, oldest first. Then each unfinished rollout's outcome
        is yielded when the rollout ends. Rollouts of calls of rollout() or run() are left out, and so is an outcome
        for which a call has asked for a higher attempt. Leaving the loop cancels nothing.
        Yields nothing without a ledger.
        """
        async with aclosing(left_over(self.scheduler)) as outcomes:
            async for outcome in outcomes:
                yield outcome

    async def cancel(
        self, rollout_id: str = "", *, group_id: str = "", prefix: str = "", everything: bool = False, reason: str = ""
    ) -> list[CancelResult]:
        """Cancel one rollout of this trainer, a group, the rollouts whose ids begin with `prefix`, or everything.

        Idempotent. Each rollout ends with the status CANCELLED, and its callers get this outcome. Raises
        InvalidArgument unless exactly one of `rollout_id`, `group_id`, `prefix` and `everything` is given. Raises
        Unavailable when a server cannot write the cancel to its disk. In this case the running server process still
        cancels the rollouts, and the call can be repeated.
        """
        check_selection(rollout_id, group_id, prefix, everything=everything)
        cancels = []
        for rollout in list(self.scheduler.rollouts.values()):
            name, group = rollout.request.rollout_id, rollout.request.group
            in_group = bool(group_id) and group is not None and group.id == group_id
            if not (everything or in_group or name == rollout_id or (prefix and name.startswith(prefix))):
                continue
            rollout.cancelled = True
            if rollout.server is None:
                self.scheduler.end_here(rollout)
            else:  # by id, because the group may include rollouts of another trainer
                cancels.append(rollout.server.cancel(name, reason))
        return list(chain.from_iterable(await asyncio.gather(*cancels)))

    async def events(
        self, rollout_id: str, *, attempt: int = 0, after: int = 0, tokens: bool = False
    ) -> AsyncGenerator[TrajectoryEvent, None]:
        """Yield a rollout's events with numbers above `after`, and then its new events until the last event.

        Continues after a broken connection. Waits until a server has accepted the rollout. Without `tokens`, replies
        have no token blocks. Raises NotFound if no server knows the rollout, and the CallError of a server that
        refuses the rollout.
        """
        await asyncio.sleep(0)  # lets a task of the caller submit the rollout first
        if self.scheduler.failure is not None:
            raise self.scheduler.failure
        rollout = self.scheduler.rollouts.get(rollout_id)
        if rollout is not None:
            await rollout.wait_until_opened()
        first = rollout.server if rollout is not None else None
        attached = self.scheduler.placement.recent_servers.first(rollout_id, self.scheduler.servers.attached)
        servers = [first] if first is not None else attached
        for server in servers:
            begun = False
            try:
                async with aclosing(server.events(rollout_id, attempt, after, tokens=tokens)) as stream:
                    async for event in stream:
                        begun = True
                        yield event
                return
            except NotFound:
                if begun:
                    raise
        raise NotFound(f"no agent server knows rollout {rollout_id}", kind="rollout", name=rollout_id)

    async def annotate(
        self, outcome: RolloutOutcome, annotation: Annotation | None = None, **fields: Unpack[AnnotationFields]
    ) -> tuple[int, bool]:
        """Store an annotation with a rollout that has ended. Takes an Annotation, or its fields by name.

            await trainer.annotate(outcome, id=f"step-{step}", trained=True, advantage=0.7, weight_step=str(step))

        The server stores it as an event of the rollout. Returns the number of this event, and whether this call has
        added it. Storing an equal annotation under the same id again adds nothing. If the connection breaks, the call
        continues on the next connection.

        Raises InvalidArgument for an annotation that does not fit the outcome, AlreadyExists if another annotation has
        the id, Unavailable if the server of the rollout is not attached now or cannot write, NotFound if no server has
        the rollout, and Unimplemented if its server does not store annotations.
        """
        if annotation is not None and not isinstance(annotation, Annotation):
            raise TypeError(f"an Annotation or its fields by name is needed, not a {type(annotation).__name__}")
        if self.scheduler.failure is not None:
            raise self.scheduler.failure
        full = replace(annotation, **fields) if annotation is not None else Annotation(**fields)
        reported = self.scheduler.placement.recent_servers.get(outcome.rollout_id)
        if reported is not None and not reported.attached:
            raise Unavailable(f"agent server {reported.name} has the rollout and is not attached now", retry_after=1.0)
        servers = self.scheduler.placement.recent_servers.first(outcome.rollout_id, self.scheduler.servers)
        return await annotate(servers, outcome.rollout_id, outcome.attempt, full)

    def pause(self, *, idle: bool = False) -> Awaitable[None]:
        """Stop servers from opening chats, for example while weights are swapped. Open chats are still answered.

        The call pauses the trainer at once and returns an awaitable. With `idle`, the awaitable waits until no policy
        call is in flight. It raises FailedPrecondition when resume() is called before that. asyncio.timeout() can
        limit the wait. After a timeout the trainer stays paused.

            await trainer.pause(idle=True)
            load_weights(step)
            trainer.resume(version=step)
        """
        self.scheduler.servers.pause()
        return self.scheduler.cache.sampler.idle(wait=idle)

    def resume(self, *, version: str | int | None = None) -> None:
        """Let servers open chats again, and set the policy's version; None keeps the version.

        The next policy calls get the version in ChatRequest.version. Replies without `versions` get this version.
        resume() can be called without a pause, for example to set the first version. Raises TypeError for a version
        that is neither text nor a whole number.
        """
        if version is not None:
            self.scheduler.cache.sampler.version = version_text(version)
        self.scheduler.cache.sampler.resumed()
        self.scheduler.servers.resume()

    def metrics(self) -> dict[str, float]:
        """Returns counts, means and percentiles by name, for W&B, TensorBoard or MLflow.

        Counts since the trainer was started: `rollouts/completed`, `/failed`, `/cancelled`, `/deadline_exceeded`,
        `rollouts/from_journal` (ended rollouts of an earlier run), `failures/BOUNDARY/REASON`,
        `chats/answered`, `chats/failed` (policy calls without a reply), `tokens/prompt`, `tokens/sampled`,
        `rollouts/not_trainable` (completed rollouts without a trainable sample), `samples/trainable`,
        `samples/segments` (segments of these; more segments than samples means that a prompt did not continue the
        earlier tokens, for example because of the chat template), `samples/cut` (by a limit, see Sample.cut),
        `replies/dropped` (by the agents, see Segment.dropped), `groups/yielded`, `/dropped`, `/dropped_members`,
        `/retried`, `/stale`, `/zero_variance` (as in group_counts).
        Current values: `rollouts/open`, `chats/open` (policy calls in flight), `policy/version`.
        Over the newest 1,024 values: `reward/mean` (of a rollout's own reward, or else the mean of its samples'
        rewards), `rollout_seconds/mean`, `/p50`, `/p95` (on the server),
        `chat_seconds/mean`, `/p50`, `/p95` (policy calls), `policy/lag/mean`, `/max` (versions between an
        outcome's oldest token and the current version). A name without a value is left out. `policy/version` and
        `policy/lag` need versions that are numbers. Evaluations are counted separately, as
        `evaluation/rollouts/completed` and so on.

            wandb.log(trainer.metrics(), step=step)

            for name, value in trainer.metrics().items():
                writer.add_scalar(name, value, step)  # TensorBoard

            mlflow.log_metrics(trainer.metrics(), step=step)
        """
        groups = {f"groups/{name}": float(count) for name, count in asdict(self.group_counts).items()}
        return groups | self.scheduler.cache.read_metrics(len(self.scheduler.rollouts))

    @property
    def source(self) -> TrainerMetrics:
        """These metrics by family, with histograms and the RPCs, as in collector()."""
        return TrainerMetrics(self.scheduler.cache.metrics, self.metrics, self.scheduler.supervisor.failures)

    def collector(self) -> "PrometheusCollector":
        """Returns these metrics as a collector for prometheus_client, of the extra `server`.

        It has histograms and the trainer's RPCs, too; docs/observe.md lists all names. Raises MissingExtraError.

            prometheus_client.REGISTRY.register(trainer.collector())
            prometheus_client.start_http_server(9464, addr="127.0.0.1")
        """
        from osmosis_grpc.observability.exposition import PrometheusCollector

        return PrometheusCollector(self.source)
