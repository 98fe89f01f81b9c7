"""The mock trainer of the legacy contract, behind a real socket."""

import asyncio
import threading

import httpx
import pytest
import uvicorn

from osmosis_gateway.mock_trainer import (
    RolloutCompletionTracker,
    create_mock_trainer_app,
    fake_prompt_token_ids,
    fake_token_ids,
)
from osmosis_grpc.agent.tool_calls import get_tool_call_info
from tests.waiting import until

USER = {"role": "user", "content": "Hello"}
TOOL = {"role": "tool", "content": "8", "tool_call_id": "call_mock_add"}


@pytest.fixture
async def trainer(stack):
    """Starts a mock trainer; a client of it."""

    async def start(*args, **kwargs):
        server = uvicorn.Server(uvicorn.Config(create_mock_trainer_app(*args, **kwargs), port=0, log_level="warning"))
        task = asyncio.create_task(server.serve())

        async def stop():
            server.should_exit = True
            await task

        stack.push_async_callback(stop)
        await until(lambda: server.started)
        port = server.servers[0].sockets[0].getsockname()[1]
        return await stack.enter_async_context(httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}"))

    return start


async def ask(client, *messages, **body):
    answer = await client.post("/v1/chat/completions", json={"rollout_id": "r1", "messages": messages, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def message_of(outcome):
    return outcome["choices"][0]["message"]


async def test_a_completion_is_whole(trainer):
    assert await ask(await trainer(), {"role": "system", "content": "Be brief."}, USER) == {
        "id": "r1",
        "object": "chat.completion",
        "created": 0,
        "model": "default",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "OK."}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 20, "completion_tokens": 3, "total_tokens": 23},
        "token_ids": [0, 1, 2],
        "logprobs": [0.0, 0.0, 0.0],
        "prompt_token_ids": list(range(20)),
    }


async def test_the_same_chat_is_answered_the_same_way(trainer):
    client = await trainer()
    user = {"role": "user", "content": "Calculate 5 + 3."}
    first = await ask(client, user)
    assert message_of(await ask(client, USER)) != message_of(first)
    assert await ask(client, user) == first
    assert await ask(await trainer(), user) == first


async def test_a_calculation_asks_for_a_tool_and_then_is_complete(trainer):
    client = await trainer()
    user = {"role": "user", "content": "Please calculate 5 + 3."}
    asked = message_of(await ask(client, user))
    assert asked["content"]
    assert [get_tool_call_info(call) for call in asked["tool_calls"]] == [("call_mock_add", "add", {"a": 5, "b": 3})]
    assert asked["tool_calls"][0]["type"] == "function"
    done = message_of(await ask(client, user, asked, TOOL))
    assert done == {"role": "assistant", "content": "The calculation is complete."}


@pytest.mark.parametrize(
    ("content", "calls"),
    [
        ("ADD 1 and 2", True),
        ("the sum of 1 and 2", True),
        ("1 plus 2?", True),
        ("Subtract 1", True),
        ("multiply, then divide", True),
        ("multiplied", True),
        ("a calculation", True),
        ("Hello", False),
        ("", False),
        ("my address", False),
        ("I assume so: in summary, surplus", False),
        (None, False),
        ([{"type": "text", "text": "add"}], False),
    ],
)
async def test_what_is_a_calculation(trainer, content, calls):
    message = message_of(await ask(await trainer(), {"role": "user", "content": content}))
    assert ("tool_calls" in message, message["content"] == "OK.") == (calls, not calls)


@pytest.mark.parametrize("role", ["assistant", "system"])
async def test_only_a_user_wants_a_calculation(trainer, role):
    outcome = await ask(await trainer(), {"role": "user", "content": "add"}, {"role": role, "content": "add"})
    assert message_of(outcome) == {"role": "assistant", "content": "OK."}


async def test_no_messages_are_a_prompt_too(trainer):
    outcome = await ask(await trainer())
    assert (message_of(outcome)["content"], outcome["prompt_token_ids"]) == ("OK.", list(range(10)))


