"""OsmosisLLMClient on its own, against a trainer written from the old contract."""

import asyncio
import gc
import json
import warnings
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from pydantic import ValidationError

from osmosis_gateway.llm_client import OsmosisLLMClient
from osmosis_grpc.protocol.errors import (
    CallError,
    InvalidArgument,
    OsmosisServerError,
    OsmosisTimeoutError,
    OsmosisTransportError,
    OsmosisValidationError,
)
from osmosis_grpc.settings.settings import RolloutClientSettings
from tests.waiting import until

QUESTION = [{"role": "user", "content": "hi"}]
REPLY = {"role": "assistant", "content": "there"}
SETTINGS = RolloutClientSettings(retry_base_delay=0.1, retry_max_delay=1.0)
DEFAULTS = {"model": "default", "temperature": 1.0, "top_p": 1.0, "max_tokens": 512, "logprobs": True}


class Trainer:
    """Answers from `answers`, which holds statuses, (status, headers), seconds to wait as floats, or bytes of a 200."""

    def __init__(self) -> None:
        self.chats: list[Any] = []
        self.outcomes: list[Any] = []
        self.headers: list[Any] = []
        self.answers: list[Any] = []
        self.reply: dict[str, Any] = {
            "id": "r1",
            "object": "chat.completion",
            "created": 1,
            "model": "default",
            "choices": [{"index": 0, "message": REPLY, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
        }
        self.open: set[Any] = set()

    async def __aenter__(self) -> "Trainer":
        app = web.Application(client_max_size=2**28)
        app.add_routes(
            [web.post("/base/v1/chat/completions", self._chat), web.post("/base/v1/rollout/completed", self._completed)]
        )
        self._runner = web.AppRunner(app, shutdown_timeout=0.2)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/base"
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self._runner.cleanup()

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._runner.server.connections)

    async def _chat(self, request: web.Request) -> web.Response:
        self.chats.append(json.loads(await request.text()))
        return await self._answer(request, web.json_response(self.reply))

    async def _completed(self, request: web.Request) -> web.Response:
        self.outcomes.append(json.loads(await request.text()))
        return await self._answer(request, web.json_response({"status": "ok"}))

    async def _answer(self, request: web.Request, usual: web.Response) -> web.Response:
        self.headers.append(request.headers)
        said = self.answers.pop(0) if self.answers else None
        if isinstance(said, float):
            await asyncio.sleep(said)  # the time that a test gives the answer
            return usual
        if isinstance(said, bytes):
            return web.Response(body=said)
        if said is None:
            return usual
        status, headers = said if isinstance(said, tuple) else (said, {})
        return web.Response(status=status, headers=headers, text="" if status == 204 else "reported")


@pytest.fixture
async def trainer():
    async with Trainer() as trainer:
        yield trainer


@pytest.fixture
async def llm(trainer):
    async with OsmosisLLMClient(trainer.url, "r1", "key", settings=SETTINGS) as llm:
        yield llm


# Chats


async def test_a_chat(trainer, llm):
    result = await llm.chat_completions(QUESTION)
    assert (result.message, result.finish_reason, result.usage) == (REPLY, "stop", trainer.reply["usage"])
    assert (result.token_ids, result.logprobs) == ([], [])
    assert trainer.chats == [DEFAULTS | {"rollout_id": "r1", "messages": QUESTION}]
    assert trainer.headers[0]["Authorization"] == "Bearer key"
    assert trainer.headers[0]["Content-Type"] == "application/json"


@pytest.mark.parametrize("key", [None, ""])
async def test_without_a_key_there_is_no_header(trainer, key):
    async with OsmosisLLMClient(trainer.url, "r1", key, settings=SETTINGS) as llm:
        await llm.chat_completions(QUESTION)
        await llm.complete_rollout("COMPLETED", [])
    assert all("Authorization" not in headers for headers in trainer.headers)


async def test_parameters(trainer, llm):
    given = {
        "temperature": 0,
        "top_p": 0.5,
        "max_tokens": 7,
        "stop": "END",
        "logprobs": False,
        "model": "m",
        "top_k": 3,
        "chat_template_kwargs": {"thinking": None},
        "seed": None,
    }
    await llm.chat_completions(QUESTION, **given)
    [chat] = trainer.chats
    expected = given | {"temperature": 0.0, "stop": ["END"], "rollout_id": "r1", "messages": QUESTION}
    del expected["seed"]
    assert chat == expected


async def test_tools(trainer, llm):
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    await llm.chat_completions(QUESTION, tools=[tool])
    assert trainer.chats[0]["tools"] == [tool]
    with pytest.raises(CallError):
        await llm.chat_completions(QUESTION, tools=["f"])
    assert len(trainer.chats) == 1


async def test_messages_keep_nulls_and_unknown_keys(trainer, llm):
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "ü\u2028"}], "x": None},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "1", "type": "function", "index": None, "function": {"name": "f", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "content": "", "tool_call_id": "1", "name": None},
    ]
    await llm.chat_completions(messages)
    assert trainer.chats[0]["messages"] == messages


