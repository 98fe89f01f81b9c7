"""Long and many requests: they take bounded memory, and the event loop stays free."""

import asyncio
import json
import threading

import pytest

from osmosis_grpc.endpoints import request_bodies
from osmosis_grpc.endpoints.byte_budget import ByteBudget
from osmosis_grpc.endpoints.open_chats import Waits
from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.types import OutcomeStatus
from tests.endpoints.programs import USER, outcome_of

pytestmark = pytest.mark.adapters
httpx2 = pytest.importorskip("httpx2")
openai = pytest.importorskip("openai")

LONG = {"role": "user", "content": "x" * 2 * request_bodies.THREAD_BYTES}


def policy(request):
    return answer(request, "fine")


async def test_a_long_body_is_read_on_a_thread(monkeypatch):
    threads, parse = [], request_bodies.parse_body

    def watched(raw, **options):
        threads.append(threading.current_thread() is threading.main_thread())
        return parse(raw, **options)

    async def program(endpoint):
        async with openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key) as model:
            for message in (USER, LONG):
                await model.chat.completions.create(model="policy", messages=[message])
        return 1.0

    monkeypatch.setattr(request_bodies, "parse_body", watched)
    outcome = await outcome_of(program, policy)
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
    assert threads == [True, False]


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b'{"x": [' + b"1," * (request_bodies.MAX_MARKS + 1) + b"1]}", "more than 500,000"),
        (json.dumps({"messages": [USER] * (request_bodies.MAX_ITEMS // 2)}).encode(), "more than 50,000 values"),
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
            large = {"role": "user", "content": "x" * request_bodies.BOUNDS.size}
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


async def test_slow_bodies_of_one_rollout_keep_no_other_out(monkeypatch):
    monkeypatch.setattr("osmosis_grpc.network.http.server.agent_connections", lambda: 8)
    told = asyncio.Event()

    async def slow(endpoint):
        url = httpx2.URL(endpoint.base_url)
        head = f"POST {url.path}/chat/completions HTTP/1.1\r\nhost: h\r\nauthorization: Bearer {endpoint.api_key}\r\n"
        head += "content-type: application/json\r\ncontent-length: 1000\r\n\r\n{"
        writers = []
        for _ in range(24):
            _, writer = await asyncio.open_connection(url.host, url.port)
            writer.write(head.encode())
            writers.append(writer)
        async with openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key, max_retries=0) as model:
            for _ in range(3):
                await model.chat.completions.create(model="policy", messages=[USER])
        for writer in writers:
            writer.close()
        told.set()
        return 1.0

    outcome = await outcome_of(slow, policy)
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
    assert told.is_set()


async def test_a_rollout_waits_for_so_many_replies_at_once_and_its_clients_retry():
    async def program(endpoint):
        async with openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key, max_retries=0) as model:
            chats = [asyncio.create_task(ask(model, f"{number}")) for number in range(3)]
            done, waiting = await asyncio.wait(chats, return_when=asyncio.FIRST_COMPLETED)
            [refused] = done
            assert refused.exception().status_code == 429
            headers = refused.exception().response.headers
            assert (headers["x-should-retry"], headers["retry-after"]) == ("true", "1")
            gate.set()
            await asyncio.gather(*waiting)
            await ask(model, "again")
        return 1.0

    async def ask(model, text):
        await model.chat.completions.create(model="policy", messages=[{"role": "user", "content": text}])

    async def policy(request):
        await gate.wait()
        return answer(request, "fine")

    gate = asyncio.Event()
    outcome = await outcome_of(program, policy, waits=Waits(most=2))
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
