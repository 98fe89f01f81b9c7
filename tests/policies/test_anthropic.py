"""The policy for Anthropic's Messages API, against a server on a real socket that speaks its format."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from osmosis_grpc.policies import AnthropicPolicy
from osmosis_grpc.protocol.errors import Internal, InvalidArgument, ResourceExhausted, Unauthenticated, Unavailable
from osmosis_grpc.protocol.types import ChatRequest, OutcomeStatus
from osmosis_grpc.testing import run_rollout
from osmosis_grpc.testing.calculator import CalculatorAgent
from tests.http_servers import posting, url_of
from tests.waiting import until

KEY = "sk-ant-very-secret"
QUESTION = [{"role": "user", "content": "What is 2 + 3?"}]
USAGE = {"input_tokens": 10, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 1, "output_tokens": 7}
TOOL = {
    "type": "function",
    "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}},
}
THOUGHT = {"type": "thinking", "thinking": "Add them.", "signature": "c2lnbmVk"}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 2, "b": 3}}


def reply(*content, stop_reason="end_turn"):
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude",
        "content": list(content),
        "stop_reason": stop_reason,
        "stop_sequence": None,
        "usage": USAGE,
    }


def text(said):
    return {"type": "text", "text": said}


@asynccontextmanager
async def serving(*answers, **options):
    """A policy, and the requests that its server gets. The server gives the answers in turn."""
    seen, left = [], list(answers)

    async def handle(request):
        body = await request.json()
        seen.append((request.headers, body))
        answer = left.pop(0)
        if isinstance(answer, dict):
            return web.json_response(answer)
        return answer if isinstance(answer, web.Response) else await answer(request)

    async with (
        posting({"/v1/messages": handle}) as server,
        AnthropicPolicy("claude", api_key=KEY, base_url=url_of(server), **options) as policy,
    ):
        yield policy, seen


def chat(messages=QUESTION, tools=(), **params):
    return ChatRequest(rollout_id="r", messages=messages, tools=tools, params=params)


async def test_a_chat_in_the_format_of_the_api():
    call = {"id": "toolu_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAEC"}}
    messages = [
        {"role": "system", "content": "Be exact."},
        {"role": "user", "content": [{"type": "text", "text": "See"}, image, {"type": "text", "text": " "}]},
        {"role": "assistant", "content": None, "tool_calls": [call], "thinking_blocks": [THOUGHT]},
        {"role": "tool", "tool_call_id": "toolu_1", "content": "5"},
        {"role": "user", "content": "Go on."},
    ]
    params = {"temperature": 0.5, "max_completion_tokens": 9, "stop": "x", "tool_choice": "required"}
    params |= {"parallel_tool_calls": False, "user": "u", "logprobs": True}
    async with serving(reply(text("5"))) as (policy, seen):
        await policy(chat(messages, [TOOL], **params))
    ((headers, body),) = seen
    assert (headers["x-api-key"], headers["anthropic-version"], headers["X-Session-ID"]) == (
        KEY,
        "2023-06-01",
        "r/main",
    )
    assert body == {
        "model": "claude",
        "max_tokens": 9,
        "temperature": 0.5,
        "stop_sequences": ["x"],
        "metadata": {"user_id": "u"},
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
        "system": "Be exact.",
        "tools": [{"name": "add", "description": "Adds.", "input_schema": TOOL["function"]["parameters"]}],
        "messages": [
            {
                "role": "user",
                "content": [
                    text("See"),
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAEC"}},
                ],
            },
            {"role": "assistant", "content": [THOUGHT, CALL | {"input": {"a": 2}}]},
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": [text("5")]}, text("Go on.")],
            },
        ],
    }


async def test_a_reply_has_calls_thinking_and_usage_and_no_tokens():
    async with serving(reply(THOUGHT, text("I add."), CALL, stop_reason="tool_use")) as (policy, _):
        response = await policy(chat(tools=[TOOL]))
    message = response.message
    assert (message["content"], response.finish_reason) == ("I add.", "tool_calls")
    (call,) = message["tool_calls"]
    assert (call["id"], json.loads(call["function"]["arguments"])) == ("toolu_1", {"a": 2, "b": 3})
    assert (message["reasoning_content"], message["thinking_blocks"]) == ("Add them.", [THOUGHT])
    assert response.usage["prompt_tokens"] == 15
    assert response.usage["prompt_tokens_details"] == {"cached_tokens": 4}
    assert response.tokens is None
    assert response.prompt_ids is None


@pytest.mark.parametrize(("stop", "finish"), [("max_tokens", "length"), ("refusal", "content_filter"), ("new", "new")])
async def test_stop_reasons_are_finish_reasons(stop, finish):
    async with serving(reply(text("5"), stop_reason=stop)) as (policy, _):
        assert (await policy(chat())).finish_reason == finish


async def test_a_rollout_with_tools_completes_and_is_not_trainable():
    async with serving(reply(CALL, stop_reason="tool_use"), reply(text("#### 5"))) as (policy, seen):
        outcome = await run_rollout(CalculatorAgent(), policy, messages=QUESTION, label="5")
    assert (outcome.status, outcome.reward) == (OutcomeStatus.COMPLETED, 1.0)
    assert outcome.samples["main"].not_trainable_reason == "chat 1: the reply came without token ids"
    result = seen[1][1]["messages"][2]["content"][0]
    assert (result["tool_use_id"], result["content"]) == ("toolu_1", [text("5.0")])


def refusal(status, kind, message, **headers):
    body = {"type": "error", "error": {"type": kind, "message": message}}
    return web.json_response(body, status=status, headers=headers)


@pytest.mark.parametrize(
    ("answer", "kind", "says"),
    [
        (refusal(429, "rate_limit_error", "slow down", **{"Retry-After": "3"}), ResourceExhausted, "slow down"),
        (refusal(529, "overloaded_error", "Overloaded"), Unavailable, "Overloaded"),
        (refusal(401, "authentication_error", f"no {KEY}"), Unauthenticated, "check api_key"),
        (refusal(400, "invalid_request_error", f"{KEY} is a bad prompt"), InvalidArgument, r"\[key\] is a bad prompt"),
        ({"type": "message"}, Internal, "the model server's reply cannot be read"),
        (reply({"type": "text"}), Internal, "the model server's reply cannot be read"),
    ],
)
async def test_an_error_has_the_kind_of_its_status_and_never_the_key(answer, kind, says):
    async with serving(answer) as (policy, _):
        with pytest.raises(kind, match=says) as error:
            await policy(chat())
    assert KEY not in str(error.value)
    assert error.value.retry_after == (3.0 if kind is ResourceExhausted else None)


@pytest.mark.parametrize(
    ("messages", "params", "problem"),
    [
        (QUESTION, {"seed": 1}, "params.seed: is not a parameter of Anthropic's Messages API"),
        (QUESTION, {"n": 2}, "params.n: Anthropic returns one reply"),
        (QUESTION, {"tool_choice": "any"}, "params.tool_choice: is 'any'"),
        ([{"role": "user", "content": [{"type": "input_audio"}]}], {}, r"messages[0].content[0]: a part of the type"),
        ([{"role": "assistant", "tool_calls": [{}]}], {}, "messages[0].tool_calls[0]: is not a tool call"),
    ],
)
async def test_what_the_api_does_not_have_is_named(messages, params, problem):
    async with serving() as (policy, seen):
        with pytest.raises(InvalidArgument) as error:
            await policy(chat(messages, **params))
    assert problem in str(error.value)
    assert not seen


async def test_cancelling_a_chat_ends_its_request():
    ended = []

    async def silent(request):
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(request)

    async with serving(silent) as (policy, seen):
        task = asyncio.ensure_future(policy(chat()))
        await until(lambda: seen)
        task.cancel()
        await asyncio.wait([task])
        await until(lambda: ended)


def test_a_base_url_may_have_v1_and_must_be_one():
    AnthropicPolicy("claude", base_url="https://example.com/v1/")
    with pytest.raises(ValueError, match="base_url"):
        AnthropicPolicy("claude", base_url="example.com")


@pytest.mark.adapters
async def test_requests_and_replies_fit_the_types_of_the_anthropic_library():
    pytest.importorskip("anthropic")
    import pydantic
    from anthropic.types import Message
    from anthropic.types.message_create_params import MessageCreateParamsNonStreaming

    made = Message.model_validate(reply(THOUGHT, text("I add."), CALL, stop_reason="tool_use"))
    async with serving(made.model_dump(mode="json"), reply(text("5"))) as (policy, seen):
        first = await policy(chat(tools=[TOOL], temperature=0.5))
        result = {"role": "tool", "tool_call_id": "toolu_1", "content": "5"}
        await policy(chat([*QUESTION, first.message, result], [TOOL], tool_choice="none", stop=["x"]))
    for _, body in seen:
        pydantic.TypeAdapter(MessageCreateParamsNonStreaming).validate_python(body, strict=True)
