"""The policy that asks an OpenAI-compatible server, against servers on a real socket."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from osmosis_grpc.policies import OpenAIPolicy
from osmosis_grpc.policies.openai import NEUTRAL
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import chat_pb2
from osmosis_grpc.protocol.errors import (
    CallError,
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    PermissionDenied,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
)
from osmosis_grpc.protocol.types import ChatRequest, ChatResponse, VersionSpan
from osmosis_grpc.protocol.wire.chat import reply_bytes, reply_from_wire
from osmosis_grpc.testing import run_rollout
from osmosis_grpc.testing.calculator import CalculatorAgent
from tests.http_servers import posting, url_of
from tests.waiting import until

KEY = "sk-very-secret"
QUESTION = [{"role": "user", "content": "2+3?"}]
REPLY = {"role": "assistant", "content": "#### 5", "vendor": 0}
LOGPROBS = {"content": [{"token": "5", "logprob": -0.25, "top_logprobs": []}, {"token": "", "logprob": None}]}
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
CHOICE = {"index": 0, "message": REPLY, "finish_reason": "stop", "logprobs": LOGPROBS}

PLAIN = {"id": "x", "choices": [CHOICE], "usage": USAGE}
VLLM = {**PLAIN, "choices": [{**CHOICE, "token_ids": [20, 21]}], "prompt_token_ids": [1, 2, 3]}
SGLANG = {**PLAIN, "choices": [{**CHOICE, "token_ids": [20, 21], "prompt_token_ids": [1, 2, 3]}]}
NULLS = {**VLLM, "choices": [{**CHOICE, "token_ids": None}], "prompt_token_ids": None}


def choice(**changes: Any) -> dict[str, Any]:
    return {**VLLM, "choices": [{**VLLM["choices"][0], **changes}]}


Seen = list[tuple[web.Request, dict[str, Any]]]


@asynccontextmanager
async def model_server(
    answer: Callable[[web.Request], Any] | dict[str, Any] | web.Response,
) -> AsyncIterator[tuple[str, Seen]]:
    """A model server on a free port: its base URL, and what it was asked."""
    seen: Seen = []

    async def handle(request: web.Request) -> web.StreamResponse:
        seen.append((request, await request.json()))
        made = answer(request) if callable(answer) else answer
        return web.json_response(made) if isinstance(made, dict) else await made if asyncio.iscoroutine(made) else made

    async with posting({"/v1/chat/completions": handle}) as server:
        yield f"{url_of(server)}/v1", seen


async def ask(answer: Any, request: ChatRequest | None = None, **options: Any) -> ChatResponse:
    """One chat with a server that answers so."""
    async with model_server(answer) as (url, _), OpenAIPolicy(url, "m", api_key=KEY, **options) as policy:
        return await policy(request or ChatRequest(rollout_id="r", messages=QUESTION))


@pytest.mark.parametrize("body", [VLLM, SGLANG], ids=["vLLM", "SGLang"])
async def test_token_ids_are_kept_where_the_server_gives_them(body):
    response = await ask(body, version="step-7")
    assert response.message == REPLY
    assert (response.finish_reason, response.usage) == ("stop", USAGE)
    assert response.tokens.ids.tolist() == [20, 21]
    assert np.array_equal(response.tokens.logprobs, [-0.25, np.nan], equal_nan=True)
    assert response.prompt_ids.tolist() == [1, 2, 3]
    assert response.versions == (VersionSpan("step-7", 2),)
    assert reply_from_wire(chat_pb2.ChatResponse.FromString(reply_bytes(response))).message == REPLY


@pytest.mark.parametrize("body", [PLAIN, NULLS], ids=["unaware", "null"])
async def test_without_token_ids_nothing_is_made_up(body):
    response = await ask(body)
    assert (response.tokens, response.prompt_ids, response.versions) == (None, None, ())
    assert response.message == REPLY


@pytest.mark.parametrize("logprobs", [None, {}, {"content": None}, {"content": LOGPROBS["content"][:1]}])
async def test_logprobs_that_cannot_be_matched_to_tokens_are_left_out(logprobs):
    response = await ask(choice(logprobs=logprobs))
    assert response.tokens.ids.tolist() == [20, 21]
    assert response.tokens.logprobs is None


def tops(*values: float, token: str = "token_id:{}") -> dict[str, Any]:
    listed = [{"token": token.format(number), "logprob": value} for number, value in enumerate(values, start=7)]
    return {"token": "x", "logprob": values[0], "top_logprobs": listed}


async def test_top_logprobs_are_extras():
    response = await ask(choice(logprobs={"content": [tops(-0.5, -1.5), tops(-0.25, -2.0)]}))
    assert response.tokens is not None
    extras = response.tokens.extras
    assert np.array_equal(extras["top_logprobs"].numpy(), np.float32([[-0.5, -1.5], [-0.25, -2.0]]))
    assert extras["top_logprob_ids"].numpy().tolist() == [[7, 8], [7, 8]]


@pytest.mark.parametrize(
    ("rows", "names"),
    [
        ([tops(-0.5, token="a"), tops(-0.5)], {"top_logprobs"}),
        ([tops(-0.5), tops(-0.5, -1.5)], set()),
        ([tops(-0.5)], set()),
    ],
    ids=["texts", "several lengths", "too few"],
)
async def test_top_logprobs_that_fit_no_extra_are_left_out(rows, names):
    response = await ask(choice(logprobs={"content": rows}))
    assert response.tokens is not None
    assert set(response.tokens.extras) == names


async def test_the_request_body():
    tools = [{"type": "function", "function": {"name": "f"}}]
    messages = [*QUESTION, {"role": "assistant", "content": None, "vendor": 1}, {"role": "user", "content": "ü"}]
    request = ChatRequest(
        rollout_id="r",
        messages=messages,
        tools=tools,
        params={"temperature": 0.5, "min_p": 0.1, "logprobs": False, "n": 1},
    )
    async with model_server(PLAIN) as (url, seen):
        async with OpenAIPolicy(url + "/", "the-model", api_key=KEY) as policy:
            await policy(request)
        async with OpenAIPolicy(url, "the-model", token_ids=False) as policy:
            await policy(ChatRequest(rollout_id="r", messages=QUESTION, params={"model": "other", "stream": True}))
    (first, body), (second, bare) = seen
    assert body == {
        "model": "the-model",
        "messages": messages,
        "tools": tools,
        **NEUTRAL,
        "temperature": 0.5,
        "min_p": 0.1,
        "logprobs": True,
        "n": 1,
        "stream": False,
        "return_token_ids": True,
    }
    assert bare == {"model": "the-model", "messages": QUESTION, "logprobs": True, "stream": False}
    assert first.headers["Authorization"] == f"Bearer {KEY}"
    assert "Authorization" not in second.headers


async def test_a_rollout_with_tokens_is_trainable():
    body = choice(logprobs={"content": [{"logprob": -1}, {"logprob": -2}]})
    async with model_server(body) as (url, _), OpenAIPolicy(url, "m") as policy:
        outcome = await run_rollout(CalculatorAgent(), policy, QUESTION, label="5")
    assert outcome.samples["main"].trainable is True
    assert outcome.samples["main"].segments[0].ids.tolist() == [1, 2, 3, 20, 21]
    assert outcome.reward == 1.0


# What goes wrong


def echo(status: int, **headers: str) -> Callable[[web.Request], web.Response]:
    """A server that shows the caller what it was sent, the credential included."""

    def answer(request: web.Request) -> web.Response:
        return web.Response(status=status, text=f"bad luck: {dict(request.headers)}", headers=headers)

    return answer


STATUSES = [
    (400, InvalidArgument),
    (401, Unauthenticated),
    (403, PermissionDenied),
    (404, Internal),
    (408, Unavailable),
    (422, InvalidArgument),
    (429, ResourceExhausted),
    (500, Unavailable),
    (502, Unavailable),
    (503, Unavailable),
    (302, Internal),
]


async def failure(answer: Any, **options: Any) -> CallError:
    """The error of a chat; whatever went wrong, the key is nowhere in it."""
    with pytest.raises(CallError) as raised:
        await ask(answer, **options)
    error: BaseException | None = raised.value
    while error is not None:
        assert KEY not in f"{error} {error!r} {vars(error)}"
        error = None if error.__suppress_context__ else error.__cause__ or error.__context__
    return raised.value


@pytest.mark.parametrize(("status", "kind"), STATUSES)
async def test_a_status_is_an_error_of_its_kind(status, kind):
    """And not even a server that echoes the request's headers brings the key into it."""
    headers = {"Location": "http://127.0.0.1:9/"} if status == 302 else {}
    error = await failure(echo(status, **headers))
    assert type(error) is kind
    assert str(status) in str(error)
    assert error.retryable == (status in (408, 429) or status >= 500)


