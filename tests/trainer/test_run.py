"""run(): many rollouts over several servers, as they come."""

import asyncio
from contextlib import aclosing

import pytest

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import Group, OutcomeStatus
from osmosis_grpc.trainer import RolloutRequest, Trainer
from tests.trainer.conftest import PATIENCE, USER, reply, talker
from tests.trainer.deployment import collect
from tests.waiting import until

CANCELLED, COMPLETED, FAILED = OutcomeStatus.CANCELLED, OutcomeStatus.COMPLETED, OutcomeStatus.FAILED


def requests(count, name="r", **changes):
    return [RolloutRequest(rollout_id=f"{name}{n}", messages=[USER], **changes) for n in range(count)]


async def test_a_slow_one_does_not_hold_up_the_others(serve, attach_to):
    agent = talker()
    agent.gate("r0")
    trainer = await attach_to(reply, await serve(agent))
    names = []
    async with asyncio.timeout(PATIENCE), aclosing(trainer.run(requests(10))) as outcomes:
        async for outcome in outcomes:
            assert outcome.status is COMPLETED
            names.append(outcome.rollout_id)
            if len(names) == 9:
                assert "r0" not in names
                agent.release()
    assert names[-1] == "r0"
    assert sorted(names) == sorted(f"r{n}" for n in range(10))


@pytest.mark.parametrize("size", [1, 3])
async def test_groups(serve, attach_to, size):
    agent = talker()
    trainer = await attach_to(reply, await serve(agent))
    outcomes = {c.rollout_id: c for c in await collect(trainer.run(requests(4), group_size=size))}
    if size == 1:
        assert set(outcomes) == {f"r{n}" for n in range(4)}
        assert {c.group for c in outcomes.values()} == {None}
        return
    assert set(outcomes) == {f"r{n}-{i}" for n in range(4) for i in range(3)}
    for name, outcome in outcomes.items():
        group, _, index = name.rpartition("-")
        assert outcome.group == Group(group, int(index), 3)
    assert sorted(agent.started) == sorted(outcomes)


@pytest.mark.parametrize("options", [{"group_size": 0}, {"max_in_flight": 0}])
async def test_what_run_refuses(serve, attach_to, options):
    trainer = await attach_to(reply, await serve(talker()))
    with pytest.raises(ValueError, match="at least 1"):
        await collect(trainer.run(requests(1), **options))


class Slow(RolloutAgentLoop):
    """Chats once; knows how many run at once. Its rollouts do not end before so many run as are expected."""

    name = "slow"
    running = most = 0

    def __init__(self, expected=1):
        self.expected = expected
        self.full = asyncio.Event()

    def get_tools(self, request):
        return []

    async def run(self, ctx):
        self.running += 1
        self.most = max(self.most, self.running)
        if self.running == self.expected:
            self.full.set()
        await self.full.wait()
        await ctx.chat(ctx.request.messages)
        await asyncio.sleep(0.002)  # others may start now
        self.running -= 1
        return ctx.complete(ctx.request.messages)


@pytest.mark.parametrize(("most", "group_size"), [(1, 1), (3, 1), (3, 4)])
async def test_no_more_than_max_in_flight(serve, attach_to, most, group_size):
    agent = Slow(most)
    trainer = await attach_to(reply, await serve(agent))
    outcomes = await collect(trainer.run(requests(12), max_in_flight=most, group_size=group_size))
    assert len(outcomes) == 12 * group_size
    assert agent.most == most


@pytest.mark.parametrize("form", ["iterator", "async iterator"])
async def test_requests_are_pulled_when_there_is_a_free_slot(serve, attach_to, form):
    agent = talker()
    agent.gate(*(f"r{n}" for n in range(10)))
    trainer = await attach_to(reply, await serve(agent))
    pulled = []

    def lazily():
        for request in requests(10):
            pulled.append(request.rollout_id)
            yield request

    async def lazily_too():
        for request in lazily():
            await asyncio.sleep(0)
            yield request

    async with aclosing(trainer.run(lazily() if form == "iterator" else lazily_too(), max_in_flight=3)) as outcomes:
        first = asyncio.ensure_future(anext(outcomes))
        await until(lambda: len(agent.started) == 3)
        await asyncio.sleep(0.02)  # no further request is pulled
        assert len(pulled) <= 4, "one may wait for a slot"
        agent.release("r1")
        assert (await first).rollout_id == "r1"
        await until(lambda: len(agent.started) == 4)
        await asyncio.sleep(0.02)  # no further request is pulled
        assert len(pulled) <= 5
        agent.release()
        assert len(await collect(outcomes)) == 9


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (RolloutRequest(rollout_id="a/b"), InvalidArgument),
        ({"rollout_id": "x"}, TypeError),
        (RolloutRequest(rollout_id="x", label=5), InvalidArgument),
    ],
    ids=["bad id", "a dict", "bad label"],
)
async def test_a_bad_request_raises_and_cancels_the_others(serve, attach_to, bad, error):
    agent = talker()
    agent.gate("r0", "r1")
    trainer = await attach_to(reply, await serve(agent))
    with pytest.raises(error):
        await collect(trainer.run([*requests(2), bad, *requests(2, "late")]))
    await until(lambda: trainer.servers[0].open == 0)
    assert sum(agent.running.values()) == 0
    assert "late0" not in agent.started


