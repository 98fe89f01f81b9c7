import json
import threading
import time
from unittest.mock import AsyncMock, MagicMock

import pytest
import uvicorn
from fastapi.testclient import TestClient
from research_agent import ResearchAgent, agent_loop

from osmosis_ai.rollout import CompletionsResult, RolloutContext, RolloutMetrics, RolloutRequest, create_app
from osmosis_ai.rollout.testing import RolloutCompletionTracker, create_mock_trainer_app, fake_token_ids


@pytest.fixture
def trainer():
    """A mock trainer on a port of its own."""
    tracker = RolloutCompletionTracker()
    server = uvicorn.Server(
        uvicorn.Config(create_mock_trainer_app(tracker=tracker), host="127.0.0.1", port=0, log_level="warning")
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)  # until the server listens
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}", tracker
    server.should_exit = True
    thread.join()


def body(url, rollout_id="rollout-abc123"):
    request = RolloutRequest(
        rollout_id=rollout_id,
        server_url=url,
        messages=[{"role": "user", "content": "Please add 5 and 3."}],
        completion_params={"temperature": 1, "stop": "END"},
        metadata={"ground_truth": "complete"},
        api_key="trainer-key",
    )
    return request.model_dump(mode="json", exclude_none=True)


def test_a_rollout_and_its_debug_log(trainer, tmp_path):
    url, tracker = trainer
    with TestClient(create_app(agent_loop, debug_dir=str(tmp_path))) as client:
        assert client.post("/v1/rollout/init", json=body(url)).status_code == 202
        assert tracker.wait(timeout=10.0)
    (response,) = tracker.responses
    assert (response["status"], response["reward"], response["finish_reason"]) == ("COMPLETED", 1.0, "stop")
    assert [message["role"] for message in response["final_messages"]] == ["user", "assistant", "tool", "assistant"]
    assert response["metrics"]["num_llm_calls"] == 2
    assert response["metrics"]["num_tool_calls"] == 1
    lines = [json.loads(line) for line in (tmp_path / "rollout-abc123.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == [
        "pre_llm",
        "llm_response",
        "tool_results",
        "pre_llm",
        "llm_response",
        "rollout_complete",
    ]
    assert lines[0] == {
        "event": "pre_llm",
        "rollout_id": "rollout-abc123",
        "turn": 0,
        "num_messages": 1,
        "roles": {"user": 1},
    }
    texts = [message["content"] for message in response["final_messages"] if message["role"] == "assistant"]
    assert lines[-1]["tokens"] == [token for text in texts for token in fake_token_ids(text)]


def test_without_a_folder_nothing_is_written(trainer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    url, tracker = trainer
    with TestClient(create_app(agent_loop)) as client:
        client.post("/v1/rollout/init", json=body(url))
        assert tracker.wait(timeout=10.0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.asyncio
@pytest.mark.parametrize("tokens", [[], [1, 2, 3]])
async def test_tokens_may_be_missing(tokens):
    message = {"role": "assistant", "content": "It is complete."}
    llm = MagicMock()
    llm.get_metrics.return_value = RolloutMetrics()
    llm.chat_completions = AsyncMock(return_value=CompletionsResult(message, tokens, [-0.5] * len(tokens), {}, "stop"))
    request = RolloutRequest(
        rollout_id="r",
        server_url="http://localhost",
        messages=[{"role": "user", "content": "Hi"}],
        completion_params={"stop": ["END"]},
    )
    ctx = RolloutContext(request=request, tools=[], llm=llm)
    result = await ResearchAgent().run(ctx)
    assert (result.status, result.reward) == ("COMPLETED", None)
    assert not ctx.debug_enabled
    assert llm.chat_completions.await_args.kwargs == {"stop": ["END"]}
