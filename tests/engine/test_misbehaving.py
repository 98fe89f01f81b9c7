"""Agents that do what agents should not: their rollout ends once, and says whose fault it was."""

import asyncio
import contextlib
import threading
import time
from collections import UserDict
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import pytest
from pydantic import BaseModel

from osmosis_grpc.agent import RolloutResult
from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.errors import RolloutEndedError, ToolExecutionError, Unavailable
from osmosis_grpc.protocol.types import OutcomeStatus, Receipt, RolloutState, events, jsontext
from osmosis_grpc.supervise import supervisor

USER = {"role": "user", "content": "hello"}
DEEP = 300


def nested(levels):
    value = 0
    for _ in range(levels):
        value = [value]
    return value


class Untellable(Exception):
    """Not even its text can be had."""

    def __str__(self):
        raise RuntimeError("no text")


class Panic(BaseException):
    """Native extensions raise such: not an Exception."""


class Report(BaseModel):
    """A class that an agent forgot to instantiate."""

    content: str


async def hangs(ctx):
    await asyncio.Event().wait()


async def raises_late(ctx):
    await ctx.chat([USER])
    raise ValueError("the agent's own mistake")


async def swallows_once(ctx):
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return ctx.complete([USER], reward=1.0)


async def swallows_once_and_hangs(ctx):
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        await asyncio.Event().wait()


async def raises_when_stopped(ctx):
    try:
        await asyncio.Event().wait()
    finally:
        raise ValueError("while cleaning up")


async def cancels_itself(ctx):
    asyncio.current_task().cancel()
    await asyncio.sleep(0)


async def awaits_what_was_cancelled(ctx):
    inner = asyncio.ensure_future(asyncio.sleep(60))
    inner.cancel()
    await inner


def is_not_async(ctx):
    return ctx.complete([USER], reward=1.0)


def is_not_async_and_raises(ctx):
    raise ValueError("at once")


async def chats_in_flight(ctx):
    await ctx.chat([USER])


async def gives_up(ctx):
    return ctx.error("too hard")


async def gives_up_after_a_chat(ctx):
    reply = await ctx.chat([USER])
    return ctx.error("too hard", [USER, reply.message])


async def recurses(ctx):
    return await recurses(ctx)


def raising(error):
    async def run(ctx):
        raise error

    return run


def returning(value):
    async def run(ctx):
        return value

    return run


def completing(final_messages=(USER,), *, chat_first=False, **fields):
    async def run(ctx):
        if chat_first:
            await ctx.chat([USER, {"role": "user", "content": 1}])
        return ctx.complete(list(final_messages) if isinstance(final_messages, tuple) else final_messages, **fields)

    return run


@dataclass
class Case:
    agent: object
    says: str
    boundary: str = "agent"
    status: str = "FAILED"
    retryable: bool = False
    request: dict = field(default_factory=dict)


def late(agent, boundary="agent", says="ran out"):
    return Case(agent, says, boundary, "DEADLINE_EXCEEDED", True, {"agent_timeout": 0.03})


