"""What a rollout's end says of its agent: where it raised, which tools ran, what it did last; and what stalls."""

import asyncio
import logging
import re
import textwrap
from pathlib import Path

import pytest

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.agent.tool_calls import create_tool_result, execute_tool_calls
from osmosis_grpc.policies import EveryToolMock
from osmosis_grpc.policies.scripted import ScriptedPolicy
from osmosis_grpc.protocol.errors import FailedPrecondition
from osmosis_grpc.protocol.types import OutcomeStatus, events
from tests.processes import ROOT

USER = {"role": "user", "content": "hello"}
HERE = "tests/engine/test_first_day.py"


def tool(name):
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}


def calling(*names):
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": f"c{index}", "type": "function", "function": {"name": name, "arguments": "{}"}}
            for index, name in enumerate(names)
        ],
    }


async def answers(call):
    return create_tool_result(call["id"], "done")


# Where an agent raised


class Weather:
    async def ask(self):
        secret = "sk-1234"  # noqa: F841
        return {}["weather_api_key"]


class Raises(RolloutAgentLoop):
    name = "raises"
    tools = ()

    async def run(self, ctx):
        await ctx.chat([USER])
        await Weather().ask()


async def test_a_failure_says_where_the_agent_raised(hosting, caplog, monkeypatch):
    monkeypatch.chdir(ROOT)
    async with hosting(Raises()) as h:
        failure = (await h.run()).failure
    assert failure.message == "KeyError: 'weather_api_key'"
    line = Weather.ask.__code__.co_firstlineno + 2
    assert (failure.file, failure.line) == (HERE, line)
    assert [(frame.file, frame.function, frame.code) for frame in failure.frames] == [
        (HERE, "Raises.run", "await Weather().ask()"),
        (HERE, "Weather.ask", 'return {}["weather_api_key"]'),
    ]
    assert failure.where == f"{HERE}:{line} in Weather.ask"
    assert f"the agent of rollout r1 raised at {HERE}:{line} in Weather.ask" in caplog.text
    files = re.findall(r'File "(.*)", line', caplog.text)
    assert [Path(file).name for file in files] == [Path(HERE).name] * 2, "the traceback begins in the agent"
    assert "sk-1234" not in repr(failure)


async def test_a_chat_that_fails_is_one_line_of_the_log(hosting, caplog):
    async def refuse(request):
        raise FailedPrecondition("the model is down")

    async with hosting(Raises()) as h:
        h.trainer.policy = refuse
        failure = (await h.run()).failure
    assert failure.message == "the model is down"
    assert f"rollout r1 failed at {failure.where}: the model is down" in caplog.text
    assert "Traceback" not in caplog.text


async def test_the_last_five_frames_are_kept_and_are_bounded(hosting, tmp_path):
    name = "deep_" + "x" * 1000
    body = f"""
        def {name}(n):
            if n == 0:
                raise ValueError("deep")  # {"y" * 5000}
            {name}(n - 1)
    """
    file = tmp_path / "deep.py"
    file.write_text(textwrap.dedent(body))
    names = {}
    exec(compile(file.read_text(), str(file), "exec"), names)

    async def run(ctx):
        names[name](50)

    async with hosting(run) as h:
        failure = (await h.run()).failure
    assert len(failure.frames) == 5
    assert failure.file == f".../{tmp_path.name}/deep.py", "no folder of this machine"
    assert (failure.line, failure.frames[-1].line) == (4, 4)
    assert failure.frames[-1].code.startswith('raise ValueError("deep")  # yyy')
    for frame in failure.frames:
        assert max(map(len, (frame.file, frame.function, frame.code))) <= 256


async def test_an_exception_of_a_task_group_and_of_a_library_is_placed_in_the_agent(hosting):
    async def run(ctx):
        async with asyncio.TaskGroup() as group:
            group.create_task(Weather().ask())

    async def library(ctx):
        textwrap.dedent(5)  # in the library

    async with hosting(run) as h:
        assert (await h.run()).failure.frames[-1].function == "Weather.ask"
    async with hosting(library) as h:
        assert (await h.run()).failure.frames[-1].code == "textwrap.dedent(5)  # in the library"


async def test_what_the_agent_gives_up_with_is_placed_too(hosting):
    async def run(ctx):
        try:
            return {}["key"]
        except KeyError as error:
            return ctx.error(error)

    async with hosting(run) as h:
        failure = (await h.run()).failure
    assert (failure.message, failure.frames[-1].code) == ("'key'", 'return {}["key"]')


async def test_a_failure_without_an_exception_has_no_place(hosting):
    async def run(ctx):
        return ctx.error("no idea")

    async with hosting(run) as h:
        failure = (await h.run()).failure
    assert (failure.file, failure.line, failure.frames, failure.where) == ("", 0, (), "")


# Which tools ran


async def by_helper(ctx):
    messages = list(ctx.request.messages)
    for _ in range(2):
        messages.append((await ctx.chat(messages)).message)
        messages += await execute_tool_calls(messages[-1]["tool_calls"], answers)
    return ctx.complete(messages)


