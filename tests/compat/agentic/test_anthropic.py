"""ARL row 11: the LLM function for Anthropic's Messages API."""

import pytest

from osmosis_grpc.agentic import AnthropicFunction, policy_of
from osmosis_grpc.compat.agentic.llm_calls import LLMError
from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.testing import run_rollout
from osmosis_grpc.testing.calculator import CalculatorAgent
from tests.compat.agentic.model_servers import KEY, serving

QUESTION = [{"role": "user", "content": "What is 2 + 3?"}]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}


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
async def test_a_rollout_of_the_engine():
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