FAILURES = {
    "raises ValueError": Case(raising(ValueError("wrong")), "wrong"),
    "raises after a chat": Case(raises_late, "the agent's own mistake"),
    "raises ToolExecutionError": Case(raising(ToolExecutionError("broken")), "broken", "tool"),
    "lets the trainer's error escape": Case(raising(Unavailable("away")), "away", "trainer", retryable=True),
    "raises SystemExit": Case(raising(SystemExit(3)), "3"),
    "raises KeyboardInterrupt": Case(raising(KeyboardInterrupt()), "KeyboardInterrupt"),
    "raises GeneratorExit": Case(raising(GeneratorExit()), "GeneratorExit"),
    "raises StopIteration": Case(raising(StopIteration()), "StopIteration"),
    "raises a BaseException": Case(raising(Panic("native code panicked")), "native code panicked"),
    "raises a BaseExceptionGroup": Case(raising(BaseExceptionGroup("several", [Panic()])), "several"),
    "raises an ExceptionGroup": Case(raising(ExceptionGroup("several", [ValueError()])), "several"),
    "raises what has no text": Case(raising(Untellable()), "Untellable"),
    "raises a surrogate": Case(raising(ValueError("\ud800")), "\ufffd"),
    "raises a long text": Case(raising(ValueError("x" * 200_000)), "[cut]"),
    "recurses": Case(recurses, "recursion"),
    "cancels itself": Case(cancels_itself, "cancelled itself"),
    "raises CancelledError": Case(raising(asyncio.CancelledError()), "cancelled itself"),
    "awaits what was cancelled": Case(awaits_what_was_cancelled, "cancelled itself"),
    "is not async": Case(is_not_async, "await"),
    "is not async and raises": Case(is_not_async_and_raises, "at once"),
    "hangs": late(hangs),
    "swallows its cancellation once": late(swallows_once),
    "swallows it once and hangs": late(swallows_once_and_hangs),
    "raises when it is stopped": late(raises_when_stopped),
    "ctx.error": Case(gives_up, "too hard"),
    "ctx.error after a chat": Case(gives_up_after_a_chat, "too hard"),
    "returns None": Case(returning(None), "returned None"),
    "returns a dict": Case(returning({"status": "COMPLETED"}), "dict"),
    "returns a class": Case(returning(RolloutResult), "type"),
    "status BANANA": Case(returning(RolloutResult(status="BANANA", reward=1.0)), "BANANA"),
    "status None": Case(returning(RolloutResult(status=None)), "None"),
    "ERROR with a reward": Case(returning(RolloutResult(status="ERROR", error_message="no", reward=1.0)), "no"),
    "reward NaN": Case(completing(reward=float("nan")), "nan"),
    "reward inf": Case(completing(reward=float("inf")), "inf"),
    "reward -inf": Case(completing(reward=float("-inf")), "inf"),
    "reward text": Case(completing(reward="abc"), "abc"),
    "reward a number's text": Case(completing(reward="0.5"), "0.5"),
    "reward numpy NaN": Case(completing(reward=np.float32("nan")), "nan"),
    "reward array": Case(completing(reward=np.array([1.0, 2.0])), "array"),
    "reward complex": Case(completing(reward=1j), "1j"),
    "reward beyond float": Case(completing(reward=10**400), ""),
    "final_messages a text": Case(completing("hello", reward=1.0), "final_messages"),
    "final_messages a number": Case(completing(5, reward=1.0), "final_messages"),
    "final_messages a dict": Case(completing(USER, reward=1.0), "final_messages"),
    "final_messages a generator": Case(completing((m for m in [USER]), reward=1.0), "final_messages"),
    "a message is a text": Case(completing(("hello",), reward=1.0), "final_messages[0]"),
    "a message is a class": Case(completing((Report,), reward=1.0), "the result cannot be sent"),
    "a message is an array": Case(completing((np.array([1, 2]),), chat_first=True), "final_messages[0]"),
    "a message is not a dict": Case(completing((UserDict(USER),), reward=1.0), "final_messages[0]"),
    "a message without a role": Case(completing(({"content": "x"},), reward=1.0), "role"),
    "a message of a robot": Case(completing(({"role": "robot"},), reward=1.0), "robot"),
    "a role that is a list": Case(completing(({"role": ["user"]},), reward=1.0), "role"),
    "a NaN in a message": Case(completing(({**USER, "score": float("nan")},), reward=1.0), "score"),
    "a message without a bottom": Case(completing(({**USER, "x": nested(DEEP)},), reward=1.0), "nests"),
    "extra_fields an object": Case(completing(reward=1.0, extra_fields={"x": object()}), "extra_fields"),
    "extra_fields NaN": Case(completing(reward=1.0, extra_fields={"x": float("nan")}), "extra_fields"),
    "extra_fields numpy NaN": Case(completing(reward=1.0, extra_fields={"x": np.float64("nan")}), "extra_fields"),
    "extra_fields a number": Case(completing(reward=1.0, extra_fields=5), "extra_fields"),
    "extra_fields a list": Case(completing(reward=1.0, extra_fields=[1, 2]), "extra_fields"),
    "extra_fields without a bottom": Case(completing(reward=1.0, extra_fields={"x": nested(DEEP)}), "nests"),
    "extra_fields a number of 5,000 digits": Case(completing(reward=1.0, extra_fields={"x": 10**5000}), "extra_fields"),
}


