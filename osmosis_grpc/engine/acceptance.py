"""Accepts or refuses an Init, or finds the rollout that an equal Init started.

An equal Init has the same id, attempt and spec as an earlier Init. An accepted rollout is committed, and ends exactly
once. A refused rollout leaves no record.
"""

import asyncio
import inspect
from collections import Counter
from collections.abc import Awaitable
from dataclasses import replace
from functools import partial
from typing import Any

from osmosis_grpc.agent.request import RolloutRequest
from osmosis_grpc.agent.runnable import await_tools
from osmosis_grpc.engine import failpoints
from osmosis_grpc.engine.agent_calls import notify_ended, own_copy
from osmosis_grpc.engine.context import EngineContext
from osmosis_grpc.engine.forks import Forks
from osmosis_grpc.engine.meter import Meter
from osmosis_grpc.engine.record import Peer, Record, Run
from osmosis_grpc.engine.recorded_chats import ForkedChats
from osmosis_grpc.engine.runner import Runner
from osmosis_grpc.engine.shutdown import Shutdown
from osmosis_grpc.engine.termination import Termination
from osmosis_grpc.engine.tombstones import CANCELLED_EARLY
from osmosis_grpc.protocol.errors import (
    Aborted,
    AlreadyExists,
    CallError,
    Internal,
    InvalidArgument,
    NotFound,
    Unavailable,
)
from osmosis_grpc.protocol.types import InitRequest, events
from osmosis_grpc.protocol.types.messages import tool_dicts
from osmosis_grpc.protocol.types.outcome import clip, describe
from osmosis_grpc.protocol.types.requests import differing_fields
from osmosis_grpc.supervise import OnFailure, job

ACCEPT = job("engine.accept", OnFailure.REPORT, "callback")
FORK = job("engine.fork", OnFailure.REPORT)
ACCEPT_LATER = job("engine.accept_later", OnFailure.REPORT)

DRAIN_RETRY_AFTER = 5.0
"""The retry_after, in seconds, if a draining or failed server refuses an Init."""
UNCOMMITTED_RETRY_AFTER = 0.2
"""The retry_after, in seconds, if a server refuses an Init because it is just accepting a higher attempt."""


