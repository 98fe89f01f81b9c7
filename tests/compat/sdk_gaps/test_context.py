"""A context that a unit test makes, its tools, its model and its results."""

import json
from unittest.mock import AsyncMock, MagicMock

import pytest

from osmosis_grpc.policies import EchoPolicy
from osmosis_grpc.protocol.types import events
from osmosis_grpc.rollout import (
    CompletionsResult,
    LLMClientProtocol,
    OpenAIFunctionParametersSchema,
    OpenAIFunctionPropertySchema,
    OpenAIFunctionSchema,
    OpenAIFunctionToolSchema,
    RolloutAgentLoop,
    RolloutContext,
    RolloutMetrics,
    RolloutRequest,
    RolloutResult,
)
from osmosis_grpc.testing import collect_rollout, run_rollout

HELLO = {"role": "assistant", "content": "Hello!"}
HI = [{"role": "user", "content": "Hi"}]
CITY = OpenAIFunctionPropertySchema(type="string", description="A city.")
WEATHER = OpenAIFunctionToolSchema(
    type="function",
    function=OpenAIFunctionSchema(
        name="weather",
        description="The weather.",
        parameters=OpenAIFunctionParametersSchema(type="object", properties={"city": CITY}, required=["city"]),
    ),
)


def mock_model(reply=None, metrics=None):
    model = MagicMock()
    model.get_metrics.return_value = metrics or RolloutMetrics()
    reply = reply or MagicMock(message=HELLO, has_tool_calls=False)
    model.chat_completions = AsyncMock(return_value=reply)
    return model


def request(**fields):
    return RolloutRequest(
        **{"rollout_id": "test", "server_url": "http://localhost", "messages": HI, "completion_params": {}} | fields
    )


@pytest.mark.row("SDK S2")
async def test_a_context_has_a_mock_model():
    reply = MagicMock(message=HELLO, has_tool_calls=False)
    model = mock_model(reply)
    ctx = RolloutContext(request=request(), tools=[WEATHER], llm=model)
    assert ctx.llm is model
    assert ctx.tools == [WEATHER]
    assert await ctx.chat(HI, temperature=0.5) is reply
    model.chat_completions.assert_awaited_once_with(HI, temperature=0.5)
    assert ctx.samples == ("main",)
    assert not ctx.debug_enabled
    ctx.log_event("pre_llm", turn=0)


@pytest.mark.row("SDK S2")
async def test_the_metrics_of_a_context_are_the_models_and_the_recorded_tool_calls():
    ctx = RolloutContext(request(), [], mock_model(metrics=RolloutMetrics(num_llm_calls=2, prompt_tokens=7)))
    ctx.record_tool_call(latency_ms=1.5)
    ctx.record_tool_call(latency_ms=2)
    done = ctx.complete([*HI, HELLO], finish_reason="stop", reward=1.0)
    assert (done.status, done.finish_reason, done.reward) == ("COMPLETED", "stop", 1.0)
    assert done.metrics == RolloutMetrics(num_llm_calls=2, prompt_tokens=7, num_tool_calls=2, tool_latency_ms=3.5)
    failed = ctx.error("no")
    assert (failed.status, failed.final_messages, failed.error_message) == ("ERROR", [], "no")
    assert failed.metrics.num_tool_calls == 2


@pytest.mark.row("SDK S2")
async def test_a_mock_without_metrics_is_enough():
    ctx = RolloutContext(request=request(), tools=[], llm=MagicMock())
    assert ctx.complete([]).metrics == RolloutMetrics()


