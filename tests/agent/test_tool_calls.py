"""The helpers for agent loops that run tools."""

import asyncio

import pytest

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.agent.tool_calls import (
    answer_tool_calls,
    create_tool_error_result,
    create_tool_result,
    execute_tool_calls,
    get_tool_call_info,
)
from osmosis_grpc.policies.scripted import EchoPolicy, ScriptedPolicy
from osmosis_grpc.protocol.errors import RolloutEndedError, ToolArgumentError, ToolExecutionError
from osmosis_grpc.protocol.types import OutcomeStatus, events
from osmosis_grpc.protocol.wire.event import event_from_wire, event_to_wire
from osmosis_grpc.testing import collect_rollout


def call(name="add", arguments="{}", call_id="c1"):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def calls(*names):
    return [call(name, call_id=f"c{index}") for index, name in enumerate(names)]


def contents(messages):
    return [message["content"] for message in messages]


async def answers(tool_call):
    return create_tool_result(tool_call["id"], f"{tool_call['function']['name']} done")


# Reading a call


@pytest.mark.parametrize(
    ("arguments", "parsed"),
    [
        ('{"a": 1, "b": [2, null]}', {"a": 1, "b": [2, None]}),
        ('  {"a": "é"}\n', {"a": "é"}),
        ("{}", {}),
        ({"a": 1}, {"a": 1}),
        ({}, {}),
    ],
)
def test_arguments_are_an_object(arguments, parsed):
    assert get_tool_call_info(call("add", arguments, "c7")) == ("c7", "add", parsed)


@pytest.mark.parametrize(
    "arguments",
    ["", "   ", None, '{"a": 1', "add(1, 2)", "[1, 2]", '"text"', "5", "null", "true", [1, 2], 5, "[" * 100_000],
    ids=lambda arguments: str(arguments)[:12],
)
def test_other_arguments_are_refused_naming_the_call(arguments):
    with pytest.raises(ToolArgumentError, match=r"^(Invalid JSON arguments: |Expected )") as raised:
        get_tool_call_info(call("add", arguments, "c7"))
    assert (raised.value.tool_call_id, raised.value.tool_name) == ("c7", "add")
    assert isinstance(raised.value, ToolExecutionError)
    assert raised.value.boundary == "tool"


@pytest.mark.parametrize("function", ["add", ["add"], 5])
def test_a_function_that_is_no_object_is_refused_naming_the_call(function):
    with pytest.raises(ToolArgumentError) as raised:
        get_tool_call_info({"id": "c7", "function": function})
    assert raised.value.tool_call_id == "c7"


# Writing a result


def test_results_and_errors_are_tool_messages():
    assert create_tool_result("c1", "3") == {"role": "tool", "content": "3", "tool_call_id": "c1"}
    assert create_tool_error_result("c1", "no such file") == {
        "role": "tool",
        "content": "Error: no such file",
        "tool_call_id": "c1",
    }


# Running calls


async def test_messages_come_in_the_order_of_the_calls():
    gates = {name: asyncio.Event() for name in "abc"}
    finished = []

    async def waits(tool_call):
        name = tool_call["function"]["name"]
        await gates[name].wait()
        finished.append(name)
        following = {"c": "b", "b": "a"}.get(name)
        if following:
            gates[following].set()
        return await answers(tool_call)

    gates["c"].set()
    async with asyncio.timeout(3):
        messages = await execute_tool_calls(calls("a", "b", "c"), waits)
    assert finished == ["c", "b", "a"]
    assert [message["tool_call_id"] for message in messages] == ["c0", "c1", "c2"]


