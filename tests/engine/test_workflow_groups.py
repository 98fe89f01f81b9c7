"""A grader of groups gets all rollouts of a group at once."""

import asyncio
from dataclasses import replace

import pytest

from osmosis_grpc.agent import grader_groups
from osmosis_grpc.agent.workflow_runnable import WorkflowRunnable
from osmosis_grpc.engine.record import Tenant
from osmosis_grpc.protocol.types import ChatPurpose, FailureReason, Group, InitRequest, RolloutRequest
from osmosis_grpc.rollout import AgentWorkflow, Grader, get_rollout_context
from tests.engine.test_journal import keeping
from tests.waiting import until

WAITS = "waiting for the "
PROMPT = [{"role": "user", "content": "hello"}]


class Asks(AgentWorkflow):
    async def run(self, ctx):
        await get_rollout_context().chat(ctx.prompt)
        if ctx.metadata.get("fails"):
            raise RuntimeError("no luck")
        if ctx.metadata.get("waits"):
            await asyncio.Event().wait()


class Ranks(Grader):
    """Rewards each rollout by its place."""

    seen: list

    async def grade(self, ctx):
        ctx.set_sample_reward("main", -1.0)

    async def grade_group(self, contexts):
        self.seen.append([context.rollout_id for context in contexts])
        for place, context in enumerate(contexts):
            context.set_sample_reward("main", place / len(contexts))


@pytest.fixture
def ranks():
    return type("Ranks", (Ranks,), {"seen": []})


def fields(index, size=3, group="g", **more):
    return {"messages": PROMPT, "label": "x", "group": Group(group, index, size), **more}


async def start(h, count=3, **more):
    return [await h.start(f"r{index}", **fields(index, count, **more)) for index in range(count)]


async def test_a_group_is_graded_once_in_the_order_of_its_indexes_and_waiting_needs_no_slot(hosting, ranks):
    async with hosting(WorkflowRunnable(Asks, None, ranks), max_concurrent=1, max_queued=9) as h:
        records = list(reversed([await h.start(f"r{index}", **fields(index)) for index in (2, 1, 0)]))
        outcomes = [await h.settled(record) for record in records]
        assert ranks.seen == [["r0", "r1", "r2"]]
        assert [outcome.reward for outcome in outcomes] == [0.0, 1 / 3, 2 / 3]
        alone = await h.run("alone", messages=PROMPT, label="x")
        assert alone.reward == -1.0


async def test_a_rollout_that_fails_or_is_cancelled_is_not_in_its_group(hosting, ranks):
    async with hosting(WorkflowRunnable(Asks, None, ranks), max_queued=9) as h:
        waits = await h.start("r0", **fields(0, metadata={"waits": True}))
        fails = await h.start("r1", **fields(1, metadata={"fails": True}))
        graded = await h.start("r2", **fields(2))
        assert (await h.settled(fails)).failure.reason is FailureReason.AGENT_EXCEPTION
        await until(lambda: graded.activity().description.startswith(WAITS))
        h.engine.cancel("me", rollout_id="r0")
        assert (await h.settled(waits)).status == "CANCELLED"
        assert (await h.settled(graded)).reward == 0.0
        assert ranks.seen == [["r2"]]
        again = await h.run("r1", attempt=2, **fields(1))
        assert (again.status, again.reward) == ("COMPLETED", 0.0)
        assert ranks.seen == [["r2"], ["r1", "r2"]]


async def test_an_exception_fails_the_whole_group(hosting, ranks):
    async def grade_group(self, contexts):
        raise LookupError("no model")

    ranks.grade_group = grade_group
    async with hosting(WorkflowRunnable(Asks, None, ranks)) as h:
        for record in await start(h, 2):
            outcome = await h.settled(record)
            assert outcome.failure.reason is FailureReason.GRADER_EXCEPTION
            assert outcome.failure.message == "LookupError: no model"
            assert list(outcome.samples) == ["main"]


