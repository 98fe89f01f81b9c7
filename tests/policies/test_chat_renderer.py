"""The chat renderer: prompts that continue the sampled tokens, for templates of four styles."""

import json
import logging

import numpy as np
import pytest

from osmosis_grpc.policies import ChatRenderer
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import ChatRequest
from tests.policies.byte_tokenizer import ByteTokenizer, chatml, forgetful, hermes, llama3

TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}},
    },
}
OTHER = {"type": "function", "function": {"name": "subtract", "parameters": {"type": "object"}}}
APPEND_ONLY = [chatml, llama3, hermes]
QUESTION = [{"role": "system", "content": "Be exact."}, {"role": "user", "content": "What is 2 + 3?"}]


def request(messages, *, after=None, tools=(TOOL,), prefix=None):
    """A chat. `after` are the tokens of the chat that it continues."""
    known = None if after is None else np.asarray(after, dtype="<u4")
    prefix = len(messages) - 1 if prefix is None else prefix
    return ChatRequest(
        rollout_id="r",
        messages=messages,
        tools=tools,
        parent_chat=0 if known is None else 1,
        prefix_len=0 if known is None else prefix,
        known_ids=known,
    )


@pytest.mark.parametrize("template", [*APPEND_ONLY, forgetful])
def test_the_first_prompt_is_the_whole_template(template):
    tokenizer = ByteTokenizer(template)
    prompt = ChatRenderer(tokenizer).prompt_ids(request(QUESTION))
    assert tokenizer.decode(prompt.ids.tolist()) == template(QUESTION, [TOOL], True)
    assert (prompt.ids.dtype, prompt.known, prompt.drifted) == (np.dtype("<u4"), 0, False)


@pytest.mark.parametrize("sampled_as", ["encode", "bytes"])
@pytest.mark.parametrize("template", APPEND_ONLY)
def test_a_later_prompt_is_the_known_tokens_and_the_text_of_what_is_new(template, sampled_as):
    """Twenty turns with calls. The sampled tokens are kept, also where the text has another encoding."""
    tokenizer = ByteTokenizer(template)
    renderer = ChatRenderer(tokenizer)
    messages, known, prefix = list(QUESTION), None, 0
    for turn in range(1, 21):
        prompt = renderer.prompt_ids(request(messages, after=known, prefix=prefix))
        assert not prompt.drifted
        if known is not None:
            assert prompt.known == len(known)
            assert prompt.ids[: len(known)].tolist() == known
        assert tokenizer.decode(prompt.ids.tolist()) == template(_as_objects(messages), [TOOL], True)
        before = "" if template is llama3 else f"Adding {turn}."  # Llama 3 writes nothing before a call
        sampled = tokenizer.reply(before, [("add", {"a": turn, "b": 1})], sampled_as=sampled_as)
        message = renderer.reply(sampled, tools=[TOOL], call_prefix=f"call_{turn}").message
        assert message["tool_calls"][0]["id"] == f"call_{turn}_0"
        known = [*prompt.ids.tolist(), *sampled]
        messages.append(message)
        prefix = len(messages)
        messages.append({"role": "tool", "tool_call_id": f"call_{turn}_0", "content": str(turn + 1)})


def _as_objects(messages):
    """Messages with the arguments of the only call as an object, and no null."""
    made = []
    for message in messages:
        calls = message.get("tool_calls") or []
        plain = {"role": message["role"], "content": message["content"] or ""}
        if calls:
            function = calls[0]["function"]
            plain["tool_calls"] = [{"function": {**function, "arguments": json.loads(function["arguments"])}}]
        made.append(plain)
    return made


@pytest.mark.parametrize("template", APPEND_ONLY)
def test_a_reply_without_the_end_of_its_turn_gets_it(template):
    tokenizer = ByteTokenizer(template)
    renderer = ChatRenderer(tokenizer)
    cut = tokenizer.encode("It is 5, beca")
    known = [*renderer.prompt_ids(request(QUESTION)).ids.tolist(), *cut]
    messages = [*QUESTION, renderer.reply(cut).message, {"role": "user", "content": "Go on."}]
    prompt = renderer.prompt_ids(request(messages, after=known))
    assert prompt.ids[: len(known)].tolist() == known
    assert int(prompt.ids[len(known)]) == tokenizer.end_id
    assert tokenizer.decode(prompt.ids.tolist()) == template(messages, [TOOL], True)


