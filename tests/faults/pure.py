"""Rollouts whose ends are known beforehand: agents and a policy that are functions of what they are asked."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from osmosis_grpc.server import AgentServer
from osmosis_grpc.trainer import ChatRequest, ChatResponse, RolloutOutcome, Trainer
from tests.faults.kill_loop.agents import Passenger, Traveller
from tests.faults.kill_loop.history import History
from tests.faults.kill_loop.trainer import Policy, digest, requests

AGENTS = ("-m", "tests.faults.kill_loop.agents:agents", "--no-validate")
PASSENGERS_IN = 5
"""Every fifth rollout ends with its server."""


class Counted(Policy):
    """Counts, and waits at a gate."""

    def __init__(self, folder: Path) -> None:
        super().__init__(History(folder / "policy.jsonl", "trainer"))
        self.calls: Counter[tuple] = Counter()
        self.open = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, request: ChatRequest, /) -> ChatResponse:
        self.calls[request.rollout_id, request.attempt, request.sample, request.chat_number] += 1
        self.open += 1
        try:
            await self.gate.wait()
            return await super().__call__(request)
        finally:
            self.open -= 1

    @property
    def asked_twice(self) -> list[tuple]:
        return [key for key, calls in self.calls.items() if calls > 1]


async def undisturbed(folder: Path, count: int) -> dict[str, str]:
    """What so many rollouts end with, by their ids, when nothing happens to them."""
    policy = Counted(folder)
    async with AgentServer([Passenger(), Traveller()], port=0) as server, Trainer(server.address, policy) as trainer:
        ended = [outcome async for outcome in trainer.run(requests(count, set()), max_in_flight=32)]
    assert {outcome.status for outcome in ended} == {"COMPLETED"}
    return {outcome.rollout_id: digest(outcome) for outcome in ended}


def gathering(trainer: Trainer, count: int, into: list[RolloutOutcome]) -> asyncio.Task[None]:
    """Run so many rollouts, all at once."""

    async def gather() -> None:
        async for outcome in trainer.run(requests(count, set()), max_in_flight=count):
            into.append(outcome)

    return asyncio.create_task(gather())


def passengers(count: int) -> set[str]:
    return {f"r{index}" for index in range(0, count, PASSENGERS_IN)}


def check_equal(outcomes: Sequence[RolloutOutcome], expected: dict[str, str], policy: Counted) -> None:
    """All of them ended once, as undisturbed, and no chat was sampled twice."""
    assert sorted(c.rollout_id for c in outcomes) == sorted(expected)
    assert {c.rollout_id: digest(c) for c in outcomes} == expected
    assert {c.status for c in outcomes} == {"COMPLETED"}
    assert policy.asked_twice == []
