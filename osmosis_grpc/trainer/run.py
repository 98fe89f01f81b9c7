"""Runs many rollouts at a time. Implements Trainer.run(), and is the base of groups() and evaluate()."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable
from dataclasses import dataclass, replace

from osmosis_grpc.protocol.errors import (
    Aborted,
    AlreadyExists,
    CallError,
    InvalidArgument,
    LedgerError,
    OsmosisValidationError,
    Superseded,
)
from osmosis_grpc.protocol.types import Failure, FailureReason, Group, OutcomeStatus, RolloutOutcome, RolloutRequest
from osmosis_grpc.supervise import OnFailure, job
from osmosis_grpc.trainer.agent_server_link import Rollout, job_failed
from osmosis_grpc.trainer.chats.policy_errors import PolicyFailure
from osmosis_grpc.trainer.metrics import version_lag
from osmosis_grpc.trainer.progress_bar import Progress, shown
from osmosis_grpc.trainer.request_check import checked
from osmosis_grpc.trainer.submissions import Submissions

log = logging.getLogger(__name__)

FEED = job("trainer.feed", OnFailure.REPORT)

Requests = Iterable[RolloutRequest] | AsyncIterable[RolloutRequest]
Ended = tuple[RolloutRequest, RolloutOutcome]

REMEMBERED = 65_536
"""A run refuses a request whose id is among this many of its newest requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How a run treats its requests. Raises ValueError for a number that is too small."""

    group_size: int
    """How many rollouts each request makes."""
    max_in_flight: int
    """How many rollouts may run at a time."""
    colocate_groups: bool
    """Whether all rollouts of a group go to one server."""
    retries: int = 0
    """How many times a failed rollout runs again."""
    progress: bool = False
    """Whether to show the progress on stderr."""
    evaluation: bool = False
    """Whether every request is marked as an evaluation."""
    max_version_lag: int | None = None
    """A completed rollout runs again if its oldest token is more versions behind than this; None for no limit."""

    def __post_init__(self) -> None:
        if self.group_size < 1 or self.max_in_flight < 1:
            raise ValueError("group_size and max_in_flight are at least 1")
        if self.retries < 0:
            raise ValueError(f"retries: {self.retries} is negative")
        if self.max_version_lag is not None and self.max_version_lag < 0:
            raise ValueError(f"max_version_lag: {self.max_version_lag} is negative")


class Run:
    """One call of Trainer.run(). It starts rollouts while slots are free, and yields each outcome.

    Trainer.groups() uses a subclass.
    """

    raises_at_once = False
    """Whether the run raises the first exception of the policy at once."""
    yields_refused = True
    """Whether a refused rollout is yielded as FAILED. If not, the run raises if a whole group is refused or has already
    run."""

    def __init__(self, submissions: Submissions, options: RunOptions) -> None:
        self._submissions = submissions
        self._cache, self._supervisor = submissions.scheduler.cache, submissions.scheduler.supervisor
        self._options = options
        self.name = "evaluate" if options.evaluation else "run"
        """The method of Trainer, for error messages."""
        self._progress: Progress | None = None
        self._fed: dict[tuple[str, int], None] = {}
        self._unversioned: dict[str, None] = {}
        """The rollouts that ran again because a token had no version."""
        self._slots = asyncio.Semaphore(options.max_in_flight)
        self._without_slot = 0
        """The number of rollouts that were started without a free slot. The same number of releases is skipped."""
        self._finished: asyncio.Queue[Rollout | PolicyFailure | BaseException | None] = asyncio.Queue()
        self._started: Counter[Rollout] = Counter()
        self._tries: Counter[str] = Counter()
        self._failed: dict[str, int] = {}
        """How many members of each group failed because of the policy or were refused. A member that ends otherwise
        removes its group."""
        self._feeding = ""
        """The id of the request whose members are being started."""

    async def ended(self, requests: Requests) -> AsyncGenerator[Ended, None]:
        """Yield each request with its outcome when the rollout ends. See Trainer.run()."""
        submissions, options, report = self._submissions, self._options, self._finished.put_nowait
        with shown(options.progress, requests, options.group_size) as self._progress:
            feeder = self._supervisor.start(
                FEED, lambda: self._feed(requests), lambda error: report(job_failed(FEED, error))
            )
            submissions.runs[report] = None
            try:
                fed = False
                while self._started or not fed or not self._finished.empty():
                    finished = await self._finished.get()
                    if submissions.failure is not None:
                        raise submissions.failure
                    if isinstance(finished, BaseException):
                        raise finished
                    if isinstance(finished, PolicyFailure):
                        finished.reraise()
                    if finished is None:
                        fed = True
                    elif finished in self._started:  # otherwise its group was abandoned
                        outcome = self._over(finished)
                        if not self._start_again(finished, outcome):
                            self._release()
                            self._raise_if_all_failed(finished, outcome)
                            yield finished.request, outcome
            finally:
                submissions.runs.pop(report, None)
                submissions.report()
                feeder.cancel()
                for rollout in list(self._started):
                    self._leave(rollout)

    def abandon(self, group_id: str) -> list[RolloutOutcome]:
        """Cancel the running members of a group, and start no further members. Return its outcomes that nobody took.

        Each slot is freed when its rollout ends.
        """
        untaken: list[RolloutOutcome] = []
        if self._feeding == group_id:
            self._feeding = ""
        for rollout in [r for r in self._started if r.request.group is not None and r.request.group.id == group_id]:
            del self._tries[rollout.request.rollout_id]
            for _ in range(self._started[rollout]):
                rollout.done.add_done_callback(lambda _: self._release())
            self._leave(rollout)
            if rollout.done.done() and rollout.done.exception() is None:
                untaken.append(rollout.done.result())
        return untaken

    async def _feed(self, requests: Requests) -> None:
        try:
            async for request in _each(requests):
                full = checked(request, {"evaluation": True} if self._options.evaluation else {})
                key = full.rollout_id, full.attempt
                if key in self._fed:
                    raise InvalidArgument(
                        "rollout_id", f"two requests of one {self.name}() have the id {key[0]}; give each its own"
                    )
                self._fed[key] = None
                if len(self._fed) > REMEMBERED:
                    del self._fed[next(iter(self._fed))]
                self._feeding = request.rollout_id
                for member in _members(full, self._options.group_size):
                    await self._slots.acquire()
                    if self._feeding != request.rollout_id:
                        self._slots.release()
                        break
                    self._start(member)
            if not self._fed:
                log.warning("%s() got no requests; an iterator can be read only once", self.name)
        except Exception as error:  # from a request or the caller's iterator: not a failure of this job
            self._finished.put_nowait(error)
        finally:
            self._finished.put_nowait(None)

    def _start(self, request: RolloutRequest) -> None:
        """Start a rollout, which keeps its slot until ended() takes its outcome. Raises AlreadyExists, Aborted."""
        try:
            affinity_key = request.group.id if self._options.colocate_groups and request.group else ""
            rollout = self._submissions.submit(request, affinity_key=affinity_key)
        except CallError as error:
            known = isinstance(error, AlreadyExists | Aborted) and not self._cache.is_restored(request.rollout_id)
            if known and not self.yields_refused:
                raise
            rollout = Rollout(request, asyncio.get_running_loop().create_future())
            rollout.done.set_exception(error)
            rollout.done.exception()  # no error is logged if the run has ended
        rollout.waiters += 1
        self._started[rollout] += 1
        if self.raises_at_once:
            rollout.on_raised.append(self._finished.put_nowait)
        if self._progress is not None:
            self._progress.watch(rollout.done)
        rollout.done.add_done_callback(lambda _: self._finished.put_nowait(rollout))

    def _start_again(self, rollout: Rollout, outcome: RolloutOutcome) -> bool:
        """Start a stale or failed rollout again in the same slot, as a higher attempt.

        Return False if the outcome is final, for example because a failed rollout has no retries left.
        """
        rollout_id = outcome.rollout_id
        if self.is_stale(outcome):
            self._start_newer(rollout.request, outcome)
            return True
        if self._tries[rollout_id] >= self._options.retries or not _may_succeed(rollout, outcome):
            del self._tries[rollout_id]
            return False
        self._tries[rollout_id] += 1
        self._submissions.group_counts["retried"] += 1
        attempt = outcome.attempt + 1
        log.info("rollout %s is tried again as attempt %d: %s", rollout_id, attempt, reason_of(outcome))
        self._start(replace(rollout.request, attempt=attempt))
        return True

    def _raise_if_all_failed(self, rollout: Rollout, outcome: RolloutOutcome) -> None:
        """Raise the policy's exception if it made all members of a rollout's group fail.

        If the run does not yield refused rollouts, also raise the error if all members were refused, unless the reason
        is that they have run before.
        """
        group = rollout.request.group
        size, name = (group.size, group.id) if group is not None and group.size > 1 else (1, outcome.rollout_id)
        failure, refusal = rollout.failed_by(outcome), rollout.done.exception()
        if failure is None and (refusal is None or self.yields_refused or isinstance(refusal, AlreadyExists | Aborted)):
            self._failed.pop(name, None)
            return
        self._failed[name] = self._failed.get(name, 0) + 1
        if self._failed[name] == size:
            if failure is not None:
                failure.reraise()
            assert refusal is not None
            raise refusal.with_traceback(None)
        if len(self._failed) > REMEMBERED:
            del self._failed[next(iter(self._failed))]

    def is_stale(self, outcome: RolloutOutcome) -> bool:
        """Return whether a completed rollout has a token that is too old by now.

        A token without a version is too old: it was sampled before the first resume(version=...), for example for a
        rollout of a killed process. Raises InvalidArgument if `max_version_lag` is set and a version is not a number,
        or if one is still missing after the rollout ran again, or before any such call.
        """
        limit = self._options.max_version_lag
        segments = [segment for sample in outcome.samples.values() for segment in sample.segments if segment.sampled]
        if limit is None or not segments or outcome.status is not OutcomeStatus.COMPLETED:
            return False
        version = self._cache.sampler.version
        unversioned = not all(segment.versions for segment in segments)
        if version and unversioned and outcome.rollout_id not in self._unversioned:
            self._unversioned[outcome.rollout_id] = None
            if len(self._unversioned) > REMEMBERED:
                del self._unversioned[next(iter(self._unversioned))]
            return True
        lag = version_lag(outcome, version)
        if lag is None:
            raise InvalidArgument(
                "max_version_lag",
                f"rollout {outcome.rollout_id} has tokens whose version is unknown or not a number; "
                "call resume(version=...) with a whole number before the first rollout",
            )
        return lag > limit

    def renew(self, request: RolloutRequest, outcome: RolloutOutcome) -> None:
        """Start a stale rollout again whose slot was already released. More rollouts than slots may then run."""
        self._without_slot += 1
        self._start_newer(request, outcome)

    def _start_newer(self, request: RolloutRequest, outcome: RolloutOutcome) -> None:
        self._submissions.group_counts["stale"] += 1
        attempt = outcome.attempt + 1
        log.info("rollout %s runs again as attempt %d: its tokens are too old", outcome.rollout_id, attempt)
        self._start(replace(request, attempt=attempt))

    def _release(self) -> None:
        if self._without_slot:
            self._without_slot -= 1
        else:
            self._slots.release()

    def _over(self, rollout: Rollout) -> RolloutOutcome:
        self._started[rollout] -= 1
        if not self._started[rollout]:
            del self._started[rollout]
        rollout.waiters -= 1
        return _ended(rollout)

    def _leave(self, rollout: Rollout) -> None:
        rollout.waiters -= self._started.pop(rollout)
        if not rollout.waiters:
            self._submissions.abandon(rollout)


def reason_of(outcome: RolloutOutcome) -> str:
    """Return why a rollout is not trainable, with the type and the line of the agent's exception if there is one."""
    failure = outcome.failure
    if failure is None:
        return outcome.not_trainable_reason
    line = f"at {failure.file}:{failure.line}" if failure.file else ""
    raised = " ".join(filter(None, [failure.causes[0].type if failure.causes else "", line]))
    return outcome.not_trainable_reason + (f" ({raised})" if raised else "")


