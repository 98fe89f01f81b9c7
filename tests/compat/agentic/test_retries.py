"""ARL row 12: the status or the type of an error decides about a retry, within the attempts and the deadline."""

import asyncio
import email.utils
import socket
import time
import urllib.error

import httpx
import pytest

from osmosis_grpc.agentic import OpenAIFunction, policy_of
from osmosis_grpc.compat.agentic.llm_calls import LLMError, Retries, call_error
from osmosis_grpc.protocol.errors import DeadlineExceeded, Internal, ResourceExhausted, Unavailable
from osmosis_grpc.protocol.types import ChatRequest
from tests.compat.agentic.model_servers import serving
from tests.model_server import reply

QUESTION = [{"role": "user", "content": "500 and 400 are only words here"}]
REQUEST = ChatRequest(rollout_id="r", messages=QUESTION)
QUICK = Retries(attempts=3, first=0.001, longest=5.0)


def llm_of(server, **config):
    return OpenAIFunction(model="m", base_url=f"{server.url}/v1", **{"retries": QUICK} | config)


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504, 529])
@pytest.mark.row("ARL 12")
async def test_these_statuses_are_retried(status):
    async with serving(status, status, reply("ok")) as server:
        assert await llm_of(server).generate(QUESTION) == "ok"
    assert len(server.bodies) == 3
    async with serving(status) as server:
        with pytest.raises(LLMError, match=f"after 3 calls: .*{status}") as raised:
            await llm_of(server)(QUESTION)
    assert len(server.bodies) == raised.value.attempts == 3


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 409, 413, 422])
@pytest.mark.row("ARL 12")
async def test_these_statuses_are_never_retried(status):
    async with serving(status) as server:
        with pytest.raises(LLMError, match="after 1 call:"):
            await llm_of(server)(QUESTION)
    assert len(server.bodies) == 1


@pytest.mark.row("ARL 12")
async def test_retry_after_sets_the_shortest_pause():
    async with serving((429, {"Retry-After": "1"}), reply("ok")) as server:
        assert await llm_of(server).generate(QUESTION) == "ok"
    assert server.times[1] - server.times[0] >= 0.99  # the server asked for a second


@pytest.mark.parametrize(
    "form", [str, lambda n: email.utils.formatdate(time.time() + n, usegmt=True)], ids=["s", "date"]
)
@pytest.mark.row("ARL 12")
async def test_a_longer_retry_after_than_the_longest_pause_ends_the_retries(form):
    async with serving((429, {"Retry-After": form(600)})) as server:
        with pytest.raises(LLMError, match="after 1 call:") as raised:
            await llm_of(server)(QUESTION)
    assert len(server.bodies) == 1
    assert 500 < raised.value.cause.retry_after <= 600


@pytest.mark.row("ARL 12")
async def test_no_retry_begins_after_the_deadline():
    async with serving((503, {"Retry-After": "4"})) as server:
        with pytest.raises(LLMError, match="after 1 call:"):
            await llm_of(server)(QUESTION, deadline=3.0)
    assert len(server.bodies) == 1


@pytest.mark.row("ARL 12")
async def test_the_deadline_ends_a_call_that_hangs():
    async def hangs(request):
        await asyncio.sleep(3600)

    async with serving(hangs) as server:
        with pytest.raises(LLMError) as raised:
            await llm_of(server)(QUESTION, deadline=0.2)
    assert isinstance(raised.value.cause, DeadlineExceeded)
    assert len(server.bodies) == 1


@pytest.mark.row("ARL 12")
async def test_failed_connections_and_timeouts_are_retried():
    async def hangs(request):
        await asyncio.sleep(3600)

    async def breaks(request):
        request.transport.abort()

    async with serving(hangs, breaks, reply("ok")) as server:
        assert await llm_of(server, timeout=0.2).generate(QUESTION) == "ok"
    assert len(server.bodies) == 3
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(LLMError, match="after 3 calls") as raised:
        await OpenAIFunction(model="m", base_url=f"http://127.0.0.1:{port}/v1", retries=QUICK)(QUESTION)
    assert isinstance(raised.value.cause, Unavailable)


def status_error(status, **headers):
    request = httpx.Request("POST", "http://model")
    return httpx.HTTPStatusError(
        "x", request=request, response=httpx.Response(status, request=request, headers=headers)
    )


@pytest.mark.parametrize(
    ("error", "kind", "retried"),
    [
        (status_error(429, **{"Retry-After": "0"}), ResourceExhausted, True),
        (status_error(500), Unavailable, True),
        (status_error(404), Internal, False),
        (httpx.ConnectError("no"), Unavailable, True),
        (httpx.ReadTimeout("late"), DeadlineExceeded, True),
        (TimeoutError(), DeadlineExceeded, True),
        (ConnectionResetError(), Unavailable, True),
        (socket.gaierror(), Unavailable, True),
        (urllib.error.URLError("no"), Unavailable, True),
        (urllib.error.HTTPError("http://model", 503, "no", {}, None), Unavailable, True),
        (ValueError("the text names 429 and timeout"), Internal, False),
        (FileNotFoundError("x"), Internal, False),
    ],
    ids=repr,
)
@pytest.mark.row("ARL 12")
async def test_an_error_of_a_function_is_judged_by_status_and_type(error, kind, retried):
    calls = []

    def fails(messages):
        calls.append(1)
        raise error

    assert type(call_error(error)) is kind
    with pytest.raises(LLMError) as raised:
        await policy_of(fails, QUICK)(REQUEST)
    assert len(calls) == (3 if retried else 1)
    assert type(raised.value.cause) is kind


@pytest.mark.row("ARL 12")
async def test_an_error_of_this_policy_is_not_retried_again():
    def fails(messages):
        raise ConnectionResetError

    inner, calls = policy_of(fails, QUICK), []

    async def outer(messages):
        calls.append(1)
        return await inner(REQUEST)

    with pytest.raises(LLMError):
        await policy_of(outer, QUICK)(REQUEST)
    assert len(calls) == 1
