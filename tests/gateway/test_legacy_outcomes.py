"""A legacy agent's outcome: what its rollout's end says, and that it ends whatever the outcome is like."""

import asyncio
import json

import pytest

from osmosis_grpc.network.http.bounded_json import Bounds
from osmosis_grpc.protocol.types import events
from tests.gateway.legacy_agent import COMPLETED, QUESTION, REPLY
from tests.gateway.legacy_deployment import builder, closings, usual  # noqa: F401  # fixtures

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_metrics(deployment):
    await deployment.init()
    await deployment.old.chat("r1")
    metrics = {"num_tool_calls": 3, "tool_latency_ms": 12.0, "num_llm_calls": 77, "total_latency_ms": 1.0}
    await deployment.old.complete("r1", metrics=metrics)
    got = (await deployment.end()).metrics
    assert (got.num_tool_calls, got.num_llm_calls) == (3, 1)
    assert got.tool_latency_ms == pytest.approx(12.0)


@pytest.mark.parametrize(
    "metrics",
    [
        None,
        {},
        {"num_tool_calls": -1},
        {"num_tool_calls": True},
        {"num_tool_calls": "3"},
        {"num_tool_calls": 10**9},
        {"num_tool_calls": 0, "tool_latency_ms": -1.0},
        {"num_tool_calls": 0, "tool_latency_ms": 10**4000},
    ],
)
async def test_odd_metrics_count_as_none(deployment, metrics):
    await deployment.init()
    assert await deployment.old.complete("r1", metrics=metrics) == 200
    outcome = await deployment.end()
    assert (outcome.status, outcome.metrics.num_tool_calls) == ("COMPLETED", 0)


async def test_error_with_messages(deployment):
    await deployment.init()
    await deployment.old.chat("r1")
    reported = [*QUESTION, {"role": "assistant", "content": "other"}]
    more = {
        "error_message": "broken",
        "final_messages": reported,
        "finish_reason": "tool_error",
        "extra_fields": {"a": 1},
    }
    assert await deployment.old.complete("r1", "ERROR", **more) == 200
    outcome = await deployment.end()
    assert (outcome.status, outcome.finish_reason) == ("FAILED", "tool_error")
    assert (outcome.failure.boundary, outcome.failure.message) == ("agent", "broken")
    assert list(outcome.messages) == reported
    assert dict(outcome.extra_fields) == {"a": 1}


async def test_error_without_messages(deployment):
    """What the old client reports of an exception: the tool calls are counted from its chats."""
    await deployment.init()
    await deployment.old.chat("r1")
    tool = {"role": "tool", "tool_call_id": "1", "content": "6"}
    await deployment.old.chat("r1", [*QUESTION, REPLY, tool, tool])
    assert await deployment.old.complete("r1", "ERROR", extra_fields={"a": 1}) == 200
    outcome = await deployment.end()
    assert (outcome.status, outcome.finish_reason, outcome.reward) == ("FAILED", "error", None)
    assert (outcome.failure.boundary, bool(outcome.failure.message)) == ("agent", True)
    assert list(outcome.messages) == [*QUESTION, REPLY, tool, tool, REPLY]
    assert dict(outcome.extra_fields) == {"a": 1}
    assert outcome.metrics.num_tool_calls == 2


async def test_an_outcome_with_a_bool_and_a_file_name_that_is_no_utf8(deployment):
    await deployment.init()
    said = [*QUESTION, REPLY | {"content": "\udcff.txt"}]
    assert await deployment.old.complete("r1", final_messages=said, reward=True, extra_fields={"a": "\ud800"}) == 200
    outcome = await deployment.end()
    assert (outcome.reward, outcome.messages[-1]["content"]) == (1.0, "\ufffd.txt")
    assert dict(outcome.extra_fields) == {"a": "\ufffd"}


