"""groups(): complete groups as they finish, and what becomes of members that fail."""

import asyncio
import logging
import re
from collections import Counter
from contextlib import aclosing
from dataclasses import replace

import numpy as np
import pytest

from osmosis_grpc.protocol.errors import Aborted, AlreadyExists, InvalidArgument, NotFound, RolloutFailed, Unavailable
from osmosis_grpc.protocol.types import Group, OutcomeStatus, RolloutOutcome
from osmosis_grpc.trainer import GroupCounts, OutcomeGroup, RolloutRequest, Trainer, advantages, pad
from tests.trainer.conftest import PATIENCE, USER, Talker, reply
from tests.trainer.deployment import collect
from tests.waiting import until

CANCELLED, COMPLETED, FAILED = OutcomeStatus.CANCELLED, OutcomeStatus.COMPLETED, OutcomeStatus.FAILED


class Fallible(Talker):
    """A Talker that raises in the attempts that the metadata names, by rollout id; rewards by index."""

    name = "fallible"

    async def run(self, ctx):
        ending = await super().run(ctx)
        if ctx.request.attempt in ctx.request.metadata.get("fails", {}).get(ctx.request.rollout_id, ()):
            raise RuntimeError("the weather service is away")
        return replace(ending, reward=float(ctx.request.group.index if ctx.request.group else 1.0))


def fallible():
    return type("A", (Fallible,), {})("fallible")


def requests(count, name="g", **changes):
    return [RolloutRequest(rollout_id=f"{name}{n}", messages=[USER], **changes) for n in range(count)]


def failing(**attempts):
    """One request, `g0`, whose members fail in these attempts: m1=(1, 2) is the member g0-1."""
    fails = {f"g0-{name[1:]}": list(failed) for name, failed in attempts.items()}
    return requests(1, metadata={"fails": fails})


async def test_groups_come_complete_and_as_they_finish(serve, attach_to):
    agent = fallible()
    agent.gate("g0-2")
    trainer = await attach_to(reply, await serve(agent))
    ids = []
    async with asyncio.timeout(PATIENCE), aclosing(trainer.groups(requests(4), 3)) as groups:
        async for group in groups:
            ids.append(group.id)
            assert [outcome.group for outcome in group] == [Group(group.id, index, 3) for index in range(3)]
            assert [outcome.rollout_id for outcome in group.outcomes] == [f"{group.id}-{index}" for index in range(3)]
            assert group.rewards.tolist() == [0.0, 1.0, 2.0]
            assert group.rewards.dtype == np.float64
            assert (len(group), group.size, group.complete, group.failed) == (3, 3, True, ())
            assert not group.zero_variance
            assert len(pad(group, advantages=advantages(group))) == 3
            if len(ids) == 3:
                assert "g0" not in ids
                agent.release()
    assert ids[-1] == "g0"
    assert sorted(ids) == ["g0", "g1", "g2", "g3"]
    assert trainer.group_counts == GroupCounts(yielded=4)


async def test_a_group_without_variance_says_so(serve, attach_to):
    trainer = await attach_to(reply, await serve(Talker()))
    (group,) = await collect(trainer.groups(requests(1), 4))
    assert group.zero_variance
    assert advantages(group).zero_variance


async def test_a_failed_member_is_tried_again_with_a_higher_attempt(serve, attach_to):
    agent = fallible()
    trainer = await attach_to(reply, await serve(agent))
    (group,) = await collect(trainer.groups(failing(m1=(1, 2)), 3, retries=2))
    assert [outcome.attempt for outcome in group] == [1, 3, 1]
    assert {outcome.status for outcome in group} == {COMPLETED}
    assert group.complete
    assert trainer.group_counts == GroupCounts(yielded=1, retried=2)
    assert Counter(agent.attempts) == Counter([("g0-0", 1), ("g0-1", 1), ("g0-1", 2), ("g0-1", 3), ("g0-2", 1)])


