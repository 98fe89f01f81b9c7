"""Events: read from any number on, then live; and enough to rebuild what happened."""

import asyncio
from contextlib import aclosing

import pytest

from osmosis_grpc.policies.scripted import ScriptedPolicy
from osmosis_grpc.protocol.errors import FailedPrecondition, InvalidArgument, OutOfRange
from osmosis_grpc.protocol.types import TrajectoryEvent, events

USER = {"role": "user", "content": "hello"}


def user(content):
    return {"role": "user", "content": content}


async def done(ctx):
    return ctx.complete([USER], reward=1.0)


def logging_agent(count, release=None):
    async def run(ctx):
        for n in range(count):
            ctx.log_event("step", n=n)
        if release is not None:
            await release.wait()
        ctx.log_event("last")
        return ctx.complete([USER])

    return run


async def read(stream, count=None):
    """The events of a stream, to its end or so many of them; signs of life left out."""
    found = []
    async with asyncio.timeout(3), aclosing(stream):
        async for item in stream:
            event = item[1] if isinstance(item, tuple) else item
            if event is not None:
                found.append(item)
                if len(found) == count:
                    break
    return found


def numbers(found):
    return [event.event_number for event in found]


# One rollout


async def test_from_the_start(hosting):
    async with hosting(logging_agent(3)) as h:
        record = await h.start()
        found = await read(h.engine.log.follow(record, 0))
        assert [type(event.kind).__name__ for event in found] == [
            "Accepted",
            "Started",
            "Logged",
            "Logged",
            "Logged",
            "Logged",
            "Ended",
            "Delivered",
        ]
        assert numbers(found) == [1, 2, 3, 4, 5, 6, 7, 8]
        assert all(isinstance(event, TrajectoryEvent) for event in found)
        assert {(event.rollout_id, event.attempt) for event in found} == {("r1", 1)}
        assert [event.time for event in found] == sorted(event.time for event in found)
        assert await read(h.engine.log.follow(record, 0)) == found


async def test_from_any_number(hosting):
    async with hosting(logging_agent(3)) as h:
        record = await h.start()
        whole = await read(h.engine.log.follow(record, 0))
        for after in range(len(whole) + 1):
            assert await read(h.engine.log.follow(record, after)) == whole[after:]


async def test_live(hosting):
    release = asyncio.Event()
    async with hosting(logging_agent(2, release)) as h:
        record = await h.start()
        await h.until(lambda: record.trail.last_event_number == 4)
        stream = h.engine.log.follow(record, 2)
        assert numbers([await anext(stream), await anext(stream)]) == [3, 4]
        waiting = asyncio.ensure_future(read(stream))
        await asyncio.sleep(0.01)  # time for what must not come
        assert not waiting.done()
        release.set()
        assert [type(event.kind).__name__ for event in await waiting] == ["Logged", "Ended", "Delivered"]


async def test_it_ends_after_the_delivery_and_not_before(hosting):
    async with hosting(done) as h:
        gate = asyncio.Event()
        deliver = h.trainer.complete

        async def slowly(outcome):
            await gate.wait()
            return await deliver(outcome)

        h.trainer.peer = type(h.trainer.peer)(h.trainer.chat, slowly)
        record = await h.start()
        waiting = asyncio.ensure_future(read(h.engine.log.follow(record, 0)))
        await h.until(lambda: record.delivery.undelivered)
        await asyncio.sleep(0.02)  # time for what must not come
        assert not waiting.done()
        gate.set()
        assert type((await waiting)[-1].kind) is events.Delivered


async def test_a_silent_rollout_gives_signs_of_life(hosting):
    release = asyncio.Event()
    async with hosting(logging_agent(0, release), idle_interval=0.01) as h:
        record = await h.start()
        await h.until(lambda: record.trail.last_event_number == 2)
        async with aclosing(h.engine.log.follow(record, 2)) as stream:
            assert [await anext(stream) for _ in range(3)] == [None, None, None]
            release.set()
            event = None
            while event is None:
                event = await anext(stream)
            assert event.event_number == 3


async def test_ahead_of_the_newest_is_refused(hosting):
    async with hosting(done) as h:
        record = await h.start()
        await h.settled(record)
        with pytest.raises(InvalidArgument) as raised:
            await read(h.engine.log.follow(record, record.trail.last_event_number + 1))
        assert raised.value.violations[0][0] == "after_event"


async def test_what_is_gone_is_out_of_range(hosting):
    async with hosting(done, record_ttl=100.0) as h:
        record = await h.start()
        await h.settled(record)
        h.clock.ahead += 101.0
        await h.until_listed()
        for after in (0, 1):
            with pytest.raises(OutOfRange) as raised:
                await read(h.engine.log.follow(record, after))
            assert raised.value.first_event_number == record.trail.last_event_number + 1


