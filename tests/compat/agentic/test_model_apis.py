"""The LLM functions for OpenAI-compatible servers and for Anthropic's Messages API."""

import json
import logging

import pytest
from aiohttp import web

from osmosis_grpc.agentic import AgenticRollout, AgenticRolloutConfig, AnthropicFunction, OpenAIFunction, policy_of
from osmosis_grpc.compat.agentic.llm_calls import LLMError, Retries
from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.testing import run_rollout
from osmosis_grpc.testing.calculator import CalculatorAgent
from tests.compat.agentic.model_servers import KEY, serving
from tests.model_server import USAGE, reply

QUESTION = [{"role": "user", "content": "What is 2 + 3?"}]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
QUICK = Retries(attempts=2, first=0.001)


@pytest.mark.row("ARL 10")
async def test_parameters_and_reply_are_kept():
    logprobs = {"content": [{"token": "hi", "logprob": -0.5, "bytes": None, "top_logprobs": []}]}
    body = reply(None, ("add", {"a": 2}))
    body["choices"][0]["logprobs"] = logprobs
    body["choices"].append({"index": 1, "message": {"role": "assistant", "content": "5"}, "finish_reason": "length"})
    given = {"stop": ["\n"], "seed": 7, "top_p": 0.5, "n": 2, "logprobs": True, "max_tokens": 9, "temperature": 0.0}
    async with serving(body) as server, OpenAIFunction(model="m", base_url=f"{server.url}/v1", api_key=KEY) as llm:
        got = await llm(QUESTION, tools=[TOOL], **given)
    assert server.bodies == [{"model": "m", "stream": False, "messages": QUESTION, "tools": [TOOL], **given}]
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"
    assert got.message["tool_calls"][0]["function"]["name"] == "add"
    assert got.finish_reason == "tool_calls"
    assert got.usage == USAGE
    assert got.extra == {"logprobs": logprobs, "choices": body["choices"][1:]}
    assert got.tokens is None


@pytest.mark.row("ARL 10")
async def test_token_ids_of_a_server_become_tokens():
    body = reply("hi")
    body["choices"][0] |= {"token_ids": [5, 6], "logprobs": {"content": [{"logprob": -0.5}, {"logprob": -0.25}]}}
    async with serving(body | {"prompt_token_ids": [1, 2, 3]}) as server:
        got = await OpenAIFunction(model="m", base_url=f"{server.url}/v1", token_ids=True)(QUESTION)
    assert server.bodies[0]["return_token_ids"] is True
    assert got.tokens.ids.tolist() == [5, 6]
    assert got.tokens.logprobs.tolist() == [-0.5, -0.25]
    assert got.prompt_ids.tolist() == [1, 2, 3]


def streams(*chunks, end="data: [DONE]\n\n"):
    """Answers with a stream of server-sent events."""
    written = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]

    async def answer(request):
        return web.Response(text=": ping\n\n" + "".join(written) + end, content_type="text/event-stream")

    return answer


def chunk(index=0, finish_reason=None, **more):
    return {"choices": [{"index": index, "finish_reason": finish_reason} | more]}


def part(text):
    return {"delta": {"content": text}, "logprobs": {"content": [{"token": text, "logprob": -0.5}]}}


ARGUMENTS = ['{"a": ', "2}"]
STREAMED = [
    {"prompt_token_ids": [1, 2]} | chunk(delta={"role": "assistant", "content": ""}),
    chunk(**part("he"), token_ids=[5]),
    chunk(1, delta={"role": "assistant", "content": "other"}),
    chunk(**part("llo"), token_ids=[6]),
    chunk(delta={"tool_calls": [{"index": 0, "id": "c", "type": "function", "function": {"name": "add"}}]}),
    *[chunk(delta={"tool_calls": [{"index": 0, "function": {"arguments": text}}]}) for text in ARGUMENTS],
    chunk(1, "length", delta={}),
    chunk(0, "tool_calls", delta={}),
    {"choices": [], "usage": USAGE},
]


