"""Init: accepted once, answered as often as it is asked, and nothing kept of what was refused."""

import asyncio

import pytest

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.protocol.errors import (
    Aborted,
    AlreadyExists,
    Internal,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    Unavailable,
)
from osmosis_grpc.protocol.types import OutcomeStatus, Receipt, RolloutState, events
from osmosis_grpc.protocol.types.tool_models import OpenAIFunctionSchema, OpenAIFunctionToolSchema

USER = {"role": "user", "content": "hello"}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}


async def done(ctx):
    return ctx.complete([USER], reward=1.0)


async def hangs(ctx):
    await asyncio.Event().wait()


def counting(runs):
    async def run(ctx):
        runs.append(ctx.request.rollout_id)
        return ctx.complete([USER], reward=1.0)

    return run


class Named(RolloutAgentLoop):
    name = "left"

    def get_tools(self, request):
        return None

    async def run(self, ctx):
        return ctx.complete([{"role": "assistant", "content": self.name}])


class OtherwiseNamed(Named):
    name = "right"


def gated(gate, calls, tools=(TOOL,)):
    """An async get_tools that waits."""

    async def get_tools(request):
        calls.append(request.rollout_id)
        await gate.wait()
        return list(tools)

    return get_tools


def sync_raising(error):
    def get_tools(request):
        raise error

    return get_tools


def async_raising(error):
    async def get_tools(request):
        await asyncio.sleep(0)
        raise error

    return get_tools


async def check_nothing_kept(h, rollout_id="r1"):
    with pytest.raises(NotFound):
        h.engine.rollouts.get("me", rollout_id)
    assert (await h.engine.rollouts.page("me")) == ([], 0)
    assert h.engine.journal.last_position == 0
    assert (h.engine.capacity().running, h.engine.capacity().queued) == (0, 0)
    assert h.trainer.outcomes == []


# The same request again


async def test_the_same_again_is_the_same_rollout(hosting):
    runs = []
    async with hosting(counting(runs), get_tools=lambda request: [TOOL]) as h:
        record, started = await h.init(messages=[USER])
        assert started
        assert record.tools == [TOOL]
        assert await h.init(messages=[USER]) == (record, False)
        await h.settled(record)
        assert await h.init(messages=[USER]) == (record, False)
        assert runs == ["r1"]
        h.check_whole(record)


async def test_another_body_is_refused_and_changes_nothing(hosting):
    async with hosting(done) as h:
        record = await h.start(messages=[USER])
        with pytest.raises(AlreadyExists) as raised:
            await h.init(messages=[USER, USER])
        assert (raised.value.rollout_id, raised.value.attempt) == ("r1", 1)
        await h.settled(record)
        h.check_whole(record)


async def test_duplicates_while_get_tools_runs_are_one_execution(hosting):
    gate, calls, runs = asyncio.Event(), [], []
    async with hosting(counting(runs), get_tools=gated(gate, calls)) as h:
        equal = [asyncio.create_task(h.init()) for _ in range(20)]
        other = [asyncio.create_task(h.init(digest=b"another")) for _ in range(5)]
        await asyncio.sleep(0.01)  # time for what must not come
        assert not any(task.done() for task in equal)
        gate.set()
        answers = await asyncio.gather(*equal)
        refused = await asyncio.gather(*other, return_exceptions=True)
        record = answers[0][0]
        assert [started for _, started in answers].count(True) == 1
        assert {id(answer) for answer, _ in answers} == {id(record)}
        assert [type(error) for error in refused] == [AlreadyExists] * 5
        await h.settled(record)
        assert (calls, runs) == (["r1"], ["r1"])
        assert record.tools == [TOOL]
        h.check_whole(record)


async def test_before_it_is_accepted_a_rollout_is_not_there(hosting):
    gate, calls = asyncio.Event(), []
    async with hosting(done, get_tools=gated(gate, calls)) as h:
        asking = asyncio.create_task(h.init())
        await h.until(lambda: calls)
        with pytest.raises(NotFound):
            h.engine.rollouts.get("me", "r1")
        assert (await h.engine.rollouts.page("me")) == ([], 0)
        gate.set()
        record, _ = await asking
        assert h.engine.rollouts.get("me", "r1") is record


async def test_duplicates_share_the_refusal(hosting):
    gate, calls = asyncio.Event(), []
    async with hosting(done, get_tools=gated(gate, calls, tools=["junk"])) as h:
        asking = [asyncio.create_task(h.init()) for _ in range(5)]
        await asyncio.sleep(0.01)  # time for what must not come
        gate.set()
        refused = await asyncio.gather(*asking, return_exceptions=True)
        assert [type(error) for error in refused] == [Internal] * 5
        assert calls == ["r1"]
        await check_nothing_kept(h)


