"""Breaks what lies between a trainer and its server, in every way, while rollouts run."""

import asyncio
import contextlib
import json
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from osmosis_grpc.trainer import RolloutOutcome, Trainer
from tests.attach.agents import ASKED, ENDED
from tests.attach.cutting_proxy import CuttingProxy
from tests.attach.policies import REPLIED, CountingPolicy
from tests.attach.servers import ServerProcess
from tests.waiting import until

PATIENCE = 1.0
"""Seconds that a Complete is waited for before the stream is cut all the same."""


@dataclass
class Figures:
    """What was broken, and what was open then."""

    cuts: int = 0
    with_open_chat: int = 0
    complete_on_its_way: int = 0
    """Cuts that lost a Complete before the trainer had it."""
    outcome_on_its_way: int = 0
    """Cuts that lost the answer to a Complete which the trainer had recorded."""
    restarts: Counter[str] = field(default_factory=Counter)

    @property
    def with_complete_unanswered(self) -> int:
        return self.complete_on_its_way + self.outcome_on_its_way


class Breaker:
    """Cuts `cuts` times, evenly over the rollouts, each time with a chat open, and kills the server now and then."""

    def __init__(
        self,
        proxy: CuttingProxy,
        server: ServerProcess,
        trainer: Trainer,
        policy: CountingPolicy,
        outcomes: list[RolloutOutcome],
    ) -> None:
        self.figures = Figures()
        self._proxy = proxy
        self._server = server
        self._trainer = trainer
        self._policy = policy
        self._outcomes = outcomes

    async def run(self, rollouts: int, cuts: int, restarts: dict[int, signal.Signals]) -> Figures:
        ways = (self._with_complete_held, self._with_outcome_held, self._at_once)
        for n in range(cuts):
            due = rollouts * n // (cuts + 5)
            await until(lambda due=due: len(self._outcomes) >= due, f"{due} rollouts done", timeout=60)
            await until(self._busy, "attached, and a chat open")
            await ways[n % len(ways)]()
            if n in restarts:
                await self._restart(restarts[n])
        return self.figures

    def _busy(self) -> bool:
        return self._trainer.servers[0].attached and bool(self._proxy.connections) and self._policy.open > 0

    async def _with_complete_held(self) -> None:
        """The agent has ended, and its Complete never reaches the trainer."""
        await self._final_reply()
        self._proxy.hold("down")
        await self._for(lambda: self._proxy.holds("down", ENDED) and self._chat_open())
        self._cut()

    async def _with_outcome_held(self) -> None:
        """The trainer has recorded a Complete, and its answer never reaches the server."""
        await self._final_reply()
        await asyncio.sleep(0.005)  # the reply reaches the agent, who thinks for longer than this
        before = len(self._outcomes)
        self._proxy.hold("up")
        await self._for(lambda: self._answering(before) and self._chat_open())
        self._cut(before)

    async def _final_reply(self) -> None:
        """Wait until an agent gets its last reply; it is going to end soon."""
        before = self._policy.finals
        await self._for(lambda: self._policy.finals > before and self._busy())

    async def _at_once(self) -> None:
        self._cut()

    def _answering(self, before: int) -> bool:
        """Whether the answer to a Complete that was recorded since lies in the proxy."""
        return any(self._proxy.holds("up", outcome.result_id) for outcome in self._outcomes[before:])

    def _chat_open(self) -> bool:
        """Whether a chat is being sampled, or its question or its reply lies in the proxy."""
        held = self._proxy.holds("up", REPLIED) or self._proxy.holds("down", ASKED)
        return self._policy.open > 0 or held

    def _cut(self, before: int | None = None) -> None:
        figures, proxy = self.figures, self._proxy
        figures.with_open_chat += self._chat_open()
        figures.complete_on_its_way += proxy.holds("down", ENDED)
        figures.outcome_on_its_way += before is not None and self._answering(before)
        figures.cuts += proxy.cut() > 0

    async def _restart(self, how: signal.Signals) -> None:
        await self._server.end(how)
        self.figures.restarts[how.name] += 1
        await self._server.start()

    @staticmethod
    async def _for(true: Callable[[], object]) -> None:
        with contextlib.suppress(AssertionError):
            await until(true, timeout=PATIENCE)


def summary(figures: Figures, outcomes: list[RolloutOutcome], seconds: float) -> str:
    """The figures as a line."""
    attempts = Counter(outcome.attempt for outcome in outcomes)
    return json.dumps(
        {
            "rollouts": len(outcomes),
            "cuts": figures.cuts,
            "with_open_chat": figures.with_open_chat,
            "complete_on_its_way": figures.complete_on_its_way,
            "outcome_on_its_way": figures.outcome_on_its_way,
            "restarts": dict(figures.restarts),
            "attempts": dict(sorted(attempts.items())),
            "seconds": round(seconds, 1),
        }
    )
