"""OsmosisStrandsAgent and OsmosisRolloutModel: imports, samples, chats."""

import asyncio
import copy

import pytest

from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.rollout import RolloutContext, get_rollout_context
from tests.integrations.strands_agents import (
    NO_CONTEXT,
    QUESTION,
    add,
    bare,
    fail,
    graded_samples,
    make,
    model,
    native,
    ran,
)
from tests.integrations.strands_policy import Replies, calls

pytestmark = pytest.mark.adapters
strands = pytest.importorskip("strands")

# Imports and the placeholder


@pytest.mark.parametrize("name", ["OsmosisRolloutModel", "OsmosisStrandsAgent"])
@pytest.mark.row("SDK 1", "SDK 2")
def test_both_paths_have_the_same_objects(name):
    import osmosis_grpc.rollout as root
    import osmosis_grpc.rollout.integrations.agents.strands as below

    assert getattr(root, name) is getattr(below, name)
    assert name in below.__all__


@pytest.mark.row("SDK 36")
async def test_an_agent_outside_of_a_rollout_says_what_is_missing():
    with pytest.raises(RuntimeError) as raised:
        make()
    assert str(raised.value) == NO_CONTEXT


@pytest.mark.parametrize(
    ("method", "arguments"),
    [("stream", ([],)), ("structured_output", (int, [])), ("get_config", ()), ("update_config", ())],
)
@pytest.mark.row("SDK 37")
def test_the_placeholder_makes_no_calls(method, arguments):
    with pytest.raises(NotImplementedError):
        getattr(model(), method)(*arguments)


@pytest.mark.row("SDK 38")
def test_the_placeholder_is_a_litellm_model_with_optional_params():
    from strands.models.litellm import LiteLLMModel

    assert isinstance(model(), LiteLLMModel)
    assert copy.deepcopy(model(temperature=1.0)).config == {"params": {"temperature": 1.0}}


@pytest.mark.row("SDK 39")
async def test_for_sample_is_a_litellm_model_of_the_sample():
    from strands.models.litellm import LiteLLMModel

    context = RolloutContext(rollout_id="r1", chat_completions_url="http://127.0.0.1:1/v1", api_key="secret")
    made = model(temperature=0.5).for_sample("a b", context)
    assert isinstance(made, LiteLLMModel)
    assert made.get_config() == {"model_id": "openai/osmosis-rollout", "params": {"temperature": 0.5}}
    assert made.client_args == {
        "api_base": "http://127.0.0.1:1/v1",
        "api_key": "secret",
        "extra_headers": {"x-sample-id": "a b", "x-rollout-id": "r1"},
    }
    made.update_config(params={"temperature": 0.1})
    assert made.get_config()["params"] == {"temperature": 0.1}


@pytest.mark.row("SDK 35")
async def test_without_a_key_the_client_gets_a_dummy_and_not_that_of_the_user(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "canary")
    monkeypatch.delenv("OSMOSIS_API_KEY", raising=False)
    made = model().for_sample("a", RolloutContext(rollout_id="r1"))
    assert made.client_args["api_key"] == "no-key"


@pytest.mark.row("SDK 40")
def test_a_model_id_is_refused_when_the_model_is_made():
    from osmosis_grpc.rollout import OsmosisRolloutModel

    with pytest.raises(TypeError, match="takes no model_id: the trainer decides"):
        OsmosisRolloutModel(model_id="openai/gpt-5.2")
    with pytest.raises(TypeError, match="takes no client_args"):
        OsmosisRolloutModel(client_args={"api_key": "k"})


# Samples and their names


@pytest.mark.parametrize(
    ("options", "name"),
    [({"name": "n", "agent_id": "i"}, "n"), ({"name": None, "agent_id": "i"}, "i"), ({"name": None}, None)],
    ids=["name", "agent_id", "random"],
)
@pytest.mark.row("SDK 41")
async def test_the_sample_has_the_name_the_agent_id_or_a_random_name(options, name):
    outcome, _ = await ran(lambda ctx: make(**options).invoke_async("hi"), Replies("x"))
    (sample,) = outcome.samples
    assert sample == name if name else len(sample) == 32


@pytest.mark.parametrize("name", ["prüfer", "two words", "日本", "100%", "x" * 256])
@pytest.mark.row("SDK 42")
async def test_an_odd_name_works(name):
    async def run(ctx):
        agent = make(name)
        agent.model.client_args["extra_headers"]["x-sample-id"].encode("ascii")
        await agent.invoke_async("hi")

    outcome, _ = await ran(run, Replies("x"))
    assert list(outcome.samples) == [name], outcome.failure