def _may_succeed(rollout: Rollout, outcome: RolloutOutcome) -> bool:
    """Return whether an ended rollout should run again, because another attempt may complete.

    A cancelled rollout should not. A refused rollout should only if the refusal is retryable. Any other failure should,
    even if it is not `retryable`, because it may depend on the policy's replies.
    """
    if outcome.status in (OutcomeStatus.COMPLETED, OutcomeStatus.CANCELLED):
        return False
    refused = rollout.done.exception() is not None
    return not refused or (outcome.failure is not None and outcome.failure.retryable)


async def left_over(submissions: Submissions) -> AsyncGenerator[RolloutOutcome, None]:
    """See Trainer.unconfirmed()."""
    scheduler = submissions.scheduler
    held = scheduler.held
    left = list(held.left)
    running = {scheduler.rollouts[name].done: scheduler.rollouts[name] for name in left if name in scheduler.rollouts}
    for rollout_id in left:
        if rollout_id in held.left and rollout_id not in scheduler.rollouts and held.holds(rollout_id, 1):
            outcome = await held.fetch(rollout_id)
            newer = scheduler.rollouts.get(rollout_id)
            if newer is None or newer.request.attempt <= outcome.attempt:
                yield outcome
    while running:
        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        if submissions.failure is not None:
            raise submissions.failure
        for done in [done for done in running if done.done()]:
            rollout = running.pop(done)
            if held.left.pop(rollout.request.rollout_id, "") is None:
                yield _ended(rollout)