async def test_the_reply_is_whole(trainer, llm):
    message = {
        "role": "assistant",
        "content": None,
        "x": {"y": None},
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    }
    trainer.reply["choices"][0] = {"index": 0, "message": message, "finish_reason": "length", "more": 1}
    trainer.reply |= {"token_ids": [1, 2], "logprobs": [-0.5, None], "prompt_token_ids": [7, 8, 9], "system": "x"}
    result = await llm.chat_completions(QUESTION)
    assert (result.message, result.finish_reason) == (message, "length")
    assert result.token_ids == [1, 2]
    assert result.logprobs[0] == -0.5
    assert result.has_tool_calls
    assert result.extra == {"system": "x"}


async def test_a_reply_with_little(trainer, llm):
    trainer.reply = {"choices": [{"message": {"content": "x"}}]}
    result = await llm.chat_completions(QUESTION)
    assert (result.message, result.finish_reason) == ({"role": "assistant", "content": "x"}, "stop")
    assert not result.usage
    assert llm.get_metrics().num_llm_calls == 1


# What fails


@pytest.mark.parametrize("status", [500, 502, 503, 429, 408])
async def test_what_is_tried_again_ends_too(trainer, status):
    trainer.answers = [status] * 9
    async with OsmosisLLMClient(trainer.url, "r1", max_retries=1, settings=SETTINGS) as llm:
        with pytest.raises(OsmosisServerError, match=str(status)):
            await llm.chat_completions(QUESTION)
    assert len(trainer.chats) == 2


async def test_retry_after_is_waited_for(trainer, llm):
    trainer.answers = [(429, {"Retry-After": "1"})]
    began = asyncio.get_running_loop().time()
    await llm.chat_completions(QUESTION)
    assert asyncio.get_running_loop().time() - began >= 0.95


async def test_retry_after_is_in_the_last_error(trainer):
    trainer.answers = [(503, {"Retry-After": "7"})]
    async with OsmosisLLMClient(trainer.url, "r1", max_retries=0, settings=SETTINGS) as llm:
        with pytest.raises(OsmosisServerError) as raised:
            await llm.chat_completions(QUESTION)
    assert raised.value.retry_after == 7.0


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 410, 422])
async def test_4xx_is_final(trainer, llm, status):
    trainer.answers = [status, status]
    with pytest.raises(OsmosisValidationError, match=f"{status}: reported") as raised:
        await llm.chat_completions(QUESTION)
    assert raised.value.status_code == status
    with pytest.raises(OsmosisValidationError):
        await llm.complete_rollout("COMPLETED", [])
    assert (len(trainer.chats), len(trainer.outcomes)) == (1, 1)


async def test_timeouts(trainer):
    trainer.answers = [9.0, 9.0]
    client = OsmosisLLMClient(trainer.url, "r1", timeout_seconds=1.0, max_retries=0, settings=SETTINGS)
    async with client as llm:
        with pytest.raises(OsmosisTimeoutError, match="within 1 s"):
            await llm.chat_completions(QUESTION)
    assert len(trainer.chats) == 1


