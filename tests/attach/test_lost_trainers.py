"""A trainer is killed: its rollouts end after the grace period, or the next trainer takes them over."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from osmosis_grpc.protocol.types import events
from osmosis_grpc.server import AgentServer
from osmosis_grpc.trainer import ChatResponse, RolloutClient, Trainer
from tests.attach.agents import Talker
from tests.attach.policies import REPLIED, CountingPolicy, Key, check_run, check_whole, made_of, requests, size_of
from tests.processes import ROOT
from tests.waiting import ended


@asynccontextmanager
async def killed_trainer(target: str, name: str, count: int) -> AsyncIterator[None]:
    """A trainer that answers the first chats and is then killed."""
    command = [sys.executable, "-m", "tests.attach.trainer_process", target, name, str(count)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            lines = [json.loads(await asyncio.to_thread(process.stdout.readline)) for _ in range(count)]
            assert {line["answered"] for line in lines} == {f"{name}-{n}" for n in range(count)}
            yield
        finally:
            process.kill()


async def second_chats_asked(server: AgentServer, name: str, count: int) -> None:
    """Wait until every rollout asks its second chat."""
    async with RolloutClient(server.address) as client:
        for n in range(count):
            async for event in client.events(f"{name}-{n}"):
                if isinstance(event.kind, events.ChatRequested) and event.kind.chat_number == 2:
                    break


@pytest.mark.slow
async def test_rollouts_of_a_killed_trainer_end_after_the_grace_period_and_the_next_one_is_unharmed(serve):
    server = await serve(Talker(), trainer_grace=1.0)
    async with killed_trainer(server.address, "old", 5):
        await second_chats_asked(server, "old", 5)
    policy, outcomes = CountingPolicy(), []
    asked = list(requests("new", 20, think=0.2))
    async with Trainer([server.address], policy) as trainer:
        async for outcome in trainer.run(asked):
            outcomes.append(outcome)
        async with RolloutClient(server.address) as client:
            for n in range(5):
                outcome = await ended(client, f"old-{n}")
                assert outcome.status == "FAILED"
                assert (outcome.failure.boundary, outcome.failure.retryable) == ("trainer", True)
                assert outcome.finish_reason == "trainer_lost"
        more = [outcome async for outcome in trainer.run(list(requests("more", 3)))]
    check_run([request.rollout_id for request in asked], outcomes, policy)
    assert [outcome.status for outcome in more] == ["COMPLETED"] * 3
    assert policy.attempts("old-0") == set()


def first_answers(key: Key) -> ChatResponse:
    """What the killed trainer answered to a first chat: its policy is the same."""
    rollout_id, attempt, _, number = key
    text = f"{REPLIED} {number} to {rollout_id}, attempt {attempt}"
    return ChatResponse(message={"role": "assistant", "content": text}, tokens=made_of(text, size_of(text)))


async def test_a_new_trainer_takes_the_same_rollouts_over_whole_and_trainable(serve):
    server = await serve(Talker())
    async with killed_trainer(server.address, "taken", 5):
        await second_chats_asked(server, "taken", 5)
    policy, asked = CountingPolicy(), list(requests("taken", 5))
    async with Trainer([server.address], policy) as trainer:
        outcomes = [outcome async for outcome in trainer.run(asked)]
    assert len(outcomes) == 5
    for outcome in outcomes:
        assert outcome.attempt == 1
        check_whole(outcome, lambda key: first_answers(key) if key[3] == 1 else policy.replies.get(key))
    assert {number for _, _, _, number in policy.calls} == {2, 3}, "what was answered is not sampled again"
    assert policy.asked_twice == []
    assert policy.without_tools == set()


async def test_a_new_trainer_gets_outcomes_that_the_killed_one_did_not_take(serve):
    server = await serve(Talker(), trainer_grace=0.3)
    async with killed_trainer(server.address, "late", 5):
        await second_chats_asked(server, "late", 5)
    policy, asked = CountingPolicy(), list(requests("late", 5))
    async with RolloutClient(server.address) as client:
        for request in asked:
            assert (await ended(client, request.rollout_id)).finish_reason == "trainer_lost"
    async with Trainer([server.address], policy) as trainer:
        outcomes = [outcome async for outcome in trainer.run(asked)]
    assert [outcome.finish_reason for outcome in outcomes] == ["trainer_lost"] * 5
    for outcome in outcomes:
        (first,) = outcome.samples["main"].chats
        assert outcome.messages[-1] == first_answers((outcome.rollout_id, 1, "main", 1)).message
        assert first.tokens.ids.tolist() == first_answers((outcome.rollout_id, 1, "main", 1)).tokens.ids.tolist()
        assert outcome.samples["main"].trainable
    assert policy.calls == {}