@pytest.mark.parametrize("name", ["line\nbreak", "a/b", "x" * 1000, "..", " "])
@pytest.mark.row("SDK 42")
async def test_a_name_that_cannot_be_used_is_refused(name):
    outcome, _ = await ran(lambda ctx: make(name).invoke_async("hi"), Replies("x"))
    assert outcome.status is OutcomeStatus.FAILED
    assert "ValueError" in [cause.type for cause in outcome.failure.causes]
    assert outcome.failure.message.startswith("ValueError: sample: ")


@pytest.mark.row("SDK 43")
async def test_a_second_agent_of_a_name_is_refused():
    async def run(ctx):
        make("twin")
        make("twin")

    outcome, _ = await ran(run, Replies("x"))
    assert "already has an agent named 'twin'" in outcome.failure.message


@pytest.mark.row("SDK 44")
async def test_an_agent_that_could_not_be_made_is_no_sample():
    async def run(ctx):
        with pytest.raises(ValueError, match="state must be"):
            make("broken", state=1)
        assert get_rollout_context().registered_agents == {}
        await make("broken").invoke_async("hi")

    outcome, _ = await ran(run, Replies("x"))
    assert list(outcome.samples) == ["broken"], outcome.failure


@pytest.mark.row("SDK 45")
async def test_another_model_passes_through_and_is_not_registered():
    from strands.models.litellm import LiteLLMModel

    from osmosis_grpc.rollout import OsmosisStrandsAgent

    own = LiteLLMModel(model_id="openai/other")
    with RolloutContext() as context:
        agent = OsmosisStrandsAgent(own, [{"role": "user", "content": "hi"}], callback_handler=None)
        assert context.registered_agents == {}
    assert agent.model is own
    assert agent.messages == [native("user", {"text": "hi"})]


@pytest.mark.row("SDK 46")
async def test_parameters_reach_the_agent_also_by_position():
    from strands.agent.conversation_manager import NullConversationManager, SlidingWindowConversationManager

    from osmosis_grpc.rollout import OsmosisStrandsAgent

    seen = []

    async def run(ctx):
        window = SlidingWindowConversationManager(window_size=4)
        agent = OsmosisStrandsAgent(
            model(), ctx.prompt, [add], "Be brief.", None, None, window, name="a", state={"k": 1}
        )
        assert (agent.tool_names, agent.system_prompt, agent.state.get("k")) == (["add"], "Be brief.", 1)
        assert agent.conversation_manager is window
        agent.add_hook(lambda event: seen.append(event), strands.hooks.BeforeInvocationEvent)
        await agent.invoke_async()
        assert isinstance(make("b").conversation_manager, NullConversationManager)
        assert make("c", conversation_manager=window).conversation_manager is window

    outcome, _ = await ran(run, Replies("x"))
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
    assert len(seen) == 1


# The chats


@pytest.mark.row("SDK 47")
async def test_a_chat_has_the_rollout_the_sample_messages_tools_and_parameters():
    policy = Replies("five")
    options = {"model": model(temperature=0.5, max_tokens=7, stop=["x"]), "tools": [add], "system_prompt": "Be brief."}
    outcome, result = await ran(
        lambda ctx: make(messages=ctx.prompt, **options).invoke_async(),
        policy,
        rollout_id="r1",
        completion_params={"temperature": 1.0, "top_p": 0.9},
    )
    (request,) = policy.requests
    assert (request.rollout_id, request.sample) == ("r1", "agent"), outcome.failure
    assert request.params == {"temperature": 0.5, "max_tokens": 7, "stop": ["x"], "top_p": 0.9}
    assert request.messages == [{"role": "system", "content": "Be brief."}, *QUESTION]
    (tool,) = request.tools
    assert tool["function"]["name"] == "add"
    assert tool["function"]["parameters"]["required"] == ["a", "b"]
    usage = policy.given[0].usage
    assert result.metrics.accumulated_usage == {
        "inputTokens": usage["prompt_tokens"],
        "outputTokens": usage["completion_tokens"],
        "totalTokens": usage["total_tokens"],
    }


