"""Long and many requests: they take bounded memory, and the event loop stays free."""

import asyncio
import json
import threading

import pytest

from osmosis_gateway.base_url import reading
from osmosis_gateway.base_url.byte_budget import ByteBudget
from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.types import OutcomeStatus
from tests.gateway.base_url.programs import USER, outcome_of

pytestmark = pytest.mark.adapters
httpx2 = pytest.importorskip("httpx2")
openai = pytest.importorskip("openai")

LONG = {"role": "user", "content": "x" * 2 * reading.THREAD_BYTES}


def policy(request):
    return answer(request, "fine")


async def test_a_long_body_is_read_on_a_thread(monkeypatch):
    threads, parse = [], reading.parse_body

    def watched(raw):
        threads.append(threading.current_thread() is threading.main_thread())
        return parse(raw)

    async def program(endpoint):
        async with openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key) as model:
            for message in (USER, LONG):
                await model.chat.completions.create(model="policy", messages=[message])
        return 1.0

    monkeypatch.setattr(reading, "parse_body", watched)
    outcome = await outcome_of(program, policy)
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
    assert threads == [True, False]


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b'{"x": [' + b"1," * (reading.MAX_MARKS + 1) + b"1]}", "more than 500,000"),
        (json.dumps({"messages": [USER] * (reading.MAX_ITEMS // 2)}).encode(), "more than 50,000 values"),
    ],
)
async def test_a_body_that_would_block_the_event_loop_is_refused(body, problem):
    async def program(endpoint):
        headers = {"x-api-key": endpoint.api_key, "content-type": "application/json"}
        async with httpx2.AsyncClient(headers=headers) as http:
            response = await http.post(f"{endpoint.base_url}/chat/completions", content=body)
        assert response.status_code == 400
        assert problem in response.json()["error"]["message"]
        return 1.0

    outcome = await outcome_of(program, policy)
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure


async def test_a_body_that_is_too_large_is_refused_with_a_clear_error():
    async def program(endpoint):
        async with openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key) as model:
            large = {"role": "user", "content": "x" * reading.BOUNDS.size}
            with pytest.raises(openai.APIStatusError, match="larger than") as caught:
                await model.chat.completions.create(model="policy", messages=[large])
        assert caught.value.status_code == 413
        return 1.0

    outcome = await outcome_of(program, policy)
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure


async def test_refused_requests_leave_no_sample_behind():
    async def program(endpoint):
        async with openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key) as model:
            for number in range(3):
                with pytest.raises(openai.BadRequestError):
                    wrong = {"role": "nobody", "content": f"{number}"}
                    await model.chat.completions.create(model="policy", messages=[wrong])
            await model.chat.completions.create(model="policy", messages=[USER])
        return 1.0

    outcome = await outcome_of(program, policy)
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
    assert list(outcome.samples) == ["main"]


async def test_requests_beyond_the_budget_wait_for_their_turn():
    budget, order = ByteBudget(10), []

    async def request(name, size):
        taken = await budget.take(size)
        order.append(name)
        return taken

    assert await budget.take(8) == 8
    waiting = [asyncio.create_task(request(name, size)) for name, size in [("large", 99), ("gone", 1), ("small", 1)]]
    await asyncio.sleep(0)
    waiting[1].cancel()
    await asyncio.sleep(0)
    assert order == []
    budget.give(8)
    assert await waiting[0] == 10
    assert order == ["large"]
    budget.give(10)
    assert await waiting[2] == 1
    assert await budget.take(9) == 9
