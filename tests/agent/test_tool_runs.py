"""Tool and log events carry sample and chat number, because two samples may both have a call `call_1`."""

import asyncio
import copy
from dataclasses import replace

import pytest

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.agent.tool_calls import execute_tool_calls
from osmosis_grpc.agent.tool_runs import MAX_CALLS, CallOrigin, CallOrigins, ToolRun
from osmosis_grpc.cli.transcript import transcript
from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.types import OutcomeStatus, events
from osmosis_grpc.testing import collect_rollout

USER = {"role": "user", "content": "hello"}


def call(call_id="call_1", name="add", arguments="{}"):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def policy(request):
    """Each reply has the call `call_1`."""
    message = {"role": "assistant", "content": None, "tool_calls": [call(arguments=f'{{"of": "{request.sample}"}}')]}
    return replace(answer(request, ""), message=message)


async def executor(tool_call):
    await asyncio.sleep(0)
    return {"role": "tool", "content": "5", "tool_call_id": tool_call["id"]}


def agent(body):
    class Agent(RolloutAgentLoop):
        name = "agent"

        def get_tools(self, request):
            return []

        async def run(self, ctx):
            return ctx.complete(await body(ctx) or [USER])

    return Agent()


async def trail(body):
    """The tool and log events of a run, each with its sample and chat number."""
    outcome, found = await collect_rollout(agent(body), policy, [USER])
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
    kinds = (events.ToolCalled, events.ToolReturned, events.Logged)
    return [
        (type(event.kind).__name__, event.kind.sample, event.kind.chat_number)
        for event in found
        if isinstance(event.kind, kinds)
    ]


async def test_two_samples_with_the_same_call_id_are_told_apart():
    async def body(ctx):
        await ctx.chat([USER], sample="white")
        white, black = await asyncio.gather(ctx.chat([USER], sample="white"), ctx.chat([USER], sample="black"))
        await execute_tool_calls(black.tool_calls, executor)
        await execute_tool_calls(white.tool_calls, executor)

    assert await trail(body) == [
        ("ToolCalled", "black", 1),
        ("ToolReturned", "black", 1),
        ("ToolCalled", "white", 2),
        ("ToolReturned", "white", 2),
    ]


async def test_a_copied_call_is_found_by_its_id_while_one_sample_has_it():
    async def body(ctx):
        calls = copy.deepcopy((await ctx.chat([USER])).tool_calls)
        await execute_tool_calls(calls, executor)
        await ctx.chat([USER], sample="other")
        await execute_tool_calls(calls, executor)
        await execute_tool_calls([call("made up")], executor)

    found = await trail(body)
    assert [place[1:] for place in found] == [("main", 1)] * 2 + [("", 0)] * 4


async def test_a_log_event_belongs_to_the_sample_that_it_names():
    async def body(ctx):
        ctx.log_event("before", sample="main")
        await ctx.chat([USER])
        await ctx.chat([USER])
        ctx.log_event("named", sample="main")
        ctx.log_event("of none")
        ctx.log_event("no name", sample=7)
        ctx.log_event("of an unknown one", sample="nobody")

    assert [place[1:] for place in await trail(body)] == [("", 0), ("main", 2), ("", 0), ("", 0), ("", 0)]


def test_the_remembered_calls_are_bounded():
    origins = CallOrigins()
    first = call("first")
    origins.add({"tool_calls": [first]}, "main", 1)
    assert origins.find(first) == origins.find(dict(first)) == CallOrigin("main", 1)
    for number in range(MAX_CALLS):
        origins.add({"tool_calls": [call(f"call {number}")]}, "main", 2)
    assert origins.find(first) == origins.find(dict(first)) == CallOrigin()
    assert origins.find(call("call 7")) == CallOrigin("main", 2)


@pytest.mark.parametrize("unknown", [None, "text", {}, call()])
@pytest.mark.parametrize("message", [{}, {"tool_calls": None}, {"tool_calls": ["text", {}]}])
def test_what_is_no_call_has_no_origin(message, unknown):
    origins = CallOrigins()
    origins.add(message, "main", 1)
    assert origins.find(unknown) == CallOrigin()


async def test_the_transcript_shows_each_call_in_its_own_sample():
    async def body(ctx):
        for sample in ("black", "main"):
            reply = (await ctx.chat([USER], sample=sample)).message
            history = [USER, reply, *await execute_tool_calls(reply["tool_calls"], executor)]
            await ctx.chat(history, sample=sample)
        return history

    outcome, _ = await collect_rollout(agent(body), policy, [USER])
    runs = [
        ToolRun("call_1", "add", latency=0.001, sample="black", chat_number=1),
        ToolRun("call_1", "add", latency=0.5, sample="main", chat_number=1),
    ]
    lines = list(transcript(outcome, runs))
    (split,) = (number for number, line in enumerate(lines) if line.startswith("conversation (main"))
    assert any("(1.0 ms)" in line for line in lines[:split])
    assert not any("(500.0 ms)" in line for line in lines[:split])
    assert any("(500.0 ms)" in line for line in lines[split:])
