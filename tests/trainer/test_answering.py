"""Whose chats come when: pausing, windows, and what a policy may do."""

import asyncio
from dataclasses import replace

import pytest

from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.errors import (
    AlreadyExists,
    InvalidArgument,
    NotFound,
    OutOfRange,
    ResourceExhausted,
    Unavailable,
)
from osmosis_grpc.protocol.types import OutcomeStatus
from tests.trainer.conftest import USER, reply, talker
from tests.trainer.deployment import begun, within
from tests.waiting import until

CANCELLED, COMPLETED, FAILED = OutcomeStatus.CANCELLED, OutcomeStatus.COMPLETED, OutcomeStatus.FAILED


# Pausing and windows


class Counting:
    """A policy that answers when `go` is set, and counts the open chats."""

    def __init__(self, wait=True):
        self.asked, self.open, self.most = [], 0, 0
        self.go = asyncio.Event()
        if not wait:
            self.go.set()

    async def __call__(self, request):
        self.asked.append((request.rollout_id, request.chat_number))
        self.open += 1
        self.most = max(self.most, self.open)
        await self.go.wait()
        await asyncio.sleep(0)
        self.open -= 1
        return reply(request)


async def test_no_chat_comes_while_paused_and_none_is_lost(serve, attach_to):
    policy, agent = Counting(), talker()
    server = await serve(agent)
    trainer = await attach_to(policy, server)
    running = [begun(trainer.rollout(rollout_id=f"r{n}", metadata={"turns": 3})) for n in range(8)]
    await until(lambda: len(policy.asked) == 8)
    trainer.pause()
    late = [begun(trainer.rollout(rollout_id=f"late{n}")) for n in range(4)]
    await until(lambda: server.engine.capacity().running == 12)
    before = list(policy.asked)
    policy.go.set()
    await until(lambda: policy.open == 0)
    await asyncio.sleep(0.1)  # no further chat follows
    assert policy.asked == before, "what was open was answered, and nothing came after it"
    trainer.pause()
    trainer.resume()
    outcomes = await asyncio.gather(*running, *late)
    assert {c.status for c in outcomes} == {COMPLETED}
    assert len(policy.asked) == len(set(policy.asked)) == 8 * 3 + 4


@pytest.mark.parametrize(("servers", "most"), [(1, 1), (1, 5), (2, 4)])
async def test_no_more_chats_are_open_than_the_policy_wants(serve, attach_to, servers, most):
    policy = Counting()
    targets = [await serve(talker()) for _ in range(servers)]
    trainer = await attach_to(policy, *targets, max_open_chats=most)
    running = [begun(trainer.rollout(rollout_id=f"r{n}", metadata={"turns": 2})) for n in range(20)]
    await until(lambda: policy.open == most)
    policy.go.set()
    assert {c.status for c in await asyncio.gather(*running)} == {COMPLETED}
    assert policy.most == most
    assert len(policy.asked) == len(set(policy.asked)) == 40


async def test_fewer_chats_than_servers(serve, attach_to):
    policy = Counting()
    trainer = await attach_to(policy, await serve(talker()), await serve(talker()), max_open_chats=1)
    running = [begun(trainer.rollout(rollout_id=f"r{n}")) for n in range(4)]
    await until(lambda: policy.open == 2)
    await asyncio.sleep(0.1)  # no third chat follows
    policy.go.set()
    await asyncio.gather(*running)
    assert policy.most == 2, "each server may have at least one"


# What a policy may do


class Failing:
    """Raises what it is given, one error per chat asked, and then answers."""

    def __init__(self, *errors, later=False):
        self.errors, self.later, self.asked = list(errors), later, 0

    def __call__(self, request):
        self.asked += 1
        return self._later(request) if self.later else self._now(request)

    def _now(self, request):
        if self.errors:
            raise self.errors.pop(0)
        return reply(request)

    async def _later(self, request):
        await asyncio.sleep(0)
        return self._now(request)