async def test_a_group_is_dropped_and_its_other_members_are_cancelled(serve, attach_to, caplog):
    agent = fallible()
    agent.gate("g0-2")
    server = await serve(agent)
    trainer = await attach_to(reply, server)
    with caplog.at_level(logging.WARNING, "osmosis_grpc.trainer"):
        groups = await collect(trainer.groups([*failing(m1=(1, 2)), *requests(2, "h")], 3, retries=1))
    assert sorted(group.id for group in groups) == ["h0", "h1"]
    assert trainer.group_counts == GroupCounts(yielded=2, dropped=1, retried=1)
    (line,) = [r.getMessage() for r in caplog.records if r.name.startswith("osmosis_grpc.trainer")]
    assert "group g0 is dropped: rollout g0-1, attempt 2" in line
    assert re.search(r"the weather service is away \(RuntimeError at \S*test_groups\.py:\d+\)", line)
    await until(lambda: trainer.servers[0].open == 0)
    assert sum(agent.running.values()) == 0, "g0-2 was waiting at its gate"


async def test_where_every_group_is_dropped_the_loop_raises_and_one_line_has_a_hint(serve, attach_to, caplog):
    trainer = await attach_to(reply, await serve(fallible()))
    fails = {"fails": {f"g{n}-0": [1] for n in range(3)}}
    with pytest.raises(RolloutFailed) as raised:
        await collect(trainer.groups(requests(3, metadata=fails), 3, retries=0))
    assert raised.value.outcome.status is OutcomeStatus.FAILED
    lines = [r.getMessage() for r in caplog.records if "is dropped" in r.getMessage()]
    assert ['on_failure="drop_member"' in line for line in lines] == [True, False, False]


async def test_after_a_group_that_is_yielded_there_is_no_hint(serve, attach_to, caplog):
    trainer = await attach_to(reply, await serve(fallible()))

    async def one_after_the_other():
        yield requests(1, "h")[0]
        await until(lambda: trainer.group_counts.yielded == 1)
        yield failing(m0=(1,))[0]

    assert len(await collect(trainer.groups(one_after_the_other(), 3, retries=0))) == 1
    assert "group g0 is dropped" in caplog.text
    assert "drop_member" not in caplog.text


async def test_a_failed_member_is_dropped(serve, attach_to, caplog):
    trainer = await attach_to(reply, await serve(fallible()))
    with caplog.at_level(logging.WARNING, "osmosis_grpc.trainer"):
        (group,) = await collect(trainer.groups(failing(m1=(1,)), 3, retries=0, on_failure="drop_member"))
    assert [outcome.rollout_id for outcome in group] == ["g0-0", "g0-2"]
    assert group.rewards.tolist() == [0.0, 2.0]
    assert [(outcome.rollout_id, outcome.status) for outcome in group.failed] == [("g0-1", FAILED)]
    assert not group.complete
    assert trainer.group_counts == GroupCounts(yielded=1, dropped_members=1)
    assert "group g0 goes without rollout g0-1: it ended FAILED" in caplog.text
    assert re.search(r"the weather service is away \(RuntimeError at \S*test_groups\.py:\d+\)", caplog.text)
    assert "drop_member" not in caplog.text
    assert len(advantages(group).values) == 2


async def test_two_members_are_needed(serve, attach_to):
    trainer = await attach_to(reply, await serve(fallible()))
    with pytest.raises(RolloutFailed):
        await collect(trainer.groups(failing(m0=(1,), m1=(1,)), 3, retries=0, on_failure="drop_member"))
    assert trainer.group_counts == GroupCounts(dropped=1)


async def test_a_group_that_is_refused_for_good_raises_and_is_not_retried(serve, attach_to):
    trainer = await attach_to(reply, await serve(fallible()))
    with pytest.raises(NotFound):
        await collect(trainer.groups(requests(1, agent_loop="nobody"), 3, retries=5))
    assert trainer.metrics()["failures/refused/NotFound"] == 3


async def test_a_group_of_which_no_member_finds_a_server_raises(serve, attach_to):
    server = await serve(fallible())
    trainer = await attach_to(reply, server, lost_after=0.2, longest_pause=0.1)
    await server.stop(0.0)
    with pytest.raises(Unavailable):
        await collect(trainer.groups(requests(2), 2))


async def test_an_id_that_has_run_is_an_error(serve, attach_to):
    trainer = await attach_to(reply, await serve(fallible()))
    assert len(await collect(trainer.groups(requests(1), 2))) == 1
    with pytest.raises(AlreadyExists, match="rollout g0-0 attempt 1 is over; raise `attempt`"):
        await collect(trainer.groups([*requests(1, "h"), *requests(1)], 2))
    assert trainer.group_counts.dropped == 0
    await until(lambda: trainer.servers[0].open == 0)