def test_another_token_may_end_the_turn():
    """Llama ends a turn that waits for a tool with <|eom_id|>. The template would write <|eot_id|>."""
    tokenizer = ByteTokenizer(llama3)
    renderer = ChatRenderer(tokenizer)
    end = tokenizer.encode("<|eom_id|>")
    known = [*renderer.prompt_ids(request(QUESTION)).ids.tolist(), *tokenizer.encode("Five."), *end]
    messages = [*QUESTION, {"role": "assistant", "content": "Five."}, {"role": "user", "content": "Sure?"}]
    prompt = renderer.prompt_ids(request(messages, after=known))
    assert tokenizer.decode(prompt.ids[len(known) :].tolist()).startswith("<|start_header_id|>user")
    assert not prompt.drifted


def test_a_template_that_forgets_reasoning_is_rendered_anew_and_this_is_logged_once(caplog):
    tokenizer = ByteTokenizer(forgetful)
    renderer = ChatRenderer(tokenizer)
    thought = tokenizer.reply("<think>\n2 + 3 is 5\n</think>\n\nIt is 5.")
    known = [*renderer.prompt_ids(request(QUESTION)).ids.tolist(), *thought]
    messages = [*QUESTION, renderer.reply(thought).message, {"role": "user", "content": "And 3 + 4?"}]
    with caplog.at_level(logging.WARNING):
        prompts = [renderer.prompt_ids(request(messages, after=known)) for _ in range(3)]
    assert all(prompt.drifted and prompt.known == 0 for prompt in prompts)
    assert tokenizer.decode(prompts[0].ids.tolist()) == forgetful(messages, [TOOL], True)
    (record,) = caplog.records
    assert "it changes earlier messages when new ones follow" in record.getMessage()


def test_the_same_template_continues_where_it_forgets_nothing():
    tokenizer = ByteTokenizer(forgetful)
    renderer = ChatRenderer(tokenizer)
    thought = tokenizer.reply("<think>\nadd\n</think>\n\n", [("add", {"a": 2, "b": 3})])
    known = [*renderer.prompt_ids(request(QUESTION)).ids.tolist(), *thought]
    messages = [*QUESTION, renderer.reply(thought, tools=[TOOL]).message, {"role": "tool", "content": "5"}]
    prompt = renderer.prompt_ids(request(messages, after=known))
    assert (prompt.known, prompt.drifted) == (len(known), False)


def test_a_template_that_never_writes_reasoning_is_found_too(caplog):
    def silent(messages, tools, reply_follows):
        return chatml([{**m, "content": m["content"].split("</think>")[-1]} for m in messages], tools, reply_follows)

    tokenizer = ByteTokenizer(chatml)
    tokenizer.template = silent
    renderer = ChatRenderer(tokenizer)
    thought = tokenizer.reply("<think>hm</think>5")
    known = [*renderer.prompt_ids(request(QUESTION)).ids.tolist(), *thought]
    messages = [*QUESTION, renderer.reply(thought).message, {"role": "tool", "content": "5"}]
    assert renderer.prompt_ids(request(messages, after=known)).drifted
    assert "leaves out a part of the model's reply" in caplog.text


@pytest.mark.parametrize("tools", [(TOOL, OTHER), ()])
@pytest.mark.parametrize("template", APPEND_ONLY)
def test_other_tools_or_another_system_message_are_no_continuation(template, tools):
    tokenizer = ByteTokenizer(template)
    renderer = ChatRenderer(tokenizer)
    sampled = tokenizer.reply("5")
    known = [*renderer.prompt_ids(request(QUESTION)).ids.tolist(), *sampled]
    messages = [*QUESTION, renderer.reply(sampled).message, {"role": "user", "content": "And then?"}]
    prompt = renderer.prompt_ids(request(messages, after=known, tools=tools))
    assert prompt.drifted
    assert tokenizer.decode(prompt.ids.tolist()) == template(messages, list(tools), True)
    assert not renderer.prompt_ids(request(messages, after=known)).drifted


def test_parts_that_are_texts_and_a_missing_content_are_texts_for_the_template():
    tokenizer = ByteTokenizer(chatml)
    parts = [{"type": "text", "text": "What is "}, {"type": "text", "text": "2 + 3?"}]
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": 3}'}}
    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    text = tokenizer.decode(ChatRenderer(tokenizer).prompt_ids(request(messages)).ids.tolist())
    assert "user\nWhat is 2 + 3?<|im_end|>" in text
    assert 'assistant\n<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call><|im_end|>' in text
    assert messages[1]["tool_calls"][0]["function"]["arguments"] == '{"a": 2, "b": 3}', "the messages are not changed"


def test_a_template_that_refuses_messages_is_an_error_that_names_them():
    def refusing(messages, tools, reply_follows):
        raise ValueError("roles must alternate")

    tokenizer = ByteTokenizer(chatml)
    tokenizer.template = refusing
    with pytest.raises(InvalidArgument, match="messages: the chat template refuses them: roles must alternate"):
        ChatRenderer(tokenizer).prompt_ids(request(QUESTION))


