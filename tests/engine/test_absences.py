"""A trainer that was away comes back: its completions do not each wait out a pause of their own."""

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from osmosis_grpc.engine.absences import AT_ONCE
from osmosis_grpc.errors import InvalidArgument, Unavailable
from osmosis_grpc.types import Outcome, events
from tests.engine.conftest import Trainer

USER = {"role": "user", "content": "hello"}
NEVER = (3600.0, 3600.0)
"""Pauses that no test waits out."""


class Away(Trainer):
    """One of a trainer's callbacks, each a place of its own; away, it is not reached."""

    def __init__(self, house, key):
        super().__init__(key=key)
        self.house = house
        self.peer = replace(self.peer, trainer=house)

    async def complete(self, completion):
        self.house.tries[completion.rollout_id] += 1
        self.house.open += 1
        self.house.most = max(self.house.most, self.house.open)
        try:
            await self.house.answers.wait()
            if self.house.away:
                raise Unavailable("away")
            if completion.rollout_id in self.house.refuses:
                raise self.house.refuses[completion.rollout_id]
            return await super().complete(completion)
        finally:
            self.house.open -= 1


class House:
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


async def leave_waiting(h, house, count):
    """So many completions that were tried once and wait."""
    records = [await h.start(f"r{n}", trainer=house.callback(n)) for n in range(count)]
    await h.until(lambda: sum(map(len, h.engine.outbox.absences._waiting.values())) == count)
    house.away = False
    return records


async def test_one_that_is_taken_lets_the_others_go(hosting):
    house = House()
    async with hosting(run, outbox_delay=NEVER) as h:
        records = await leave_waiting(h, house, 100)
        await h.start("new", trainer=house.callback("new"))
        for record in records:
            await h.settled(record)
            assert h.kinds(record, events.Delivered) == [events.Delivered(Outcome.RECORDED, "", 2)]
        absences = h.engine.outbox.absences
        assert absences._waiting == absences._woken == {}


async def test_a_chat_that_is_answered_lets_them_go(hosting):
    house = House()
    async with hosting(run, outbox_delay=NEVER) as h:
        records = await leave_waiting(h, house, 3)
        await h.start("new", trainer=house.callback("new"), label="chats")
        for record in records:
            await h.settled(record)
        assert set(house.tries.values()) == {2}


async def test_they_go_a_few_at_a_time(hosting):
    house = House()
    async with hosting(run, outbox_delay=NEVER) as h:
        records = await leave_waiting(h, house, 5 * AT_ONCE)
        house.answers.clear()
        house.most = house.open = 0
        await h.start("new", trainer=house.callback("new"), label="chats")
        await h.until(lambda: house.open == AT_ONCE)
        await h.start("newer", trainer=house.callback("newer"), label="chats")
        house.answers.set()
        for record in records:
            await h.settled(record)
        assert house.most == AT_ONCE


async def test_those_of_another_trainer_wait(hosting):
    house, other = House(), House()
    async with hosting(run, outbox_delay=NEVER) as h:
        (record,) = await leave_waiting(h, house, 1)
        other.away = False
        await h.settled(await h.start("other", trainer=other.callback(1)))
        await h.settled(await h.start("of nobody in particular"))
        assert (house.tries["r0"], record.undelivered) == (1, True)


async def test_who_is_told_how_long_to_wait_does_so(hosting):
    house = House()
    house.away = False
    async with hosting(run, outbox_delay=(0.01, 3600.0)) as h:
        house.refuses["told"] = Unavailable("not yet", retry_after=1800.0)
        record = await h.start("told", trainer=house.callback("told"))
        await h.until(lambda: house.tries["told"] == 1 and not house.open)
        for n in range(3):
            await h.settled(await h.start(f"r{n}", trainer=house.callback(n)))
        assert (house.tries["told"], record.undelivered) == (1, True)


async def test_who_is_woken_in_vain_waits_out_its_next_pause(hosting):
    """Or a completion that its trainer cannot take would be tried with every chat of the others."""
    house = House()
    async with hosting(run, outbox_delay=NEVER) as h:
        house.refuses["r0"] = RuntimeError("a bug")
        bad, good = await leave_waiting(h, house, 2)
        for n in range(5):
            await h.settled(await h.start(f"new{n}", trainer=house.callback(f"new{n}"), label="talks"))
        await h.settled(good)
        assert (house.tries["r0"], bad.undelivered) == (2, True)


@pytest.mark.parametrize("final", [True, False])
async def test_the_place_of_one_that_fails_goes_to_the_next(hosting, final):
    house = House()
    async with hosting(run, outbox_delay=NEVER) as h:
        for n in range(AT_ONCE):
            house.refuses[f"r{n}"] = InvalidArgument("", "never") if final else RuntimeError("a bug")
        records = await leave_waiting(h, house, AT_ONCE + 1)
        await h.start("new", trainer=house.callback("new"))
        await h.until(lambda: house.tries[f"r{AT_ONCE - 1}"] == 2)
        if not final:  # nothing shows that the trainer is still there
            await h.start("newer", trainer=house.callback("newer"))
        await h.settled(records[-1])
        await h.until(lambda: not h.engine.outbox.absences._woken)


@pytest.mark.parametrize("dropped", [True, False])
async def test_one_that_goes_elsewhere_gives_its_place_back(hosting, dropped):
    house, new = House(), Trainer(key="new")
    async with hosting(run, outbox_delay=NEVER) as h:
        (record,) = await leave_waiting(h, house, 1)
        h.engine.outbox.absences.reached(house)
        if dropped:
            h.engine.outbox.drop(record)
        else:
            await h.init("r0", trainer=new)
        await h.settled(record)
        assert house.tries["r0"] == 1
        assert h.engine.outbox.absences._woken == {}