async def test_a_caller_that_leaves_does_not_take_the_rollout_along(hosting):
    gate, calls = asyncio.Event(), []
    async with hosting(done, get_tools=gated(gate, calls)) as h:
        caller = asyncio.create_task(h.init())
        await h.until(lambda: calls)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        gate.set()
        record, started = await h.init()
        assert not started
        assert (await h.settled(record)).status is OutcomeStatus.COMPLETED
        assert calls == ["r1"]
        h.check_whole(record)


# get_tools


@pytest.mark.parametrize("raising", [sync_raising, async_raising])
@pytest.mark.parametrize(
    "error",
    [ValueError("no such database"), InvalidArgument("x", "is wrong"), TimeoutError("slow disk"), SystemExit(7)],
    ids=lambda error: type(error).__name__,
)
async def test_get_tools_that_raises_refuses_and_leaves_nothing(hosting, raising, error):
    hooks = [raising(error)]
    async with hosting(done, get_tools=lambda r: hooks.pop()(r) if hooks else [], max_concurrent=1, max_queued=0) as h:
        with pytest.raises(Internal, match=f"agent failed: {type(error).__name__}.*{error}"):
            await h.init()
        await check_nothing_kept(h)
        assert (await h.run()).status is OutcomeStatus.COMPLETED


@pytest.mark.parametrize("raising", [sync_raising, async_raising])
async def test_get_tools_may_refuse_with_a_status_of_its_own(hosting, raising):
    hooks = [raising(Unavailable("the tool server starts", retry_after=3.0))]
    async with hosting(done, get_tools=lambda r: hooks.pop()(r) if hooks else []) as h:
        with pytest.raises(Unavailable, match="the tool server starts") as raised:
            await h.init()
        assert raised.value.retry_after == 3.0
        await check_nothing_kept(h)
        assert (await h.run()).status is OutcomeStatus.COMPLETED


@pytest.mark.parametrize("raising", [sync_raising, async_raising])
async def test_get_tools_that_is_cancelled_does_not_take_the_engine_along(hosting, raising):
    hooks = [raising(asyncio.CancelledError())]
    async with hosting(done, get_tools=lambda r: hooks.pop()(r) if hooks else [], max_concurrent=1, max_queued=0) as h:
        with pytest.raises(Internal):
            await h.init()
        await check_nothing_kept(h)
        record = await h.start()
        assert (await h.settled(record)).status is OutcomeStatus.COMPLETED
        h.check_whole(record)


async def test_get_tools_has_a_limit(hosting):
    gate, calls, stopped = asyncio.Event(), [], []

    async def get_tools(request):
        if calls:
            return []
        calls.append(1)
        try:
            await gate.wait()
        finally:
            stopped.append(1)

    async with hosting(done, get_tools=get_tools, get_tools_timeout=0.02, max_concurrent=1, max_queued=0) as h:
        with pytest.raises(Internal, match=r"longer than 0\.02 s"):
            await h.init()
        await h.until(lambda: stopped)
        await check_nothing_kept(h)
        assert (await h.run()).status is OutcomeStatus.COMPLETED


SCHEMA = OpenAIFunctionToolSchema(function=OpenAIFunctionSchema(name="add", description="a + b"))


@pytest.mark.parametrize(
    ("given", "expected"),
    [(None, []), ([], []), ((), []), ([TOOL], [TOOL]), ((TOOL, TOOL), [TOOL, TOOL])],
    ids=["None", "a list", "a tuple", "one", "two"],
)
async def test_tools_reach_the_caller_and_the_agent(hosting, given, expected):
    seen = []

    async def run(ctx):
        seen.append(ctx.tools)
        return ctx.complete([USER])

    async with hosting(run, get_tools=lambda request: given) as h:
        record = await h.start()
        assert record.tools == expected
        await h.settled(record)
        assert seen == [expected]
        assert h.kinds(record, events.Accepted)[0].tools == expected


async def test_tools_may_be_schema_objects(hosting):
    async with hosting(done, get_tools=lambda request: [SCHEMA]) as h:
        record = await h.start()
        assert record.tools[0]["type"] == "function"
        assert record.tools[0]["function"]["name"] == "add"
        assert record.tools[0]["function"]["description"] == "a + b"


