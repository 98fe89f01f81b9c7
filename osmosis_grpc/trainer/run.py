"""Many rollouts at a time: Trainer.run()."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable
from dataclasses import replace

from osmosis_grpc.errors import CallError, LedgerError, OsmosisValidationError
from osmosis_grpc.trainer.pool import Pool
from osmosis_grpc.trainer.requests import checked
from osmosis_grpc.trainer.rollout import Rollout
from osmosis_grpc.types import Completion, CompletionStatus, Failure, Group, RolloutRequest

Requests = Iterable[RolloutRequest] | AsyncIterable[RolloutRequest]


class Run:
    """One call of Trainer.run(): takes requests while there are slots, hands out completions as they come."""

    def __init__(self, pool: Pool, *, group_size: int, max_in_flight: int, together: bool) -> None:
        if group_size < 1 or max_in_flight < 1:
            raise ValueError("group_size and max_in_flight are at least 1")
        self._pool = pool
        self._group_size = group_size
        self._together = together
        self._slots = asyncio.Semaphore(max_in_flight)
        self._finished: asyncio.Queue[Rollout | Completion | Exception | None] = asyncio.Queue()
        self._started: Counter[Rollout] = Counter()

    async def completions(self, requests: Requests) -> AsyncGenerator[Completion, None]:
        """See Trainer.run()."""
        feeder = asyncio.create_task(self._feed(requests))
        try:
            fed = False
            while self._started or not fed or not self._finished.empty():
                finished = await self._finished.get()
                if isinstance(finished, Exception):
                    raise finished
                if isinstance(finished, Rollout):
                    yield self._over(finished)
                elif finished is not None:
                    yield finished
                else:
                    fed = True
        finally:
            self._pool.earlier.report()
            feeder.cancel()
            for rollout, times in self._started.items():
                rollout.waiters -= times
                if not rollout.waiters:
                    self._pool.give_up(rollout)

    async def _feed(self, requests: Requests) -> None:
        try:
            async for request in _each(requests):
                for member in _members(checked(request, {}), self._group_size):
                    await self._slots.acquire()
                    self._start(member)
            self._finished.put_nowait(None)
        except Exception as error:
            self._finished.put_nowait(error)

    def _start(self, request: RolloutRequest) -> None:
        try:
            rollout = self._pool.submit(request, together=request.group.id if self._together and request.group else "")
        except CallError as error:
            self._slots.release()
            self._finished.put_nowait(_refused(request, error))
            return
        rollout.waiters += 1
        self._started[rollout] += 1
        rollout.done.add_done_callback(lambda _: self._finished.put_nowait(rollout))

    def _over(self, rollout: Rollout) -> Completion:
        """A rollout's completion; a refusal as one that FAILED."""
        self._started[rollout] -= 1
        if not self._started[rollout]:
            del self._started[rollout]
        rollout.waiters -= 1
        self._slots.release()
        return _ended(rollout)


async def left_over(pool: Pool) -> AsyncGenerator[Completion, None]:
    """See Trainer.unconfirmed()."""
    held = pool.held
    if held is None:
        return
    left = list(held.left)
    running = {pool.rollouts[name].done: pool.rollouts[name] for name in left if name in pool.rollouts}
    for rollout_id in left:
        if rollout_id in held.left and rollout_id not in pool.rollouts and held.holds(rollout_id, 1):
            yield await held.fetch(rollout_id)
    while running:
        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for done in [done for done in running if done.done()]:
            rollout = running.pop(done)
            if held.left.pop(rollout.request.rollout_id, "") is None:
                yield _ended(rollout)


def _members(request: RolloutRequest, group_size: int) -> list[RolloutRequest]:
    """A request as the members of its group."""
    if group_size == 1:
        return [request]
    name, key = request.rollout_id, request.idempotency_key
    return [
        replace(request, rollout_id=f"{name}-{index}", group=Group(name, index, group_size),
                idempotency_key=f"{key}-{index}" if key else None)
        for index in range(group_size)
    ]  # fmt: skip


async def _each(requests: Requests) -> AsyncIterator[RolloutRequest]:
    if isinstance(requests, AsyncIterable):
        async for request in requests:
            yield request
    else:
        for request in requests:
            yield request


def _ended(rollout: Rollout) -> Completion:
    """The completion of a rollout that is over; a refusal as one that FAILED."""
    error = rollout.done.exception()
    return rollout.done.result() if error is None else _refused(rollout.request, error)


def _refused(request: RolloutRequest, error: BaseException) -> Completion:
    """A refusal as a completion."""
    mine = isinstance(error, OsmosisValidationError | LedgerError)
    failure = Failure("trainer" if mine else "server", f"refused: {error}", getattr(error, "retryable", False))
    return Completion(
        rollout_id=request.rollout_id, attempt=request.attempt, status=CompletionStatus.FAILED,
        finish_reason="refused", failure=failure, group=request.group,
    )  # fmt: skip