@pytest.mark.parametrize(("status", "kind"), [(429, ResourceExhausted), (503, Unavailable)])
@pytest.mark.parametrize(
    ("header", "seconds"),
    [("7", 7.0), (" 2 ", 2.0), ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0), ("soon", None), ("-1", None), ("", None)],
)
async def test_the_time_to_come_back_is_kept(status, kind, header, seconds):
    error = await failure(web.Response(status=status, headers={"Retry-After": header}))
    assert type(error) is kind
    assert error.retry_after == seconds


GARBAGE = {
    "not JSON": b"<html>nginx</html>",
    "not JSON, and says so": "<html>nginx</html>",
    "nothing": b"",
    "half of it": json.dumps(VLLM).encode()[:-20],
    "not UTF-8": b'{"choices": "\xff\xfe"}',
    "too deep": b"[" * 100_000,
    "a list": b"[]",
    "null": b"null",
    "an error": b'{"error": {"message": "overloaded"}}',
    "no choice": b'{"choices": []}',
    "choices that are text": b'{"choices": "abc"}',
    "a choice without a message": b'{"choices": [{}]}',
    "a message that is null": choice(message=None),
    "a message that is text": choice(message="hello"),
    "a message that is a list": choice(message=[]),
    "another role": choice(message={"role": "user", "content": "x"}),
    "an unpaired surrogate": choice(message={"role": "assistant", "content": "\ud800"}),
    "ids that are text": choice(token_ids="abc"),
    "ids that are negative": choice(token_ids=[-1, 2]),
    "ids that are too large": choice(token_ids=[2**32, 2]),
    "ids that are fractions": choice(token_ids=[1.5, 2]),
    "ids of two dimensions": choice(token_ids=[[1, 2], [3, 4]]),
    "ids of no shape": choice(token_ids=[[1], [2, 3]]),
    "ids that are a number": choice(token_ids=5),
    "prompt ids of no shape": {**VLLM, "prompt_token_ids": [[1], [2, 3]]},
    "prompt ids that are objects": {**VLLM, "prompt_token_ids": {"a": 1}},
    "logprobs that are a list": choice(logprobs=[-1.0, -2.0]),
    "logprobs that are numbers": choice(logprobs={"content": [-1.0, -2.0]}),
    "logprobs that are text": choice(logprobs={"content": [{"logprob": "a"}, {"logprob": "b"}]}),
    "logprobs that are lists": choice(logprobs={"content": [{"logprob": [1]}, {"logprob": [1, 2]}]}),
    "logprobs above zero": choice(logprobs={"content": [{"logprob": 0.5}, {"logprob": -1}]}),
    "a finish reason that is a number": choice(finish_reason=5),
    "usage that is a list": {**VLLM, "usage": [1]},
    "usage beyond a float": json.dumps({**VLLM, "usage": {"prompt_tokens": 0}}).replace(": 0}", ": 1e999}").encode(),
    "a message with a number beyond a float": json.dumps(
        choice(message={"role": "assistant", "content": "x", "n": "N"})
    )
    .replace('"N"', "1e999")
    .encode(),
    "a logprob beyond a float": json.dumps(choice(logprobs={"content": [{"logprob": "N"}, {"logprob": -1}]}))
    .replace('"N"', "-1e999")
    .encode(),
}