async def test_an_id_whose_retry_has_run_is_an_error(serve, attach_to):
    trainer = await attach_to(reply, await serve(fallible()))
    assert len(await collect(trainer.groups(failing(m0=(1,)), 2))) == 1
    with pytest.raises(Aborted, match="rollout g0-0 is at attempt 2; use a new id, or attempt=3"):
        await collect(trainer.groups(failing(m0=(1,)), 2))


async def test_a_group_that_an_earlier_process_finished_is_dropped(serve, tmp_path, caplog):
    """A trainer that was killed gets the whole list again: it cannot know which groups were dropped."""
    server, ledger = await serve(fallible()), tmp_path / "run.ledger"
    async with Trainer([server.address], reply, ledger=ledger) as trainer:
        with pytest.raises(RolloutFailed):
            await collect(trainer.groups(failing(m0=(1, 2)), 3))
    async with Trainer([server.address], reply, ledger=ledger) as trainer:
        groups = await collect(trainer.groups([*failing(m0=(1, 2)), *requests(1, "h")], 3))
        assert [group.id for group in groups] == ["h0"]
    assert "group g0 is dropped" in caplog.text


async def test_a_cancelled_group_is_dropped_and_not_tried_again(serve, attach_to):
    agent = fallible()
    agent.gate(*(f"g0-{index}" for index in range(3)))
    trainer = await attach_to(reply, await serve(agent))
    groups = asyncio.ensure_future(collect(trainer.groups(requests(2), 3, retries=5)))
    await until(lambda: sum(agent.running.values()) == 3 and len(agent.ended_ones) == 3)
    await trainer.cancel(group_id="g0", reason="no time")
    assert [group.id for group in await groups] == ["g1"]
    assert trainer.group_counts == GroupCounts(yielded=1, dropped=1)


async def test_the_loop_over_groups_that_were_all_cancelled_ends(serve, attach_to):
    agent = fallible()
    agent.gate(*(f"g0-{index}" for index in range(3)))
    trainer = await attach_to(reply, await serve(agent))
    groups = asyncio.ensure_future(collect(trainer.groups(requests(1), 3)))
    await until(lambda: sum(agent.running.values()) == 3)
    await trainer.cancel(group_id="g0", reason="no time")
    assert await groups == []


async def test_cancelling_the_task_cancels_unfinished_rollouts(serve, attach_to):
    agent = fallible()
    agent.gate("g0-1")
    trainer = await attach_to(reply, await serve(agent))
    task = asyncio.ensure_future(collect(trainer.groups(requests(1), 2)))
    await until(lambda: agent.running["g0-1"] == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: trainer.servers[0].open == 0)
    assert sum(agent.running.values()) == 0


async def test_requests_wait_until_a_group_is_taken(serve, attach_to):
    """Memory is bounded: what is finished and not taken counts as in flight."""
    agent, pulled = fallible(), []

    def lazily():
        for request in requests(50):
            pulled.append(request.rollout_id)
            yield request

    trainer = await attach_to(reply, await serve(agent))
    async with asyncio.timeout(PATIENCE), aclosing(trainer.groups(lazily(), 2, max_in_flight=4)) as groups:
        await anext(groups)
        await until(lambda: trainer.servers[0].open == 0)
        assert len(pulled) <= 5
        assert len([group async for group in groups]) == 49


async def test_dropped_groups_do_not_use_up_the_slots(serve, attach_to):
    agent = fallible()
    fails = {"fails": {f"g{n}-{index}": [1] for n in range(10) for index in range(3)}}
    trainer = await attach_to(reply, await serve(agent))
    mixed = [*requests(10, metadata=fails), *requests(5, "h")]
    groups = await collect(trainer.groups(mixed, 3, max_in_flight=2, retries=0))
    assert sorted(group.id for group in groups) == [f"h{n}" for n in range(5)]
    assert trainer.group_counts == GroupCounts(yielded=5, dropped=10)