async def test_many_events_in_order(hosting):
    async with hosting(logging_agent(1000)) as h:
        record = await h.start()
        found = await read(h.engine.log.follow(record, 0))
        assert numbers(found) == list(range(1, 1006))
        steps = [kind.data["n"] for kind in h.kinds(record, events.Logged) if kind.name == "step"]
        assert steps == list(range(1000))
        everything = await read(h.engine.rollouts.follow_all("me", "", False), 1005)
        assert [event for _, event in everything] == found


async def test_a_follower_that_leaves_is_forgotten(hosting):
    release = asyncio.Event()
    async with hosting(logging_agent(0, release)) as h:
        record = await h.start()
        for _ in range(3):
            async with aclosing(h.engine.log.follow(record, 0)) as stream:
                await anext(stream)
                assert len(record.trail.waiters) == 1
        assert record.trail.waiters == {}
        release.set()
        await h.settled(record)


async def test_several_follow_at_their_own_pace(hosting):
    release = asyncio.Event()
    async with hosting(logging_agent(5, release)) as h:
        record = await h.start()
        eager = asyncio.ensure_future(read(h.engine.log.follow(record, 0)))
        lazy = h.engine.log.follow(record, 0)
        assert (await anext(lazy)).event_number == 1
        release.set()
        whole = await eager
        assert numbers(await read(lazy)) == numbers(whole)[1:]


# Attempts


async def test_each_attempt_counts_from_one(hosting):
    async with hosting(done) as h:
        records = [await h.start(attempt=attempt) for attempt in (1, 2)]
        for record in records:
            await h.settled(record)
        for record in records:
            found = await read(h.engine.log.follow(record, 0))
            assert numbers(found) == list(range(1, len(found) + 1))
            assert {event.attempt for event in found} == {record.attempt}


# All rollouts


async def test_all_of_ones_own_in_their_order(hosting):
    async with hosting(logging_agent(3)) as h:
        for n in range(4):
            await h.run(f"r{n}")
            await h.run(f"theirs{n}", owner="another")
        found = await read(h.engine.rollouts.follow_all("me", "", False), 4 * 8)
        assert [position for position, _ in found] == sorted({position for position, _ in found})
        assert [event.rollout_id for _, event in found] == [f"r{n}" for n in range(4) for _ in range(8)]
        theirs = await read(h.engine.rollouts.follow_all("another", "", False), 4 * 8)
        assert {event.rollout_id for _, event in theirs} == {f"theirs{n}" for n in range(4)}


async def test_it_says_at_once_where_it_stands(hosting):
    async with hosting(done) as h:
        await h.run()
        newest = h.engine.journal.last_position
        for from_now, place in [(False, 0), (True, newest)]:
            async with aclosing(h.engine.rollouts.follow_all("me", "", from_now)) as stream:
                assert await anext(stream) == (place, None)


async def test_from_any_cursor(hosting):
    async with hosting(logging_agent(3)) as h:
        for n in range(2):
            await h.run(f"r{n}")
        whole = await read(h.engine.rollouts.follow_all("me", "", False), 16)
        for index in range(15):
            cursor = h.engine.log.cursor(whole[index][0])
            assert await read(h.engine.rollouts.follow_all("me", cursor, False), 15 - index) == whole[index + 1 :]


async def test_from_now(hosting):
    async with hosting(done) as h:
        await h.run("before")
        stream = h.engine.rollouts.follow_all("me", "", True)
        assert (await anext(stream))[1] is None
        await h.run("after")
        assert {event.rollout_id for _, event in await read(stream, 4)} == {"after"}


async def test_all_are_woken_by_what_happens(hosting):
    async with hosting(done, idle_interval=60.0) as h:
        stream = h.engine.rollouts.follow_all("me", "", True)
        await anext(stream)
        waiting = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0.01)  # time for what must not come
        record = await h.start()
        async with asyncio.timeout(3):
            assert (await waiting)[1].event_number == 1
        await h.settled(record)
        await stream.aclose()


async def test_live_and_idle(hosting):
    async with (
        hosting(done, idle_interval=0.01) as h,
        aclosing(h.engine.rollouts.follow_all("me", "", False)) as stream,
    ):
        assert [await anext(stream) for _ in range(3)] == [(0, None)] * 3
        await h.run()
        items = []
        while len(items) < 4:
            item = await anext(stream)
            items += [item] if item[1] else []
        assert [event.event_number for _, event in items] == [1, 2, 3, 4]
        assert await anext(stream) == (items[-1][0], None)


async def test_a_cursor_of_another_journal(hosting):
    async with hosting(done) as other:
        await other.run()
        cursor = other.engine.log.cursor(1)
    async with hosting(done) as h:
        await h.run()
        with pytest.raises(FailedPrecondition) as raised:
            h.engine.rollouts.follow_all("me", cursor, False)
        assert (raised.value.kind, raised.value.subject) == ("JOURNAL", h.engine.journal.journal_id)