@pytest.mark.parametrize("body", GARBAGE.values(), ids=GARBAGE.keys())
async def test_a_body_that_cannot_be_read_is_internal(body):
    def answer(request: web.Request) -> Any:
        if isinstance(body, bytes):
            return web.Response(body=body, content_type="application/json")
        return web.Response(text=body, content_type="text/html") if isinstance(body, str) else body

    assert type(await failure(answer)) is Internal


async def test_a_server_that_is_silent_runs_out_of_time():
    async def silent() -> web.Response:
        await asyncio.sleep(5)  # a model that says nothing
        return web.Response()

    error = await failure(lambda request: silent(), timeout=0.1)
    assert type(error) is DeadlineExceeded
    assert error.retryable


async def test_a_policy_is_used_by_many_at_once_and_again_after_it_was_closed():
    async with model_server(VLLM) as (url, seen):
        policy = OpenAIPolicy(url, "m", connections=4)
        for _ in range(2):
            async with policy:
                request = ChatRequest(rollout_id="r", messages=QUESTION)
                replies = await asyncio.gather(*(policy(request) for _ in range(20)))
                assert all(reply.message == REPLY for reply in replies)
    assert len(seen) == 40


async def test_cancelling_a_chat_ends_its_request():
    ended: list[web.Request] = []

    async def silent(request: web.Request) -> web.Response:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(request)

    async with model_server(silent) as (url, seen), OpenAIPolicy(url, "m") as policy:
        task = asyncio.ensure_future(policy(ChatRequest(rollout_id="r", messages=QUESTION)))
        await until(lambda: seen)
        task.cancel()
        await asyncio.wait([task])
        await until(lambda: ended)