async def by_helper_and_recorded(ctx):
    messages = list(ctx.request.messages)
    for _ in range(2):
        messages.append((await ctx.chat(messages)).message)
        messages += await execute_tool_calls(messages[-1]["tool_calls"], answers)
        for _call in messages[-3]["tool_calls"]:
            ctx.record_tool_call(10.0)
    return ctx.complete(messages)


async def by_hand(ctx):
    messages = list(ctx.request.messages)
    for _ in range(2):
        messages.append((await ctx.chat(messages)).message)
        messages += [create_tool_result(call["id"], "done") for call in messages[-1]["tool_calls"]]
    return ctx.complete(messages)


async def by_helper_and_by_hand(ctx):
    messages = list(ctx.request.messages)
    messages.append((await ctx.chat(messages)).message)
    messages += await execute_tool_calls(messages[-1]["tool_calls"], answers)
    messages.append((await ctx.chat(messages)).message)
    messages += [create_tool_result(call["id"], "done") for call in messages[-1]["tool_calls"]]
    return ctx.complete(messages)


async def raises_after_tools(ctx):
    await by_helper(ctx)
    raise ValueError("later")


async def rewinds_and_judges(ctx):
    messages = list(ctx.request.messages)
    messages.append((await ctx.chat(messages)).message)
    messages += await execute_tool_calls(messages[-1]["tool_calls"], answers)
    messages.append((await ctx.chat(messages)).message)
    messages += await execute_tool_calls(messages[-1]["tool_calls"], answers)
    shorter = [messages[0], {"role": "user", "content": "in short"}, *messages[1:]]
    await ctx.chat(shorter)
    await ctx.chat(messages, sample="judge")
    return ctx.complete(messages)


async def never_asks(ctx):
    return ctx.complete([*ctx.request.messages, *calling_messages(4)])


def calling_messages(count):
    return [create_tool_result(f"own{number}", "done") for number in range(count)]


@pytest.mark.parametrize(
    "agent",
    [
        by_helper,
        by_helper_and_recorded,
        by_hand,
        by_helper_and_by_hand,
        raises_after_tools,
        rewinds_and_judges,
        never_asks,
    ],
)
async def test_each_tool_call_counts_once(hosting, agent):
    """Two turns with two calls each; the ids are the same in both turns, as some models have them."""
    given = [USER, calling("before"), create_tool_result("c0", "from an earlier episode")]
    async with hosting(agent) as h:
        h.trainer.policy = ScriptedPolicy(lambda request: calling("a", "b"))
        metrics = (await h.run(messages=given)).metrics
    assert metrics.num_tool_calls == 4
    if agent is by_helper_and_recorded:
        assert metrics.tool_latency_ms == pytest.approx(40.0)
    elif agent in (by_helper, by_helper_and_by_hand, raises_after_tools):
        assert metrics.tool_latency_ms > 0


async def test_what_was_recorded_and_more_was_run(hosting):
    async def run(ctx):
        await execute_tool_calls(calling("a", "b", "c")["tool_calls"], answers)
        ctx.record_tool_call(1e6)
        return ctx.complete([])

    async with hosting(run) as h:
        metrics = (await h.run()).metrics
    assert metrics.num_tool_calls == 3
    assert 0 < metrics.tool_latency_ms < 1e6, "the helper measured all three"


async def test_an_error_that_a_tool_was_turned_into_is_in_its_event(hosting):
    from osmosis_grpc.agent.tool_calls import create_tool_error_result

    async def executor(call):
        try:
            return {}["city"]
        except KeyError as error:
            return create_tool_error_result(call["id"], f"no {error}")

    async def run(ctx):
        return ctx.complete(await execute_tool_calls(calling("a")["tool_calls"], executor))

    async with hosting(run) as h:
        record = await h.start()
        await h.settled(record)
        (returned,) = h.kinds(record, events.ToolReturned)
    assert (returned.error, returned.message["content"]) == ("no 'city'", "Error: no 'city'")


# A default limit, the tool's name, stalls


async def hangs_in_a_tool(ctx):
    messages = [USER]
    messages.append((await ctx.chat(messages)).message)

    async def hangs(call):
        await asyncio.Event().wait()

    await execute_tool_calls(messages[-1]["tool_calls"], hangs)


async def test_a_rollout_without_a_limit_has_the_servers(hosting):
    async with hosting(hangs_in_a_tool, agent_timeout=0.2, get_tools=lambda request: [tool("get_weather")]) as h:
        h.trainer.policy = EveryToolMock()
        outcome = await h.run()
        own = await h.start("r2", agent_timeout=100.0)
        await h.until(lambda: own.activity().description == "tool get_weather")
    assert outcome.status is OutcomeStatus.DEADLINE_EXCEEDED
    assert outcome.failure.message.startswith(
        "the agent_timeout of 0.2 s ran out; it was doing: tool get_weather, and before that: chat main 1"
    )


async def test_the_servers_limit_does_not_count_the_queue(hosting):
    async def run(ctx):
        await asyncio.sleep(0.6 if ctx.request.label == "first" else 0.01)  # the first one is slow
        return ctx.complete([USER])

    async with hosting(run, agent_timeout=0.5, max_concurrent=1) as h:
        first, second = await h.start("r1", label="first", agent_timeout=5.0), await h.start("r2")
        assert (await h.settled(first)).status is OutcomeStatus.COMPLETED
        assert (await h.settled(second)).status is OutcomeStatus.COMPLETED


