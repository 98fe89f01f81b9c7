"""The official anthropic package drives a rollout through its base URL."""

from dataclasses import replace

import numpy as np
import pytest

from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.types import OutcomeStatus
from tests.endpoints.programs import outcome_of

pytestmark = pytest.mark.adapters
anthropic = pytest.importorskip("anthropic")

TOOL = {"name": "add", "description": "Adds.", "input_schema": {"type": "object", "properties": {"a": {}}}}
USER = {"role": "user", "content": "What is 1 + 1?"}


def client(endpoint, **options):
    return anthropic.AsyncAnthropic(base_url=endpoint.base_url, api_key=endpoint.api_key, **options)


def policy(request):
    if request.chat_number == 1:
        calls = [
            {"id": name, "type": "function", "function": {"name": "add", "arguments": '{"a":  1}'}} for name in "ab"
        ]
        message = {"role": "assistant", "content": "I add.", "tool_calls": calls, "reasoning_content": "sums"}
        return answer(request, message, tokens=7)
    return answer(request, f"reply {request.chat_number}", tokens=5)


async def created(model, stream, **body):
    body = {"model": "policy", "max_tokens": 99} | body
    if not stream:
        return await model.messages.create(**body)
    async with model.messages.stream(**body) as events:
        return await events.get_final_message()


@pytest.mark.parametrize("stream", [False, True])
async def test_content_blocks_become_one_conversation_in_one_segment(stream):
    given, seen = [], []

    def watched(request):
        seen.append(request)
        given.append(policy(request))
        return given[-1]

    async def program(endpoint):
        messages = [USER]
        async with client(endpoint) as model:
            for turn in range(3):
                reply = await created(model, stream, system="Be short.", messages=messages, tools=[TOOL])
                assert reply.usage.output_tokens in (5, 7)
                messages.append({"role": "assistant", "content": [block.model_dump() for block in reply.content]})
                used = [block for block in reply.content if block.type == "tool_use"]
                assert reply.stop_reason == ("tool_use" if used else "end_turn")
                assert [block.input for block in used] == [{"a": 1}] * len(used)
                results = [{"type": "tool_result", "tool_use_id": block.id, "content": "2"} for block in used]
                messages.append({"role": "user", "content": results or f"again {turn}"})
            assert reply.content[0].text == "reply 3"
        return 1.0

    outcome = await outcome_of(program, watched)
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
    (segment,) = outcome.samples["main"].segments
    assert segment.chats == (1, 2, 3)
    assert np.array_equal(segment.ids[segment.mask()], np.concatenate([reply.tokens.ids for reply in given]))
    assert [message["role"] for message in seen[1].messages] == ["system", "user", "assistant", "tool", "tool"]
    assert seen[0].params == {"max_tokens": 99}
    assert seen[0].tools[0]["function"]["name"] == "add"


async def test_parameters_images_and_errors():
    seen = []

    def watched(request):
        seen.append(request)
        return answer(request, "fine")

    async def program(endpoint):
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
        async with client(endpoint) as model:
            await model.messages.create(
                model="policy",
                max_tokens=5,
                stop_sequences=["END"],
                extra_body={"temperature": 0.5},
                tools=[TOOL],
                tool_choice={"type": "any", "disable_parallel_tool_use": True},
                messages=[{"role": "user", "content": [{"type": "text", "text": "look"}, image]}],
            )
        async with anthropic.AsyncAnthropic(base_url=endpoint.base_url, api_key="wrong") as model:
            with pytest.raises(anthropic.AuthenticationError):
                await model.messages.create(model="policy", max_tokens=5, messages=[USER])

    outcome = await outcome_of(program, watched)
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
    assert seen[0].params == {
        "max_tokens": 5,
        "temperature": 0.5,
        "stop": ["END"],
        "tool_choice": "required",
        "parallel_tool_calls": False,
    }
    assert seen[0].messages[0]["content"][1]["image_url"]["url"] == "data:image/png;base64,AAAA"


@pytest.mark.parametrize("stream", [False, True])
async def test_an_empty_reply_continues_its_conversation(stream):
    async def program(endpoint):
        async with client(endpoint) as model:
            reply = await created(model, stream, messages=[USER])
            assert reply.content == []
            messages = [USER, {"role": "assistant", "content": []}, USER]
            assert (await created(model, stream, messages=messages)).content[0].text == "second"
        return 1.0

    outcome = await outcome_of(program, lambda request: answer(request, "" if request.chat_number == 1 else "second"))
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
    assert [segment.chats for segment in outcome.samples["main"].segments] == [(1, 2)]


async def test_structured_output_failed_tools_and_stop_sequences():
    seen = []

    def watched(request):
        seen.append(request)
        if len(seen) == 1:
            call = {"id": "a", "type": "function", "function": {"name": "add", "arguments": "no json"}}
            return answer(request, {"role": "assistant", "content": None, "tool_calls": [call]})
        return replace(answer(request, "fine"), extra={"stop_reason": "END"})

    async def program(endpoint):
        async with client(endpoint) as model:
            schema = {"type": "object"}
            config = {"format": {"type": "json_schema", "schema": schema}, "effort": "low"}
            body = {"model": "policy", "max_tokens": 5, "stop_sequences": ["END"], "output_config": config}
            reply = await model.messages.create(**body, messages=[USER])
            assert reply.content[0].input == {"arguments": "no json"}
            result = {"type": "tool_result", "tool_use_id": "a", "content": "no number", "is_error": True}
            turn = [{"role": "assistant", "content": reply.content}, {"role": "user", "content": [result]}]
            reply = await model.messages.create(**body, messages=[USER, *turn])
            assert (reply.stop_reason, reply.stop_sequence) == ("stop_sequence", "END")
        return 1.0

    outcome = await outcome_of(program, watched)
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
    assert seen[0].params["response_format"]["json_schema"] == {"name": "output", "schema": {"type": "object"}}
    assert seen[0].params["reasoning_effort"] == "low"
    assert seen[1].messages[-1] == {"role": "tool", "tool_call_id": "a", "content": "Error: no number"}
    assert [segment.chats for segment in outcome.samples["main"].segments] == [(1, 2)]


@pytest.mark.parametrize("finish_reason", ["length", "model_context_window_exceeded"])
async def test_a_reply_that_was_cut_has_the_stop_reason_max_tokens(finish_reason):
    async def program(endpoint):
        async with client(endpoint) as model:
            reply = await model.messages.create(model="policy", max_tokens=5, messages=[USER])
            assert reply.stop_reason == "max_tokens"

    def cut(request):
        return replace(answer(request, "half"), finish_reason=finish_reason)

    outcome = await outcome_of(program, cut)
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
