"""Polled results of trainers of 0.3.3 and later. Each poll renews the lease of its rollout.

A rollout whose lease is not renewed in time ends FAILED, because nobody wants its result any more. After a restart of
the server, every lease starts again.
"""

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from osmosis_gateway.contracts import has_lease, lease_name, polled_terms
from osmosis_gateway.rollout_results import polled_body, polled_verdict
from osmosis_grpc.engine import Engine
from osmosis_grpc.engine.record import Record
from osmosis_grpc.protocol.errors import Aborted, AlreadyExists, NotFound, PermissionDenied
from osmosis_grpc.protocol.types import Receipt, RolloutInfo, RolloutOutcome, RolloutState
from osmosis_grpc.supervise import OnFailure, job

SWEEP_LEASES = job("gateway.sweep_leases", OnFailure.RESTART)
EXPIRED = "polling lease expired"


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """The time limits of polled results, in seconds."""

    wait: float = 30.0
    """The longest time until a poll is answered."""
    lease: float = 120.0
    """The longest time from the start of the rollout, or of a poll, to the start of the next poll."""
    keep: float = 900.0
    """How long after the end of a rollout its result waits for a poll."""


class Leases:
    """The leases of the rollouts of one engine. Call start() first, while the engine runs."""

    def __init__(self, engine: Engine, times: LeaseTimes | None = None) -> None:
        self._engine = engine
        self.times = times or LeaseTimes()
        self._beginning: set[str] = set()
        self._until: dict[Record, float] = {}
        """When the lease of each unfinished rollout ends, by the clock of the event loop."""
        self._waits: dict[tuple[str, int], asyncio.Event] = {}
        """An event for each rollout for which a poll waits. Set when the status of the rollout changes."""
        self._told: dict[tuple[str, int], str] = {}
        """The status in the last answer about each unfinished rollout. Without a poll so far, that is queued."""
        self._taken: dict[tuple[str, int], asyncio.Event] = {}
        """An event for each undelivered result. Set when a trainer gets the result.

        After a restart, a poll can set the event before the outbox waits for it.
        """

    def start(self) -> None:
        """Start watching the leases, until the engine's supervisor ends."""
        self._engine.end_sinks.append(self._ended)
        self._engine.context.stage_sinks.append(self._changed)
        self._engine.supervisor.every(SWEEP_LEASES, min(self.times.lease / 8, 5.0), self._sweep)

    @contextmanager
    def beginning(self, rollout_id: str) -> Iterator[None]:
        """Reserve a rollout id within a `with` block. Raises AlreadyExists for an id that is in use."""
        if rollout_id in self._beginning or self._engine.context.table.highest(rollout_id) is not None:
            raise AlreadyExists(f"rollout {rollout_id} exists", rollout_id=rollout_id)
        self._beginning.add(rollout_id)
        try:
            yield
        finally:
            self._beginning.discard(rollout_id)

    async def taken(self, outcome: RolloutOutcome) -> Receipt:
        """Wait until a trainer gets the result. Raises Aborted if none asks for it within `times.keep` seconds."""
        key = outcome.rollout_id, outcome.attempt
        taken = self._taken.setdefault(key, asyncio.Event())
        try:
            async with asyncio.timeout(self.times.keep):
                await taken.wait()
        except TimeoutError:
            raise Aborted(f"no trainer asked for the result within {self.times.keep:g} s") from None
        finally:
            self._taken.pop(key, None)
        return Receipt.RECORDED

    async def result(
        self, owner: str, rollout_id: str, lease: str, gone: Callable[[], Awaitable[bool]]
    ) -> dict[str, Any]:
        """Renew a lease, and return the result of the rollout, or its status if it still runs.

        Wait at most `times.wait` seconds for the status to differ from the one that the last poll returned.

        `gone` returns whether the caller has disconnected. Raises NotFound for an unknown rollout and
        PermissionDenied for a wrong lease.
        """
        record = self._engine.rollouts.get(owner, rollout_id)
        callback = record.init.callback
        if callback is None or not has_lease(record.init):
            raise NotFound(
                f"rollout {rollout_id} has no lease: its result is delivered", kind="rollout", name=rollout_id
            )
        if not hmac.compare_digest(callback.run_id, lease_name(lease)):
            raise PermissionDenied("X-Osmosis-Rollout-Lease: is not the lease of this rollout")
        self._renew(record)
        await self._wait(record)
        outcome = (await self._engine.rollouts.info(record)).outcome
        if outcome is None:
            status = status_of(record)
            if record.live:
                self._told[record.rollout_id, record.attempt] = status
            return {"rollout_id": rollout_id, "status": status}
        if record.delivery.undelivered and not await gone():
            self._taken.setdefault((record.rollout_id, record.attempt), asyncio.Event()).set()
        return polled_body(outcome, polled_terms(record.init))

    async def status(self, owner: str, rollout_id: str) -> dict[str, Any]:
        """Return the status of any rollout of the owner. After its end, add the reward or the error."""
        try:
            record = self._engine.rollouts.get(owner, rollout_id)
        except NotFound:
            return {"rollout_id": rollout_id, "status": "unknown"}
        outcome = (await self._engine.rollouts.info(record)).outcome
        if outcome is None:
            return {"rollout_id": rollout_id, "status": status_of(record)}
        terms = polled_terms(record.init)
        verdict = polled_verdict(outcome, terms if has_lease(record.init) else replace(terms, grade=False))
        row = {"status": verdict.status, "reward": outcome.mean_reward, "err_message": verdict.message}
        return {"rollout_id": rollout_id} | {name: value for name, value in row.items() if value is not None}

    def _renew(self, record: Record) -> None:
        now = asyncio.get_running_loop().time()
        if record.live and now >= self._until.get(record, now + 1):
            self._engine.lose_rollout(record, EXPIRED)
        elif record.live:
            self._until[record] = now + self.times.lease

    async def _wait(self, record: Record) -> None:
        """Wait until a rollout ends or its status differs from the last poll's, for at most `times.wait` seconds."""
        key = record.rollout_id, record.attempt
        if record.delivery.outcome is not None or status_of(record) != self._told.get(key, "queued"):
            return
        changed = self._waits.setdefault(key, asyncio.Event())
        with suppress(TimeoutError):
            async with asyncio.timeout(self.times.wait):
                await changed.wait()

    def _ended(self, info: RolloutInfo) -> None:
        self._told.pop((info.rollout_id, info.attempt), None)
        self._changed(info)

    def _changed(self, rollout: RolloutInfo | Record) -> None:
        changed = self._waits.pop((rollout.rollout_id, rollout.attempt), None)
        if changed is not None:
            changed.set()

    async def _sweep(self) -> None:
        """End the rollouts whose lease has expired. A rollout without a lease so far gets a full one."""
        now = asyncio.get_running_loop().time()
        live = [record for record in self._engine.context.table.live() if has_lease(record.init)]
        self._until = {record: self._until.get(record, now + self.times.lease) for record in live}
        for record, until in self._until.items():
            if now >= until and record.accepted.done():
                self._engine.lose_rollout(record, EXPIRED)


def status_of(record: Record) -> str:
    """Return the status of an unfinished rollout, in the vocabulary of 0.3.3."""
    if record.state in (RolloutState.ACCEPTED, RolloutState.QUEUED):
        return "queued"
    return "grading" if record.run.grading else "running"