async def check_end(h, case, before):
    record = await h.start(**case.request)
    outcome = await h.settled(record)
    h.check_whole(record)
    assert outcome.status == case.status
    assert outcome.failure.boundary == case.boundary
    assert outcome.failure.retryable is case.retryable
    assert case.says.lower() in outcome.failure.message.lower()
    assert len(outcome.failure.message.encode()) <= 64 * 1024
    assert outcome.reward is None
    assert [sample.reward for sample in outcome.samples.values()] == [None] * len(outcome.samples)
    await h.until(lambda: asyncio.all_tasks() == before)
    assert h.engine.capacity().running == h.engine.capacity().abandoned == 0
    return outcome


@pytest.mark.parametrize("case", FAILURES.values(), ids=FAILURES)
async def test_a_failure_has_one_end_and_no_reward(hosting, case):
    async with hosting(case.agent) as h:
        await check_end(h, case, asyncio.all_tasks())


async def test_a_chat_in_flight_at_the_deadline_is_the_trainers_fault(hosting):
    given_up = []

    async def silent(request):
        try:
            await asyncio.Event().wait()
        finally:
            given_up.append(request.chat_number)

    async with hosting(chats_in_flight) as h:
        h.trainer.policy = silent
        await check_end(h, late(None, "trainer", "chat main 1"), asyncio.all_tasks())
        assert given_up == [1]


GOOD_REWARDS = {
    "float32": (np.float32(0.5), 0.5),
    "float64": (np.float64(0.5), 0.5),
    "an int": (1, 1.0),
    "zero": (0.0, 0.0),
    "int64": (np.int64(2), 2.0),
    "negative": (-1.5, -1.5),
    "a fraction": (Fraction(1, 4), 0.25),
    "none": (None, None),
}


@pytest.mark.parametrize(("given", "expected"), GOOD_REWARDS.values(), ids=GOOD_REWARDS)
async def test_a_finite_number_is_a_reward(hosting, given, expected):
    async with hosting(completing(reward=given)) as h:
        record = await h.start()
        outcome = await h.settled(record)
        h.check_whole(record)
    assert outcome.status is OutcomeStatus.COMPLETED
    assert outcome.failure is None
    assert outcome.reward == expected
    assert type(outcome.reward) is type(expected)


@pytest.mark.parametrize("reason", ["\ud800", 5, None, "", "stop"], ids=repr)
@pytest.mark.parametrize("status", ["COMPLETED", "ERROR"])
async def test_a_finish_reason_can_travel(hosting, status, reason):
    async with hosting(returning(RolloutResult(status=status, finish_reason=reason))) as h:
        outcome = await h.run()
    assert outcome.status == {"COMPLETED": "COMPLETED", "ERROR": "FAILED"}[status]
    assert outcome.finish_reason.encode()


async def test_what_ctx_error_is_given_may_be_an_exception(hosting):
    async def passes_the_exception(ctx):
        try:
            raise ValueError("the real reason")
        except ValueError as error:
            return ctx.error(error)

    async with hosting(passes_the_exception) as h:
        outcome = await h.run()
    assert outcome.failure.message == "the real reason"


async def test_numpy_numbers_in_extra_fields_are_numbers(hosting):
    async with hosting(completing(reward=1.0, extra_fields={"mean": np.float64(1.5)})) as h:
        outcome = await h.run()
    assert outcome.status is OutcomeStatus.COMPLETED
    assert jsontext.render(outcome.extra_fields) == '{"mean":1.5}'


async def test_messages_stay_with_a_failure(hosting):
    async with hosting(raises_late) as h:
        outcome = await h.run()
    assert outcome.messages == [USER, {"role": "assistant", "content": "hello"}]
    assert outcome.samples["main"].messages == outcome.messages
    assert outcome.samples["main"].segments[0].sampled > 0


