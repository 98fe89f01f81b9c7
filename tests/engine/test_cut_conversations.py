"""A conversation that a limit has cut says so, and the finish reason of its last reply reaches the outcome."""

from dataclasses import replace

import pytest

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.types import FailureReason, OutcomeStatus
from osmosis_grpc.rollout import tool
from osmosis_grpc.testing import run_rollout

GO = {"role": "user", "content": "Go."}
CALL = {"id": "c", "type": "function", "function": {"name": "write", "arguments": '{"text": ""}'}}


def policy(*reasons, calls=False):
    """Returns a policy whose replies have these finish reasons. With `calls` each of them calls a tool."""

    def reply(request):
        reason = reasons[min(request.chat_number, len(reasons)) - 1]
        message = {"role": "assistant", "content": f"reply {request.chat_number}"}
        return replace(answer(request, message | {"tool_calls": [CALL]} if calls else message), finish_reason=reason)

    return reply


class Looping(RolloutAgentLoop):
    """Does what it was given, with a tool that must not run by chance."""

    name = "looping"

    def __init__(self, use):
        self.use, self.written = use, []

        @tool
        def write(text: str) -> str:
            """Writes."""
            self.written.append(text)
            return "written"

        self.tools = (write,)

    async def run(self, ctx):
        return await self.use(ctx)


async def loop(ctx):
    return ctx.complete(await ctx.tool_loop(ctx.request.messages), reward=1.0)


async def once(ctx):
    reply = await ctx.chat([GO])
    return ctx.complete([GO, reply.message], reward=1.0)


async def retries(ctx):
    await ctx.chat([GO])
    return ctx.complete([GO, (await ctx.chat([GO])).message])


async def goes_on(ctx):
    history = [GO, (await ctx.chat([GO])).message, GO]
    return ctx.complete([*history, (await ctx.chat(history)).message])


async def edits(ctx):
    reply = await ctx.chat([GO])
    return ctx.complete([GO, {**reply.message, "content": "Edited."}])


async def stops_early(ctx):
    await ctx.chat([GO])
    return ctx.complete(finish_reason="max_tokens")


@pytest.mark.parametrize(
    ("agent", "reasons", "finish_reason", "cut"),
    [
        (loop, ["stop"], "stop", ""),
        (loop, ["length"], "length", "length"),
        (once, ["length"], "length", "length"),
        (retries, ["length", "stop"], "stop", ""),
        (goes_on, ["length", "stop"], "stop", ""),
        (goes_on, ["stop", "length"], "length", "length"),
        (edits, ["length"], "length", "length"),
        (once, ["model_context_window_exceeded"], "model_context_window_exceeded", "context"),
        (stops_early, ["stop"], "max_tokens", "max_tokens"),
        (stops_early, ["length"], "max_tokens", "length"),
    ],
)
async def test_the_last_reply_says_whether_a_conversation_was_cut(agent, reasons, finish_reason, cut):
    outcome = await run_rollout(Looping(agent), policy(*reasons), [GO])
    assert (outcome.finish_reason, outcome.samples["main"].cut) == (finish_reason, cut)


async def test_a_reply_that_was_cut_runs_no_tool_and_ends_the_tool_loop():
    agent = Looping(loop)
    outcome = await run_rollout(agent, policy("length", calls=True), [GO])
    assert (agent.written, outcome.metrics.num_llm_calls, outcome.finish_reason) == ([], 1, "length")
    assert outcome.samples["main"].messages[-1]["role"] == "assistant"


async def test_run_tools_tells_the_model_that_a_reply_was_cut():
    seen = []

    async def own_loop(ctx):
        seen.extend(await ctx.run_tools(await ctx.chat([GO])))
        return ctx.complete()

    agent = Looping(own_loop)
    await run_rollout(agent, policy("length", calls=True), [GO])
    assert agent.written == []
    assert [(message["role"], message["tool_call_id"]) for message in seen] == [("tool", "c")]
    assert seen[0]["content"].startswith("Error:")


async def test_a_tool_loop_without_turns_left_is_cut_by_max_turns():
    agent = Looping(loop)
    outcome = await run_rollout(agent, policy("tool_calls", calls=True), [GO], max_turns=2)
    assert (agent.written, outcome.finish_reason) == (["", ""], "max_turns")
    assert (outcome.samples["main"].cut, outcome.reward) == ("max_turns", 1.0)


async def test_a_tool_loop_that_goes_on_in_another_one_is_not_cut():
    async def in_steps(ctx):
        messages = await ctx.tool_loop(ctx.request.messages, max_turns=1)
        return ctx.complete([*messages, (await ctx.chat(messages)).message])

    outcome = await run_rollout(Looping(in_steps), policy("tool_calls", calls=True), [GO])
    assert (outcome.finish_reason, outcome.samples["main"].cut) == ("stop", "")


async def test_only_the_sample_that_was_cut_says_so():
    async def two(ctx):
        reply = await ctx.chat([GO])
        await ctx.chat([GO], sample="other", long=True)
        return ctx.complete([GO, reply.message])

    def long(request):
        return replace(answer(request, "x"), finish_reason="length" if request.params else "stop")

    outcome = await run_rollout(Looping(two), long, [GO])
    assert {name: sample.cut for name, sample in outcome.samples.items()} == {"main": "", "other": "length"}
    assert outcome.finish_reason == "stop"


async def test_a_rollout_that_ran_out_of_time_is_cut():
    async def slow(ctx):
        await ctx.chat([GO])
        while True:
            await ctx.chat([GO], slow=True)

    outcome = await run_rollout(Looping(slow), policy("stop"), [GO], agent_timeout=0.2)
    assert (outcome.status, outcome.failure.reason) == (OutcomeStatus.DEADLINE_EXCEEDED, FailureReason.AGENT_TIMEOUT)
    assert outcome.samples["main"].cut == "time"
