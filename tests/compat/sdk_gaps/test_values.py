"""The values and the helpers of an author."""

import asyncio
import copy
import json
import pickle

import numpy as np
import pydantic
import pytest

from osmosis_grpc.policies import EchoPolicy, ScriptedPolicy
from osmosis_grpc.protocol.types import ChatResponse, TokenBlock, events
from osmosis_grpc.protocol.types import RolloutRequest as EngineRequest
from osmosis_grpc.rollout import (
    CompletionsRequest,
    CompletionsResponse,
    InitResponse,
    OpenAIFunctionCallSchema,
    OpenAIFunctionParsedSchema,
    OpenAIFunctionSchema,
    OpenAIFunctionToolSchema,
    OsmosisServerError,
    OsmosisTimeoutError,
    OsmosisValidationError,
    RolloutAgentLoop,
    RolloutMetrics,
    RolloutRequest,
    RolloutResponse,
    RolloutStatus,
    ToolArgumentError,
    ToolResponse,
    create_tool_result,
    execute_tool_calls,
    get_max_metadata_size_bytes,
    get_tool_call_info,
    parse_tool_arguments,
    serialize_tool_result,
    set_max_metadata_size_bytes,
)
from osmosis_grpc.testing import collect_rollout, run_rollout

HI = [{"role": "user", "content": "Hi"}]


def call(name, arguments="{}", call_id="c0"):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


async def fails(tool_call):
    if tool_call["function"]["name"] == "bad":
        raise LookupError("no such row")
    await asyncio.sleep(0)
    return create_tool_result(tool_call["id"], "done")


@pytest.mark.row("SDK S4")
async def test_the_exception_of_an_executor_passes_through():
    finished = []

    async def executor(tool_call):
        result = await fails(tool_call)
        finished.append(tool_call["id"])
        return result

    with pytest.raises(LookupError, match=r"^no such row$"):
        await execute_tool_calls([call("bad"), call("good", call_id="c1")], executor)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert finished == ["c1"]


@pytest.mark.row("SDK S4")
async def test_no_calls_are_no_messages():
    assert await execute_tool_calls(None, fails) == []
    assert await execute_tool_calls([], fails) == []


@pytest.mark.parametrize("caught", [True, False])
@pytest.mark.row("SDK S4")
async def test_in_a_rollout_the_agent_decides_what_an_exception_means(caught):
    class Agent(RolloutAgentLoop):
        name = "agent"

        def get_tools(self, request):
            return []

        async def run(self, ctx):
            reply = await ctx.chat(ctx.request.messages)
            try:
                await execute_tool_calls(reply.tool_calls, fails)
            except LookupError as error:
                if not caught:
                    raise
                return ctx.error(f"the tool failed: {error}")

    asks = {"role": "assistant", "content": None, "tool_calls": [call("bad")]}
    outcome, seen = await collect_rollout(Agent(), ScriptedPolicy([asks]), HI)
    assert outcome.status == "FAILED"
    assert outcome.failure.reason == ("AGENT_ERROR" if caught else "AGENT_EXCEPTION")
    assert "no such row" in outcome.failure.message
    (returned,) = [event.kind for event in seen if isinstance(event.kind, events.ToolReturned)]
    assert returned.error.startswith("LookupError: no such row at ")
    assert returned.message is None
    assert outcome.metrics.num_tool_calls == 1


async def tokens_of(block):
    found = []

    class Agent(RolloutAgentLoop):
        name = "agent"

        def get_tools(self, request):
            return []

        async def run(self, ctx):
            found.append(await ctx.chat(ctx.request.messages))
            return ctx.complete([])

    async def policy(request):
        return ChatResponse(message={"role": "assistant", "content": "x"}, tokens=block)

    await run_rollout(Agent(), policy, HI)
    return found[0]


@pytest.mark.row("SDK S7")
async def test_tokens_are_a_list():
    reply = await tokens_of(TokenBlock.of([5, 6], [-0.5, -1.0]))
    assert reply.token_ids
    assert reply.token_ids == [5, 6]
    more = [7]
    assert reply.token_ids + more == [5, 6, 7]
    assert more + reply.token_ids == [7, 5, 6]
    assert (
        json.dumps({"ids": reply.token_ids, "logprobs": reply.logprobs}) == '{"ids": [5, 6], "logprobs": [-0.5, -1.0]}'
    )
    assert all(type(token) is int for token in reply.token_ids)
    assert (reply.token_ids[0], reply.token_ids[-1:], len(reply.logprobs), sum(reply.logprobs)) == (5, [6], 2, -1.5)
    assert reply.token_ids is reply.token_ids
    assert copy.deepcopy(reply) == reply == pickle.loads(pickle.dumps(reply))


@pytest.mark.row("SDK S7")
async def test_tokens_are_an_array_when_asked():
    block = TokenBlock.of([5, 6], [-0.5, np.nan])
    reply = await tokens_of(block)
    assert reply.token_ids.array is block.ids
    assert reply.logprobs.array is block.logprobs
    assert np.asarray(reply.token_ids).tolist() == [5, 6]
    assert np.isnan(reply.logprobs[1])


