"""Slow replies: a client that gives up and asks again gets the reply of its first request."""

import asyncio

import httpx
import pytest

from osmosis_grpc.endpoints.open_chats import Waits
from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import OutcomeStatus
from tests.endpoints.programs import USER, outcome_of

pytestmark = pytest.mark.adapters
anthropic = pytest.importorskip("anthropic")
openai = pytest.importorskip("openai")

SOON = Waits(headers=0.05, ping=0.05)


def chat(endpoint, **options):
    return openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key, **options)


@pytest.mark.parametrize("stream", [False, True])
async def test_the_retry_of_a_client_joins_its_chat(stream):
    asked = []

    async def slow(request):
        asked.append(request)
        await asyncio.sleep(1.0)  # a slow policy
        return answer(request, "the reply")

    async def program(endpoint):
        async with chat(endpoint, timeout=0.4, max_retries=5) as model:
            if not stream:
                reply = await model.chat.completions.create(model="policy", messages=[USER])
            else:
                async with model.chat.completions.stream(model="policy", messages=[USER]) as chunks:
                    reply = await chunks.get_final_completion()
        assert reply.choices[0].message.content == "the reply"
        return 1.0

    outcome = await outcome_of(program, slow)
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
    assert len(asked) == 1
    assert list(outcome.samples) == ["main"]


async def test_equal_requests_at_the_same_time_are_chats_of_their_own():
    async def program(endpoint):
        async with chat(endpoint) as model:
            replies = await asyncio.gather(
                *[model.chat.completions.create(model="policy", messages=[USER]) for _ in range(3)]
            )
        assert len({reply.choices[0].message.content for reply in replies}) == 3
        return 1.0

    async def policy(request):
        await asyncio.sleep(0.1)  # a slow policy
        return answer(request, request.sample)

    outcome = await outcome_of(program, policy)
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
    assert list(outcome.samples) == ["main", "sample-2", "sample-3"]


async def test_a_stream_sends_comments_while_it_waits():
    asked = []

    async def slow(request):
        asked.append(request)
        await asyncio.sleep(1.0)  # a slow policy
        return answer(request, "the reply")

    async def program(endpoint):
        options = {"timeout": 0.5, "max_retries": 0}
        async with chat(endpoint, **options) as model:
            async with model.chat.completions.stream(model="policy", messages=[USER]) as chunks:
                assert (await chunks.get_final_completion()).choices[0].message.content == "the reply"
            async with model.responses.stream(model="policy", input="hello") as events:
                assert (await events.get_final_response()).output_text == "the reply"
        key = {"base_url": endpoint.base_url, "api_key": endpoint.api_key}
        model = anthropic.AsyncAnthropic(**key, **options)
        async with model, model.messages.stream(model="policy", max_tokens=9, messages=[USER]) as events:
            assert await events.get_final_text() == "the reply"
        return 1.0

    outcome = await outcome_of(program, slow, waits=SOON)
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
    assert len(asked) == 3


async def test_an_error_after_the_beginning_of_a_stream_is_an_event():
    async def slow(request):
        await asyncio.sleep(0.3)  # a slow policy
        raise InvalidArgument("messages", "are too long")

    async def program(endpoint):
        async with chat(endpoint) as model:
            with pytest.raises(openai.APIError, match="are too long"):
                async with model.chat.completions.stream(model="policy", messages=[USER]) as chunks:
                    await chunks.get_final_completion()
            async with model.responses.stream(model="policy", input="hello") as events:
                failed = [event.response async for event in events if event.type == "response.failed"]
            assert [(response.status, response.error.code) for response in failed] == [("failed", "invalid_field")]
        async with anthropic.AsyncAnthropic(base_url=endpoint.base_url, api_key=endpoint.api_key) as model:
            with pytest.raises(anthropic.APIStatusError, match="are too long"):
                async with model.messages.stream(model="policy", max_tokens=9, messages=[USER]) as events:
                    await events.get_final_text()
        return 1.0

    outcome = await outcome_of(program, slow, waits=SOON)
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure


async def test_a_stream_whose_client_leaves_is_cancelled_without_a_retry():
    asked, cancelled = asyncio.Event(), asyncio.Event()

    async def slow(request):
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async def program(endpoint):
        async with chat(endpoint, max_retries=0, timeout=0.3) as model:
            with pytest.raises((openai.APITimeoutError, httpx.ReadTimeout)):  # depends on the version of openai
                async with model.chat.completions.stream(model="policy", messages=[USER]) as chunks:
                    await chunks.get_final_completion()
        async with asyncio.timeout(10):
            await cancelled.wait()
        return 1.0

    outcome = await outcome_of(program, slow, waits=Waits(headers=0.05, ping=60, retry=0.1))
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
