"""System messages in the middle of a history: as they are if the template takes them, folded and marked if not."""

import numpy as np
import pytest
from aiohttp import web

from osmosis_grpc.policies.anthropic import messages_body
from osmosis_grpc.policies.system_messages import folded
from osmosis_grpc.protocol.errors import ContextLengthExceeded, InvalidArgument
from osmosis_grpc.protocol.types import ChatRequest
from osmosis_grpc.protocol.types.samples import SYSTEM_FOLDED
from tests.policies.byte_tokenizer import ByteTokenizer, chatml
from tests.policies.scripted_generator import generated, policy_of
from tests.policies.test_openai import VLLM, ask

HISTORY = [
    {"role": "system", "content": "Be exact."},
    {"role": "user", "content": "2 + 3?"},
    {"role": "assistant", "content": "5"},
    {"role": "system", "content": "One turn is left."},
    {"role": "user", "content": "And 4 + 5?"},
]
FOLDED = [*HISTORY[:3], {"role": "user", "content": "One turn is left.\n\nAnd 4 + 5?"}]


@pytest.mark.parametrize(
    ("roles", "made"),
    [
        ("system user", "system user"),
        ("developer user", "system user"),
        ("system developer user", "system user"),
        ("system user system", "system user"),
        ("user system assistant user", "user assistant user"),
        ("system user assistant system user", "system user assistant user"),
        ("system user assistant tool system", "system user assistant tool user"),
    ],
)
def test_only_the_first_message_is_a_system_message(roles, made):
    messages = [{"role": role, "content": str(number)} for number, role in enumerate(roles.split())]
    result = folded(messages)
    assert " ".join(message["role"] for message in result) == made
    assert sorted("".join(message["content"] for message in result).replace("\n", "")) == sorted(
        "".join(message["content"] for message in messages)
    )


def refusing(messages, tools, reply_follows):
    """A template that has a place for one system message."""
    if any(message["role"] == "system" for message in messages[1:]):
        raise ValueError("System message must be at the beginning.")
    return chatml(messages, tools, reply_follows)


def dropping(messages, tools, reply_follows):
    """A template that leaves late system messages out."""
    return chatml([each for n, each in enumerate(messages) if not n or each["role"] != "system"], tools, reply_follows)


class Templated(ByteTokenizer):
    """A tokenizer of ChatML's tokens with another template."""

    def __init__(self, template):
        super().__init__(chatml)
        self._other = template

    def apply_chat_template(self, conversation, *, tools=None, add_generation_prompt=False, tokenize=False, **params):
        return self._other(conversation, tools, add_generation_prompt)


def chat(messages=HISTORY, **changes):
    return ChatRequest(rollout_id="r", sample="main", messages=messages, **changes)


@pytest.mark.parametrize(
    ("template", "seen", "marked"), [(chatml, HISTORY, False), (refusing, FOLDED, True), (dropping, FOLDED, True)]
)
async def test_the_template_decides_whether_late_system_messages_are_folded(template, seen, marked):
    tokenizer = Templated(template)
    policy, generator, _ = policy_of(generated([65]), tokenizer=tokenizer)
    response = await policy(chat())
    assert tokenizer.decode(generator.asked[0].prompt_ids.tolist()) == chatml(seen, [], True)
    assert response.extra.get(SYSTEM_FOLDED, False) is marked


@pytest.mark.parametrize("template", [chatml, refusing, dropping])
async def test_a_chat_behind_a_late_system_message_continues_its_tokens(template):
    """Also behind a system message beside the first user message, which is folded into it."""
    tokenizer = Templated(template)
    history = [*HISTORY[:2], {"role": "system", "content": "Hurry."}]
    policy, *_ = policy_of(generated([65]), generated([66]), tokenizer=tokenizer)
    first = await policy(chat(history))
    known = np.concatenate([first.prompt_ids, first.tokens.ids])
    history = [*history, first.message, *HISTORY[3:]]
    second = await policy(chat(history, parent_chat=1, prefix_len=4, known_ids=known))
    assert second.prompt_ids[: len(known)].tolist() == known.tolist()
    assert "One turn is left." in tokenizer.decode(second.prompt_ids.tolist())


async def test_a_model_server_that_refuses_a_late_system_message_is_asked_once_more():
    asked = []

    async def answer(request):
        asked.append((await request.json())["messages"])
        if any(message["role"] == "system" for message in asked[-1][1:]):
            return web.json_response({"error": {"message": "System message must be at the beginning."}}, status=400)
        return web.json_response(VLLM)

    response = await ask(answer, chat())
    assert asked == [HISTORY, FOLDED]
    assert response.extra[SYSTEM_FOLDED] is True


@pytest.mark.parametrize(
    ("messages", "said", "error", "times"),
    [
        (HISTORY, "no such tool", InvalidArgument, 2),
        (HISTORY[:3], "no such tool", InvalidArgument, 1),
        (HISTORY, "This model's maximum context length is 8 tokens.", ContextLengthExceeded, 1),
    ],
)
async def test_what_folding_cannot_mend_keeps_its_error(messages, said, error, times):
    asked = []

    async def answer(request):
        asked.append((await request.json())["messages"])
        return web.json_response({"error": {"message": said}}, status=400)

    with pytest.raises(error):
        await ask(answer, chat(messages))
    assert len(asked) == times


async def test_a_folded_history_that_is_too_long_says_so():
    """So that a program shortens it."""
    tokenizer = Templated(refusing)
    policy, *_ = policy_of(tokenizer=tokenizer, context=20)
    with pytest.raises(ContextLengthExceeded):
        await policy(chat())


def test_anthropic_gets_late_system_messages_from_the_user():
    body = messages_body(HISTORY, None)
    assert body["system"] == "Be exact."
    assert [turn["role"] for turn in body["messages"]] == ["user", "assistant", "user"]
    assert [block["text"] for block in body["messages"][-1]["content"]] == ["One turn is left.", "And 4 + 5?"]