async def test_unreachable():
    async with OsmosisLLMClient("http://127.0.0.1:1", "r1", max_retries=1, settings=SETTINGS) as llm:
        with pytest.raises(OsmosisTransportError, match="cannot be reached"):
            await llm.chat_completions(QUESTION)
        with pytest.raises(OsmosisTransportError):
            await llm.complete_rollout("COMPLETED", [])


@pytest.mark.parametrize("key", ["a\nb", "ü", "a\x00b"])
async def test_a_key_that_is_no_header(trainer, key):
    """Refused by our errors, wherever that is; not by aiohttp's."""
    with pytest.raises(InvalidArgument, match="api_key"):
        async with OsmosisLLMClient(trainer.url, "r1", key, max_retries=0, settings=SETTINGS) as llm:
            await llm.chat_completions(QUESTION)
    assert trainer.chats == []


@pytest.mark.parametrize(
    ("messages", "params"),
    [
        ([{"role": "alien"}], {}),
        (["x"], {}),
        ([{"role": "user", "content": float("nan")}], {}),
        ([{"role": "user", "content": "\ud800"}], {}),
        ([{"role": "user", "content": object()}], {}),
        (QUESTION, {"temperature": float("inf")}),
        (QUESTION, {"top_p": 2}),
        (QUESTION, {"max_tokens": 0}),
        (QUESTION, {"x": object()}),
    ],
)
async def test_what_cannot_travel(trainer, llm, messages, params):
    with pytest.raises(InvalidArgument):
        await llm.chat_completions(messages, **params)
    assert trainer.chats == []


# Outcomes


async def test_an_outcome(trainer, llm):
    await llm.chat_completions(QUESTION)
    messages = [*QUESTION, {"role": "assistant", "content": None, "x": None}]
    await llm.complete_rollout("COMPLETED", messages, reward=0.0)
    [body] = trainer.outcomes
    metrics = body.pop("metrics")
    assert body == {
        "rollout_id": "r1",
        "status": "COMPLETED",
        "final_messages": messages,
        "finish_reason": "stop",
        "reward": 0.0,
        "extra_fields": {},
    }
    assert len(metrics) == 8
    counts = {name: value for name, value in metrics.items() if "latency" not in name}
    assert counts == {
        "num_llm_calls": 1,
        "num_tool_calls": 0,
        "prompt_tokens": 3,
        "response_tokens": 2,
        "max_context_tokens": 5,
    }
    assert metrics["llm_latency_ms"] > 0
    assert trainer.headers[-1]["Authorization"] == "Bearer key"


async def test_metrics_add_up(trainer, llm):
    for _ in range(3):
        await llm.chat_completions(QUESTION)
    metrics = llm.get_metrics()
    assert (metrics.num_llm_calls, metrics.prompt_tokens, metrics.response_tokens) == (3, 9, 6)
    assert metrics.max_context_tokens == 5


async def test_an_error(trainer, llm):
    await llm.complete_rollout("ERROR", QUESTION, finish_reason="error", error_message="it broke")
    [body] = trainer.outcomes
    assert (body["status"], body["error_message"], body["finish_reason"]) == ("ERROR", "it broke", "error")
    assert "reward" not in body
    assert body["final_messages"] == QUESTION


@pytest.mark.parametrize("status", ["DONE", "", "completed"])
async def test_another_status(trainer, llm, status):
    with pytest.raises(InvalidArgument, match="neither COMPLETED nor ERROR"):
        await llm.complete_rollout(status, [])
    assert trainer.outcomes == []


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), "1", [1.0], object()])
async def test_a_reward_that_is_no_number(trainer, llm, reward):
    with pytest.raises(InvalidArgument, match="reward"):
        await llm.complete_rollout("COMPLETED", [], reward=reward)
    assert trainer.outcomes == []


