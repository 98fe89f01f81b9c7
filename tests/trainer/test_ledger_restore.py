"""What comes out of a ledger is what went in: chats answer as they did, outcomes are what they were."""

import asyncio
import copy
import itertools
import tempfile
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from osmosis_grpc.protocol.errors import AlreadyExists
from osmosis_grpc.protocol.types import OutcomeStatus, RolloutRequest
from osmosis_grpc.server import AgentServer, ServerConfig
from osmosis_grpc.storage.ledger import SqliteLedger
from osmosis_grpc.trainer import Trainer, TrainerConfig
from osmosis_grpc.trainer.chats.rollout_cache import RolloutCache
from tests.trainer.loops import CROWDED, LOOPS, ODDITIES, PATIENCE, Ask, Planned, Rewind, Sampler, Together

names = itertools.count(1)
A, B = Ask("main", ("x",)), Ask("main", ())
QUICK = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]}


class Listening(RolloutCache):
    """A book that writes down what it is asked."""

    def chat(self, request, now):
        self.heard.append(copy.deepcopy(request))
        return super().chat(request, now)

    heard: list = []  # noqa: RUF012 - replaced before every use


TRAINERS = {
    "attach": {},
    "attach full": {"config": TrainerConfig(delta=False)},
    "full": {"transport": "callback", "config": TrainerConfig(delta=False)},
    "deltas": {"transport": "callback"},
}


class Deployment:
    """An agent server, and trainers with ledgers at it."""

    async def open(self, stack, folder):
        config = ServerConfig(retry_delay=(0.01, 0.02), outbox_delay=(0.01, 0.05))
        self.agent, self.sampler, self.trainers = Planned(), Sampler(), {}
        server = await stack.enter_async_context(AgentServer([self.agent], port=0, config=config))
        for name, options in TRAINERS.items():
            trainer = Trainer([server.address], self.sampler, ledger=folder / name, **options)
            self.trainers[name] = await stack.enter_async_context(trainer)
            trainer.scheduler.cache.__class__ = Listening
        return self

    async def play(self, plan, odd, waits, way):
        """One plan: its outcome as it was handed out, and as it stands in the ledger."""
        name = f"r{next(names)}"
        self.agent.plans[name] = plan
        self.sampler.begin(odd, waits)
        Listening.heard = []
        request = RolloutRequest(rollout_id=name, messages=[{"role": "user", "content": "go"}])
        async with asyncio.timeout(PATIENCE):
            trainer = self.trainers[way]
            handed, held = await trainer.rollout(request), trainer.scheduler.held
            assert handed.status is OutcomeStatus.COMPLETED, handed.failure
            read = await held.fetch(name)
            await handed.confirm()
            with pytest.raises(AlreadyExists):
                await held.fetch(name)
        return handed, read


@pytest.fixture(scope="module")
def deployment():
    with asyncio.Runner() as runner, tempfile.TemporaryDirectory() as folder:
        stack = AsyncExitStack()
        deployment = runner.run(Deployment().open(stack, Path(folder)))
        try:
            yield runner, deployment
        finally:
            runner.run(stack.aclose())


def plain(outcome):
    """Everything that is in an outcome, and comparable."""
    return repr(
        replace(
            outcome,
            confirmation=None,
            samples={name: replace(sample, messages=list(sample.messages)) for name, sample in outcome.samples.items()},
        )
    )


WAYS = st.sampled_from(sorted(TRAINERS))
WAITS = st.lists(st.integers(0, 9), max_size=4)


@pytest.mark.slow
@settings(max_examples=30, **QUICK)
@given(st.one_of(LOOPS, CROWDED), ODDITIES, WAITS, WAYS)
@example([A, A, A], {2: "drift"}, [], "attach")
@example([A, A, Rewind("main", 2), A, Ask("main", ("y",)), A], {}, [], "attach")
@example([A, Together((A, A, A)), A], {}, [3, 2, 1, 0], "attach")
@example([A, Ask("second", ("y",)), A, Ask("second", (), tools_overridden=True)], {2: "no logprobs"}, [], "full")
@example([A, Ask("main", ("is it?",), judge=True), A], {}, [], "deltas")
def test_an_outcome_from_the_ledger_is_the_one_that_was_handed_out(deployment, plan, odd, waits, way):
    runner, home = deployment
    handed, read = runner.run(home.play(plan, odd, waits, way))
    assert handed == read
    assert plain(handed) == plain(read)


async def ask_all(book, requests):
    """Every chat's reply as it is sent."""
    return [await book.answer(request) for request in requests]


async def stopped_and_not(requests, replies, stop, folder):
    """The same chats, of a trainer that is started anew after `stop` of them, and of one that is not."""
    seen = []

    def policy(request):
        seen.append(request)
        return replies[request.sample, request.chat_number]

    whole = await ask_all(RolloutCache(policy), requests)
    all_seen, path = seen.copy(), folder / f"{next(names)}"
    seen.clear()
    ledger = await SqliteLedger.open(path, 60.0)
    try:
        assert await ask_all(RolloutCache(policy, ledger), requests[:stop]) == whole[:stop]
    finally:
        await ledger.close()
    assert seen == all_seen[:stop]
    seen.clear()
    ledger = await SqliteLedger.open(path, 60.0)
    try:
        book = RolloutCache(policy, ledger)
        book.restore(ledger.take_restored(), 0.0)
        assert await ask_all(book, requests[:stop]) == whole[:stop]
        assert seen == [], "what was answered is not sampled again"
        assert await ask_all(book, requests) == whole
        assert seen == all_seen[stop:], "what comes after it is asked as if nothing had happened"
    finally:
        await ledger.close()


@settings(max_examples=15, **QUICK)
@given(LOOPS, ODDITIES, WAYS, st.integers(0, 9))
@example([A, A, A, A], {2: "drift"}, "attach", 2)
@example([A, A, Rewind("main", 2), A, Ask("main", ("y",)), A], {}, "attach", 3)
@example([A, A, Rewind("main", 2), A, Ask("second", (), tools_overridden=True), A], {}, "attach full", 3)
@example([A, Ask("second", ("y",)), A, Ask("second", (), tools_overridden=True)], {2: "no logprobs"}, "full", 2)
def test_a_trainer_that_was_stopped_answers_like_one_that_was_not(deployment, tmp_path, plan, odd, way, stop):
    runner, home = deployment
    runner.run(home.play(plan, odd, (), way))
    runner.run(stopped_and_not(Listening.heard, home.sampler.replies, stop, tmp_path))