def _members(request: RolloutRequest, group_size: int) -> list[RolloutRequest]:
    if group_size == 1:
        return [request]
    name, key = request.rollout_id, request.idempotency_key
    return [
        replace(
            request,
            rollout_id=f"{name}-{index}",
            group=Group(name, index, group_size),
            idempotency_key=f"{key}-{index}" if key else None,
        )
        for index in range(group_size)
    ]


async def _each(requests: Requests) -> AsyncIterator[RolloutRequest]:
    if isinstance(requests, AsyncIterable):
        async for request in requests:
            yield request
    else:
        for request in requests:
            yield request


def _ended(rollout: Rollout) -> RolloutOutcome:
    request, error = rollout.request, rollout.done.exception()
    if error is None:
        return rollout.done.result()
    own = isinstance(error, OsmosisValidationError | LedgerError)
    superseded = isinstance(error, Superseded)
    failure = Failure(
        "trainer" if own else "server",
        str(error) if superseded else f"refused: {error}",
        getattr(error, "retryable", False),
        reason=FailureReason.SUPERSEDED if superseded else FailureReason.REFUSED,
    )
    return RolloutOutcome(
        rollout_id=request.rollout_id,
        attempt=request.attempt,
        status=OutcomeStatus.FAILED,
        finish_reason="superseded" if superseded else "refused",
        failure=failure,
        group=request.group,
        evaluation=request.evaluation,
    )