class Acceptance:
    """Accepts or refuses Inits."""

    def __init__(self, context: EngineContext, runner: Runner, shutdown: Shutdown) -> None:
        self._context = context
        self._runner = runner
        self._shutdown = shutdown
        self._forks = Forks(context)
        self.rejected: Counter[int] = Counter()
        """The number of refused Inits, by gRPC code."""

    def begin(
        self, init: InitRequest, *, owner: str, peer: Peer, original: ForkedChats | None = None
    ) -> tuple[Record, bool]:
        """Begin to accept a rollout, or find the rollout of an equal Init.

        Return the record, and whether this call started the rollout. `record.accepted` is done when the rollout is
        accepted or refused. `original` has the recorded chats of a fork's original; without it, they are read from the
        journal. Raises CallError for an immediate refusal.
        """
        try:
            return self._find_or_begin(init, owner, peer, original)
        except CallError as error:
            self.rejected[error.code] += 1
            raise

    def _find_or_begin(
        self, init: InitRequest, owner: str, peer: Peer, chats: ForkedChats | None
    ) -> tuple[Record, bool]:
        request = init.request
        known = self._context.table.highest(request.rollout_id)
        if known is not None and known.owner != owner:
            raise AlreadyExists(f"rollout {request.rollout_id} exists", rollout_id=request.rollout_id)
        if known is not None and known.attempt > request.attempt and not known.accepted.done():
            # The disk does not have the higher attempt yet, so a crash can still undo it.
            raise Unavailable(
                f"attempt {known.attempt} of rollout {request.rollout_id} is being accepted",
                retry_after=UNCOMMITTED_RETRY_AFTER,
            )
        if known is not None and known.attempt >= request.attempt:
            _check_same(known, init, list(self._context.runnables))
            self._mark(known, peer)
            self._repoint(known, init, peer)
            return known, False
        self._context.table.check_alias(request, owner)
        name = self._agent_name(request.agent_loop)
        if self._shutdown.draining:
            raise Unavailable("the server is draining", retry_after=DRAIN_RETRY_AFTER, reason="DRAINING")
        self._context.table.check_budget(owner)
        if self._context.journal.problem:
            raise self._unwritable()
        if self._context.supervisor.failure is not None:
            raise Unavailable(f"{self._context.supervisor.owner} has failed", retry_after=DRAIN_RETRY_AFTER)
        fork = request.fork
        original = None
        if fork is not None and chats is None:
            original = self._forks.original(fork, name, request.rollout_id, owner)
        own = own_copy(request)
        now = self._context.system.monotonic()
        record = Record(
            init,
            owner,
            peer,
            peer.tenant or self._context.callback_tenant(owner),
            self._context.system.time(),
            Run(Meter(now), deadline=None if request.agent_timeout is None else now + request.agent_timeout),
            asyncio.get_running_loop().create_future(),
            agent_loop=name,
        )
        record.accepted.add_done_callback(lambda f: f.cancelled() or f.exception())  # asyncio logs an unread error
        self._context.admission.reserve(record)
        record.run.original = chats
        begin = partial(self._begin, own=own, original=original)
        self._context.supervisor.call(ACCEPT, begin, record, report=partial(self._failed, record))
        return record, True

    def take_over(self, rollout_id: str, attempt: int, *, owner: str, peer: Peer) -> Record | None:
        """Send the calls of an accepted attempt to `peer`. Return None if the owner has no such attempt."""
        record = self._context.table.find(rollout_id, attempt)
        if record is None or record.owner != owner or not record.accepted.done():
            return None
        self._mark(record, peer)
        self._repoint(record, record.init, peer)
        return record

    def _begin(self, record: Record, own: RolloutRequest, original: Record | None) -> None:
        self._context.table.add(record)
        record.count(True)
        if original is None:
            self._get_tools(record, own)
        else:
            later = partial(self._fork, record, own, original)
            self._context.supervisor.start(FORK, later, partial(self._failed, record))

    async def _fork(self, record: Record, own: RolloutRequest, original: Record) -> None:
        """Read the recorded chats of the original, and then begin like any other rollout."""
        fork = record.init.request.fork
        assert fork is not None
        try:
            chats = await self._forks.chats(fork, original)
        except asyncio.CancelledError:
            self._refuse(record, Unavailable("the server is shutting down"))
            raise
        except CallError as error:
            self._refuse(record, error)
            return
        record.run.original = chats
        self._context.table.grow(record, chats.nbytes)
        self._get_tools(record, own)

    def _get_tools(self, record: Record, own: RolloutRequest) -> None:
        try:
            agent = self._context.runnables[record.agent_loop]
            if own.group is not None:
                agent.accepted(own, record.owner)
            tools = agent.tools(own)
        except BaseException as error:  # the agent's code can raise anything, and nothing is awaited here
            self._refuse(record, error)
            return
        if inspect.isawaitable(tools):
            later = partial(self._accept_later, record, tools)
            self._context.supervisor.start(ACCEPT_LATER, later, partial(self._failed, record))
        else:
            self._accept(record, tools)

    def failed(self, record: Record, error: BaseException) -> None:
        """End a rollout FAILED (server), because the code after the commit of its acceptance raised `error`.

        If the acceptance could not be committed, refuse the rollout instead.
        """
        if not record.trail.journaled:
            self._refuse(record, self._unwritable())
            return
        self._context.admission.release(record)
        if not record.accepted.done():
            record.accepted.set_result(None)
        self._runner.fail(record, error)

    def _failed(self, record: Record, error: BaseException) -> None:
        self._refuse(record, Internal(f"the rollout could not be accepted: {clip(describe(error))}"))

    def _agent_name(self, name: str) -> str:
        """Return the name of the agent to run. If the request names none, the server must have exactly one."""
        names = sorted(self._context.runnables)
        if not name and len(names) != 1:
            raise InvalidArgument("spec.agent_loop", f"name one of: {', '.join(names)}")
        if name and name not in names:
            raise NotFound(
                f"there is no agent loop {name!r}; there are: {', '.join(names)}", kind="agent_loop", name=name
            )
        return name or names[0]

    def _mark(self, record: Record, peer: Peer) -> None:
        """If the rollout has an outcome, record in it whether the rollout ended in an earlier run of the trainer."""
        if record.delivery.outcome is not None:
            earlier = self._context.earlier_runs.earlier(record, peer)
            if earlier != record.delivery.outcome.from_journal:
                record.delivery.outcome = replace(record.delivery.outcome, from_journal=earlier)
            if earlier is not None:
                self._context.earlier_runs.count(earlier)

    def _repoint(self, record: Record, init: InitRequest, peer: Peer) -> None:
        """Send the calls of a rollout to another peer from now on."""
        if record.peer.key == peer.key:
            return
        record.peer, record.init = peer, init
        if not record.delivery.settled:
            self._context.journal.repoint(record.entry())
        tenant = peer.tenant or self._context.callback_tenant(record.owner)
        if tenant is not record.tenant and record.live:
            record.tenant.open -= record.counted
            tenant.open += record.counted
            self._context.admission.move(record, tenant, runs=record.slot)
        record.restart_calls()

    async def _accept_later(self, record: Record, tools: Awaitable[Any]) -> None:
        try:
            found = await await_tools(tools, self._context.config.get_tools_timeout)
        except asyncio.CancelledError:
            self._refuse(record, Unavailable("the server is shutting down"))
            raise
        except BaseException as error:  # the agent's code may raise anything
            self._refuse(record, error)
        else:
            self._accept(record, found)

    def _accept(self, record: Record, tools: Any) -> None:
        """Commit the acceptance of a rollout. A committed rollout ends exactly once."""
        newest = self._context.table.newest(record.rollout_id)
        try:
            if newest is not record:
                raise Aborted(
                    f"rollout {record.rollout_id} is at attempt {newest.attempt}",
                    rollout_id=record.rollout_id,
                    attempt=newest.attempt,
                )
            if self._shutdown.closing:
                raise Unavailable("the server is shutting down")
            record.tools = tool_dicts(tools)
        except Exception as error:  # tool_dicts raises if the result of get_tools is wrong
            self._refuse(record, error)
            return
        self._context.table.accept(record)
        self._context.log.append(
            record, events.Accepted(record.init, record.tools), self._accepted, entry=record.entry()
        )

    def _accepted(self, record: Record) -> None:
        """Start or queue a rollout whose acceptance is committed."""
        if not record.trail.journaled:
            self._refuse(record, self._unwritable())
            return
        failpoints.reach("init.committed")
        for other in self._context.table.attempts_below(record):
            self._runner.supersede(other)
        already_cancelled = self._context.tombstones.take(record)
        record.accepted.set_result(None)
        cancelled = already_cancelled or record.cancel_reason is not None
        if not (cancelled or self._shutdown.closing or record.tenant.lost):
            self._runner.admit(record)
            return
        self._context.admission.release(record)
        if cancelled:
            self._runner.cancel(record, record.cancel_reason or CANCELLED_EARLY)
        elif self._shutdown.closing:  # the next process runs it
            record.run.parked = True
        else:
            self._runner.decide(record, Termination.trainer_lost("the trainer has left"))

    def _refuse(self, record: Record, error: BaseException) -> None:
        if not isinstance(error, CallError) or (isinstance(error, InvalidArgument) and not _blames_request(error)):
            text = clip(f"{type(error).__name__}: {describe(error)}")
            error = Internal(f"get_tools of {record.agent_loop} failed: {text}")
        self._context.admission.release(record)
        record.count(False)
        try:
            self._context.table.remove(record)
            notify_ended(self._context.runnables[record.agent_loop], record)
            self._shutdown.changed.set()
        finally:  # the caller waits for this future
            if not record.accepted.done():
                self.rejected[error.code] += 1
                record.accepted.set_exception(error)

    def _unwritable(self) -> Unavailable:
        return Unavailable(f"the journal cannot be written: {self._context.journal.problem}", retry_after=5.0)


def _blames_request(error: InvalidArgument) -> bool:
    """Return whether an error names a field of the request, as opposed to one of the agent's tools."""
    return any(path.startswith("spec.") for path, _ in error.violations)


def _check_same(known: Record, init: InitRequest, agent_loops: list[str]) -> None:
    """Raise Aborted for a lower attempt. Raise AlreadyExists for a different request under the same attempt.

    An empty agent loop counts as the name of the server's only agent loop. `agent_loops` are the names on this server.
    """
    request = init.request
    if known.attempt > request.attempt:
        raise Aborted(
            f"rollout {request.rollout_id} is at attempt {known.attempt}",
            rollout_id=request.rollout_id,
            attempt=known.attempt,
        )
    differs = differing_fields(known.init.digest, init.digest)
    only = "" if agent_loops == [known.agent_loop] else known.agent_loop
    if request.agent_loop not in (known.init.request.agent_loop, known.agent_loop, only):
        differs = ["spec.agent_loop", *differs]
    if differs:
        raise AlreadyExists(
            f"rollout {request.rollout_id} attempt {known.attempt} was started with another spec; it differs in "
            f"{', '.join(differs)}",
            rollout_id=request.rollout_id,
            attempt=known.attempt,
            fields=tuple(differs),
        )