async def test_what_the_iterator_raises_is_raised(serve, attach_to):
    agent = talker()
    agent.gate("r0")
    trainer = await attach_to(reply, await serve(agent))

    def broken():
        yield from requests(1)
        raise KeyError("no more data")

    with pytest.raises(KeyError):
        await collect(trainer.run(broken()))
    await until(lambda: trainer.servers[0].open == 0)


async def test_a_refused_one_is_yielded_as_failed(serve, attach_to):
    trainer = await attach_to(reply, await serve(talker()))
    mixed = [*requests(2), *requests(1, "bad", agent_loop="nobody", group=Group("g", 1, 2))]
    outcomes = {c.rollout_id: c for c in await collect(trainer.run(mixed))}
    assert {name: c.status for name, c in outcomes.items()} == {"r0": COMPLETED, "r1": COMPLETED, "bad0": FAILED}
    refused = outcomes["bad0"]
    assert "nobody" in refused.failure.message
    assert (refused.failure.retryable, refused.reward, refused.group) == (False, None, Group("g", 1, 2))


async def test_leaving_the_loop_cancels_the_rest(serve, attach_to):
    agent = talker()
    agent.gate(*(f"r{n}" for n in range(1, 6)))
    server = await serve(agent, max_concurrent=3)
    trainer = await attach_to(reply, server)
    async with aclosing(trainer.run(requests(6))) as outcomes:
        async for outcome in outcomes:
            assert outcome.rollout_id == "r0"
            break
    await until(lambda: trainer.servers[0].open == 0)
    await until(lambda: server.engine.capacity().running == 0 and server.engine.capacity().queued == 0)
    assert sum(agent.running.values()) == 0


async def test_what_another_waits_for_is_not_cancelled(serve, attach_to):
    agent = talker()
    agent.gate("r0")
    trainer = await attach_to(reply, await serve(agent))
    waiting = asyncio.ensure_future(trainer.rollout(requests(1)[0]))
    await until(lambda: agent.started)
    async with aclosing(trainer.run(requests(2))) as outcomes:
        assert (await anext(outcomes)).rollout_id == "r1"
    agent.release()
    assert (await asyncio.wait_for(waiting, PATIENCE)).status is COMPLETED


@pytest.mark.parametrize("over", [False, True])
async def test_the_same_request_twice_is_refused(serve, attach_to, over):
    agent = talker()
    agent.gate(*(() if over else ("r0",)))
    trainer = await attach_to(reply, await serve(agent))

    async def twice():
        for request in requests(2):
            yield request
        if over:
            await until(lambda: trainer.metrics()["rollouts/completed"] == 2)
        yield requests(1)[0]

    with pytest.raises(InvalidArgument, match=r"two requests of one run\(\) have the id r0"):
        await collect(trainer.run(twice()))
    await until(lambda: trainer.servers[0].open == 0)


async def test_a_higher_attempt_of_the_same_request_is_run(serve, attach_to):
    agent = talker()
    trainer = await attach_to(reply, await serve(agent))

    async def again():
        for attempt in (1, 2):
            yield requests(1, attempt=attempt)[0]
            await until(lambda attempt=attempt: trainer.metrics()["rollouts/completed"] == attempt)

    assert [c.attempt for c in await collect(trainer.run(again()))] == [1, 2]


async def test_a_request_whose_rollout_has_ended_is_refused(serve, attach_to):
    trainer = await attach_to(reply, await serve(talker()))
    await collect(trainer.run(requests(1)))
    (again,) = await collect(trainer.run(requests(1)))
    assert (again.status, again.finish_reason) == (OutcomeStatus.FAILED, "refused")
    assert "raise `attempt`" in again.failure.message


# Several servers


async def test_servers_share_rollouts_by_their_free_slots(serve, attach_to):
    small, large = talker(), talker()
    for agent in (small, large):
        agent.gate(*(f"r{n}" for n in range(12)))
    trainer = await attach_to(
        reply, await serve(small, max_concurrent=3, max_queued=0), await serve(large, max_concurrent=9, max_queued=0)
    )
    outcomes = asyncio.ensure_future(collect(trainer.run(requests(12))))
    await until(lambda: len(small.started) + len(large.started) == 12)
    assert (len(small.started), len(large.started)) == (3, 9)
    assert [(s.open, s.window) for s in trainer.servers] == [(3, 3), (9, 9)]
    for agent in (small, large):
        agent.release()
    assert {c.status for c in await outcomes} == {COMPLETED}


