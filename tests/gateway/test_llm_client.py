"""OsmosisLLMClient on its own, against a trainer written from the old contract."""

import asyncio
import json
from typing import Any

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
from osmosis_grpc.protocol.types import RolloutMetrics
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


@pytest.mark.parametrize("answer", [b"{}", b'{"choices": [{"message": {"role": "alien"}}]}', b"[" * 3000])
async def test_garbage(trainer, llm, answer):
    trainer.answers = [answer]
    with pytest.raises(OsmosisServerError):
        await llm.chat_completions(QUESTION)
    assert len(trainer.chats) == 1
    assert llm.get_metrics().num_llm_calls == 0
    assert (await llm.chat_completions(QUESTION)).message == REPLY


# What fails


@pytest.mark.parametrize("status", [503, 429])
async def test_what_is_tried_again_ends_too(trainer, status):
    trainer.answers = [status] * 9
    async with OsmosisLLMClient(trainer.url, "r1", max_retries=1, settings=SETTINGS) as llm:
        with pytest.raises(OsmosisServerError):
            await llm.chat_completions(QUESTION)
    assert len(trainer.chats) == 2


async def test_retry_after_is_in_the_last_error(trainer):
    trainer.answers = [(503, {"Retry-After": "7"})]
    async with OsmosisLLMClient(trainer.url, "r1", max_retries=0, settings=SETTINGS) as llm:
        with pytest.raises(OsmosisServerError) as raised:
            await llm.chat_completions(QUESTION)
    assert raised.value.retry_after == 7.0


@pytest.mark.parametrize("status", [401, 422])
async def test_4xx_is_final(trainer, llm, status):
    trainer.answers = [status, status]
    with pytest.raises(OsmosisValidationError) as raised:
        await llm.chat_completions(QUESTION)
    assert raised.value.status_code == status
    with pytest.raises(OsmosisValidationError):
        await llm.complete_rollout("COMPLETED", [])
    assert (len(trainer.chats), len(trainer.outcomes)) == (1, 1)


async def test_timeouts(trainer):
    trainer.answers = [9.0, 9.0]
    client = OsmosisLLMClient(trainer.url, "r1", timeout_seconds=1.0, max_retries=0, settings=SETTINGS)
    async with client as llm:
        with pytest.raises(OsmosisTimeoutError):
            await llm.chat_completions(QUESTION)
    assert len(trainer.chats) == 1


async def test_unreachable():
    async with OsmosisLLMClient("http://127.0.0.1:1", "r1", max_retries=1, settings=SETTINGS) as llm:
        with pytest.raises(OsmosisTransportError):
            await llm.chat_completions(QUESTION)
        with pytest.raises(OsmosisTransportError):
            await llm.complete_rollout("COMPLETED", [])


async def test_the_key_is_in_no_error(trainer):
    async with OsmosisLLMClient(trainer.url, "r1", "reported", max_retries=0, settings=SETTINGS) as llm:
        for status in (401, 500):
            trainer.answers = [status]
            with pytest.raises(CallError) as raised:
                await llm.chat_completions(QUESTION)
            assert "reported" not in str(raised.value)
        assert "reported" not in repr(llm)


@pytest.mark.parametrize("key", ["a\nb", "ü", "a\x00b"])
async def test_a_key_that_is_no_header(trainer, key):
    """Refused by our errors, wherever that is; not by aiohttp's."""
    with pytest.raises(InvalidArgument):
        async with OsmosisLLMClient(trainer.url, "r1", key, max_retries=0, settings=SETTINGS) as llm:
            await llm.chat_completions(QUESTION)
    assert trainer.chats == []


@pytest.mark.parametrize(
    ("messages", "params"),
    [
        ([{"role": "alien"}], {}),
        ([{"role": "user", "content": object()}], {}),
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


async def test_metrics_of_ones_own(trainer, llm):
    own = RolloutMetrics(num_tool_calls=4, tool_latency_ms=1.5, num_llm_calls=2, total_latency_ms=9.0)
    await llm.complete_rollout("COMPLETED", [], metrics=own)
    reported = trainer.outcomes[0]["metrics"]
    assert (reported["num_tool_calls"], reported["tool_latency_ms"], reported["num_llm_calls"]) == (4, 1.5, 2)
    assert reported["total_latency_ms"] == 9.0


async def test_an_error(trainer, llm):
    await llm.complete_rollout("ERROR", QUESTION, finish_reason="error", error_message="it broke")
    [body] = trainer.outcomes
    assert (body["status"], body["error_message"], body["finish_reason"]) == ("ERROR", "it broke", "error")
    assert "reward" not in body
    assert body["final_messages"] == QUESTION


@pytest.mark.parametrize("status", ["DONE", "", "completed"])
async def test_another_status(trainer, llm, status):
    with pytest.raises(InvalidArgument):
        await llm.complete_rollout(status, [])
    assert trainer.outcomes == []


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), "1", [1.0], object()])
async def test_a_reward_that_is_no_number(trainer, llm, reward):
    with pytest.raises(InvalidArgument):
        await llm.complete_rollout("COMPLETED", [], reward=reward)
    assert trainer.outcomes == []


async def test_an_outcome_is_tried_again(trainer):
    trainer.answers = [500, 503]
    async with OsmosisLLMClient(trainer.url, "r1", complete_rollout_retries=2, settings=SETTINGS) as llm:
        await llm.complete_rollout("COMPLETED", [])
    assert trainer.outcomes == [trainer.outcomes[0]] * 3


async def test_an_outcome_that_fails(trainer):
    trainer.answers = [500] * 5
    async with OsmosisLLMClient(trainer.url, "r1", complete_rollout_retries=1, settings=SETTINGS) as llm:
        with pytest.raises(OsmosisServerError):
            await llm.complete_rollout("COMPLETED", [])
    assert len(trainer.outcomes) == 2


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
    with pytest.raises(OsmosisValidationError):
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