JUNK = {
    "a text": "add",
    "a number": 5,
    "a dict": TOOL,
    "a class": [OpenAIFunctionToolSchema],
    "names": ["add"],
    "a generator": (tool for tool in [TOOL]),
    "an object inside": [{"x": object()}],
    "a NaN": [{"x": float("nan")}],
    "a surrogate": [{"x": "\ud800"}],
    "a key that is a number": [{1: 2}],
    "None inside": [None],
}


@pytest.mark.parametrize("junk", JUNK.values(), ids=JUNK)
async def test_junk_tools_refuse(hosting, junk):
    answers = [junk]
    async with hosting(done, get_tools=lambda request: answers.pop() if answers else []) as h:
        with pytest.raises(Internal, match=r"get_tools of agent failed: .*tool"):
            await h.init()
        await check_nothing_kept(h)
        assert (await h.run()).status is OutcomeStatus.COMPLETED


async def test_what_get_tools_does_to_its_request_stays_with_it(hosting):
    def get_tools(request):
        request.messages[0]["content"] = "changed"
        request.messages.append({"role": "user", "content": object()})
        request.metadata["added"] = object()
        return []

    async with hosting(done, get_tools=get_tools) as h:
        record = await h.start(messages=[dict(USER)], metadata={"kept": 1}, digest=b"1")
        assert (await h.settled(record)).status is OutcomeStatus.COMPLETED
        request = h.kinds(record, events.Accepted)[0].init.request
        assert (request.messages, request.metadata) == ([USER], {"kept": 1})


@pytest.mark.parametrize("waits", [False, True])
async def test_messages_may_nest_as_deep_as_json_may(hosting, waits):
    deep = "bottom"
    for _ in range(256):
        deep = [deep]

    async def async_tools(request):
        return []

    async with hosting(done, get_tools=async_tools if waits else lambda request: [], max_concurrent=1) as h:
        record = await h.start(messages=[{"role": "user", "content": deep}], digest=b"1")
        assert (await h.settled(record)).status is OutcomeStatus.COMPLETED
        assert (await h.run("next")).status is OutcomeStatus.COMPLETED


# Names


async def test_an_unknown_agent_loop_is_not_found(hosting):
    async with hosting(done) as h:
        with pytest.raises(NotFound, match="'other'; there are: agent") as raised:
            await h.init(agent_loop="other")
        assert (raised.value.kind, raised.value.name) == ("agent_loop", "other")
        await check_nothing_kept(h)


async def test_with_two_agent_loops_one_has_to_be_named(hosting):
    async with hosting(Named(), OtherwiseNamed()) as h:
        with pytest.raises(InvalidArgument, match="left, right") as raised:
            await h.init()
        assert raised.value.violations[0][0] == "spec.agent_loop"
        await check_nothing_kept(h)
        for name in ("left", "right"):
            record = await h.start(name, agent_loop=name)
            assert (await h.settled(record)).messages[0]["content"] == name
            assert record.info().agent_loop == name


async def test_an_idempotency_key_names_one_rollout(hosting):
    async with hosting(done) as h:
        record = await h.start("r1", idempotency_key="k1")
        assert await h.init("r1", idempotency_key="k1") == (record, False)
        with pytest.raises(AlreadyExists) as raised:
            await h.init("r2", idempotency_key="k1")
        assert raised.value.rollout_id == "r1"
        with pytest.raises(NotFound):
            h.engine.rollouts.get("me", "r2")
        with pytest.raises(AlreadyExists):
            await h.init("r1", attempt=2, idempotency_key="k2")
        assert h.engine.rollouts.get("me", "r1").attempt == 1
        await h.start("r3", owner="another", idempotency_key="k1")
        await h.start("r1", attempt=2, idempotency_key="k1")


async def test_a_key_of_what_was_refused_is_free(hosting):
    hooks = [sync_raising(ValueError("no"))]
    async with hosting(done, get_tools=lambda r: hooks.pop()(r) if hooks else []) as h:
        with pytest.raises(Internal):
            await h.init("r1", idempotency_key="k1")
        await h.start("r2", idempotency_key="k1")


async def test_a_key_of_an_attempt_that_was_refused_is_free(hosting):
    hooks = [sync_raising(ValueError("no"))]
    async with hosting(done, get_tools=lambda r: hooks.pop()(r) if hooks and r.attempt == 2 else []) as h:
        await h.start("r1")
        with pytest.raises(Internal):
            await h.init("r1", attempt=2, idempotency_key="k1")
        await h.start("r2", idempotency_key="k1")


