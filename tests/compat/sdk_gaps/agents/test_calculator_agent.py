import json
from unittest.mock import AsyncMock, MagicMock

import pytest
from calculator_agent import TOOLS, CalculatorAgent, app, describe, execute_tool
from fastapi.testclient import TestClient
from pydantic import ValidationError

from osmosis_ai import RolloutContext, RolloutMetrics, RolloutRequest, RolloutResult
from osmosis_ai.rollout import CompletionsResult, ToolArgumentError, execute_tool_calls, validate_agent_loop
from osmosis_ai.rollout.core.schemas import InitResponse, RolloutResponse, RolloutStatus


def tool_call(name, arguments, call_id="call_1"):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def reply(content=None, *calls, tokens=5):
    message = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = list(calls)
    usage = {"prompt_tokens": 10, "completion_tokens": tokens, "total_tokens": 10 + tokens}
    return CompletionsResult(message, list(range(tokens)), [-0.1] * tokens, usage, "tool_calls" if calls else "stop")


def mock_llm(*replies):
    llm = MagicMock()
    llm.get_metrics.return_value = RolloutMetrics(num_llm_calls=len(replies), llm_latency_ms=12.5)
    llm.chat_completions = AsyncMock(side_effect=replies)
    return llm


@pytest.fixture
def request_():
    return RolloutRequest(
        rollout_id="rollout-1",
        server_url="http://localhost:8080",
        messages=[{"role": "user", "content": "What is 5 + 3?"}],
        completion_params={"temperature": 0.7, "max_tokens": 128},
        metadata={"ground_truth": "8"},
    )


@pytest.fixture
def client():
    with TestClient(app) as client:
        yield client


def test_health(client):
    response = client.get("/health")
    assert response.status_code == 200
    assert response.json()["status"] == "healthy"
    assert response.json()["agent_loop"] == "calculator"


def test_init_returns_the_tools(client, request_):
    response = client.post("/v1/rollout/init", json=request_.model_dump(exclude_none=True))
    assert response.status_code == 202
    answer = InitResponse.model_validate(response.json())
    assert answer.rollout_id == "rollout-1"
    assert [tool.function.name for tool in answer.tools] == ["add", "divide"]
    assert answer.tools[0].function.strict is False
    assert answer.tools[0].model_dump(exclude_none=True) == TOOLS[0].model_dump(exclude_none=True)


@pytest.mark.parametrize("missing", ["rollout_id", "server_url", "messages", "completion_params"])
def test_init_refuses_an_incomplete_body(client, request_, missing):
    body = request_.model_dump(exclude={missing}, exclude_none=True)
    response = client.post("/v1/rollout/init", json=body)
    assert response.status_code == 422
    assert missing in str(response.json()["detail"])


@pytest.mark.asyncio
async def test_a_conversation_with_a_tool(request_):
    llm = mock_llm(reply(None, tool_call("add", {"a": 5, "b": 3})), reply("The result is 8."))
    ctx = RolloutContext(request=request_, tools=TOOLS, llm=llm)
    result = await CalculatorAgent().run(ctx)
    assert isinstance(result, RolloutResult)
    assert (result.status, result.finish_reason, result.reward) == ("COMPLETED", "stop", 1.0)
    assert [message["role"] for message in result.final_messages] == ["user", "assistant", "tool", "assistant"]
    assert result.final_messages[2] == {"role": "tool", "content": "8", "tool_call_id": "call_1"}
    assert result.metrics.num_tool_calls == 1
    assert result.metrics.num_llm_calls == 2
    assert result.metrics.model_dump()["tool_latency_ms"] == 1.0
    assert llm.chat_completions.await_args_list[0].kwargs == {"temperature": 0.7, "max_tokens": 128}
    assert request_.messages == [{"role": "user", "content": "What is 5 + 3?"}]


@pytest.mark.asyncio
async def test_a_division_by_zero_is_an_error_result(request_):
    llm = mock_llm(reply(None, tool_call("divide", {"a": 1, "b": 0})))
    result = await CalculatorAgent().run(RolloutContext(request=request_, tools=TOOLS, llm=llm))
    assert result.status == "ERROR"
    assert result.error_message == "calculation failed: division by zero"
    assert len(result.final_messages) == 2


@pytest.mark.asyncio
async def test_the_limits_of_the_request_hold(request_):
    short = request_.model_copy(update={"max_turns": 1})
    call = tool_call("add", {"a": 1, "b": 1})
    result = await CalculatorAgent().run(RolloutContext(request=short, tools=TOOLS, llm=mock_llm(reply(None, call))))
    assert result.finish_reason == "max_turns"
    request_.max_tokens_total = 3
    result = await CalculatorAgent().run(RolloutContext(request=request_, tools=TOOLS, llm=mock_llm(reply(None, call))))
    assert result.finish_reason == "max_tokens"
    assert short.max_tokens_total == 8192


@pytest.mark.asyncio
async def test_tools_raise():
    with pytest.raises(ZeroDivisionError):
        await execute_tool_calls([tool_call("divide", {"a": 1, "b": 0})], execute_tool)
    with pytest.raises(KeyError):
        await execute_tool_calls([tool_call("add", {"a": 1})], execute_tool)
    broken = {"id": "call_9", "function": {"name": "add", "arguments": "{not json"}}
    with pytest.raises(ToolArgumentError, match="Invalid JSON arguments") as error:
        await execute_tool_calls([broken], execute_tool)
    assert error.value.tool_call_id == "call_9"
    assert await execute_tool_calls([], execute_tool) == []
    results = await execute_tool_calls([tool_call("divide", {"a": 1, "b": 4})], execute_tool)
    assert results[0]["content"] == "0.25"


def test_the_request_is_a_model(request_):
    assert RolloutRequest.model_validate(request_.model_dump()) == request_
    assert RolloutRequest(**json.loads(request_.model_dump_json())).metadata == {"ground_truth": "8"}
    for change in ({"rollout_id": ""}, {"rollout_id": "x" * 257}, {"server_url": "localhost:8080"}):
        with pytest.raises(ValidationError):
            RolloutRequest(**{**request_.model_dump(), **change})


def test_the_description_and_the_validator(request_):
    assert json.loads(describe(CalculatorAgent(), request_))[1]["function"]["name"] == "divide"
    result = validate_agent_loop(CalculatorAgent(), request=request_)
    assert result.valid
    assert result
    assert (result.agent_name, result.tool_count, list(result.errors)) == ("calculator", 2, [])


def test_the_body_of_a_result():
    body = RolloutResponse(rollout_id="rollout-1", status=RolloutStatus.COMPLETED, metrics=RolloutMetrics())
    assert body.model_dump(mode="json", exclude_none=True)["status"] == "COMPLETED"