async def test_the_causes_of_a_failure_are_told(hosting):
    async def run(ctx):
        try:
            raise KeyError("deep")
        except KeyError as error:
            raise ValueError("shallow") from error

    async with hosting(run) as h:
        outcome = await h.run()
    assert [(cause.type, cause.message) for cause in outcome.failure.causes] == [
        ("ValueError", "shallow"),
        ("KeyError", "'deep'"),
    ]


async def test_a_chat_left_in_flight_is_given_up_at_the_end(hosting):
    chats, asked, given_up = [], asyncio.Event(), asyncio.Event()

    async def run(ctx):
        chats.append(asyncio.create_task(ctx.chat([USER])))
        await asked.wait()
        return ctx.complete([USER], reward=1.0)

    async def silent(request):
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            given_up.set()

    async with hosting(run) as h:
        before = asyncio.all_tasks()
        h.trainer.policy = silent
        record = await h.start()
        outcome = await h.settled(record)
        assert outcome.status is OutcomeStatus.COMPLETED
        assert outcome.reward == 1.0
        with pytest.raises(RolloutEndedError):
            await chats[0]
        await h.until(lambda: asyncio.all_tasks() == before)
        assert given_up.is_set()
        h.check_whole(record)


async def test_a_reply_in_the_moment_of_the_end_is_dropped(hosting):
    async def run(ctx):
        chats.append(asyncio.create_task(ctx.chat([USER])))
        await gate.wait()
        return ctx.complete([USER])

    async def policy(request):
        asked.set()
        await gate.wait()
        return answer(request, "late")

    chats, gate, asked = [], asyncio.Event(), asyncio.Event()
    async with hosting(run) as h:
        h.trainer.policy = policy
        record = await h.start()
        await asked.wait()
        gate.set()
        outcome = await h.settled(record)
        with pytest.raises(RolloutEndedError):
            await chats[0]
        h.check_whole(record)
        assert [sample.segments for sample in outcome.samples.values()] == [()]
        assert h.kinds(record, events.ChatAnswered) == []


async def test_a_cancel_after_the_result_of_an_agent_does_not_change_it(hosting, monkeypatch):
    monkeypatch.setattr(supervisor, "SHARE", 0.0)

    async def run(ctx):
        for _ in range(100):  # the outcome is built after these
            h.engine.context.supervisor.later(int)
        return ctx.complete([USER], reward=1.0)

    async with hosting(run) as h:
        record = await h.start()
        while not record.run.task.done():
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert record.delivery.report is None
        h.engine.runner.cancel(record, "too late")
        outcome = await h.settled(record)
        assert (outcome.status, outcome.reward) == (OutcomeStatus.COMPLETED, 1.0)


async def test_a_context_is_of_no_use_after_the_end(hosting):
    refused = asyncio.get_running_loop().create_future()

    async def run(ctx):
        async def later():
            await ended.wait()
            try:
                await ctx.chat([USER])
            except BaseException as error:
                refused.set_result(error)

        background.append(asyncio.create_task(later()))
        return ctx.complete([USER], reward=1.0)

    background, ended = [], asyncio.Event()
    async with hosting(run) as h:
        before = asyncio.all_tasks()
        record = await h.start()
        await h.settled(record)
        ended.set()
        assert isinstance(await refused, RolloutEndedError)
        assert h.trainer.chats == []
        await h.until(lambda: asyncio.all_tasks() == before)
        h.check_whole(record)
        assert record.delivery.outcome.reward == 1.0


def uses(ctx):
    """Every use of a context, by name."""
    return {
        "chat": lambda: ctx.chat([USER]),
        "log_event": lambda: ctx.log_event("late"),
        "record_tool_call": lambda: ctx.record_tool_call(1.0),
        "add_sample": lambda: ctx.add_sample("late"),
        "set_reward": lambda: ctx.set_reward(1.0),
        "complete": lambda: ctx.complete([USER], reward=1.0),
        "error": lambda: ctx.error("late"),
    }