@pytest.mark.row("SDK S7")
async def test_without_tokens_the_lists_are_empty():
    reply = await tokens_of(None)
    assert not reply.token_ids
    assert reply.token_ids == reply.logprobs == []
    assert (len(reply.token_ids.array), reply.token_ids.array.dtype) == (0, "uint32")


# Pydantic's habits


GIVEN = {
    "rollout_id": "r1",
    "server_url": "http://trainer:8080",
    "messages": HI,
    "completion_params": {"temperature": 0.7},
    "metadata": {"ground_truth": "4"},
}


@pytest.mark.row("SDK S8")
def test_a_request_has_the_methods_of_a_pydantic_model():
    request = RolloutRequest(**GIVEN)
    dumped = request.model_dump()
    assert {name: dumped[name] for name in GIVEN} == GIVEN
    assert (dumped["max_turns"], dumped["max_tokens_total"], dumped["api_key"]) == (10, 8192, None)
    assert request.model_dump(include={"rollout_id"}) == {"rollout_id": "r1"}
    assert "api_key" not in request.model_dump(exclude_none=True)
    assert RolloutRequest.model_validate(dumped) == request == RolloutRequest(**dumped)
    assert RolloutRequest.model_validate_json(request.model_dump_json()) == request
    assert request.model_copy(update={"max_turns": 3}).max_turns == 3
    assert request.max_turns == 10
    deep = request.model_copy(deep=True)
    deep.messages.append({"role": "user", "content": "more"})
    assert len(request.messages) == 1
    assert request.model_fields_set == set(GIVEN)
    assert list(RolloutRequest.model_fields)[:2] == ["rollout_id", "server_url"]
    assert RolloutRequest.model_json_schema()["title"] == "RolloutRequest"
    assert RolloutRequest.model_construct(rollout_id="").rollout_id == ""
    assert request == EngineRequest(**GIVEN)
    assert "secret" not in repr(request.model_copy(update={"api_key": "secret"}))


@pytest.mark.row("SDK S8")
def test_a_request_can_be_assigned_and_converted():
    request = RolloutRequest(**GIVEN, max_turns="5", max_tokens_total=100.0)
    assert (request.max_turns, request.max_tokens_total) == (5, 100)
    request.max_turns = 2
    request.metadata = {"a": 1}
    assert (request.max_turns, request.metadata) == (2, {"a": 1})
    with pytest.raises(AttributeError):
        request.colour = "red"
    with pytest.raises(AttributeError, match="no field 'colour'"):
        request.model_copy(update={"colour": "red"})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"rollout_id": ""}, "at least 1 character"),
        ({"rollout_id": "   "}, "empty or whitespace"),
        ({"rollout_id": "x" * 257}, "at most 256 characters"),
        ({"server_url": "ftp://trainer"}, "is not an http"),
        ({"server_url": "http://"}, "is not an http"),
        ({"messages": "text"}, "valid list"),
        ({"metadata": {"x": "y" * 2**20}}, "maximum 1048576"),
        ({"metadata": {"x": object()}}, "is not JSON"),
    ],
)
@pytest.mark.row("SDK S8")
def test_a_request_is_checked(change, says):
    with pytest.raises(pydantic.ValidationError, match=says):
        RolloutRequest(**GIVEN | change)
    with pytest.raises(ValueError, match=says):
        RolloutRequest.model_validate(GIVEN | change)


@pytest.mark.row("SDK S8")
def test_the_limit_of_metadata_can_be_set():
    before = get_max_metadata_size_bytes()
    set_max_metadata_size_bytes(10)
    try:
        with pytest.raises(pydantic.ValidationError, match="maximum 10"):
            RolloutRequest(**GIVEN)
    finally:
        set_max_metadata_size_bytes(before)
    with pytest.raises(ValueError, match="size_bytes"):
        set_max_metadata_size_bytes(0)


@pytest.mark.row("SDK S8")
def test_a_request_is_a_field_of_pydantic_models():
    class Job(pydantic.BaseModel):
        request: RolloutRequest

    request = RolloutRequest(**GIVEN)
    assert Job(request=request).request is request
    assert Job(request=GIVEN).request == request
    assert Job.model_validate_json(Job(request=request).model_dump_json()).request == request


@pytest.mark.row("SDK S8")
async def test_the_request_of_a_rollout_has_the_same_class():
    seen = []

    class Agent(RolloutAgentLoop):
        name = "agent"

        def get_tools(self, request):
            seen.append(request)
            return []

        async def run(self, ctx):
            seen.append(ctx.request)
            ctx.request.max_turns = 1
            assert ctx.request.model_copy(update={"max_turns": 7}).max_turns == 7
            return ctx.complete(ctx.request.messages)

    outcome = await run_rollout(Agent(), EchoPolicy(), HI, metadata={"a": 1})
    assert outcome.status == "COMPLETED", outcome.failure
    assert [type(request) for request in seen] == [RolloutRequest, RolloutRequest]
    assert seen[0].model_dump()["metadata"] == {"a": 1}
    assert (seen[0].max_turns, seen[1].max_turns) == (10, 1)


