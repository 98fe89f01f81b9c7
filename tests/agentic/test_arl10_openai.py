"""ARL row 10: the OpenAI-compatible LLM function keeps every parameter and every part of the reply."""

import logging

import pytest

from osmosis_grpc.agentic import OpenAIFunction, policy_of
from osmosis_grpc.agentic.llm_retries import LLMError, Retries
from osmosis_grpc.testing import run_rollout
from osmosis_grpc.testing.calculator import CalculatorAgent
from osmosis_grpc.types import OutcomeStatus
from tests.agentic.model_servers import KEY, serving
from tests.model_server import USAGE, reply

QUESTION = [{"role": "user", "content": "What is 2 + 3?"}]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
QUICK = Retries(attempts=2, first=0.001)


async def test_arl10_parameters_and_reply_are_kept():
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


async def test_arl10_token_ids_of_a_server_become_tokens():
    body = reply("hi")
    body["choices"][0] |= {"token_ids": [5, 6], "logprobs": {"content": [{"logprob": -0.5}, {"logprob": -0.25}]}}
    async with serving(body | {"prompt_token_ids": [1, 2, 3]}) as server:
        got = await OpenAIFunction(model="m", base_url=f"{server.url}/v1", token_ids=True)(QUESTION)
    assert server.bodies[0]["return_token_ids"] is True
    assert got.tokens.ids.tolist() == [5, 6]
    assert got.tokens.logprobs.tolist() == [-0.5, -0.25]
    assert got.prompt_ids.tolist() == [1, 2, 3]


async def test_arl10_generate_returns_the_text_and_connections_close():
    async with serving(reply("hello")) as server:
        llm = OpenAIFunction(model="m", base_url=f"{server.url}/v1", params={"temperature": 0.2})
        assert await llm.generate(QUESTION) == "hello"
        async with llm:
            assert [await llm.generate(QUESTION, temperature=0.9) for _ in range(2)] == ["hello", "hello"]
    assert [body["temperature"] for body in server.bodies] == [0.2, 0.9, 0.9]
    assert "Authorization" not in server.headers[0]


async def test_arl10_a_rollout_of_the_engine():
    answers = [reply(None, ("add", {"a": 2, "b": 3})), reply("#### 5")]
    async with serving(*answers) as server, OpenAIFunction(model="m", base_url=f"{server.url}/v1") as llm:
        outcome = await run_rollout(CalculatorAgent(), policy_of(llm), QUESTION, metadata={"ground_truth": "5"})
    assert outcome.status is OutcomeStatus.COMPLETED
    assert outcome.reward == 1.0


@pytest.mark.parametrize("status", [400, 401, 403, 404, 429, 500])
async def test_arl10_the_key_is_in_no_error_and_no_log(status, caplog):
    caplog.set_level(logging.DEBUG)
    async with serving(status) as server:
        llm = OpenAIFunction(model="m", base_url=f"{server.url}/v1", api_key=KEY, retries=QUICK)
        with pytest.raises(LLMError) as raised:
            await llm(QUESTION)
        outcome = await run_rollout(CalculatorAgent(), policy_of(llm), QUESTION)
    assert outcome.status is OutcomeStatus.FAILED
    said = f"{raised.value} {raised.value!r} {raised.value.cause!r} {llm!r} {llm.config!r} {outcome!r} {caplog.text}"
    assert KEY not in said
    assert str(status) in said


async def test_arl10_wrong_configuration_names_the_field():
    with pytest.raises(TypeError, match="modle"):
        OpenAIFunction(model="m", modle="x")
    with pytest.raises(LLMError, match="stream: a reply comes as a whole"):
        await OpenAIFunction(model="m", api_key=KEY)(QUESTION, stream=True)
    with pytest.raises(LLMError, match="base_url"):
        await OpenAIFunction(model="m", base_url="ftp://x", api_key=KEY)(QUESTION)