async def test_a_generator_says_what_is_asked_for(trainer):
    seen = []

    def generate(last_message):
        seen.append(last_message)
        return {"search": [{"id": "c1", "function": {"name": "search"}}], "nothing": []}.get(last_message["content"])

    client = await trainer(tool_call_generator=generate)
    asked = message_of(await ask(client, USER, {"role": "user", "content": "search"}))
    assert asked["tool_calls"] == [{"id": "c1", "function": {"name": "search"}}]
    for content in ("nothing", "calculate"):
        assert message_of(await ask(client, {"role": "user", "content": content})) == {
            "role": "assistant",
            "content": "OK.",
        }
    assert message_of(await ask(client, TOOL))["content"] == "The calculation is complete."
    assert [message["content"] for message in seen] == ["search", "nothing", "calculate", "8"]


async def test_the_parameters_are_taken(trainer):
    params = {"temperature": 0.7, "top_p": 0.9, "max_tokens": 16, "stop": ["\n"], "logprobs": True, "seed": {"any": 1}}
    outcome = await ask(await trainer(), USER, model="mine", **params)
    assert outcome == {**await ask(await trainer(), USER, stop="\n", logprobs=None), "model": "mine"}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": []}),
        ("/v1/chat/completions", {"rollout_id": "r1", "messages": ["Hi"]}),
        ("/v1/chat/completions", {"rollout_id": "r1"}),
        ("/v1/rollout/completed", {"status": "COMPLETED"}),
    ],
)
async def test_a_body_that_no_trainer_understands_is_refused(trainer, path, body):
    tracker = RolloutCompletionTracker()
    answer = await (await trainer(tracker)).post(path, json=body)
    assert (answer.status_code, tracker.responses) == (422, [])


# Completed rollouts


async def test_outcomes_are_recorded(trainer):
    tracker = RolloutCompletionTracker()
    client = await trainer(tracker)
    final = [USER, {"role": "assistant", "content": None, "tool_calls": []}]
    body = {"rollout_id": "a/b 1", "status": "COMPLETED", "final_messages": final, "reward": 0.0}
    for status in ("ERROR", "COMPLETED"):
        reported = {**body, "status": status, "error_message": None}
        answer = await client.post("/v1/rollout/completed", json=reported)
        assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
    assert tracker.event.is_set()
    assert tracker.responses == [{**body, "status": "ERROR"}, body]
    assert (await client.get("/v1/rollout/completed/a%2Fb%201")).json() == body
    assert (await client.get("/v1/rollout/completed/other")).json() == {}


async def test_without_a_tracker_they_are_recorded_too(trainer):
    client, other = await trainer(), await trainer()
    await client.post("/v1/rollout/completed", json={"rollout_id": "r1", "reward": None})
    assert (await client.get("/v1/rollout/completed/r1")).json() == {"rollout_id": "r1"}
    assert (await other.get("/v1/rollout/completed/r1")).json() == {}


async def test_health(trainer):
    answer = await (await trainer()).get("/health")
    assert (answer.status_code, answer.json()) == (200, {"status": "healthy", "service": "mock-trainer"})


def test_a_tracker_is_waited_for_from_another_thread():
    tracker, waited = RolloutCompletionTracker(), []
    thread = threading.Thread(target=lambda: waited.append(tracker.wait(30)))
    thread.start()
    tracker.record({"rollout_id": "r1"})
    thread.join()
    assert (waited, tracker.wait(0)) == ([True], True)
    tracker.clear()
    assert (tracker.responses, tracker.event.is_set(), tracker.wait(0)) == ([], False, False)


def test_trackers_are_apart():
    first, second = RolloutCompletionTracker(), RolloutCompletionTracker()
    first.record({"rollout_id": "r1"})
    assert (second.responses, second.event.is_set()) == ([], False)


def test_fake_tokens():
    assert fake_token_ids("") == []
    assert fake_token_ids("abc") == [0, 1, 2]
    assert fake_prompt_token_ids([]) == fake_prompt_token_ids([USER]) == list(range(10))
    assert fake_prompt_token_ids([USER] * 3) == list(range(30))
