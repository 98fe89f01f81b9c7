"""A trainer that was away comes back: its outcomes do not each wait out a pause of their own."""

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from osmosis_grpc.engine.unreachable_trainers import AT_ONCE
from osmosis_grpc.protocol.errors import InvalidArgument, Unavailable
from osmosis_grpc.protocol.types import Receipt, events
from tests.engine.conftest import Trainer

USER = {"role": "user", "content": "hello"}
NEVER = (3600.0, 3600.0)
"""Pauses that no test waits out."""


class Away(Trainer):
    """One of a trainer's callbacks, each a place of its own; away, it is not reached."""

    def __init__(self, deployment, key):
        super().__init__(key=key)
        self.deployment = deployment
        self.peer = replace(self.peer, destination_key=deployment)

    async def complete(self, outcome):
        self.deployment.tries[outcome.rollout_id] += 1
        self.deployment.open += 1
        self.deployment.most = max(self.deployment.most, self.deployment.open)
        try:
            await self.deployment.answers.wait()
            if self.deployment.away:
                raise Unavailable("away")
            if outcome.rollout_id in self.deployment.refuses:
                raise self.deployment.refuses[outcome.rollout_id]
            return await super().complete(outcome)
        finally:
            self.deployment.open -= 1


class Deployment:
    """A trainer."""

    def __init__(self):
        self.away = True
        self.refuses = {}
        self.tries = Counter()
        self.answers = asyncio.Event()
        self.answers.set()
        self.open = self.most = 0

    def callback(self, key):
        return Away(self, key)


async def run(ctx):
    if ctx.request.label:
        await ctx.chat([USER])
    if ctx.request.label == "chats":
        await asyncio.Event().wait()
    return ctx.complete([USER], reward=1.0)


async def leave_waiting(h, deployment, count):
    """So many outcomes that were tried once and wait."""
    records = [await h.start(f"r{n}", trainer=deployment.callback(n)) for n in range(count)]
    await h.until(lambda: h.engine.context.destinations.waiting == count)
    deployment.away = False
    return records


async def test_one_that_is_taken_lets_the_others_go(hosting):
    deployment = Deployment()
    async with hosting(run, outbox_delay=NEVER) as h:
        records = await leave_waiting(h, deployment, 100)
        await h.start("new", trainer=deployment.callback("new"))
        for record in records:
            await h.settled(record)
            assert h.kinds(record, events.Delivered) == [events.Delivered(Receipt.RECORDED, "", 2)]
        assert (h.engine.context.destinations.waiting, h.engine.context.destinations.retrying) == (0, 0)


async def test_a_chat_that_is_answered_lets_them_go(hosting):
    deployment = Deployment()
    async with hosting(run, outbox_delay=NEVER) as h:
        records = await leave_waiting(h, deployment, 3)
        await h.start("new", trainer=deployment.callback("new"), label="chats")
        for record in records:
            await h.settled(record)
        assert set(deployment.tries.values()) == {2}


async def test_they_go_a_few_at_a_time(hosting):
    deployment = Deployment()
    async with hosting(run, outbox_delay=NEVER) as h:
        records = await leave_waiting(h, deployment, 5 * AT_ONCE)
        deployment.answers.clear()
        deployment.most = deployment.open = 0
        await h.start("new", trainer=deployment.callback("new"), label="chats")
        await h.until(lambda: deployment.open == AT_ONCE)
        await h.start("newer", trainer=deployment.callback("newer"), label="chats")
        deployment.answers.set()
        for record in records:
            await h.settled(record)
        assert deployment.most == AT_ONCE


async def test_those_of_another_trainer_wait(hosting):
    deployment, other = Deployment(), Deployment()
    async with hosting(run, outbox_delay=NEVER) as h:
        (record,) = await leave_waiting(h, deployment, 1)
        other.away = False
        await h.settled(await h.start("other", trainer=other.callback(1)))
        await h.settled(await h.start("of nobody in particular"))
        assert (deployment.tries["r0"], record.delivery.undelivered) == (1, True)


async def test_a_retry_after_is_obeyed(hosting):
    deployment = Deployment()
    deployment.away = False
    async with hosting(run, outbox_delay=(0.01, 3600.0)) as h:
        deployment.refuses["received"] = Unavailable("not yet", retry_after=1800.0)
        record = await h.start("received", trainer=deployment.callback("received"))
        await h.until(lambda: deployment.tries["received"] == 1 and not deployment.open)
        for n in range(3):
            await h.settled(await h.start(f"r{n}", trainer=deployment.callback(n)))
        assert (deployment.tries["received"], record.delivery.undelivered) == (1, True)


async def test_who_is_woken_in_vain_waits_out_its_next_pause(hosting):
    """Or an outcome that its trainer cannot take would be tried with every chat of the others."""
    deployment = Deployment()
    async with hosting(run, outbox_delay=NEVER) as h:
        deployment.refuses["r0"] = RuntimeError("a bug")
        bad, good = await leave_waiting(h, deployment, 2)
        for n in range(5):
            await h.settled(await h.start(f"new{n}", trainer=deployment.callback(f"new{n}"), label="talks"))
        await h.settled(good)
        assert (deployment.tries["r0"], bad.delivery.undelivered) == (2, True)


@pytest.mark.parametrize("final", [True, False])
async def test_the_place_of_one_that_fails_goes_to_the_next(hosting, final):
    deployment = Deployment()
    async with hosting(run, outbox_delay=NEVER) as h:
        for n in range(AT_ONCE):
            deployment.refuses[f"r{n}"] = InvalidArgument("", "never") if final else RuntimeError("a bug")
        records = await leave_waiting(h, deployment, AT_ONCE + 1)
        await h.start("new", trainer=deployment.callback("new"))
        await h.until(lambda: deployment.tries[f"r{AT_ONCE - 1}"] == 2)
        if not final:  # nothing shows that the trainer is still there
            await h.start("newer", trainer=deployment.callback("newer"))
        await h.settled(records[-1])
        await h.until(lambda: not h.engine.context.destinations.retrying)


@pytest.mark.parametrize("dropped", [True, False])
async def test_one_that_goes_elsewhere_gives_its_place_back(hosting, dropped):
    deployment, new = Deployment(), Trainer(key="new")
    async with hosting(run, outbox_delay=NEVER) as h:
        (record,) = await leave_waiting(h, deployment, 1)
        h.engine.context.destinations.reached(deployment)
        if dropped:
            h.engine.outbox.drop(record)
        else:
            await h.init("r0", trainer=new)
        await h.settled(record)
        assert deployment.tries["r0"] == 1
        assert not h.engine.context.destinations.retrying