async def test_the_last_member_is_tried_again_on_the_server_of_its_group(serve, attach_to):
    """When the last member fails, no other member runs, and the other server has more free slots."""
    first, second = fallible(), fallible()
    for agent in (first, second):
        agent.gate("x0", "b0", "b1", "b2", "g0-1")
    trainer = await attach_to(reply, *[await serve(agent, max_concurrent=8) for agent in (first, second)])
    begun = [asyncio.ensure_future(trainer.rollout(request)) for request in requests(1, "x")]
    others = [asyncio.ensure_future(trainer.rollout(each, affinity_key="b")) for each in requests(3, "b")]
    await until(lambda: (first.started, len(second.started)) == (["x0"], 3))
    groups = asyncio.ensure_future(collect(trainer.groups(failing(m1=(1,)), 4, colocate_groups=True)))
    await until(lambda: {"g0-0", "g0-2", "g0-3"} <= set(first.ended_ones) and "g0-1" in first.started)
    second.release()
    await asyncio.gather(*others)
    await until(lambda: [server.open for server in trainer.servers] == [2, 0])
    first.release("g0-1")
    (group,) = await groups
    assert group.complete
    assert ("g0-1", 2) in first.attempts
    first.release()
    await asyncio.gather(*begun)


async def test_two_requests_of_one_id_are_refused(serve, attach_to):
    trainer = await attach_to(reply, await serve(fallible()))
    with pytest.raises(InvalidArgument, match=r"two requests of one groups\(\) have the id g0"):
        await collect(trainer.groups([*requests(1), *requests(1)], 2))
    await until(lambda: trainer.servers[0].open == 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group_size": 1}, "group_size: 1 is less than 2"),
        ({"retries": -1}, "retries: -1"),
        ({"on_failure": "ignore"}, "on_failure: 'ignore' is not one of drop_group, drop_member"),
        ({"max_in_flight": 0}, "max_in_flight"),
    ],
)
async def test_bad_arguments_are_refused_by_name(serve, attach_to, options, message):
    trainer = await attach_to(reply, await serve(fallible()))
    with pytest.raises(ValueError, match=message):
        await collect(trainer.groups(requests(1), **({"group_size": 2} | options)))


async def test_a_ledger_forgets_what_was_confirmed_or_dropped(serve, tmp_path):
    """A confirmed group and a dropped one do not come again; one that was not confirmed does."""
    server, ledger = await serve(fallible()), tmp_path / "run.ledger"
    async with Trainer([server.address], reply, ledger=ledger) as trainer:
        mixed = [*failing(m1=(1, 2)), *requests(2, "h")]
        for group in await collect(trainer.groups(mixed, 3)):
            if group.id == "h0":
                await group.confirm()
        assert trainer.group_counts.dropped == 1
    async with Trainer([server.address], reply, ledger=ledger) as trainer:
        left = [outcome.rollout_id for outcome in await collect(trainer.unconfirmed())]
        assert sorted(left) == ["h1-0", "h1-1", "h1-2"]


async def test_the_outcomes_of_a_group_are_confirmed_together():
    """They share the commits of the ledger. None waits for another one."""

    class Confirmation:
        confirm = staticmethod(asyncio.Barrier(3).wait)

    names = ("g-0", "g-1", "g-2")
    *completed, failed = (RolloutOutcome(rollout_id=n, status=COMPLETED, confirmation=Confirmation()) for n in names)
    group = OutcomeGroup(id="g", size=3, outcomes=tuple(completed), failed=(failed,))
    async with asyncio.timeout(PATIENCE):
        await group.confirm()


async def test_members_that_end_while_their_group_is_dropped_are_confirmed(serve, tmp_path):
    """g0 fails and has ended altogether before its first outcome is looked at."""
    server, ledger = await serve(fallible()), tmp_path / "run.ledger"
    async with Trainer([server.address], reply, ledger=ledger) as trainer:
        mixed = [*requests(1, "h"), *failing(m0=(1,))]
        async with asyncio.timeout(PATIENCE), aclosing(trainer.groups(mixed, 3, retries=0, max_in_flight=6)) as groups:
            await (await anext(groups)).confirm()
            await until(lambda: server.engine.capacity().undelivered == 0 and trainer.servers[0].open == 0)
            assert [group.id async for group in groups] == []
        assert trainer.group_counts == GroupCounts(yielded=1, dropped=1)
    async with Trainer([server.address], reply, ledger=ledger) as trainer:
        assert await collect(trainer.unconfirmed()) == []