async def test_a_key_is_free_once_its_rollout_is_forgotten(hosting):
    async with hosting(done, record_ttl=100.0) as h:
        await h.settled(await h.start("r1", idempotency_key="k1"))
        h.clock.ahead += 101.0
        await h.until_listed()
        await h.start("r2", idempotency_key="k1")


async def test_to_others_a_rollout_does_not_exist(hosting):
    async with hosting(done) as h:
        record = await h.start()
        with pytest.raises(AlreadyExists) as raised:
            await h.init(owner="another")
        assert raised.value.attempt == 0
        with pytest.raises(AlreadyExists):
            await h.init(owner="another", attempt=2)
        for attempt in (0, 1, 2):
            with pytest.raises(NotFound):
                h.engine.rollouts.get("another", "r1", attempt)
        assert (await h.engine.rollouts.page("another")) == ([], 0)
        assert h.engine.rollouts.get("me", "r1") is record
        await h.settled(record)
        h.check_whole(record)


# Attempts


async def test_a_higher_attempt_supersedes(hosting):
    async def run(ctx):
        if ctx.request.attempt == 1:
            await asyncio.Event().wait()
        return ctx.complete([USER], reward=2.0)

    async with hosting(run) as h:
        first = await h.start()
        await h.until(lambda: first.state is RolloutState.RUNNING)
        second = await h.start(attempt=2)
        outcome = await h.settled(first)
        assert (outcome.status, outcome.finish_reason) == (OutcomeStatus.CANCELLED, "superseded")
        assert outcome.failure is outcome.reward is None
        assert (await h.settled(second)).reward == 2.0
        assert [c.attempt for c in h.trainer.outcomes] == [2]
        assert type(h.kinds(first)[-1]) is events.Ended
        assert not first.delivery.undelivered
        assert h.engine.rollouts.get("me", "r1") is second
        assert h.engine.rollouts.get("me", "r1", 1) is first
        h.check_whole(second)


async def test_a_lower_attempt_is_refused_with_the_current_one(hosting):
    calls = []
    async with hosting(done, get_tools=lambda request: calls.append(request.attempt)) as h:
        first = await h.start(attempt=1)
        await h.start(attempt=3)
        for attempt in (1, 2):
            with pytest.raises(Aborted) as raised:
                await h.init(attempt=attempt)
            assert (raised.value.rollout_id, raised.value.attempt) == ("r1", 3)
        assert calls == [1, 3]
        assert h.engine.rollouts.get("me", "r1", 1) is first


async def test_a_queued_attempt_is_superseded_without_having_run(hosting):
    runs, release = [], asyncio.Event()

    async def run(ctx):
        runs.append((ctx.request.rollout_id, ctx.request.attempt))
        await release.wait()
        return ctx.complete([USER])

    async with hosting(run, max_concurrent=1) as h:
        await h.start("busy")
        first = await h.start(attempt=1)
        second = await h.start(attempt=2)
        assert first.state is RolloutState.CANCELLED
        release.set()
        assert (await h.settled(second)).status is OutcomeStatus.COMPLETED
        assert runs == [("busy", 1), ("r1", 2)]
        assert [c.attempt for c in h.trainer.outcomes if c.rollout_id == "r1"] == [2]


async def test_an_attempt_superseded_before_it_was_accepted_is_refused(hosting):
    gate, calls, runs = asyncio.Event(), [], []

    async def get_tools(request):
        calls.append(request.attempt)
        if request.attempt == 1:
            await gate.wait()
        return []

    async with hosting(counting(runs), get_tools=get_tools) as h:
        first = asyncio.create_task(h.init())
        await h.until(lambda: calls == [1])
        second = await h.start(attempt=2)
        gate.set()
        with pytest.raises(Aborted) as raised:
            await first
        assert raised.value.attempt == 2
        await h.settled(second)
        assert runs == ["r1"]
        with pytest.raises(NotFound):
            h.engine.rollouts.get("me", "r1", 1)
        h.check_whole(second)


async def test_a_lower_attempt_has_to_come_again_until_the_higher_one_is_on_the_disk(hosting):
    gate, calls = asyncio.Event(), []

    async def get_tools(request):
        calls.append(request.attempt)
        await gate.wait()
        return []

    async with hosting(done, get_tools=get_tools) as h:
        second = asyncio.create_task(h.init(attempt=2))
        await h.until(lambda: calls == [2])
        with pytest.raises(Unavailable) as raised:
            await h.init(attempt=1)
        assert raised.value.retry_after == 0.2
        gate.set()
        await second
        with pytest.raises(Aborted):
            await h.init(attempt=1)
        assert calls == [2]