class Unreadable(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class Unserializable:
    def __str__(self):
        raise RuntimeError("no text")


BAD = {
    "raises": (ValueError("no such file"), "Error: no such file"),
    "raises without a text": (KeyError(), "Error: KeyError"),
    "raises an error without a text": (Unreadable(), "Error: "),
    "raises ToolExecutionError": (ToolExecutionError("broken"), "Error: broken"),
    "times out": (TimeoutError(), "Error: TimeoutError"),
    "returns None": (None, "Error: the tool returned nothing"),
    "returns what JSON has no key for": ({(1, 2): 3}, "Error: "),
    "returns a circle": ([], "Error: "),
    "returns a value that cannot be sent": ([Unserializable()], "Error: "),
}
BAD["returns a circle"][0].append(BAD["returns a circle"][0])


@pytest.mark.parametrize(("outcome", "content"), BAD.values(), ids=BAD)
async def test_one_bad_call_does_not_lose_the_others(outcome, content):
    async def executor(tool_call):
        if tool_call["function"]["name"] != "bad":
            await asyncio.sleep(0)
            return await answers(tool_call)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    messages = await answer_tool_calls(calls("a", "bad", "c"), executor)
    assert [messages[0]["content"], messages[2]["content"]] == ["a done", "c done"]
    assert messages[1]["role"] == "tool"
    assert messages[1]["tool_call_id"] == "c1"
    assert messages[1]["content"].startswith(content)
    assert len(messages) == 3


@pytest.mark.parametrize("function", ["add", None, 5])
async def test_one_bad_call_of_the_models_does_not_lose_the_others(function):
    async def executor(tool_call):
        return create_tool_result(tool_call["id"], "done")

    asked = [call(call_id="c0"), {"id": "c1", "type": "function", "function": function}]
    messages = await execute_tool_calls(asked, executor)
    assert [message["tool_call_id"] for message in messages] == ["c0", "c1"]
    assert messages[0]["content"] == "done"


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (
            {"role": "tool", "content": "x", "tool_call_id": "c0", "extra": 1},
            {"role": "tool", "content": "x", "tool_call_id": "c0", "extra": 1},
        ),
        ("text", {"role": "tool", "content": "text", "tool_call_id": "c0"}),
        ({"sum": 3}, {"role": "tool", "content": '{"sum": 3}', "tool_call_id": "c0"}),
        (0, {"role": "tool", "content": "0", "tool_call_id": "c0"}),
        ("", {"role": "tool", "content": "", "tool_call_id": "c0"}),
    ],
    ids=["a message", "text", "a dict", "zero", "nothing to say"],
)
async def test_an_executor_may_return_a_value(returned, message):
    async def executor(tool_call):
        return returned

    assert await execute_tool_calls(calls("a"), executor) == [message]


async def test_an_executor_that_is_not_async_is_an_error_of_the_agent():
    def run_tool(tool_call):
        return "done"

    with pytest.raises(TypeError, match="run_tool must be async def"):
        await execute_tool_calls(calls("a", "b"), run_tool)
    assert [m["content"] for m in await execute_tool_calls(calls("a"), lambda call: answers(call))] == ["a done"]


async def test_cancellation_passes_through():
    started, stopped = asyncio.Barrier(3), []

    async def executor(tool_call):
        try:
            await started.wait()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            stopped.append(tool_call["id"])
            raise

    running = asyncio.create_task(execute_tool_calls(calls("a", "b"), executor))
    await started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert sorted(stopped) == ["c0", "c1"]


async def test_a_cancelled_tool_is_no_result():
    async def executor(tool_call):
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await execute_tool_calls(calls("a"), executor)


# Inside a rollout


class Tooling(RolloutAgentLoop):
    """Runs the calls that its policy's first reply asks for, with the executor it is given."""

    name = "tooling"

    def __init__(self, executor):
        self.executor = executor

    def get_tools(self, request):
        return []

    async def run(self, ctx):
        messages = list(ctx.request.messages)
        reply = await ctx.chat(messages)
        messages += [reply.message, *await answer_tool_calls(reply.tool_calls, self.executor)]
        messages.append((await ctx.chat(messages)).message)
        return ctx.complete(messages)


async def rollout(executor, tool_calls):
    policy = ScriptedPolicy([{"role": "assistant", "content": None, "tool_calls": tool_calls}, "the end"])
    return await collect_rollout(Tooling(executor), policy, [{"role": "user", "content": "go"}])


async def test_calls_and_returns_are_events():
    async def executor(tool_call):
        if tool_call["function"]["name"] == "bad":
            raise ValueError("broken")
        return await answers(tool_call)

    asked = calls("good", "bad")
    outcome, seen = await rollout(executor, asked)
    assert outcome.status is OutcomeStatus.COMPLETED
    called = [event.kind for event in seen if isinstance(event.kind, events.ToolCalled)]
    returned = {e.kind.tool_call_id: e.kind for e in seen if isinstance(e.kind, events.ToolReturned)}
    assert [kind.call for kind in called] == asked
    assert (returned["c0"].name, returned["c0"].error) == ("good", "")
    assert (returned["c1"].name, returned["c1"].error) == ("bad", "broken")
    assert [returned["c0"].message, returned["c1"].message] == outcome.messages[2:4]
    assert all(kind.latency >= 0 for kind in returned.values())
    kinds = [type(event.kind) for event in seen]
    assert kinds.index(events.ChatAnswered) < kinds.index(events.ToolCalled) < kinds.index(events.ToolReturned)
    assert [event.event_number for event in seen] == list(range(1, len(seen) + 1))