@pytest.mark.parametrize("token_ids", [False, True])
@pytest.mark.row("ARL 10")
async def test_a_streamed_reply_is_the_same_reply(token_ids):
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "".join(ARGUMENTS)}}
    rows = [{"token": text, "logprob": -0.5} for text in ("he", "llo")]
    message = {"role": "assistant", "content": "hello", "tool_calls": [call]}
    first = {"index": 0, "message": message, "finish_reason": "tool_calls", "logprobs": {"content": rows}}
    other = {"index": 1, "message": {"role": "assistant", "content": "other"}, "finish_reason": "length"}
    whole = {"choices": [first | {"token_ids": [5, 6]}, other], "usage": USAGE, "prompt_token_ids": [1, 2]}
    chunks = STREAMED
    if not token_ids:
        del whole["choices"][0]["token_ids"]
        chunks = [
            each | {"choices": [{k: v for k, v in choice.items() if k != "token_ids"} for choice in each["choices"]]}
            for each in STREAMED
        ]
    async with serving(whole, streams(*chunks), streams(*chunks)) as server:
        llm = OpenAIFunction(model="m", base_url=f"{server.url}/v1", token_ids=token_ids)
        expected = await llm(QUESTION, n=2, seed=7)
        assert await llm(QUESTION, n=2, seed=7, stream=True) == expected
        always = OpenAIFunction(model="m", base_url=f"{server.url}/v1", token_ids=token_ids, stream=True)
        assert await always(QUESTION, n=2, seed=7) == expected
    assert (expected.tokens is not None, expected.message["content"]) == (token_ids, "hello")
    plain, streamed, _ = server.bodies
    assert streamed == plain | {"stream": True, "stream_options": {"include_usage": True}}


@pytest.mark.row("ARL 10")
async def test_a_stream_without_its_end_is_retried():
    error = 'event: error\ndata: {"error": {"message": "no memory"}}\n\n'
    for broken in (streams(*STREAMED[:4], end=""), streams(*STREAMED[:4], end=error)):
        async with serving(broken, streams(*STREAMED)) as server:
            llm = OpenAIFunction(model="m", base_url=f"{server.url}/v1", stream=True, retries=QUICK)
            assert await llm.generate(QUESTION) == "hello"
        assert len(server.bodies) == 2
    async with serving(streams(*STREAMED[:4], end=error)) as server:
        llm = OpenAIFunction(model="m", base_url=f"{server.url}/v1", stream=True, retries=QUICK)
        with pytest.raises(LLMError, match="after 2 calls: the model server's stream has an error: no memory"):
            await llm(QUESTION)
    async with serving(streams({"choices": 3})) as server:
        llm = OpenAIFunction(model="m", base_url=f"{server.url}/v1", stream=True, retries=QUICK)
        with pytest.raises(LLMError, match=r"after 1 call: .*cannot be read"):
            await llm(QUESTION)


@pytest.mark.row("ARL 10")
async def test_a_server_that_does_not_stream_answers_with_an_object():
    async with serving(reply("hello")) as server:
        assert await OpenAIFunction(model="m", base_url=f"{server.url}/v1", stream=True).generate(QUESTION) == "hello"


@pytest.mark.row("ARL 10")
async def test_generate_returns_the_text_and_connections_close():
    async with serving(reply("hello")) as server:
        llm = OpenAIFunction(model="m", base_url=f"{server.url}/v1", params={"temperature": 0.2})
        assert await llm.generate(QUESTION) == "hello"
        async with llm:
            assert [await llm.generate(QUESTION, temperature=0.9) for _ in range(2)] == ["hello", "hello"]
    assert [body["temperature"] for body in server.bodies] == [0.2, 0.9, 0.9]
    assert "Authorization" not in server.headers[0]


@pytest.mark.row("ARL 10")
async def test_a_rollout_of_the_engine_with_openai():
    answers = [reply(None, ("add", {"a": 2, "b": 3})), reply("#### 5")]
    async with serving(*answers) as server, OpenAIFunction(model="m", base_url=f"{server.url}/v1") as llm:
        outcome = await run_rollout(CalculatorAgent(), policy_of(llm), QUESTION, metadata={"ground_truth": "5"})
    assert outcome.status is OutcomeStatus.COMPLETED
    assert outcome.reward == 1.0