@pytest.mark.row("SDK 48", "SDK 53")
async def test_tool_calls_run_and_the_sample_is_native():
    samples = {}
    policy = Replies(calls("add", {"a": 2, "b": 3}), lambda request: request.messages[-1]["content"])
    outcome, result = await ran(
        lambda ctx: make(messages=ctx.prompt, tools=[add]).invoke_async(),
        policy,
        grader=graded_samples(samples),
        label="5",
    )
    assert result.stop_reason == "end_turn", outcome.failure
    assert policy.requests[1].messages[-1] == {"role": "tool", "tool_call_id": "c1-0", "content": "5"}
    use = {"toolUseId": "c1-0", "name": "add", "input": {"a": 2, "b": 3}}
    done = {"toolUseId": "c1-0", "status": "success", "content": [{"text": "5"}]}
    assert bare(samples["agent"].messages) == [
        native("user", {"text": "What is 2 + 3?"}),
        native("assistant", {"toolUse": use}),
        native("user", {"toolResult": done}),
        native("assistant", {"text": "5"}),
    ]
    assert samples["agent"].messages[1]["metadata"]["usage"]["outputTokens"] > 0


@pytest.mark.row("SDK 49")
async def test_a_tool_that_raises_is_an_error_result_and_the_loop_goes_on():
    samples = {}
    outcome, _ = await ran(
        lambda ctx: make(messages=ctx.prompt, tools=[fail]).invoke_async(),
        Replies(calls("fail", {"reason": "no luck"}), "sorry"),
        grader=graded_samples(samples),
        label="",
    )
    result = samples["agent"].messages[2]["content"][0]["toolResult"]
    assert result["status"] == "error", outcome.failure
    assert "no luck" in result["content"][0]["text"]
    assert outcome.samples["agent"].messages[-1]["content"] == "sorry"


@pytest.mark.row("SDK 50")
async def test_an_invocation_without_a_prompt_uses_the_history():
    rounds = []

    async def run(ctx):
        agent = make(messages=ctx.prompt, tools=[add])
        for _ in range(8):
            result = await agent.invoke_async()
            rounds.append(result.stop_reason)
            if not any("toolUse" in block for block in result.message.get("content", [])):
                break

    outcome, _ = await ran(run, Replies(calls("add", {"a": 1, "b": 1}), calls("add", {"a": 2, "b": 2}), "4"))
    assert rounds == ["end_turn"], outcome.failure
    assert len(outcome.samples["agent"].messages) == 6


@pytest.mark.row("SDK 51")
async def test_a_sync_call_in_run_waits_without_blocking_the_server():
    """Each rollout calls its agent when all have begun. A blocked event loop would let none of them begin."""
    begun, together = [], asyncio.Event()

    async def policy(request):
        begun.append(request.rollout_id)
        if len(set(begun)) == 2:
            together.set()
        await together.wait()
        return Replies("five")(request)

    async def run(ctx):
        return make(messages=ctx.prompt)("And now?")

    results = await asyncio.gather(ran(run, policy), ran(run, policy))
    for outcome, result in results:
        assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
        assert result.message["content"] == [{"text": "five"}]


@pytest.mark.row("SDK 51")
async def test_a_sync_call_works_on_a_thread_and_is_refused_in_a_task_of_its_own():
    async def run(ctx):
        agent = make(messages=ctx.prompt)
        await asyncio.to_thread(agent, "on a thread")

        async def in_a_task():
            agent("blocks")

        with pytest.raises(RuntimeError, match=r"would block the event loop.*await agent.invoke_async"):
            await asyncio.gather(in_a_task())

    outcome, _ = await ran(run, Replies("x"))
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
    (segment,) = outcome.samples["agent"].segments
    assert segment.chats == (1,)


@pytest.mark.row("SDK 51")
async def test_a_direct_call_of_a_tool_may_ask_the_model():
    @strands.tool
    def research(topic: str) -> str:
        """Research a topic."""
        return str(make(f"researcher of {topic}")(topic))

    async def run(ctx):
        agent = make(messages=ctx.prompt, tools=[research])
        found = agent.tool.research(topic="tea")
        await agent.invoke_async("go on")
        return found["content"][0]["text"].strip()

    outcome, found = await ran(run, Replies("a drink"))
    assert found == "a drink", outcome.failure
    assert set(outcome.samples) == {"agent", "researcher of tea"}


@pytest.mark.row("SDK 52")
async def test_the_system_prompt_comes_before_a_system_message_of_the_prompt():
    policy = Replies("x")
    await ran(
        lambda ctx: make(messages=ctx.prompt, system_prompt="first").invoke_async(),
        policy,
        [{"role": "system", "content": "second"}, *QUESTION],
    )
    assert [message["content"] for message in policy.requests[0].messages] == ["first", "second", "What is 2 + 3?"]
