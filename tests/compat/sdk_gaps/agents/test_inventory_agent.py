from unittest.mock import AsyncMock, MagicMock

import pytest
from fastapi.testclient import TestClient
from inventory_agent import InventoryAgent, amounts, tool_texts

from osmosis_ai.rollout import (
    OsmosisServerError,
    OsmosisTimeoutError,
    OsmosisValidationError,
    RolloutContext,
    RolloutMetrics,
    RolloutRequest,
    RolloutSettings,
    create_app,
    get_agent_loop,
    register_agent_loop,
    unregister_agent_loop,
)

API_KEY = "osm_rollout_0123456789abcdef"


def make_request(**metadata):
    return RolloutRequest(
        rollout_id="inv-1",
        server_url="http://localhost:8080",
        messages=[{"role": "user", "content": "How many bolts are there?"}],
        completion_params={},
        metadata=metadata,
    )


def answer(*calls, content="Done."):
    message = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = [
            {"id": f"call_{i}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for i, (name, arguments) in enumerate(calls)
        ]
    return MagicMock(message=message, has_tool_calls=bool(calls))


def make_context(request, agent, *answers):
    llm = MagicMock()
    llm.get_metrics.return_value = RolloutMetrics()
    llm.chat_completions = AsyncMock(side_effect=answers)
    return RolloutContext(request=request, tools=agent.get_tools(request), llm=llm)


def test_tools_depend_on_the_metadata():
    agent = InventoryAgent()
    assert len(agent.get_tools(make_request())) == 1
    assert [tool.function.name for tool in agent.get_tools(make_request(can_order=True))] == ["count", "order"]


@pytest.mark.asyncio
async def test_what_the_model_reads():
    agent, request = InventoryAgent(), make_request(can_order=True)
    calls = (
        ("count", '{"item": "bolt"}'),
        ("order", '{"item": "nut", "amount": 5}'),
        ("count", ""),
        ("count", "[1]"),
        ("sell", "{}"),
    )
    ctx = make_context(request, agent, answer(*calls), answer())
    result = await agent.run(ctx)
    assert result.status == "COMPLETED"
    assert tool_texts(result.final_messages) == [
        '{"item": "bolt", "stock": 12}',
        "null",
        "Error: Invalid JSON arguments: Expecting value: line 1 column 1 (char 0)",
        "Error: Expected dict from JSON, got list",
        "Error: no tool sell",
    ]
    assert amounts(result.final_messages[:1]) == []
    first = ctx.llm.chat_completions.await_args_list[0]
    assert (first.args[1:], first.kwargs) == ((0.2,), {"max_tokens": 64})


@pytest.mark.asyncio
async def test_an_exception_of_a_tool_leaves_run():
    agent, request = InventoryAgent(raise_errors=True), make_request()
    with pytest.raises(KeyError, match="screw"):
        await agent.run(make_context(request, agent, answer(("count", '{"item": "screw"}'))))


@pytest.mark.asyncio
async def test_a_tool_that_was_not_offered():
    agent, request = InventoryAgent(raise_errors=True), make_request()
    result = await agent.run(make_context(request, agent, answer(("order", "{}"))))
    assert (result.status, result.error_message) == ("ERROR", "not offered: order")


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "error",
    [OsmosisServerError("busy", 503), OsmosisValidationError("bad", 422), OsmosisTimeoutError("late")],
)
async def test_errors_of_the_model_are_error_results(error):
    agent, request = InventoryAgent(), make_request()
    result = await agent.run(make_context(request, agent, error))
    assert result.status == "ERROR"
    assert result.error_message == f"model failed: {error}"
    assert result.final_messages == request.messages


def test_status_codes():
    assert OsmosisServerError("busy", 503).status_code == 503
    assert OsmosisValidationError("bad", 422).status_code == 422


@pytest.fixture
def client():
    app = create_app(InventoryAgent(), max_concurrent=5, settings=RolloutSettings(), api_key=API_KEY)
    with TestClient(app) as client:
        yield client


def test_the_server_asks_for_its_key(client):
    body = make_request(can_order=True).model_dump(mode="json", exclude_none=True)
    assert client.post("/v1/rollout/init", json=body).status_code == 401
    headers = {"Authorization": f"Bearer {API_KEY}"}
    response = client.post("/v1/rollout/init", json=body, headers=headers)
    assert response.status_code == 202
    assert len(response.json()["tools"]) == 2
    again = client.post("/v1/rollout/init", json=body, headers=headers)
    assert again.json() == response.json()
    assert client.get("/platform/health", headers=headers).status_code == 200
    assert client.get("/health").status_code == 200


def test_the_registry():
    agent = InventoryAgent()
    register_agent_loop(agent)
    try:
        assert get_agent_loop("inventory") is agent
    finally:
        assert unregister_agent_loop("inventory")