@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("error", [Unavailable("away"), ResourceExhausted("busy", retry_after=0.01)])
async def test_a_policy_that_is_away_for_a_while_is_asked_again(serve, attach_to, error, later):
    policy = Failing(error, error, later=later)
    trainer = await attach_to(policy, await serve(talker(), retry_delay=(0.01, 0.02)))
    assert (await within(trainer.rollout(rollout_id="r1"))).status is COMPLETED
    assert policy.asked == 3


@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize(
    ("error", "text"),
    [
        (InvalidArgument("x", "is mine"), "is mine"),
        (NotFound("no"), "no"),
        (OutOfRange("far"), "far"),
        (AlreadyExists("there"), "there"),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_what_else_a_policy_answers_is_raised_in_the_agent_loop(serve, attach_to, error, text, later):
    policy = Failing(error, later=later)
    trainer = await attach_to(policy, await serve(talker()))
    outcome = await within(trainer.rollout(rollout_id="r1"))
    assert (outcome.status, outcome.reward, policy.asked) == (FAILED, None, 1)
    assert text in outcome.failure.message
    assert (await within(trainer.rollout(rollout_id="r2"))).status is COMPLETED
    assert trainer.servers[0].attached


NOT_SENDABLE = {
    "no reply": lambda request: None,
    "a user's message": lambda request: replace(reply(request), message=USER),
    "no JSON": lambda request: replace(reply(request), message={"role": "assistant", "content": {1, 2}}),
    "prompt as a list": lambda request: replace(reply(request), prompt_ids=[1, 2]),
    "a prefix too long": lambda request: replace(reply(request), prompt_prefix=99),
    "extra is not JSON": lambda request: replace(reply(request), extra={"x": object()}),
    "usage is not JSON": lambda request: replace(reply(request), usage={"prompt_tokens": 1, "x": {1}}),
    "no finish reason": lambda request: replace(reply(request), finish_reason=5),
}


@pytest.mark.parametrize("name", NOT_SENDABLE)
async def test_a_reply_that_cannot_be_is_the_policys_failure(serve, attach_to, name):
    trainer = await attach_to(NOT_SENDABLE[name], await serve(talker()))
    with pytest.raises((TypeError, InvalidArgument)):
        await within(trainer.rollout(rollout_id="r1"))
    assert trainer.metrics()["failures/trainer/CHAT_REFUSED"] == 1
    assert trainer.servers[0].attached


async def test_a_reply_that_is_too_large(serve, attach_to, monkeypatch):
    monkeypatch.setattr("osmosis_grpc.trainer.chats.attempt_cache.MAX_REPLY_BYTES", 10_000)
    trainer = await attach_to(
        lambda r: answer(r, "x" * (20_000 if r.rollout_id == "large" else 5)), await serve(talker())
    )
    large, small = await asyncio.gather(
        begun(trainer.rollout(rollout_id="large")), begun(trainer.rollout(rollout_id="s"))
    )
    assert (large.status, small.status) == (FAILED, COMPLETED)
    assert "more than 10000" in large.failure.message


async def test_the_tools_are_known_with_the_first_chat(serve, attach_to):
    tools = [{"type": "function", "function": {"name": "f"}}]
    seen = []

    def policy(request):
        seen.append(request.tools)
        return reply(request)

    trainer = await attach_to(policy, await serve(talker(tools=tools)))
    await asyncio.gather(*(begun(trainer.rollout(rollout_id=f"r{n}")) for n in range(20)))
    assert seen == [tools] * 20


@pytest.mark.parametrize("reason", ["abort", "aborted"])
async def test_a_reply_that_the_engine_aborted_is_asked_again_and_never_trained_on(serve, attach_to, reason):
    asked = []

    def policy(request):
        asked.append(request.chat_number)
        made = answer(request, "half" if len(asked) == 1 else "whole", tokens=len(asked))
        return replace(made, finish_reason=reason) if len(asked) == 1 else made

    trainer = await attach_to(policy, await serve(talker()))
    outcome = await within(trainer.rollout(rollout_id="r", messages=[USER], metadata={"turns": 1}))
    (segment,) = outcome.samples["main"].segments
    assert (asked, segment.sampled, outcome.finish_reason, outcome.samples["main"].cut) == ([1, 1], 2, "stop", "")
