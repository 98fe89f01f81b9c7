"""Tool calls without ids, and equal sub-agents: each call has an id of its own, on both sides."""

import asyncio

import pytest

from osmosis_grpc.policies.every_tool import EveryToolMock
from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.types import OutcomeStatus
from tests.endpoints.programs import USER, outcome_of

pytestmark = pytest.mark.adapters
anthropic = pytest.importorskip("anthropic")
openai = pytest.importorskip("openai")

FUNCTION = {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}}
TOOLS = [{"type": "function", "function": FUNCTION}]


def openai_client(endpoint):
    return openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key)


@pytest.mark.parametrize("given", [{}, {"id": None}, {"id": ""}, {"id": "same"}])
async def test_calls_without_an_id_of_their_own_get_one(given):
    asked = []

    def policy(request):
        asked.append(list(request.messages))
        if request.messages[-1]["role"] == "tool":
            return answer(request, "done")
        call = {"type": "function", "function": {"name": "look", "arguments": "{}"}} | given
        return answer(request, {"role": "assistant", "content": None, "tool_calls": [call, dict(call)]})

    async def program(endpoint):
        async with openai_client(endpoint) as model:
            reply = await model.chat.completions.create(model="policy", messages=[USER], tools=TOOLS)
            message = reply.choices[0].message
            ids = [call.id for call in message.tool_calls]
            assert len({*ids, ""}) == 3
            results = [{"role": "tool", "tool_call_id": call_id, "content": "5"} for call_id in ids]
            await model.chat.completions.create(model="policy", messages=[USER, message, *results], tools=TOOLS)
        async with anthropic.AsyncAnthropic(base_url=endpoint.base_url, api_key=endpoint.api_key) as model:
            tool = {"name": "look", "input_schema": FUNCTION["parameters"]}
            reply = await model.messages.create(model="policy", max_tokens=9, messages=[USER], tools=[tool])
        assert len({*[block.id for block in reply.content], None}) == 3
        return 1.0

    outcome = await outcome_of(program, policy)
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
    called = asked[1][1]["tool_calls"]
    assert [call["id"] for call in called] == [message["tool_call_id"] for message in asked[1][2:]]


async def test_equal_sub_agents_at_once_are_samples_of_their_own():
    async def sub_agent(endpoint):
        messages = [USER]
        async with openai_client(endpoint) as model:
            for _ in range(4):
                reply = await model.chat.completions.create(model="policy", messages=messages, tools=TOOLS)
                message = reply.choices[0].message
                messages = [*messages, message.model_dump(exclude_none=True)]
                if not message.tool_calls:
                    break
                messages += [{"role": "tool", "tool_call_id": each.id, "content": "5"} for each in message.tool_calls]
                await asyncio.sleep(0)  # let the others go on

    async def program(endpoint):
        await asyncio.gather(*[sub_agent(endpoint) for _ in range(3)])
        return 1.0

    outcome = await outcome_of(program, EveryToolMock())
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
    lengths = [len(sample.messages) for sample in outcome.samples.values()]
    assert len(lengths) == 3
    assert set(lengths) == {lengths[0]}


@pytest.mark.parametrize(("content", "parent"), [(None, 1), ("", 1), ("Let me look.", 1), ("I looked.", 0)])
async def test_a_reply_comes_back_without_its_text(content, parent):
    asked = []

    def policy(request):
        asked.append(request)
        if len(asked) > 1:
            return answer(request, "done")
        call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        return answer(request, {"role": "assistant", "content": "Let me look.", "tool_calls": [call]})

    async def program(endpoint):
        async with openai_client(endpoint) as model:
            reply = await model.chat.completions.create(model="policy", messages=[USER], tools=TOOLS)
            calls = [call.model_dump() for call in reply.choices[0].message.tool_calls]
            back = {"role": "assistant", "content": content, "tool_calls": calls}
            messages = [USER, back, {"role": "tool", "tool_call_id": "c1", "content": "5"}]
            await model.chat.completions.create(model="policy", messages=messages, tools=TOOLS)
        return 1.0

    outcome = await outcome_of(program, policy)
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
    assert [request.parent_chat for request in asked] == [0, parent]
    assert asked[1].messages[1]["content"] == ("Let me look." if parent else content)