NO_CURSORS = ["x", ".", ".1", "{id}", "{id}.", "{id}.x", "{id}.-1", "{id}.1.5", "{id}.99", "{id}.²", "{id}." + "9" * 19]


@pytest.mark.parametrize("cursor", NO_CURSORS)
async def test_what_is_no_cursor(hosting, cursor):
    async with hosting(done) as h:
        await h.run()
        cursor = cursor.replace("{id}", h.engine.journal.journal_id)
        with pytest.raises((InvalidArgument, FailedPrecondition)):
            h.engine.rollouts.follow_all("me", cursor, False)


async def test_an_old_cursor_is_out_of_range_with_the_first_valid_one(hosting):
    async with hosting(done, record_ttl=100.0) as h:
        await h.run("old")
        old = h.engine.log.cursor(2)
        h.clock.ahead += 50.0
        await h.run("new")
        h.clock.ahead += 60.0
        await h.until_listed("new")
        with pytest.raises(OutOfRange) as raised:
            h.engine.rollouts.follow_all("me", old, False)
        found = await read(h.engine.rollouts.follow_all("me", raised.value.first_cursor, False), 4)
        assert [(event.rollout_id, event.event_number) for _, event in found] == [("new", n) for n in (1, 2, 3, 4)]
        assert await read(h.engine.rollouts.follow_all("me", "", False), 4) == found


async def test_a_follower_left_behind_gets_out_of_range(hosting):
    async with hosting(done, record_ttl=100.0, idle_interval=0.01) as h:
        stream = h.engine.rollouts.follow_all("me", "", True)
        await anext(stream)
        await h.run("unseen")
        h.clock.ahead += 101.0
        await h.until_listed()
        with pytest.raises(OutOfRange):
            for _ in range(3):
                await anext(stream)
        await stream.aclose()


async def test_a_follower_that_has_read_everything_misses_nothing(hosting):
    async with hosting(done, record_ttl=100.0, idle_interval=0.01) as h:
        stream = h.engine.rollouts.follow_all("me", "", False)
        await anext(stream)
        for name in ("first", "second"):
            await h.run(name)
            found = []
            while len(found) < 4:
                _, event = await anext(stream)
                found += [event] if event else []
            assert [event.rollout_id for event in found] == [name] * 4
            h.clock.ahead += 101.0
            await h.until_listed()
        assert (await anext(stream))[1] is None
        await stream.aclose()


# What they are good for


async def test_a_conversation_is_rebuilt_from_events_alone(hosting):
    async def run(ctx):
        messages = list(ctx.request.messages)
        for turn in range(3):
            messages.append((await ctx.chat(messages)).message)
            messages.append({"role": "tool", "tool_call_id": "c", "content": f"result {turn}"})
        await ctx.chat([*messages[:2], user("another way")])
        await asyncio.gather(*(ctx.chat([user(f"aside {n}")], sample="aside") for n in range(3)))
        return ctx.complete(messages)

    script = [{"role": "assistant", "content": f"reply {n}", "reasoning": None} for n in range(5)]
    async with hosting(run) as h:
        h.trainer.policy = ScriptedPolicy(script)
        record = await h.start(messages=[{"role": "system", "content": "be good"}])
        outcome = await h.settled(record)

        asked, histories = {}, {}
        for kind in [event.kind for event in await read(h.engine.log.follow(record, 0))]:
            if isinstance(kind, events.ChatRequested):
                before = histories[kind.sample, kind.parent_chat] if kind.parent_chat else []
                asked[kind.sample, kind.chat_number] = [*before, *kind.messages]
            elif isinstance(kind, events.ChatAnswered):
                history = asked[kind.sample, kind.chat_number]
                histories[kind.sample, kind.chat_number] = [*history, kind.response.message]
        assert asked == {(chat.sample, chat.chat_number): list(chat.messages) for chat in h.trainer.chats}
        assert len(asked) == 7
        assert histories["main", 3] == outcome.messages[:-1]
        assert len(histories["main", 4]) == 4
        ended = h.kinds(record, events.Ended)[0].outcome
        assert ended.result_id == outcome.result_id


async def test_a_sink_sees_every_event_after_its_commit(hosting):
    seen = []

    def sink(event):
        stored = host[0].engine.journal.events(event.rollout_id, event.attempt, event.event_number - 1, 1)
        seen.append((event, stored == [event]))

    host = []
    async with hosting(logging_agent(5), sinks=[sink]) as h:
        host.append(h)
        record = await h.start()
        found = await read(h.engine.log.follow(record, 0))
    assert [event for event, _ in seen] == found
    assert all(committed for _, committed in seen)


async def test_a_sink_that_fails_disturbs_nobody(hosting):
    def broken(event):
        raise RuntimeError("the disk is full")

    seen = []
    async with hosting(logging_agent(5), sinks=[broken, seen.append]) as h:
        record = await h.start()
        await h.settled(record)
        h.check_whole(record)
        assert len(seen) == record.trail.last_event_number