async def test_the_default_is_half_an_hour(hosting):
    async with hosting(hangs_in_a_tool) as h:
        assert h.engine.config.agent_timeout == 1800.0
        h.trainer.policy = EveryToolMock()
    with pytest.raises(ValueError, match="agent_timeout"):
        async with hosting(hangs_in_a_tool, agent_timeout=0.0):
            pass


async def test_a_tool_that_is_run_by_hand_is_named_too(hosting):
    async def run(ctx):
        await ctx.chat([USER])
        await asyncio.Event().wait()

    async with hosting(run, get_tools=lambda request: [tool("get_weather")]) as h:
        h.trainer.policy = EveryToolMock()
        record = await h.start()
        await h.until(lambda: record.activity().description == "agent (called: get_weather)")
        assert record.activity().start_time >= record.run.start_time


def stalls(caplog):
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "osmosis_grpc.engine.watchdog" and "no progress" in record.getMessage()
    ]


async def test_a_stall_is_logged_once_with_what_the_rollout_does(hosting, caplog):
    caplog.set_level(logging.WARNING, "osmosis_grpc.engine")
    go_on = asyncio.Event()

    async def run(ctx):
        await hanging(ctx)
        ctx.log_event("awake")
        await asyncio.Event().wait()

    async def hanging(ctx):
        async def waits(call):
            await go_on.wait()
            return create_tool_result(call["id"], "done")

        message = (await ctx.chat([USER])).message
        await execute_tool_calls(message["tool_calls"], waits)

    async with hosting(run, stalled_after=60.0, get_tools=lambda request: [tool("get_weather")]) as h:
        h.trainer.policy = EveryToolMock()
        record = await h.start()
        await h.until(lambda: record.activity().description == "tool get_weather")
        assert stalls(caplog) == []
        h.clock.ahead += 61
        await h.until(lambda: stalls(caplog))
        later = await h.start("r2")
        await h.until(lambda: later.activity().description == "tool get_weather")
        h.clock.ahead += 61
        await h.until(lambda: len(stalls(caplog)) == 2)
        line, other = stalls(caplog)
        assert other.startswith("rollout r2 ")
        assert line.startswith(
            "rollout r1 (agent loop agent, attempt 1) has made no progress for 61 s; it does: tool "
            "get_weather, since 20"
        )
        go_on.set()
        for each in (record, later):
            await h.until(lambda each=each: events.Logged in map(type, h.kinds(each)))
        h.clock.ahead += 61
        await h.until(lambda: len(stalls(caplog)) == 4)
        assert all("it does: agent (called: get_weather), since " in line for line in stalls(caplog)[2:])


async def test_many_stalls_are_counted(hosting, caplog):
    async def run(ctx):
        await asyncio.Event().wait()

    async with hosting(run, stalled_after=60.0) as h:
        for number in range(25):
            await h.start(f"r{number}")
        h.clock.ahead += 61
        await h.until(lambda: stalls(caplog))
        lines = stalls(caplog)
    assert len(lines) == 11
    assert lines[-1] == "15 more rollouts have made no progress for as long"


# An agent that never ends


async def never_ends(ctx):
    messages = list(ctx.request.messages)
    while True:
        messages = [USER, {"role": "user", "content": str(len(messages))}]
        await ctx.chat(messages)


async def test_the_failure_of_an_agent_that_never_ends_names_max_turns(hosting):
    async with hosting(never_ends) as h:
        outcome = await h.run(agent_timeout=0.3, max_turns=3)
    failure = outcome.failure
    assert outcome.status is OutcomeStatus.DEADLINE_EXCEEDED
    assert outcome.metrics.num_llm_calls > 3
    assert "and max_turns is 3: the agent does not stop at ctx.request.max_turns; it was " in failure.message
    assert ", and before that: chat main " in failure.message
    assert failure.boundary == "agent", "though a chat may have been open"


async def test_one_that_keeps_within_max_turns_is_not(hosting):
    async def run(ctx):
        await ctx.chat([USER])
        await asyncio.Event().wait()

    async with hosting(run) as h:
        failure = (await h.run(agent_timeout=0.1, max_turns=1)).failure
    assert failure.message == (
        "the agent_timeout of 0.1 s ran out; it was in its own code, not in a chat or a tool, "
        "and before that: chat main 1"
    )


async def test_an_agent_that_ignores_the_end_does_not_block_the_others(hosting):
    stop = asyncio.Event()

    async def run(ctx):
        while not stop.is_set():
            try:
                await ctx.chat([USER])
            except BaseException:
                continue

    async with hosting(run) as h:
        outcome = await h.run(agent_timeout=0.1)
        assert outcome.status is OutcomeStatus.DEADLINE_EXCEEDED
        stop.set()
        await h.until(lambda: h.engine.capacity().abandoned == 0)
        assert h.engine.watchdog.blocked == 0
