"""Rollouts whose ends are known beforehand: agents and a policy that are functions of what they are asked."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from osmosis_grpc.server import AgentServer
from osmosis_grpc.trainer import ChatRequest, ChatResponse, Completion, Trainer
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
        self.calls[request.rollout_id, request.attempt, request.sample, request.number] += 1
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
        ended = [completion async for completion in trainer.run(requests(count, set()), max_in_flight=32)]
    assert {completion.status for completion in ended} == {"COMPLETED"}
    return {completion.rollout_id: digest(completion) for completion in ended}


def gathering(trainer: Trainer, count: int, into: list[Completion]) -> asyncio.Task[None]:
    """Run so many rollouts, all at once."""

    async def gather() -> None:
        async for completion in trainer.run(requests(count, set()), max_in_flight=count):
            into.append(completion)

    return asyncio.create_task(gather())


def passengers(count: int) -> set[str]:
    return {f"r{index}" for index in range(0, count, PASSENGERS_IN)}


def check_equal(completions: Sequence[Completion], expected: dict[str, str], policy: Counted) -> None:
    """All of them ended once, as undisturbed, and no chat was sampled twice."""
    assert sorted(c.rollout_id for c in completions) == sorted(expected)
    assert {c.rollout_id: digest(c) for c in completions} == expected
    assert {c.status for c in completions} == {"COMPLETED"}
    assert policy.asked_twice == []