async def test_until_an_attempt_is_accepted_the_one_before_stands(hosting):
    gate, calls = asyncio.Event(), []

    async def get_tools(request):
        calls.append(request.attempt)
        if request.attempt == 2:
            await gate.wait()
        return []

    async with hosting(hangs, get_tools=get_tools) as h:
        first = await h.start()
        asking = asyncio.create_task(h.init(attempt=2))
        await h.until(lambda: calls == [1, 2])
        assert h.engine.rollouts.get("me", "r1") is first
        assert [row.attempt for row in (await h.engine.rollouts.page("me"))[0]] == [1]
        with pytest.raises(NotFound):
            h.engine.rollouts.get("me", "r1", 2)
        gate.set()
        second, _ = await asking
        assert h.engine.rollouts.get("me", "r1") is second
        assert (await h.settled(first)).finish_reason == "superseded"


async def test_an_attempt_that_is_refused_supersedes_nothing(hosting):
    release = asyncio.Event()

    async def run(ctx):
        await release.wait()
        return ctx.complete([USER])

    def get_tools(request):
        return [] if request.attempt == 1 else ["junk"]

    async with hosting(run, get_tools=get_tools) as h:
        first = await h.start()
        with pytest.raises(Internal):
            await h.init(attempt=2)
        assert h.engine.rollouts.get("me", "r1") is first
        release.set()
        assert (await h.settled(first)).status is OutcomeStatus.COMPLETED
        h.check_whole(first)


async def test_a_superseded_result_that_was_not_delivered_is_dropped(hosting):
    async with hosting(done) as h:
        h.trainer.answers = [Unavailable("away")] * 1000
        first = await h.start()
        await h.until(lambda: len(h.trainer.outcomes) > 1)
        later = h.Trainer()
        second = await h.start(attempt=2, trainer=later)
        assert (await h.settled(second)).status is OutcomeStatus.COMPLETED
        await h.settled(first)
        assert not first.delivery.undelivered
        assert h.engine.capacity().undelivered == 0
        tried = len(h.trainer.outcomes)
        await asyncio.sleep(0.15)  # time for what must not come
        assert len(h.trainer.outcomes) == tried
        assert [kind.receipt for kind in h.kinds(first, events.Delivered)] in ([], [None])


async def test_an_attempt_superseded_while_it_is_being_stopped_is_not_delivered(hosting):
    async def run(ctx):
        if ctx.request.attempt == 1:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await stop.wait()
        return ctx.complete([USER])

    stop = asyncio.Event()
    async with hosting(run, stop_again_after=(60.0,)) as h:
        first = await h.start()
        await h.until(lambda: first.state is RolloutState.RUNNING)
        await asyncio.sleep(0)
        h.engine.cancel("me", rollout_id="r1")
        second = await h.start(attempt=2)
        await h.settled(second)
        stop.set()
        assert (await h.settled(first)).status is OutcomeStatus.CANCELLED
        await asyncio.sleep(0.02)  # time for what must not come
        assert [c.attempt for c in h.trainer.outcomes] == [2]


# Drain


async def test_a_draining_server_takes_nothing_new_and_still_answers(hosting):
    release = asyncio.Event()

    async def run(ctx):
        await release.wait()
        return ctx.complete([USER])

    async with hosting(run) as h:
        record = await h.start()
        h.engine.shutdown.drain()
        with pytest.raises(Unavailable) as raised:
            await h.init("r2")
        assert raised.value.retry_after > 0
        with pytest.raises(Unavailable):
            await h.init("r1", attempt=2)
        assert await h.init("r1") == (record, False)
        with pytest.raises(AlreadyExists):
            await h.init("r1", digest=b"another")
        with pytest.raises(NotFound):
            h.engine.rollouts.get("me", "r2")
        release.set()
        assert (await h.settled(record)).status is OutcomeStatus.COMPLETED
        h.check_whole(record)


async def test_places_are_held_while_get_tools_runs(hosting):
    gate, calls = asyncio.Event(), []
    async with hosting(done, get_tools=gated(gate, calls), max_concurrent=1, max_queued=1) as h:
        waiting = [asyncio.create_task(h.init(f"r{n}")) for n in range(2)]
        await h.until(lambda: len(calls) == 2)
        with pytest.raises(ResourceExhausted):
            await h.init("r2")
        gate.set()
        for record, started in await asyncio.gather(*waiting):
            assert started
            assert (await h.settled(record)).status is OutcomeStatus.COMPLETED
            assert [kind.receipt for kind in h.kinds(record, events.Delivered)] == [Receipt.RECORDED]