def test_an_unknown_style_of_calls_is_named():
    with pytest.raises(ValueError, match=r"tool_parser: 'hermez' is not one of auto, hermes, qwen, json"):
        ChatRenderer(ByteTokenizer(), tool_parser="hermez")


def test_template_params_reach_the_template():
    class Switchable(ByteTokenizer):
        def apply_chat_template(self, messages, *, enable_thinking, **rest):
            return super().apply_chat_template(messages, **rest) + f"[{enable_thinking}]"

    renderer = ChatRenderer(Switchable(), template_params={"enable_thinking": False})
    assert Switchable().decode(renderer.prompt_ids(request(QUESTION)).ids.tolist()).endswith("assistant\n[False]")


def one_turn(messages, tools, reply_follows):
    """As Gemma 4: the results of calls follow the calls in the same turn, after a token that the model samples."""
    text = ""
    for index, message in enumerate(messages):
        if message["role"] == "tool":
            text += f"{message['content']}<tool_call|>"
            continue
        calls = "".join(
            json.dumps({"name": "add", "arguments": _arguments(call)}) for call in message.get("tool_calls") or ()
        )
        end = "<|tool_response>" if calls else "<turn|>\n"
        text += f"<|turn>{message['role']}\n{message['content']}{calls}{end}"
    last = messages[-1]["role"]
    return text + ("<|turn>assistant\n" if reply_follows and last != "tool" else "")


def _arguments(call):
    return call["function"]["arguments"]


class OneTurn(ByteTokenizer):
    def __init__(self):
        super().__init__()
        self.template = one_turn


def test_a_reply_with_calls_may_end_in_another_way_than_a_text(caplog):
    tokenizer = OneTurn()
    renderer = ChatRenderer(tokenizer, tool_parser="json")
    first = renderer.prompt_ids(request(QUESTION))
    sampled = tokenizer.encode('{"name": "add", "arguments": {"a": 2}}<|tool_response>')
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a":2}'}}
    messages = [*QUESTION, {"role": "assistant", "content": None, "tool_calls": [call]}]
    messages.append({"role": "tool", "tool_call_id": "c", "content": "5"})
    known = [*first.ids.tolist(), *sampled]
    prompt = renderer.prompt_ids(request(messages, after=known))
    assert (prompt.known, prompt.drifted, caplog.messages) == (len(known), False, [])
    assert tokenizer.decode(prompt.ids[len(known) :].tolist()) == "5<tool_call|>"


def test_a_template_that_adds_texts_gets_the_arguments_as_texts():
    class Adding(ByteTokenizer):
        def apply_chat_template(self, messages, **more):
            calls = [call for message in messages for call in message.get("tool_calls") or ()]
            return "calls: " + "".join(call["function"]["arguments"] for call in calls)

    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": "ü"}'}}
    messages = [*QUESTION, {"role": "assistant", "content": "", "tool_calls": [call]}]
    tokenizer = Adding()
    prompt = ChatRenderer(tokenizer).prompt_ids(request(messages))
    assert tokenizer.decode(prompt.ids.tolist()) == 'calls: {"a": "ü"}'


@pytest.mark.parametrize("opened", [True, False], ids=["the template opens it", "the model opens it"])
@pytest.mark.parametrize("ended", [True, False], ids=["it ends", "it is cut"])
def test_a_call_within_reasoning_is_reasoning(opened, ended):
    tokenizer = ByteTokenizer(chatml)
    renderer = ChatRenderer(tokenizer)
    call = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'
    prompt = tokenizer.encode("<|im_start|>assistant\n" + "<think>\n" * opened)
    said = "<think>\n" * (not opened) + f"I could {call}" + "</think>\nIt is 5." * ended
    reply = renderer.reply(tokenizer.encode(said), prompt=prompt, tools=[TOOL])
    assert reply.message["reasoning_content"].strip() == f"I could {call}"
    assert reply.message["content"] == "It is 5." * ended
    assert "tool_calls" not in reply.message


def test_a_template_that_knows_reasoning_gets_it_apart_from_the_content():
    tokenizer = ByteTokenizer(chatml)
    seen = []
    tokenizer.chat_template = "{{ message.reasoning_content }}"
    tokenizer.template = lambda messages, tools, follows: seen.append(messages) or chatml(messages, tools, follows)
    message = {"role": "assistant", "content": "5", "reasoning_content": "2 + 3"}
    ChatRenderer(tokenizer).prompt_ids(request([*QUESTION, message, {"role": "user", "content": "And?"}]))
    assert seen[-1][2] == message
    tokenizer.chat_template = "{{ message.content }}"
    ChatRenderer(tokenizer).prompt_ids(request([*QUESTION, message, {"role": "user", "content": "And?"}]))
    assert seen[-1][2] == {"role": "assistant", "content": "<think>2 + 3</think>5"}
