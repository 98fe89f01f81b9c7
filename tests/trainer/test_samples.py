"""Deltas against full histories: whatever an agent does, a trainer sees and trains on the same."""

import asyncio
import itertools
from contextlib import AsyncExitStack
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from osmosis_grpc.protocol.types import OutcomeStatus, RolloutMetrics, RolloutRequest, jsontext
from tests.trainer.loops import (
    CROWDED,
    LOOPS,
    ODDITIES,
    OWN,
    TOOLS,
    Ask,
    Edit,
    Forgetful,
    Rewind,
    Together,
    open_transports,
    prompt_and_reply,
)

names = itertools.count(1)


@pytest.fixture(scope="module")
def deployment():
    """The transports, and what runs a coroutine behind them."""
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        transports = runner.run(open_transports(stack))
        try:
            yield runner, transports
        finally:
            runner.run(stack.aclose())


def play(deployment, plan, odd, *, waits=(), forgets=()):
    """One plan through every transport: the outcomes by transport, what the policy was asked, what it answered."""
    runner, transports = deployment
    name = f"r{next(names)}"
    Forgetful.forgets, Forgetful.sent = frozenset(forgets), set()
    played = {}
    for transport_name, transport in transports.items():
        Forgetful.sent = set()
        transport.agent.plans[name] = plan
        transport.sampler.begin(odd, waits)
        outcome = runner.run(
            transport.play(RolloutRequest(rollout_id=name, messages=[{"role": "user", "content": "go"}]))
        )
        assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
        played[transport_name] = (
            outcome,
            transport.sampler.asked,
            transport.sampler.replies,
            transport.agent.passed[name],
        )
        assert list(outcome.messages) == transport.agent.final[name]
        for table in (transport.agent.plans, transport.agent.passed, transport.agent.final):
            table.clear()
    return played


def check_asked(asked, replies, passed, *, crowded=False):
    """The policy got the agent's messages and the right known prefix."""
    assert set(asked) == set(passed)
    for (sample, number), request in asked.items():
        history, ask = passed[sample, number]
        assert same(request.messages, history)
        assert request.tools == (OWN if ask.tools_overridden else TOOLS)
        assert request.params == ({} if ask.temperature is None else {"temperature": ask.temperature})
        assert (request.purpose == "judge") == ask.judge
        earlier = {
            n: [*passed[s, n][0], replies[s, n].message]
            for s, n in passed
            if s == sample and (n < number or crowded) and n != number
        }
        continued = {n: whole for n, whole in earlier.items() if same(history[: len(whole)], whole)}
        if not crowded:
            longest = max(map(len, continued.values()), default=0)
            assert request.prefix_len == longest
            newest = max((n for n, whole in continued.items() if len(whole) == longest), default=0)
            assert request.parent_chat == newest
        if not request.parent_chat:
            assert (request.prefix_len, request.known_ids) == (0, None)
            continue
        assert request.prefix_len == len(continued[request.parent_chat])
        told = prompt_and_reply(replies[sample, request.parent_chat])
        assert (request.known_ids is None) == (told is None or not len(told))
        if request.known_ids is not None:
            assert np.array_equal(request.known_ids, told)


def same(one, other):
    """Whether two histories are equal as JSON values: 1 equals 1.0, and not true."""
    return jsontext.canonical(list(one)) == jsontext.canonical(list(other))


def check_samples(outcome, replies, passed):
    """Every sampled token once under mask 1, with its logprob; trainable unless tokens are unknown."""
    answered = {}
    for (sample, number), (_, ask) in passed.items():
        if not ask.judge:
            answered.setdefault(sample, {})[number] = replies[sample, number]
    assert set(outcome.samples) == set(answered)
    for name, chats in answered.items():
        sample = outcome.samples[name]
        whole = all(r.tokens is not None and r.tokens.complete and r.prompt_ids is not None for r in chats.values())
        assert sample.trainable == whole, sample.not_trainable_reason
        assert bool(sample.not_trainable_reason) != whole
        told = [number for segment in sample.segments for number in segment.chats]
        assert sorted(told) == (sorted(chats) if whole else [])
        for segment in sample.segments:
            sampled = [chats[number].tokens for number in segment.chats]
            assert np.array_equal(segment.ids[segment.mask() == 1], np.concatenate([b.ids for b in sampled]))
            assert np.array_equal(segment.logprobs, np.concatenate([b.logprobs for b in sampled]))
            last = chats[segment.chats[-1]]
            assert np.array_equal(segment.ids, np.concatenate([last.prompt_ids, last.tokens.ids]))
            assert sum(segment.mask_runs) == len(segment.ids)


