"""The chat renderer over random conversations with tools."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from osmosis_grpc.policies import ChatRenderer
from osmosis_grpc.protocol.types import ChatRequest
from tests.policies.byte_tokenizer import ByteTokenizer, chatml, forgetful, hermes, llama3

pytestmark = pytest.mark.slow

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
QUESTION = {"role": "user", "content": "Begin."}

LETTERS = st.sampled_from(
    ["a", "é", "日", "🙂", " ", "\n", "\n\n", "the ", '"', "{", "<", "tool", "####", "An", "swer"]
)
TEXTS = st.lists(LETTERS, max_size=8).map("".join)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | TEXTS, lambda inner: st.lists(inner, max_size=2), max_leaves=4
)
CALLS = st.lists(st.tuples(st.just("add"), st.dictionaries(st.sampled_from("ab"), VALUES, max_size=2)), max_size=2)


@st.composite
def replies(draw):
    """A reply's text and calls, how it is tokenized, and how many of its last tokens are not sampled."""
    return draw(TEXTS), draw(CALLS), draw(st.sampled_from(["encode", "bytes"])), draw(st.sampled_from([0, 0, 0, 1, 3]))


TURNS = st.lists(st.tuples(replies(), TEXTS, st.booleans()), min_size=1, max_size=5)


def conversation(tokenizer, renderer, turns):
    """Yield the prompt of each chat, the tokens that it continues, and the messages."""
    messages, known, prefix = [{"role": "system", "content": "Be exact."}, QUESTION], None, 0
    for number, ((text, calls, sampled_as, missing), said, user_speaks) in enumerate(turns, 1):
        continues = {"parent_chat": number - 1, "prefix_len": prefix, "known_ids": known} if known is not None else {}
        prompt = renderer.prompt_ids(
            ChatRequest(rollout_id="r", chat_number=number, messages=list(messages), tools=[TOOL], **continues)
        )
        yield prompt, known, list(messages)
        sampled = tokenizer.reply(text, calls, sampled_as=sampled_as)
        sampled = sampled[: len(sampled) - missing]
        message = renderer.reply(sampled, tools=[TOOL], call_prefix=f"call_{number}").message
        known = np.concatenate([prompt.ids, np.asarray(sampled, dtype="<u4")])
        messages.append(message)
        prefix = len(messages)
        for call in message.get("tool_calls") or ():
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": said})
        if user_speaks or not message.get("tool_calls"):
            messages.append({"role": "user", "content": said})


def templated(tokenizer, messages, **more):
    """The text of messages with the arguments of calls as objects."""
    plain = []
    for message in messages:
        calls = [
            {**call, "function": {**call["function"], "arguments": json.loads(call["function"]["arguments"])}}
            for call in message.get("tool_calls") or ()
        ]
        plain.append({**message, "content": message["content"] or "", "tool_calls": calls})
    return tokenizer.apply_chat_template(plain, tools=[TOOL], **more)


def check_append_only(template, turns):
    tokenizer = ByteTokenizer(template)
    for prompt, known, messages in conversation(tokenizer, ChatRenderer(tokenizer), turns):
        whole = templated(tokenizer, messages, add_generation_prompt=True)
        if known is None:
            assert tokenizer.decode(prompt.ids.tolist()) == whole
            continue
        assert (prompt.known, prompt.drifted) == (len(known), False)
        assert prompt.ids[: prompt.known].tolist() == known.tolist()
        last = max(n for n, message in enumerate(messages) if message["role"] == "assistant")
        new = whole.removeprefix(templated(tokenizer, messages[: last + 1]))
        text = tokenizer.decode(prompt.ids.tolist())
        assert text.endswith(new)
        ended = text.removesuffix(new).removesuffix("\n")
        assert ended.endswith(tokenizer.end), "the reply has an end, also if the model did not sample it"
        assert not ended.removesuffix(tokenizer.end).endswith(tokenizer.end), "and only one"


@given(TURNS)
def test_chatml_prompts_continue_the_sampled_tokens(turns):
    check_append_only(chatml, turns)


@given(TURNS)
def test_llama_prompts_continue_the_sampled_tokens(turns):
    check_append_only(llama3, turns)


@given(TURNS)
def test_hermes_prompts_continue_the_sampled_tokens(turns):
    check_append_only(hermes, turns)


@given(TURNS)
def test_a_template_that_forgets_gives_the_sampled_tokens_or_its_own(turns):
    tokenizer = ByteTokenizer(forgetful)
    thinking = [(("<think>x</think>" + text, *more), said, speaks) for (text, *more), said, speaks in turns]
    for prompt, known, messages in conversation(tokenizer, ChatRenderer(tokenizer), thinking):
        if known is not None and not prompt.drifted:
            assert prompt.ids[: len(known)].tolist() == known.tolist()
            continue
        whole = templated(tokenizer, messages, add_generation_prompt=True)
        assert tokenizer.decode(prompt.ids.tolist()) == whole