async def test_an_agent_that_never_stops_keeps_its_slot_and_loses_its_context(hosting):
    release, answers = asyncio.Event(), {}

    async def stubborn(ctx):
        if ctx.request.rollout_id == "next":
            return ctx.complete([USER])
        while not release.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await release.wait()
        for name, use in uses(ctx).items():
            try:
                answer = use()
                answers[name] = await answer if name == "chat" else answer
            except Exception as error:
                answers[name] = type(error)
        return None

    async with hosting(stubborn, max_concurrent=1) as h:
        before = asyncio.all_tasks()
        record = await h.start(agent_timeout=0.02)
        outcome = await h.settled(record)
        assert outcome.status is OutcomeStatus.DEADLINE_EXCEEDED
        assert outcome.reward is None
        assert (h.engine.capacity().abandoned, h.engine.capacity().running) == (1, 0)
        assert [task.get_name() for task in asyncio.all_tasks() - before] == ["agent r1"]

        following = await h.start("next")
        assert following.state is RolloutState.QUEUED
        release.set()
        assert (await h.settled(following)).status is OutcomeStatus.COMPLETED
        assert answers == dict.fromkeys(uses(None), RolloutEndedError)
        assert h.engine.capacity().abandoned == h.engine.capacity().running == 0
        assert h.trainer.chats == []
        await h.until(lambda: asyncio.all_tasks() == before)
        h.check_whole(record)


@pytest.mark.parametrize("error", [ValueError("late"), SystemExit(1), None], ids=repr)
async def test_whatever_an_abandoned_agent_does_in_the_end_frees_its_slot(hosting, error):
    release = asyncio.Event()

    async def stubborn(ctx):
        while not release.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await release.wait()
        if error is None:
            asyncio.current_task().cancel()
            await asyncio.sleep(0)
        raise error

    async with hosting(stubborn) as h:
        record = await h.start(agent_timeout=0.02)
        await h.settled(record)
        assert h.engine.capacity().abandoned == 1
        release.set()
        await h.until(lambda: h.engine.capacity().abandoned == 0)
        assert h.engine.capacity().running == 0
        h.check_whole(record)
        assert record.delivery.outcome.failure.boundary == "agent"


def blocking(wait):
    async def blocks(ctx):
        wait(0.4)
        return ctx.complete([USER], reward=1.0)

    return blocks


@pytest.mark.parametrize("wait", [time.sleep, threading.Event().wait], ids=["in C", "in the standard library"])
@pytest.mark.parametrize(("timeout", "status"), [(60.0, "COMPLETED"), (0.1, "DEADLINE_EXCEEDED")])
async def test_an_agent_that_blocks_the_loop_is_named(hosting, caplog, wait, timeout, status):
    blocks = blocking(wait)
    async with hosting(blocks, blocked_after=0.1) as h:
        record = await h.start(agent_timeout=timeout)
        outcome = await h.settled(record)
        h.check_whole(record)
        assert h.engine.watchdog.blocked >= 1
    line = blocks.__code__.co_firstlineno + 1
    assert f"{__file__}:{line} in blocks" in caplog.text
    assert outcome.status == status
    assert outcome.reward == (1.0 if status == "COMPLETED" else None)
    assert (outcome.failure is None) == (status == "COMPLETED")
    if outcome.failure:
        assert outcome.failure.boundary == "agent"
        assert f", and blocked the event loop at {__file__}:{line} in blocks" in outcome.failure.message


async def test_other_rollouts_do_not_notice(hosting):
    async def run(ctx):
        return await FAILURES[ctx.request.label].agent(ctx) if ctx.request.label else ctx.complete([USER], reward=1.0)

    bad = ["raises a BaseException", "raises what has no text", "extra_fields a number", "a role that is a list"]
    async with hosting(run, max_concurrent=2) as h:
        for name in bad:
            await h.start(name.replace(" ", "-"), label=name)
        good = await h.run("good")
        assert good.status is OutcomeStatus.COMPLETED
        await h.until(lambda: h.engine.capacity().running == 0)
    assert [kind.receipt for kind in h.kinds(h.engine.rollouts.get("me", "good"), events.Delivered)] == [
        Receipt.RECORDED
    ]