@pytest.mark.parametrize("limit", [0.1, None])
async def test_a_rollout_whose_group_never_comes_ends_at_the_graders_time_limit(hosting, ranks, limit):
    async with hosting(WorkflowRunnable(Asks, None, ranks), agent_timeout=0.2) as h:
        outcome = await h.run("r0", **fields(0, agent_timeout=30.0, grader_timeout=limit))
        assert (outcome.status, outcome.failure.reason) == ("DEADLINE_EXCEEDED", FailureReason.GRADER_TIMEOUT)
        assert outcome.failure.message.startswith(
            f"the grader_timeout of {limit or 0.2:g} s ran out; it was doing: waiting for the 3 rollouts of the group "
            "'g', which have to run on this server"
        )
        assert ranks.seen == []


async def test_equal_groups_of_two_owners_are_different_groups(hosting, ranks):
    async with hosting(WorkflowRunnable(Asks, None, ranks), max_queued=9) as h:
        records = [await h.start(f"{owner}-{n}", owner=owner, **fields(n, 2)) for n in range(2) for owner in "ab"]
        for record in records:
            assert (await h.settled(record)).failure is None
    assert sorted(ranks.seen) == [["a-0", "a-1"], ["b-0", "b-1"]]


async def test_a_second_attempt_during_the_grading_is_graded_after_it(hosting, ranks):
    may_end, calls = asyncio.Event(), []

    async def grade_group(self, contexts):
        calls.append([context.rollout_id for context in contexts])
        await may_end.wait()
        await Ranks.grade_group(self, contexts)

    ranks.grade_group = grade_group
    async with hosting(WorkflowRunnable(Asks, None, ranks), max_queued=9) as h:
        records = await start(h, 2)
        await until(lambda: calls)
        second = await h.start("r1", attempt=2, **fields(1, 2))
        await until(lambda: second.activity().description.startswith("waiting for the earlier grading"))
        may_end.set()
        assert (await h.settled(records[0])).reward == 0.0
        assert ((outcome := await h.settled(second)).failure, outcome.reward) == (None, 0.5)
    assert calls == [["r0", "r1"]] * 2


async def test_a_judge_of_a_group_asks_for_one_of_its_rollouts(hosting, ranks):
    async def grade_group(self, contexts):
        context = get_rollout_context()
        assert context.rollout_id in [each.rollout_id for each in contexts]
        await context.chat([{"role": "user", "content": "which is best?"}], sample="judge")
        for each in contexts:
            each.set_sample_reward("main", 1.0)

    ranks.grade_group = grade_group
    async with hosting(WorkflowRunnable(Asks, None, ranks)) as h:
        records = await start(h, 2)
        assert [(await h.settled(record)).reward for record in records] == [1.0, 1.0]
        assert [chat.purpose for chat in h.trainer.chats if chat.sample == "judge"] == [ChatPurpose.JUDGE]


async def test_groups_of_equal_ids_and_other_prompts_are_different_groups(hosting, ranks):
    other = [{"role": "user", "content": "bye"}]
    async with hosting(WorkflowRunnable(Asks, None, ranks), max_queued=9) as h:
        records = await start(h, 2)
        more = [await h.start(f"s{n}", **(fields(n, 2) | {"messages": other})) for n in range(2)]
        for record in (*records, *more):
            assert (await h.settled(record)).failure is None
        assert sorted(ranks.seen) == [["r0", "r1"], ["s0", "s1"]]


async def test_few_graded_groups_are_kept(hosting, ranks):
    async with hosting(WorkflowRunnable(Asks, None, ranks), max_queued=9) as h:
        for number in range(grader_groups.KEPT + 2):
            records = [await h.start(f"r{number}-{n}", **fields(n, 2, group=f"g{number}")) for n in range(2)]
            for record in records:
                await h.settled(record)
        assert len(ranks.seen) == grader_groups.KEPT + 2


async def test_another_run_with_the_same_group_ids_has_groups_of_its_own(hosting, ranks):
    async with hosting(WorkflowRunnable(Asks, None, ranks), max_queued=9) as h:
        for run in ("first", "second"):
            for record in [await h.start(f"{run}-{n}", **fields(n, 2)) for n in range(2)]:
                assert (await h.settled(record)).failure is None
        for record in [await h.start(f"{run}-{n}", **fields(n, 2)) for n in range(2) for run in "ab"]:
            assert (await h.settled(record)).failure is None
    assert ranks.seen[:2] == [["first-0", "first-1"], ["second-0", "second-1"]]
    assert sorted(ranks.seen[2:]) == [["a-0", "a-1"], ["b-0", "b-1"]]