def alike(outcome):
    """What two transports must agree on."""
    samples = {name: replace(sample, begins=None) for name, sample in outcome.samples.items()}
    return replace(outcome, result_id="", metrics=RolloutMetrics(), samples=samples)


FORGETS = st.sets(st.integers(1, 8))
A, B = Ask("main", ("x",)), Ask("main", ())
QUICK = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]}


@pytest.mark.slow
@settings(max_examples=60, **QUICK)
@given(LOOPS, ODDITIES, FORGETS)
@example([A, A, A], {2: "drift"}, {3})
@example([A, A, Rewind("main", 2), A, Ask("main", ("y",)), A], {}, {2})
@example([A, Rewind("main", 1), B, A], {}, set())
@example([A, Edit("main", 1, "other"), A, Edit("main", 0, 1), A, Edit("main", 0, 1.0), A], {}, set())
@example([A, Ask("main", ("is it?",), judge=True), A], {}, {2, 3})
@example([A, Ask("second", ("y",)), A, Ask("second", (), tools_overridden=True)], {2: "no logprobs"}, {2})
def test_every_transport_shows_and_gives_the_same(deployment, plan, odd, forgets):
    played = play(deployment, plan, odd, forgets=forgets)
    whole, asked, replies, _ = played["callback"]
    for outcome, its_asked, its_replies, its_passed in played.values():
        check_asked(its_asked, its_replies, its_passed)
        check_samples(outcome, its_replies, its_passed)
        assert alike(outcome) == alike(whole)
        assert its_replies == replies
        for key, request in its_asked.items():
            assert (request.parent_chat, request.prefix_len) == (asked[key].parent_chat, asked[key].prefix_len)


@settings(max_examples=25, **QUICK)
@given(CROWDED, ODDITIES, FORGETS, st.lists(st.integers(0, 9), max_size=4))
@example([A, Together((A, A, A)), A], {}, {2}, [3, 2, 1, 0])
@example([Together((A, B, Ask("second", ("y",))))], {}, set(), [5, 0])
@pytest.mark.slow
def test_chats_at_the_same_time(deployment, plan, odd, forgets, waits):
    played = play(deployment, plan, odd, forgets=forgets, waits=waits)
    for outcome, asked, replies, passed in played.values():
        check_asked(asked, replies, passed, crowded=True)
        check_samples(outcome, replies, passed)


@pytest.mark.parametrize("steps", [[Ask("main", ("x",), judge=True)], [Ask("second", ("x",), judge=True)]])
def test_a_sample_in_which_only_a_judge_was_asked(deployment, steps):
    """It is in the outcome only if it has the agent's final messages, and it is not trainable."""
    plan = steps if steps[0].sample == "main" else [*steps, Ask("main", ("x",), judge=True)]
    runner, transports = deployment
    transport, name = transports["attach"], f"r{next(names)}"
    transport.agent.plans[name] = plan
    transport.sampler.begin({})
    outcome = runner.run(asyncio.wait_for(transport.play(RolloutRequest(rollout_id=name)), 0.7))
    assert outcome.status is OutcomeStatus.COMPLETED
    assert list(outcome.messages) == transport.agent.final[name]
    assert list(outcome.samples) == ["main"]
    sample = outcome.samples["main"]
    assert (sample.trainable, sample.segments) == (False, ())
    assert sample.not_trainable_reason == "the policy answered no chat of this sample"