async def test_what_is_done_to_a_message_later_does_not_change_its_event():
    kept = []

    async def executor(tool_call):
        kept.append(await answers(tool_call))
        return kept[-1]

    _, seen = await rollout(executor, calls("good"))
    kept[0]["content"] = "changed"
    received = next(event.kind for event in seen if isinstance(event.kind, events.ToolReturned))
    assert received.message["content"] == "good done"


async def test_a_running_tool_is_what_a_rollout_is_doing():
    async def executor(tool_call):
        await asyncio.Event().wait()

    policy = ScriptedPolicy([{"role": "assistant", "content": None, "tool_calls": calls("slow_one")}])
    outcome, _ = await collect_rollout(Tooling(executor), policy, agent_timeout=0.05)
    assert outcome.status is OutcomeStatus.DEADLINE_EXCEEDED
    assert "tool slow_one" in outcome.failure.message


async def test_a_message_of_a_tool_has_a_replacement_for_what_is_no_text():
    async def executor(tool_call):
        return {"role": "tool", "tool_call_id": tool_call["id"], "content": "name\udcff.txt"}

    outcome, seen = await rollout(executor, calls("bad"))
    assert outcome.status is OutcomeStatus.COMPLETED
    (returned,) = [event.kind for event in seen if isinstance(event.kind, events.ToolReturned)]
    assert (returned.error, returned.message["content"]) == ("", "name\ufffd.txt")
    assert [event.event_number for event in seen] == list(range(1, len(seen) + 1))


async def test_the_text_of_an_error_can_travel():
    async def executor(tool_call):
        raise OSError("cannot read \udcff.txt")

    outcome, seen = await rollout(executor, calls("bad"))
    assert outcome.status is OutcomeStatus.COMPLETED
    assert len([event for event in seen if isinstance(event.kind, events.ToolReturned)]) == 1


async def test_after_the_end_of_its_rollout_a_tool_gets_an_error():
    background, release = [], asyncio.Event()

    class Leaving(Tooling):
        name = "leaving"

        async def run(self, ctx):
            background.append(asyncio.create_task(execute_tool_calls(calls("late"), self.executor)))
            await asyncio.sleep(0)
            return ctx.complete([])

    async def executor(tool_call):
        await release.wait()
        return await answers(tool_call)

    outcome, seen = await collect_rollout(Leaving(executor), EchoPolicy())
    assert outcome.status is OutcomeStatus.COMPLETED
    release.set()
    with pytest.raises(RolloutEndedError):
        await background[0]
    assert not [event for event in seen if isinstance(event.kind, events.ToolReturned)]


UNSENDABLE = {"a role that is a number": {"role": 5}, "a long role": {"role": "r" * 65, "content": "x"}}


@pytest.mark.parametrize("message", UNSENDABLE.values(), ids=UNSENDABLE.keys())
async def test_what_a_tool_returns_never_spoils_the_trajectory(message):
    """Every event can be written and read: one that could not would end all event streams."""

    class Agent(RolloutAgentLoop):
        name = "agent"

        def get_tools(self, request):
            return []

        async def run(self, ctx):
            async def executor(call):
                return message if isinstance(call, dict) and call["id"] == "bad" else "fine"

            bad = {"id": "bad", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            odd = {"id": "\ud800", "type": "function", "function": {"name": "\ud800", "arguments": "{}"}}
            results = await execute_tool_calls([bad, "a call that is text", odd], executor)
            return ctx.complete([], extra_fields={"contents": [result["content"] for result in results]})

    outcome, seen = await collect_rollout(Agent(), EchoPolicy())
    first, second, third = outcome.extra_fields["contents"]
    assert first.startswith("Error: the tool's message.role:")
    assert second == "fine"
    assert third == "fine"
    for event in seen:
        assert event_from_wire(event_to_wire(event)).event_number == event.event_number