async def test_the_servers_version_of_the_weights_comes_first():
    response = await ask({**SGLANG, "metadata": {"weight_version": "step-8"}}, version="step-7")
    assert response.versions == (VersionSpan("step-8", 2),)


AGENTS = {
    "logprobs": {"logprobs": False},
    "no logprobs": {"logprobs": None, "top_logprobs": 2},
    "ids": {"return_token_ids": False},
    "one of several": {"n": 1},
    "a stream": {"stream": True, "stream_options": {"include_usage": False}},
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("params", AGENTS.values(), ids=list(AGENTS))
async def test_an_agent_cannot_switch_off_what_training_needs(params, stream):
    async with model_server(VLLM) as (url, seen), OpenAIPolicy(url, "m", stream=stream) as policy:
        response = await policy(ChatRequest(rollout_id="r", messages=QUESTION, params=params))
    ((_, body),) = seen
    kept = {name: params[name] for name in ("n", "top_logprobs") if name in params}
    options = {"stream_options": {"include_usage": True}} if stream else {}
    own = {"model": "m", "messages": QUESTION, "stream": stream, "logprobs": True, "return_token_ids": True}
    assert body == {**NEUTRAL, **own, **options, **kept}
    assert response.tokens is not None
    assert response.tokens.logprobs is not None


async def test_a_policy_without_token_ids_forwards_what_the_agent_asks_for():
    params = {"logprobs": True, "echo": True}
    async with model_server(PLAIN) as (url, seen), OpenAIPolicy(url, "m", token_ids=False, logprobs=False) as policy:
        await policy(ChatRequest(rollout_id="r", messages=QUESTION, params=params))
    assert seen[0][1] == {"model": "m", "messages": QUESTION, "stream": False, **params}


async def test_weights_that_have_lost_their_name_are_waited_for():
    """The server was started again, and samples with the weights of its disk."""
    names = iter(["step-8", "default", "step-9"])

    async def answers(request: web.Request) -> web.Response:
        return web.json_response({**SGLANG, "metadata": {"weight_version": next(names)}})

    chat = ChatRequest(rollout_id="r", messages=QUESTION)
    async with model_server(answers) as (url, _), OpenAIPolicy(url, "m") as policy:
        assert (await policy(chat)).versions == (VersionSpan("step-8", 2),)
        with pytest.raises(Unavailable):
            await policy(chat)
        assert (await policy(chat)).versions == (VersionSpan("step-9", 2),)