@pytest.mark.parametrize("status", [400, 401, 403, 404, 429, 500])
@pytest.mark.row("ARL 10")
async def test_the_key_is_in_no_error_and_no_log(status, caplog):
    caplog.set_level(logging.DEBUG)
    async with serving(status) as server:
        llm = OpenAIFunction(model="m", base_url=f"{server.url}/v1", api_key=KEY, retries=QUICK)
        with pytest.raises(LLMError) as raised:
            await llm(QUESTION)
        outcome = await run_rollout(CalculatorAgent(), policy_of(llm), QUESTION)
        trajectory = await AgenticRollout(AgenticRolloutConfig(), llm).run("Q")
    assert outcome.status is OutcomeStatus.FAILED
    said = f"{raised.value} {raised.value!r} {raised.value.cause!r} {llm!r} {llm.config!r} {outcome!r} {caplog.text}"
    said += json.dumps(trajectory.to_dict())
    assert KEY not in said
    assert str(status) in said


@pytest.mark.row("ARL 10")
async def test_wrong_configuration_names_the_field():
    with pytest.raises(TypeError, match="modle"):
        OpenAIFunction(model="m", modle="x")
    with pytest.raises(LLMError, match="base_url"):
        await OpenAIFunction(model="m", base_url="ftp://x", api_key=KEY)(QUESTION)


def body(*content, stop_reason="end_turn"):
    usage = {"input_tokens": 10, "output_tokens": 7}
    return {
        "type": "message",
        "role": "assistant",
        "content": list(content),
        "stop_reason": stop_reason,
        "usage": usage,
    }


@pytest.mark.row("ARL 11")
async def test_messages_are_split_and_alternate(monkeypatch):
    call = {"id": "toolu_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}
    messages = [
        {"role": "system", "content": "Be exact."},
        *QUESTION,
        {"role": "user", "content": "Hurry."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "toolu_1", "content": "2"},
    ]
    use = {"type": "tool_use", "id": "toolu_2", "name": "add", "input": {"a": 2, "b": 3}}
    async with serving(body(use, stop_reason="tool_use")) as server:
        monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        got = await AnthropicFunction(model="claude")(messages, tools=[TOOL], max_tokens=64, stop=["\n"])
    sent = server.bodies[0]
    assert server.headers[0]["x-api-key"] == KEY
    assert sent["system"] == "Be exact."
    assert [turn["role"] for turn in sent["messages"]] == ["user", "assistant", "user"]
    assert sent["messages"][1]["content"][-1] == {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 2}}
    assert sent["messages"][2]["content"][0]["type"] == "tool_result"
    assert sent["tools"][0]["name"] == "add"
    assert sent["max_tokens"] == 64
    assert sent["stop_sequences"] == ["\n"]
    assert got.finish_reason == "tool_calls"
    assert got.usage["total_tokens"] == 17
    assert got.message["tool_calls"][0]["id"] == "toolu_2"


@pytest.mark.row("ARL 11")
async def test_a_rollout_of_the_engine_with_anthropic():
    use = {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 2, "b": 3}}
    async with serving(body(use, stop_reason="tool_use"), body({"type": "text", "text": "#### 5"})) as server:
        llm = AnthropicFunction(model="claude", base_url=server.url, api_key=KEY)
        outcome = await run_rollout(CalculatorAgent(), policy_of(llm), QUESTION, metadata={"ground_truth": "5"})
    assert outcome.status is OutcomeStatus.COMPLETED
    assert outcome.reward == 1.0


@pytest.mark.row("ARL 11")
async def test_a_wrong_option_is_named():
    with pytest.raises(LLMError, match="token_ids"):
        await AnthropicFunction(model="claude", api_key=KEY, token_ids=True)(QUESTION)
    with pytest.raises(LLMError, match="stream: replies come as a whole"):
        await AnthropicFunction(model="claude", api_key=KEY)(QUESTION, stream=True)
    with pytest.raises(LLMError, match="seed"):
        await AnthropicFunction(model="claude", api_key=KEY, base_url="http://127.0.0.1:9")(QUESTION, seed=5)