@pytest.mark.row("SDK S8")
def test_the_other_bodies_are_pydantic_models():
    metrics = RolloutMetrics(num_llm_calls=1)
    metrics.num_tool_calls += 2
    assert metrics.model_dump(exclude_defaults=True) == {"num_llm_calls": 1, "num_tool_calls": 2}
    body = RolloutResponse(rollout_id="r", status="COMPLETED", metrics=metrics)
    assert (body.status, body.final_messages, body.reward) == (RolloutStatus.COMPLETED, [], None)
    assert body.model_dump(mode="json", exclude_none=True)["status"] == "COMPLETED"
    assert CompletionsRequest(rollout_id="r", messages=HI, colour="red").model_dump(exclude_none=True) == {
        "model": "default",
        "messages": HI,
        "rollout_id": "r",
        "temperature": 1.0,
        "top_p": 1.0,
        "max_tokens": 512,
        "logprobs": True,
    }
    with pytest.raises(pydantic.ValidationError):
        CompletionsRequest(rollout_id=" ", messages=HI)
    reply = CompletionsResponse(id="r", created=0, choices=[{"message": HI[0]}])
    assert (reply.object, reply.choices[0].finish_reason, reply.usage) == ("chat.completion", "stop", None)
    tool = OpenAIFunctionToolSchema(type="function", function=OpenAIFunctionSchema(name="f", description="F."))
    assert InitResponse(rollout_id="r", tools=[tool]).tools[0].function.parameters.type == "object"
    parsed = OpenAIFunctionParsedSchema(name="f", arguments='{"a": 1}')
    made, wrong = OpenAIFunctionCallSchema.from_openai_function_parsed_schema(parsed)
    assert (made.arguments, wrong) == ({"a": 1}, False)
    broken = OpenAIFunctionParsedSchema(name="f", arguments="[")
    assert OpenAIFunctionCallSchema.from_openai_function_parsed_schema(broken)[1]
    assert (ToolResponse(text="x").is_text_only(), ToolResponse().is_empty()) == (True, True)


@pytest.mark.row("SDK S8")
def test_errors_are_made_by_position():
    assert (str(OsmosisServerError("x", 503)), OsmosisServerError("x", 503).status_code) == ("x", 503)
    assert OsmosisValidationError("x", 422).status_code == 422
    assert OsmosisServerError("x").status_code == 500
    assert str(OsmosisTimeoutError("late")) == "late"


# What the model reads


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("{", "Invalid JSON arguments: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        ("", "Invalid JSON arguments: Expecting value: line 1 column 1 (char 0)"),
        ("[1]", "Expected dict from JSON, got list"),
        (None, "Expected str or dict arguments, got NoneType"),
        (5, "Expected str or dict arguments, got int"),
    ],
)
@pytest.mark.row("SDK S9")
def test_the_texts_of_wrong_arguments(arguments, says):
    with pytest.raises(ToolArgumentError) as raised:
        get_tool_call_info(call("f", arguments, "c7"))
    assert (str(raised.value), raised.value.tool_call_id, raised.value.tool_name) == (says, "c7", "f")
    with pytest.raises(ToolArgumentError) as raised:
        parse_tool_arguments(arguments)
    assert (str(raised.value), raised.value.tool_call_id) == (says, "")


@pytest.mark.row("SDK S9")
def test_a_call_without_parts():
    assert get_tool_call_info({"function": {"name": "f", "arguments": '{"a": 1}'}}) == ("unknown", "f", {"a": 1})
    assert get_tool_call_info({"id": "c", "function": {"name": "f"}}) == ("c", "f", {})
    assert get_tool_call_info({"id": None, "function": None}) == ("unknown", "", {})
    assert parse_tool_arguments({"a": 1}) == {"a": 1}


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (None, "null"),
        (True, "true"),
        (42, "42"),
        (3.14, "3.14"),
        ("hé", "hé"),
        ({"a": "é"}, '{"a": "\\u00e9"}'),
        ([1, None], "[1, null]"),
        ({"error": ValueError("x")}, '{"error": "x"}'),
        (np.float64(0.5), "0.5"),
    ],
)
@pytest.mark.row("SDK S9")
def test_the_texts_of_results(result, text):
    assert serialize_tool_result(result) == text


@pytest.mark.row("SDK S9")
def test_schemas_say_strict_and_parameters():
    tool = OpenAIFunctionToolSchema(type="function", function=OpenAIFunctionSchema(name="f", description="F."))
    assert tool.model_dump(exclude_none=True)["function"] == {
        "name": "f",
        "description": "F.",
        "parameters": {"type": "object", "properties": {}, "required": []},
        "strict": False,
    }
