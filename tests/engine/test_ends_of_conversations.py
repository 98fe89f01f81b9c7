"""How conversations end: the final messages, what was cut, and which replies the agent dropped."""

import asyncio
from dataclasses import replace

import pytest

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.types import ChatPurpose, FailureReason, OutcomeStatus
from osmosis_grpc.rollout import tool
from osmosis_grpc.testing import run_rollout
from tests.dropping import CASES, GO, Drops, different, marked
from tests.engine.test_journal import Until, crashed, keeping

BEGIN = {"role": "user", "content": "Go."}
END = {"role": "user", "content": "That is all."}


class Debate(RolloutAgentLoop):
    """Has two conversations of its own names, and returns one of them."""

    name = "debate"

    def __init__(self, returned):
        self.returned = returned

    def get_tools(self, request):
        return []

    async def run(self, ctx):
        conversations = {}
        for sample in ("pro", "contra"):
            reply = await ctx.chat([BEGIN], sample=sample)
            conversations[sample] = [BEGIN, reply.message, END]
        return ctx.complete(conversations[self.returned], reward=1.0)


def debated(request):
    return answer(request, {"role": "assistant", "content": f"I am {request.sample}."})


@pytest.mark.parametrize("returned", ["pro", "contra"])
async def test_the_final_messages_belong_to_the_sample_whose_conversation_they_continue(returned):
    outcome = await run_rollout(Debate(returned), debated)
    for name, sample in outcome.samples.items():
        texts = [message["content"] for message in sample.messages]
        assert texts == ["Go.", f"I am {name}.", *(["That is all."] if name == returned else [])]


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


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
async def test_replies_that_the_agent_left_are_marked(case):
    outcome = await run_rollout(Drops(), different, metadata={"case": case.__name__})
    assert marked(outcome.samples["main"]) == CASES[case]
    assert sum(segment.sampled for segment in outcome.samples["main"].segments) == 3 * outcome.metrics.num_llm_calls


class Says(RolloutAgentLoop):
    """Edits a reply, which nothing marks, and says that it has dropped it."""

    name = "says"

    async def run(self, ctx):
        reply = await ctx.chat([GO])
        await ctx.chat([GO, {"role": "assistant", "content": "Another text."}, GO])
        ctx.drop(reply)
        return ctx.complete(reward=1.0)


async def test_an_agent_can_say_that_it_dropped_a_reply():
    outcome = await run_rollout(Says(), different)
    assert marked(outcome.samples["main"]) == ([(2,)], [(1,)])


class Together(RolloutAgentLoop):
    """Asks the same twice at the same time, and then a judge. Nothing says which reply it takes."""

    name = "together"
    replayable = True

    async def run(self, ctx):
        await asyncio.gather(*(ctx.chat([GO]) for _ in range(2)))
        await ctx.chat([GO], purpose=ChatPurpose.JUDGE)
        return ctx.complete(reward=1.0)


@pytest.mark.parametrize("crashes", [1, 2])
async def test_equal_questions_at_the_same_time_stay_so_after_a_restart(tmp_path, crashes):
    folder = await crashed(tmp_path / "state", Together(), 3)
    for _ in range(crashes - 1):
        async with keeping(folder, Together(), policy=Until(3)) as host:
            await host.until(lambda: host.trainer.chats)
            record = host.engine.rollouts.get("me", "r1")
            await host.until(lambda: record.trail.last_event_number == record.trail.written)
            folder = host.crash()
    async with keeping(folder, Together()) as host:
        outcome = (await host.get()).outcome
    assert marked(outcome.samples["main"]) == ([(1,), (2,)], [])
