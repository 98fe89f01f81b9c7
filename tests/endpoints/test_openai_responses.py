"""OpenAI's Responses API through the base URL: the official package, and the Agents SDK on top of it."""

import json
from dataclasses import replace

import numpy as np
import pytest

from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.types import OutcomeStatus
from tests.endpoints.programs import outcome_of

pytestmark = pytest.mark.adapters
openai = pytest.importorskip("openai")

TOOL = {
    "type": "function",
    "name": "add",
    "description": "Adds.",
    "parameters": {"type": "object", "properties": {"a": {"type": "number"}}},
    "strict": False,
}


def client(endpoint, **options):
    return openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key, **options)


def policy(request):
    if request.chat_number == 1:
        calls = [
            {"id": name, "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}} for name in "ab"
        ]
        message = {"role": "assistant", "content": "I add.", "tool_calls": calls, "reasoning_content": "sums"}
        return answer(request, message, tokens=7)
    return answer(request, f"reply {request.chat_number}", tokens=5)


async def created(model, stream, **body):
    if not stream:
        return await model.responses.create(model="policy", **body)
    kinds = []
    async with model.responses.stream(model="policy", **body) as events:
        async for event in events:
            kinds.append(event.type)
        final = await events.get_final_response()
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
    return final


@pytest.mark.parametrize("stream", [False, True])
async def test_items_become_one_conversation_in_one_segment(stream):
    given, seen = [], []

    def watched(request):
        seen.append(request)
        given.append(policy(request))
        return given[-1]

    async def program(endpoint):
        items = [{"role": "user", "content": "What is 1 + 1?"}]
        async with client(endpoint) as model:
            for _ in range(3):
                reply = await created(
                    model, stream, instructions="Be short.", input=items, tools=[TOOL], max_output_tokens=99
                )
                assert reply.status == "completed"
                assert reply.usage.output_tokens in (5, 7)
                items += [item.model_dump(exclude_none=True) for item in reply.output]
                for item in reply.output:
                    if item.type == "function_call":
                        assert json.loads(item.arguments) == {"a": 1}
                        items.append({"type": "function_call_output", "call_id": item.call_id, "output": "2"})
                if reply.output[-1].type == "message":
                    items.append({"role": "user", "content": "again"})
            assert reply.output_text == "reply 3"
        return 1.0

    outcome = await outcome_of(program, watched)
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
    (segment,) = outcome.samples["main"].segments
    assert segment.chats == (1, 2, 3)
    assert np.array_equal(segment.ids[segment.mask()], np.concatenate([reply.tokens.ids for reply in given]))
    assert [message["role"] for message in seen[1].messages] == ["system", "user", "assistant", "tool", "tool"]
    assert seen[0].params == {"max_tokens": 99}
    assert seen[0].tools[0]["function"]["name"] == "add"


async def test_structured_output_and_refusals():
    seen = []

    def watched(request):
        seen.append(request.params)
        return answer(request, '{"sum": 5}')

    async def program(endpoint):
        text = {"format": {"type": "json_schema", "name": "sum", "schema": {"type": "object"}}}
        async with client(endpoint) as model:
            reply = await model.responses.create(model="policy", input="2 + 3?", text=text)
            assert json.loads(reply.output_text) == {"sum": 5}
            for field, refused in (
                ("previous_response_id", {"previous_response_id": "resp_1"}),
                ("input[0].type", {"input": [{"type": "item_reference", "id": "x"}]}),
            ):
                with pytest.raises(openai.BadRequestError) as caught:
                    await model.responses.create(**{"model": "policy", "input": "x"} | refused)
                assert caught.value.body["message"].startswith(field)

    outcome = await outcome_of(program, watched)
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
    assert seen[0]["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "sum", "schema": {"type": "object"}},
    }


async def test_the_agents_sdk_runs_tools_and_hands_over_to_another_agent():
    agents = pytest.importorskip("agents")

    def scripted(request):
        system = request.messages[0]["content"]
        called = [m for m in request.messages if m["role"] == "tool"]
        if system.startswith("You add") and not called:
            call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": 3}'}}
            return answer(request, {"role": "assistant", "content": None, "tool_calls": [call]})
        return answer(request, f"The sum is {called[-1]['content']}.")

    async def program(endpoint):
        @agents.function_tool
        def add(a: int, b: int) -> int:
            """Adds two numbers."""
            return a + b

        agents.set_tracing_disabled(True)
        model = agents.OpenAIResponsesModel(model="policy", openai_client=client(endpoint))
        adder = agents.Agent(name="adder", instructions="You add numbers.", model=model, tools=[add])
        result = await agents.Runner.run(adder, "2 + 3?")
        return 1.0 if result.final_output == "The sum is 5." else 0.0

    outcome = await outcome_of(program, scripted)
    assert (outcome.status, outcome.reward) == (OutcomeStatus.COMPLETED, 1.0), outcome.failure
    assert len(outcome.samples["main"].segments) == 1


@pytest.mark.parametrize(
    ("finish_reason", "details"),
    [
        ("length", "max_output_tokens"),
        ("model_context_window_exceeded", "max_output_tokens"),
        ("content_filter", "content_filter"),
    ],
)
async def test_a_reply_that_was_cut_off_is_incomplete(finish_reason, details):
    async def program(endpoint):
        async with client(endpoint) as model:
            whole = await model.responses.create(model="policy", input="x", reasoning={"effort": "low"})
            stream = await model.responses.create(model="policy", input="y", stream=True, text={"verbosity": "low"})
            events = [event async for event in stream]
            assert events[-1].type == "response.incomplete"
            for reply in (whole, events[-1].response):
                assert (reply.status, reply.incomplete_details.reason) == ("incomplete", details)
                assert reply.output[-1].status == "incomplete"
        return 1.0

    seen = []

    def cut(request):
        seen.append(request.params)
        return replace(answer(request, "half"), finish_reason=finish_reason)

    outcome = await outcome_of(program, cut)
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
    assert seen == [{"reasoning_effort": "low"}, {"verbosity": "low"}]
