"""The application of a simulated trainer. It asks for rollouts, takes and confirms each outcome, also after a crash.

Its own notes (`applied`, `attempts`) are on a disk that never fails: an application applies and notes in one step.
"""

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from osmosis_grpc.protocol.errors import Aborted, AlreadyExists, CallError, LedgerError, Superseded, Unavailable
from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.trainer import RolloutOutcome, RolloutRequest, Trainer
from tests.simulation.plan import RolloutPlan, TrainerPlan

if TYPE_CHECKING:
    from tests.simulation.world import World

RETRIES = 1
"""How often a rollout that failed with `retryable` runs again."""


class Application:
    """The rollouts of one trainer, over all its processes."""

    def __init__(self, world: "World", plan: TrainerPlan) -> None:
        self._world = world
        self._plan = plan
        self.attempts: dict[str, int] = {}
        """The attempt that the application wants, by rollout. 1 if it is missing."""
        self.applied: dict[str, str] = {}
        """The rollout of each result that was applied, by result id."""
        self.done: dict[str, str] = {}
        """How each rollout ended for the application."""
        self.reading: set[int] = set()
        """The readers that wait for events."""
        self._retried: set[str] = set()
        self._unfinished = {rollout.rollout_id: rollout for rollout in plan.rollouts}

    @property
    def unfinished(self) -> list[RolloutPlan]:
        """The rollouts that are not done."""
        return list(self._unfinished.values())

    @property
    def asked(self) -> list[RolloutPlan]:
        """The rollouts that the application has asked for and that are not done."""
        return [rollout for rollout in self._unfinished.values() if rollout.at <= self._world.loop.now]

    def request(self, plan: RolloutPlan) -> RolloutRequest:
        """Returns the request of a rollout, with the attempt that the application wants now."""
        return RolloutRequest(
            rollout_id=plan.rollout_id,
            attempt=self.attempts.get(plan.rollout_id, 1),
            agent_loop=plan.agent,
            messages=[{"role": "user", "content": f"question of {plan.rollout_id}"}],
            metadata=plan.script,
            agent_timeout=plan.agent_timeout,
            priority=plan.priority,
            evaluation=plan.evaluation,
        )

    async def run(self, trainer: Trainer, *, ledger: bool) -> None:
        """Runs all rollouts that are not done. Never returns: the trainer answers its servers until it is closed."""
        self.reading.clear()
        work = [self._take_left(trainer)] if ledger else []
        for plan in self.unfinished:
            work.append(self._run_one(trainer, plan))
            if plan.watched:
                work.append(self._watch(trainer, plan))
        # A TaskGroup has a set of tasks, and would cancel them in an order that differs between two runs of a seed.
        await asyncio.gather(*work, asyncio.Event().wait())

    async def _take_left(self, trainer: Trainer) -> None:
        """Takes the outcomes of an earlier process."""
        async with aclosing(trainer.unconfirmed()) as outcomes:
            async for outcome in outcomes:
                await self.take(outcome)

    async def _run_one(self, trainer: Trainer, plan: RolloutPlan) -> None:
        name, world = plan.rollout_id, self._world
        await asyncio.sleep(max(0.0, plan.at - world.loop.now))  # the clock is simulated
        while name in self._unfinished:
            request = self.request(plan)
            world.history.note(
                self._plan.name, "submitted", name, request.attempt, agent=plan.agent, plan=self._words(plan)
            )
            try:
                outcome = await trainer.rollout(request)
            except asyncio.CancelledError:
                world.history.note(self._plan.name, "given up", name, request.attempt)
                raise
            except (Superseded, Aborted) as error:
                newest = getattr(error, "attempt", 0) or request.attempt
                wanted = max(self.attempts.get(name, 1), newest)
                if isinstance(error, Aborted) and not isinstance(error, Superseded):
                    wanted = max(wanted, newest + 1)
                self.attempts[name] = wanted
            except AlreadyExists:
                self.attempts[name] = max(self.attempts.get(name, 1), request.attempt + 1)
            except (Unavailable, LedgerError):
                await asyncio.sleep(1.0)  # the application asks again after a pause; the clock is simulated
            except CallError as error:
                world.history.note(
                    self._plan.name, "refused", name, request.attempt, error=type(error).__name__, text=str(error)
                )
                self._end(name, "refused")
            else:
                await self.take(outcome)
                await asyncio.sleep(0.01)  # no busy loop; the clock is simulated

    async def take(self, outcome: RolloutOutcome) -> None:
        """Applies an outcome, notes that, and confirms the outcome."""
        name, attempt, result = outcome.rollout_id, outcome.attempt, outcome.result_id
        again = bool(result) and result in self.applied
        failure = outcome.failure
        self._world.history.note(
            self._plan.name,
            "again" if again else "applied",
            name,
            attempt,
            result=result,
            status=str(outcome.status),
            reason=outcome.finish_reason,
            boundary=failure.boundary if failure else None,
            retryable=failure.retryable if failure else None,
            reward=outcome.reward,
            samples=_samples(outcome),
        )
        if result:
            self.applied[result] = name
        retry = failure is not None and failure.retryable and name not in self._retried
        if not again and retry and name in self._unfinished:
            self._retried.add(name)
            self.attempts[name] = max(self.attempts.get(name, 1), attempt + 1)
        elif attempt >= self.attempts.get(name, 1):
            self._end(name, str(outcome.status))
        while True:
            try:
                await outcome.confirm()
            except (Unavailable, LedgerError):
                await asyncio.sleep(1.0)  # the ledger cannot be written now; the clock is simulated
            else:
                break
        self._world.history.note(self._plan.name, "confirmed", name, attempt, result=result)

    def _words(self, plan: RolloutPlan) -> tuple[str, ...]:
        """Returns what may happen to a rollout."""
        on, conditions = self._world.plan.faults, self._world.plan.conditions
        words = {
            "cancelled": "cancel" in on,
            "superseded": "supersede" in on,
            "deadline": plan.agent_timeout is not None,
            "policy fails": "failing policy" in conditions,
        }
        return (*(word for word, holds in words.items() if holds), *filter(None, [plan.script.get("wild")]))

    def _end(self, name: str, how: str) -> None:
        if self._unfinished.pop(name, None) is not None:
            self.done[name] = how
            self._world.changed.set()

    async def _watch(self, trainer: Trainer, plan: RolloutPlan) -> None:
        """Reads a rollout's events until its last one."""
        world, name = self._world, plan.rollout_id
        await asyncio.sleep(max(0.0, plan.at - world.loop.now))  # the clock is simulated
        while name in self._unfinished:
            attempt = self.attempts.get(name, 1)
            reader = world.next_reader()
            world.history.note(self._plan.name, "events begin", name, attempt, reader=reader, number=1)
            self.reading.add(reader)
            try:
                async with aclosing(trainer.events(name)) as events:
                    async for event in events:
                        kind, number = type(event.kind).__name__, event.event_number
                        world.history.note(
                            self._plan.name, "event", name, event.attempt, reader=reader, number=number, kind=kind
                        )
                return
            except (CallError, LedgerError) as error:  # NotFound while no server has it
                kind = type(error).__name__
                world.history.note(self._plan.name, "events failed", name, attempt, reader=reader, error=kind)
            finally:
                self.reading.discard(reader)
            await asyncio.sleep(1.0)  # the reader tries again; the clock is simulated

    def cancelled(self, outcome: RolloutOutcome) -> bool:
        """Returns whether an outcome is the answer to a cancel."""
        return outcome.status is OutcomeStatus.CANCELLED


def _samples(outcome: RolloutOutcome) -> tuple[Any, ...]:
    """Returns each sample's name and segments: ids, mask runs, numbers of the chats, logprobs of the sampled ids."""
    return tuple(
        (
            name,
            tuple(
                (
                    tuple(segment.ids.tolist()),
                    tuple(segment.mask_runs),
                    tuple(segment.chats),
                    tuple(segment.logprobs.tolist()),
                )
                for segment in sample.segments
            ),
        )
        for name, sample in sorted(outcome.samples.items())
    )