async def test_the_first_outcome_counts(deployment):
    await deployment.init()
    assert await deployment.old.complete("r1", final_messages=[*QUESTION, REPLY], reward=1.0) == 200
    assert await deployment.old.complete("r1", "ERROR", error_message="No attempts made") == 200
    assert await deployment.old.complete("r1", reward="none") == 200
    outcome = await deployment.end()
    assert (outcome.status, outcome.reward, outcome.failure) == ("COMPLETED", 1.0, None)
    assert await deployment.old.complete("r1", "ERROR", error_message="later") == 200
    assert (await deployment.wait()).result_id == outcome.result_id
    kinds = [event.kind async for event in deployment.client.events("r1")]
    assert sum(isinstance(kind, events.Ended) for kind in kinds) == 1


async def ends_as_unreadable(deployment):
    outcome = await deployment.end()
    assert (outcome.status, outcome.failure.boundary, outcome.reward) == ("FAILED", "agent", None)
    assert "cannot be read" in outcome.failure.message
    return outcome.failure.message


@pytest.mark.parametrize(
    "more",
    [
        {"reward": "1.0"},
        {"status": "DONE"},
        {"final_messages": None},
        {"extra_fields": None},
        {"rollout_id": ""},
        {"final_messages": ["text"]},
        {"metrics": [1]},
    ],
)
async def test_an_outcome_of_wrong_types(deployment, more):
    """The old server gives up after a 4xx: nothing else comes, and nobody waits for an hour of silence."""
    await deployment.init()
    init = deployment.old.of("r1")
    assert (await deployment.old.post(init, COMPLETED, json={"rollout_id": "r1", "status": "COMPLETED"} | more))[
        0
    ] == 200
    assert next(iter(more)) in await ends_as_unreadable(deployment)


@pytest.mark.parametrize(
    ("body", "media"),
    [
        (b"", "application/json"),
        (b"{", "application/json"),
        (b"[]", "application/json"),
        (b"\xff", "application/json"),
        (b'{"rollout_id": "r1", "status": "COMPLETED", "reward": NaN}', "application/json"),
        (b"[" * 5000, "application/json"),
        (b"{}", "text/plain"),
    ],
)
async def test_an_outcome_that_is_no_json(deployment, body, media):
    await deployment.init()
    init = deployment.old.of("r1")
    assert (await deployment.old.post(init, COMPLETED, data=body, headers={"Content-Type": media}))[0] == 200
    await ends_as_unreadable(deployment)


async def test_an_outcome_that_is_too_large(build, monkeypatch):
    monkeypatch.setattr("osmosis_gateway.http_agent.Bounds", lambda: Bounds(size=1000))
    deployment = await build()
    await deployment.init()
    assert await deployment.old.complete("r1", extra_fields={"a": "x" * 1000}) == 200
    assert "1000 bytes" in await ends_as_unreadable(deployment)


async def test_an_outcome_that_was_cut_is_none(deployment):
    """Half of it came, then its connection broke: an old client says it again, and that one counts."""
    await deployment.init()
    init = deployment.old.of("r1")
    body = json.dumps({"rollout_id": "r1", "status": "COMPLETED", "reward": 1.0}).encode()
    _, writer = await asyncio.open_connection(*init["server_url"].removeprefix("http://").split(":"))
    head = f"POST {COMPLETED} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {init['api_key']}\r\n"
    writer.write(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body[:20])
    await writer.drain()
    await asyncio.sleep(0.05)  # the half arrives, which nothing shows
    writer.transport.abort()
    await asyncio.sleep(0.1)  # the server notices the end of the connection
    assert await deployment.old.complete("r1", reward=1.0) == 200
    outcome = await deployment.end()
    assert (outcome.status, outcome.reward) == ("COMPLETED", 1.0)


async def test_an_outcome_with_an_open_chat(deployment):
    """The agent reports while a chat of its is still open: the chat is sent away."""
    chat = await deployment.held()
    assert await deployment.old.complete("r1", final_messages=QUESTION) == 200
    assert (await chat)[0] == 410
    assert (await deployment.end()).status == "COMPLETED"