async def test_a_group_waits_for_a_later_attempt_that_replaces_a_waiting_one(hosting, ranks):
    async with hosting(WorkflowRunnable(Asks, None, ranks), max_queued=9) as h:
        first = await h.start("r0", **fields(0, 2))
        await until(lambda: first.activity().description.startswith(WAITS))
        second = await h.start("r0", attempt=2, **fields(0, 2, metadata={"waits": True}))
        other = await h.start("r1", **fields(1, 2))
        await until(lambda: other.activity().description.startswith(WAITS) and not first.live)
        assert ranks.seen == []
        h.engine.cancel("me", rollout_id="r0")
        assert (await h.settled(second)).status == "CANCELLED"
        assert (await h.settled(other)).reward == 0.0
    assert ranks.seen == [["r1"]]


@pytest.mark.parametrize("replayable", [True, False])
async def test_a_group_does_not_wait_after_a_restart_for_rollouts_that_have_ended(tmp_path, ranks, replayable):
    class Gated(Asks):
        async def run(self, ctx):
            if ctx.metadata.get("gated"):
                await opened.wait()
            await super().run(ctx)

    opened, Gated.replayable = asyncio.Event(), replayable
    workflow = WorkflowRunnable(Gated, None, ranks)
    async with keeping(tmp_path / "state", workflow, max_concurrent=2, max_queued=9) as h:
        first = await h.start("r1", **fields(1, 4, metadata={"gated": True}))
        await h.settled(await h.start("r0", **fields(0, 4, metadata={"fails": True})))
        second = await h.start("r2", **fields(2, 4, metadata={"gated": True}))
        await h.start("r3", **fields(3, 4))  # it is queued
        await until(lambda: all("Started" in h.names(each.rollout_id) for each in (first, second)))
        copy = h.crash()
    opened.set()
    async with keeping(copy, WorkflowRunnable(Gated, None, ranks), max_queued=9) as h:
        outcomes = [(await h.get(f"r{index}")).outcome for index in (1, 2, 3)]
    if replayable:
        assert [outcome.reward for outcome in outcomes] == [0.0, 1 / 3, 2 / 3]
    else:
        reasons = [outcome.failure.reason for outcome in outcomes[:2]]
        assert (reasons, outcomes[2].reward) == ([FailureReason.RESTART] * 2, 0.0)


async def test_a_rollout_that_waits_without_a_slot_can_move_to_another_tenant(hosting, ranks):
    async with hosting(WorkflowRunnable(Asks, None, ranks), max_queued=9) as h:
        tenants = [Tenant(), Tenant()]
        peers = [replace(h.Trainer(key=str(n)).peer, tenant=tenant) for n, tenant in enumerate(tenants)]
        init = InitRequest(request=RolloutRequest(rollout_id="r0", **fields(0, 2)), digest=b"r0")
        waits, _ = await h.engine.init(init, owner="me", peer=peers[0])
        await until(lambda: waits.activity().description.startswith(WAITS))
        await h.engine.init(init, owner="me", peer=peers[1])
        assert waits.tenant is tenants[1]
        assert [tenant.running for tenant in tenants] == [0, 0]


async def test_another_rollout_grades_the_group_if_the_one_that_does_is_cancelled(hosting, ranks):
    may_ask, graders = asyncio.Event(), []

    async def grade_group(self, contexts):
        graders.append(get_rollout_context().rollout_id)
        await may_ask.wait()
        await get_rollout_context().chat([{"role": "user", "content": "which is best?"}], sample="judge")
        await Ranks.grade_group(self, contexts)

    ranks.grade_group = grade_group
    async with hosting(WorkflowRunnable(Asks, None, ranks), max_queued=9) as h:
        records = {record.rollout_id: record for record in await start(h, 3)}
        await until(lambda: graders)
        h.engine.cancel("me", rollout_id=graders[0])
        assert (await h.settled(records.pop(graders[0]))).status == "CANCELLED"
        may_ask.set()
        assert [(await h.settled(record)).reward for record in records.values()] == [0.0, 0.5]
    assert (ranks.seen, len(graders)) == ([sorted(records)], 2)