# Settings and lifetime


async def test_settings(trainer, monkeypatch):
    monkeypatch.setenv("OSMOSIS_ROLLOUT_CLIENT_MAX_RETRIES", "0")
    trainer.answers = [500]
    async with OsmosisLLMClient(trainer.url, "r1") as llm:
        with pytest.raises(OsmosisServerError):
            await llm.chat_completions(QUESTION)
    assert len(trainer.chats) == 1


@pytest.mark.parametrize("given", [{"timeout_seconds": 0.5}, {"max_retries": 11}, {"complete_rollout_retries": -1}])
async def test_out_of_bounds(given):
    with pytest.raises(ValidationError, match=next(iter(given))):
        OsmosisLLMClient("http://127.0.0.1:1", "r1", **given)


@pytest.mark.parametrize("url", ["", "127.0.0.1:1", "ftp://x", "http://", "http://u:p@x", "http://x?y"])
async def test_what_is_no_url(url):
    with pytest.raises(OsmosisValidationError, match="server_url"):
        OsmosisLLMClient(url, "r1")


async def closed(trainer: Trainer) -> None:
    await until(lambda: not trainer.connections, timeout=2)


async def test_without_a_context_manager(trainer):
    llm = OsmosisLLMClient(trainer.url, "r1", settings=SETTINGS)
    assert (await llm.chat_completions(QUESTION)).message == REPLY
    await llm.complete_rollout("COMPLETED", [])
    assert trainer.connections == 1, "one connection for both"
    await llm.close()
    await llm.close()
    await closed(trainer)


async def test_two_first_chats_at_once(trainer):
    llm = OsmosisLLMClient(trainer.url, "r1", settings=SETTINGS)
    await asyncio.gather(*(llm.chat_completions(QUESTION) for _ in range(5)))
    assert llm.get_metrics().num_llm_calls == 5
    await llm.close()
    await closed(trainer)


async def test_used_after_close(trainer):
    """It opens again, and has to be closed again."""
    llm = OsmosisLLMClient(trainer.url, "r1", settings=SETTINGS)
    for _ in range(2):
        await llm.chat_completions(QUESTION)
        await llm.close()
        await closed(trainer)


async def test_closed_in_the_middle_of_a_chat(trainer):
    trainer.answers = [5.0]
    llm = OsmosisLLMClient(trainer.url, "r1", max_retries=1, settings=SETTINGS)
    chat = asyncio.create_task(llm.chat_completions(QUESTION))
    await until(lambda: trainer.chats)
    await llm.close()
    with pytest.raises(OsmosisTransportError):
        await asyncio.wait_for(chat, 3)
    assert len(trainer.chats) == 1


async def test_a_cancelled_chat_leaves_the_client_usable(trainer, llm):
    trainer.answers = [5.0]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await llm.chat_completions(QUESTION)
    assert (await llm.chat_completions(QUESTION)).message == REPLY
    assert llm.get_metrics().num_llm_calls == 1


async def test_many_clients_leave_nothing(trainer):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in range(20):
            async with OsmosisLLMClient(trainer.url, f"r{number}", settings=SETTINGS) as llm:
                await llm.chat_completions(QUESTION)
                await llm.complete_rollout("COMPLETED", [])
        await asyncio.gather(*(one(trainer, number) for number in range(20)))
        await closed(trainer)
        gc.collect()
        await asyncio.sleep(0)
    names = [task.get_coro().__qualname__ for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert not [name for name in names if "OsmosisLLMClient" in name or "Calls" in name]
    live = [found for found in gc.get_objects() if type(found) is aiohttp.ClientSession and not found.closed]
    assert live == []
    assert {chat["rollout_id"] for chat in trainer.chats} == {f"r{number}" for number in range(20)}


async def one(trainer: Trainer, number: int) -> None:
    async with OsmosisLLMClient(trainer.url, f"r{number}", settings=SETTINGS) as llm:
        await llm.chat_completions(QUESTION)