@pytest.mark.row("SDK S2")
async def test_rewards_samples_and_tools_work_without_a_server():
    message = {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": {"name": "nobody"}}]}
    ctx = RolloutContext(request=request(), tools=[], llm=mock_model(CompletionsResult(message)))
    reply = await ctx.chat(HI, sample="judge", tools=[WEATHER])
    assert ctx.llm.chat_completions.await_args.kwargs == {"sample": "judge", "tools": [WEATHER]}
    ctx.set_reward(0.5, sample="judge")
    assert ctx.add_sample("other") == "other"
    assert list(ctx.get_samples()) == ["judge"]
    (answer,) = await ctx.run_tools(reply)
    assert answer["content"] == "Error: there is no tool 'nobody'; the tools are: none"


@pytest.mark.row("SDK S2")
def test_ctx_llm_and_a_client_are_models():
    assert isinstance(RolloutContext(request=request()).llm, LLMClientProtocol)
    assert isinstance(mock_model(), LLMClientProtocol)


class Looks(RolloutAgentLoop):
    """Calls a function with its context."""

    name = "looks"

    def __init__(self, tools, look):
        self.found, self.look = tools, look

    def get_tools(self, request):
        return self.found

    async def run(self, ctx):
        self.look(ctx)
        reply = await ctx.chat(ctx.request.messages)
        return ctx.complete([*ctx.request.messages, reply.message])


async def seen_in(tools, look):
    found = []
    outcome = await run_rollout(Looks(tools, lambda ctx: found.append(look(ctx))), EchoPolicy(), HI)
    assert outcome.status == "COMPLETED", outcome.failure
    return found[0]


PLAIN = WEATHER.model_dump(exclude_none=True)


@pytest.mark.parametrize("tools", [[WEATHER], [PLAIN]], ids=["objects", "dicts"])
@pytest.mark.row("SDK S3")
async def test_the_tools_are_schema_objects_and_mappings(tools):
    def look(ctx):
        (tool,) = ctx.tools
        assert ctx.tools is ctx.tools
        assert tool.function.name == tool["function"]["name"] == "weather"
        assert tool.function.parameters.properties["city"].description == "A city."
        assert tool.function.parameters.required == ["city"]
        assert (tool.type, tool.function.strict, CITY.enum) == ("function", False, None)
        assert tool.model_dump(exclude_none=True) == json.loads(tool.model_dump_json()) == PLAIN
        assert type(tool.model_dump()["function"]) is dict
        assert isinstance(tool, dict)
        assert json.loads(json.dumps(ctx.tools)) == [PLAIN]
        with pytest.raises(AttributeError, match="no key 'colour'"):
            tool.colour
        return tool

    tool = await seen_in(tools, look)
    changed = tool.model_copy(update={"type": "other"}, deep=True)
    changed.function.description = "Changed."
    assert (changed.type, changed["function"]["description"]) == ("other", "Changed.")
    assert (tool.type, tool.function.description) == ("function", "The weather.")


@pytest.mark.row("SDK S3")
async def test_missing_keys_have_the_defaults_of_the_schemas():
    def look(ctx):
        (tool,) = ctx.tools
        assert (tool.function.description, tool.function.strict) == (None, False)
        assert tool.function.parameters == {"type": "object", "properties": {}, "required": []}

    await seen_in([{"type": "function", "function": {"name": "now"}}], look)


@pytest.mark.row("SDK S3")
async def test_the_tools_can_be_chosen_for_a_chat():
    class Chooses(Looks):
        async def run(self, ctx):
            chosen = [tool for tool in ctx.tools if tool.function.name == "weather"]
            await ctx.chat(ctx.request.messages, tools=chosen)
            return ctx.complete([])

    other = {"type": "function", "function": {"name": "other", "description": "Other."}}
    _, seen = await collect_rollout(Chooses([WEATHER, other], None), EchoPolicy(), HI)
    (asked,) = [event.kind for event in seen if isinstance(event.kind, events.ChatRequested)]
    assert asked.tools == [PLAIN]


# The context of a rollout


@pytest.mark.row("SDK S8")
async def test_the_model_of_a_rollout_has_the_members_of_the_client():
    class Asks(Looks):
        async def run(self, ctx):
            assert (ctx.llm.rollout_id, ctx.llm.server_url) == ("r8", "")
            assert (ctx.llm.get_metrics().num_llm_calls, type(ctx.llm.get_metrics())) == (0, RolloutMetrics)
            reply = await ctx.llm.chat_completions(list(ctx.request.messages), 0.25, 0.5, max_tokens=7)
            with pytest.raises(TypeError, match="two values for temperature"):
                await ctx.llm.chat_completions([], 0.5, temperature=1)
            with pytest.raises(TypeError, match="at most 5"):
                await ctx.llm.chat_completions([], 1, 2, 3, 4, 5, 6)
            ctx.record_tool_call(3.0)
            counted = ctx.llm.get_metrics()
            assert (counted.num_llm_calls, counted.num_tool_calls, counted.tool_latency_ms) == (1, 1, 3.0)
            assert counted.llm_latency_ms > 0
            done = ctx.complete([*ctx.request.messages, reply.message])
            assert done.metrics.num_llm_calls == 1
            return done

    outcome, seen = await collect_rollout(Asks([], None), EchoPolicy(), HI, rollout_id="r8")
    assert outcome.status == "COMPLETED", outcome.failure
    (asked,) = [event.kind for event in seen if isinstance(event.kind, events.ChatRequested)]
    assert asked.params == {"temperature": 0.25, "top_p": 0.5, "max_tokens": 7}


@pytest.mark.row("SDK S8")
async def test_log_event_takes_its_name_by_keyword():
    class Logs(Looks):
        async def run(self, ctx):
            ctx.log_event(event_type="pre_llm", turn=0)
            ctx.log_event("llm", event_type="x")
            return ctx.complete([])

    _, seen = await collect_rollout(Logs([], None), EchoPolicy(), HI)
    logged = [(event.kind.name, event.kind.data) for event in seen if isinstance(event.kind, events.Logged)]
    assert logged == [("pre_llm", {"turn": 0}), ("llm", {"event_type": "x"})]


@pytest.mark.row("SDK S8")
def test_results_are_made_by_position():
    done = RolloutResult("COMPLETED", HI, "stop")
    assert (done.status, done.final_messages, done.finish_reason, done.metrics) == ("COMPLETED", HI, "stop", None)
    assert RolloutResult("ERROR", [], "error", "text", RolloutMetrics(num_llm_calls=1), 0.5).reward == 0.5
    reply = CompletionsResult(HELLO, [1, 2], [-0.5, -1.0], {"total_tokens": 2}, "stop")
    assert (reply.token_ids, reply.logprobs, reply.finish_reason) == ([1, 2], [-0.5, -1.0], "stop")