async def test_beyond_all_windows_rollouts_wait(serve, attach_to):
    agents = [Slow(2), Slow(2)]
    targets = [await serve(agent, max_concurrent=2, max_queued=0) for agent in agents]
    trainer = await attach_to(reply, *targets)
    assert len(await collect(trainer.run(requests(30)))) == 30
    assert [agent.most for agent in agents] == [2, 2]


async def test_a_group_stays_on_one_server(serve, attach_to):
    agents = [talker(), talker()]
    for agent in agents:
        agent.gate(*(f"r{n}-{i}" for n in range(6) for i in range(4)))
    trainer = await attach_to(reply, *[await serve(agent) for agent in agents])
    outcomes = asyncio.ensure_future(collect(trainer.run(requests(6), group_size=4, colocate_groups=True)))
    await until(lambda: sum(len(agent.started) for agent in agents) == 24)
    groups = [{name.partition("-")[0] for name in agent.started} for agent in agents]
    assert not groups[0] & groups[1]
    assert len(groups[0]) == len(groups[1]) == 3
    for agent in agents:
        agent.release()
    assert len(await outcomes) == 24


async def test_a_group_stays_on_one_server_one_after_the_other(serve, attach_to):
    agents = [talker(), talker()]
    for agent in agents:
        agent.gate("busy", "r0-0")
    trainer = await attach_to(reply, *[await serve(agent) for agent in agents])
    busy = asyncio.ensure_future(trainer.rollout(rollout_id="busy"))
    await until(lambda: agents[0].started == ["busy"])
    group = asyncio.ensure_future(
        collect(trainer.run(requests(1), group_size=4, max_in_flight=1, colocate_groups=True))
    )
    await until(lambda: agents[1].started == ["r0-0"])
    agents[0].release()
    await busy
    agents[1].release()
    assert len(await group) == 4
    assert agents[0].started == ["busy"]


async def test_servers_get_what_they_host(serve, attach_to):
    one, two = talker("one"), talker("two")
    trainer = await attach_to(reply, await serve(one), await serve(two))
    mixed = [*requests(5, "a", agent_loop="one"), *requests(5, "b", agent_loop="two")]
    assert {c.status for c in await collect(trainer.run(mixed))} == {COMPLETED}
    assert sorted(one.started) == [f"a{n}" for n in range(5)]
    assert sorted(two.started) == [f"b{n}" for n in range(5)]


async def test_a_full_server_does_not_hold_up_what_others_host(serve, attach_to):
    one, two = talker("one"), talker("two")
    one.gate("a0")
    trainer = await attach_to(reply, await serve(one, max_concurrent=1, max_queued=0), await serve(two))
    mixed = [*requests(3, "a", agent_loop="one"), *requests(3, "b", agent_loop="two")]
    names = []
    async with asyncio.timeout(PATIENCE), aclosing(trainer.run(mixed)) as outcomes:
        async for outcome in outcomes:
            names.append(outcome.rollout_id)
            if len(names) == 3:
                assert sorted(names) == ["b0", "b1", "b2"]
                one.release()
    assert len(names) == 6


@pytest.mark.parametrize("known", [False, True])
async def test_what_a_server_hosts_waits_for_it(serve, stack, known):
    """The server that hosts it attaches last, or is away for a moment."""
    one, two = talker("one"), talker("two")
    first, second = await serve(one), await serve(two)
    trainer = await stack.enter_async_context(Trainer([first.address, second.address], reply))
    if known:
        await until(lambda: all(server.attached for server in trainer.servers))
        await second.stop(0)
        await until(lambda: not trainer.servers[1].attached)
    else:
        await second.stop(0)
        await until(lambda: trainer.servers[0].attached)
    running = asyncio.ensure_future(trainer.rollout(rollout_id="r", agent_loop="two"))
    done, _ = await asyncio.wait({running}, timeout=0.5)
    await trainer.cancel("r")
    [ended] = await asyncio.gather(running, return_exceptions=True)
    assert not done, ended
    assert ended.status is CANCELLED


async def test_requests_that_were_read_before_have_a_line_in_the_log(serve, attach_to, caplog):
    trainer = await attach_to(reply, await serve(talker()))
    once = iter(requests(2))
    assert len([outcome async for outcome in trainer.run(once)]) == 2
    assert not caplog.records
    assert [outcome async for outcome in trainer.run(once)] == []
    assert [record.levelname for record in caplog.records] == ["WARNING"]
