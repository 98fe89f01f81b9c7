"""A native agent that writes a reply again in another way continues the chat of that reply; an edit does not."""

import json

import pytest

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.policies import ScriptedPolicy
from osmosis_grpc.testing import run_rollout

QUESTION = {"role": "user", "content": "2+3?"}
TEXT = {"role": "assistant", "content": "It is five.", "refusal": None}
CALL = {
    "role": "assistant",
    "content": None,
    "reasoning_content": "I add them.",
    "annotations": ["a note"],
    "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": [1, 2.0], "c": null}'}}
    ],
}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "5"}


def called(arguments, reply=CALL, **changes):
    call = reply["tool_calls"][0]
    return {**reply, "tool_calls": [{**call, **changes, "function": {**call["function"], "arguments": arguments}}]}


def without(reply, *names):
    return {name: value for name, value in reply.items() if name not in names}


RESPELLED = {
    "parts": (TEXT, {**TEXT, "content": [{"type": "text", "text": "It is five."}]}),
    "several parts": (
        TEXT,
        {**TEXT, "content": [{"type": "text", "text": "It is"}, {"type": "text", "text": " five."}]},
    ),
    "more null keys": (TEXT, {**TEXT, "audio": None, "function_call": None, "tool_calls": None, "annotations": []}),
    "fewer null keys": (TEXT, without(TEXT, "refusal")),
    "separators": (CALL, called('{"a":2,"b":[1,2.0],"c":null}')),
    "key order": (CALL, called('{"c": null, "b": [1, 2], "a": 2.0}')),
    "arguments as an object": (CALL, called({"a": 2, "b": [1, 2.0], "c": None})),
    "content of a call": (CALL, {**CALL, "content": ""}),
    "no content": (CALL, without(CALL, "content")),
    "reasoning left out": (CALL, without(CALL, "reasoning_content")),
    "reasoning renamed": (CALL, {**without(CALL, "reasoning_content"), "reasoning": "I add them."}),
    "reasoning is null": (CALL, {**CALL, "reasoning_content": None}),
    "a key left out": (CALL, without(CALL, "annotations")),
}
EDITED = {
    "text": (TEXT, {**TEXT, "content": "It is six."}),
    "parts": (TEXT, {**TEXT, "content": [{"type": "text", "text": "It is six."}]}),
    "part that is no text": (
        TEXT,
        {**TEXT, "content": [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}]},
    ),
    "arguments": (CALL, called('{"a": 2, "b": [1, 3], "c": null}')),
    "number to bool": (CALL, called('{"a": 2, "b": [true, 2.0], "c": null}')),
    "call id": (CALL, called(CALL["tool_calls"][0]["function"]["arguments"], id="c2")),
    "call left out": (CALL, {**without(CALL, "tool_calls"), "content": "I add them."}),
    "reasoning": (CALL, {**CALL, "reasoning_content": "I guess."}),
    "a key added": (TEXT, {**TEXT, "prefix": True}),
    "a key changed": (CALL, {**CALL, "annotations": ["another"]}),
}


def agent_of(written, follow):
    async def run(ctx):
        history = [QUESTION]
        await ctx.chat(history)
        for turn in range(2):
            history += [written, {**follow, "content": f"{follow['content']} {turn}"}]
            reply = await ctx.chat(history)
            history.append(reply.message)
        return ctx.complete(history)

    return run


async def asked_and_ended(hosting, reply, written):
    """The chats of a rollout whose agent writes its first reply again, and the sample of its outcome."""
    follow = RESULT if reply is CALL else QUESTION
    async with hosting(agent_of(written, follow)) as h:
        h.trainer.policy = ScriptedPolicy(lambda chat: reply if chat.chat_number == 1 else f"reply {chat.chat_number}")
        outcome = await h.run()
        assert outcome.failure is None, outcome.failure
        return h.trainer.chats, outcome.samples["main"]


@pytest.mark.parametrize(("reply", "written"), RESPELLED.values(), ids=list(RESPELLED))
async def test_a_reply_that_is_written_in_another_way_is_continued_and_sent_as_it_was_recorded(hosting, reply, written):
    before = json.dumps(written)
    chats, sample = await asked_and_ended(hosting, reply, written)
    assert [chat.parent_chat for chat in chats] == [0, 1, 2]
    assert [list(chat.messages)[1] for chat in chats[1:]] == [reply, reply]
    assert sample.messages[1] == reply
    assert json.dumps(written) == before, "the agent's own message stays as it is"


@pytest.mark.parametrize(("reply", "written"), EDITED.values(), ids=list(EDITED))
async def test_a_reply_with_another_meaning_is_sent_as_the_agent_has_it(hosting, reply, written):
    chats, sample = await asked_and_ended(hosting, reply, written)
    assert chats[1].parent_chat == 0
    assert list(chats[1].messages)[1] == written
    assert len(sample.segments) > 1


@pytest.mark.parametrize(
    "written", [[{"type": "text", "text": "2+3?"}], [{"type": "text", "text": "2+"}, {"type": "text", "text": "3?"}]]
)
async def test_a_users_message_in_parts_is_the_same_message(written):
    async def run(ctx):
        reply = (await ctx.chat([QUESTION])).message
        history = [{**QUESTION, "content": written, "name": None}, reply, {"role": "user", "content": "And?"}]
        return ctx.complete([*history, (await ctx.chat(history)).message])

    outcome = await run_rollout(_loop(run), ScriptedPolicy(["one", "two"]))
    (segment,) = outcome.samples["main"].segments
    assert segment.chats == (1, 2)


async def test_another_key_of_a_users_message_makes_it_another_message():
    async def run(ctx):
        reply = (await ctx.chat([{**QUESTION, "images": ["a"]}])).message
        history = [{**QUESTION, "images": ["b"]}, reply, {"role": "user", "content": "And?"}]
        return ctx.complete([*history, (await ctx.chat(history)).message])

    outcome = await run_rollout(_loop(run), ScriptedPolicy(["one", "two"]))
    assert [segment.chats for segment in outcome.samples["main"].segments] == [(1,), (2,)]


async def test_a_new_sample_gets_its_history_as_it_is_written(hosting):
    """So an agent can ask for a reply to a history without the reasoning."""
    bare = without(CALL, "reasoning_content")

    async def run(ctx):
        await ctx.chat([QUESTION])
        await ctx.chat([QUESTION, bare, RESULT], sample=ctx.add_sample())
        return ctx.complete()

    async with hosting(run) as h:
        h.trainer.policy = ScriptedPolicy(lambda chat: CALL if chat.sample == "main" else "done")
        assert (await h.run()).failure is None
    assert list(h.trainer.chats[1].messages) == [QUESTION, bare, RESULT]


async def test_an_agent_that_writes_all_replies_again_and_shortens_its_history_keeps_its_conversation():
    """The messages that it left out are in the sample, as with replies that are written as they came."""

    async def run(ctx):
        history = [QUESTION]
        for turn in range(2):
            content = [{"type": "text", "text": (await ctx.chat(history)).content}]
            history += [{"role": "assistant", "content": content}, {"role": "user", "content": f"on {turn}"}]
        await ctx.chat(history[2:])
        return ctx.complete()

    outcome = await run_rollout(_loop(run), ScriptedPolicy(["one", "two", "three"]))
    texts = [message["content"] for message in outcome.samples["main"].messages]
    assert texts == ["2+3?", "one", "on 0", "two", "on 1", "three"]


def _loop(run):
    async def method(self, ctx):
        return await run(ctx)

    return type("Agent", (RolloutAgentLoop,), {"name": "agent", "run": method})()
