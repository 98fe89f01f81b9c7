"""OsmosisStrandsAgent and OsmosisRolloutModel. The rows are those of the reference page about the Osmosis SDK."""

import asyncio
import copy
import threading

import pytest

from osmosis_grpc.agent.workflow_runnable import WorkflowRunnable
from osmosis_grpc.protocol.errors import FailedPrecondition
from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.rollout import (
    AgentWorkflow,
    AgentWorkflowConfig,
    ChatPurpose,
    Grader,
    RolloutAgentLoop,
    RolloutContext,
    get_rollout_context,
)
from osmosis_grpc.testing import run_rollout
from tests.integrations.strands_policy import Replies, calls

pytestmark = pytest.mark.adapters
strands = pytest.importorskip("strands")

QUESTION = [{"role": "user", "content": "What is 2 + 3?"}]
NO_CONTEXT = (
    "OsmosisRolloutModel requires an active RolloutContext. "
    "Ensure the execution backend sets up the context before running the workflow."
)


@strands.tool
def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


@strands.tool
async def add_slowly(a: int, b: int) -> str:
    """Add two numbers."""
    assert get_rollout_context() is not None
    return str(a + b)


@strands.tool
def fail(reason: str) -> str:
    """Fail."""
    raise ValueError(reason)


def model(**params):
    from osmosis_grpc.rollout import OsmosisRolloutModel

    return OsmosisRolloutModel(params=params) if params else OsmosisRolloutModel()


def make(name="agent", **options):
    from osmosis_grpc.rollout import OsmosisStrandsAgent

    return OsmosisStrandsAgent(**{"name": name, "model": model(), "callback_handler": None} | options)


def workflow(run):
    """Return a workflow class of a function of the context."""

    class Workflow(AgentWorkflow):
        async def run(self, ctx):
            await run(ctx)

    return Workflow


def one_agent(prompt=None, **options):
    async def run(ctx):
        await make(messages=ctx.prompt, **options).invoke_async(prompt)

    return workflow(run)


async def ran(run, policy, prompt=QUESTION, grader=None, **request):
    """Run a workflow whose run() is a function. Return the outcome and what the function returned."""
    returned = []

    async def kept(ctx):
        returned.append(await run(ctx))

    outcome = await run_rollout(WorkflowRunnable(workflow(kept), grader=grader), policy, prompt, **request)
    return outcome, returned[0] if returned else None


def graded_samples(keep):
    class Keeps(Grader):
        async def grade(self, ctx):
            keep.update(ctx.samples)
            for name in ctx.samples:
                ctx.set_sample_reward(name, 1.0)

    return Keeps


def native(role, *blocks):
    return {"role": role, "content": list(blocks)}


def bare(messages):
    """Messages without what Strands adds."""
    return [{"role": message["role"], "content": message["content"]} for message in messages]


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


# What the trainer's messages become


@pytest.mark.parametrize(
    "content", ["hi", [{"type": "text", "text": "hi"}], [{"text": "hi"}]], ids=["string", "parts", "blocks"]
)
@pytest.mark.row("SDK 15")
async def test_a_prompt_with_any_content_is_the_agents_history(content):
    policy = Replies("x", "y")

    async def run(ctx):
        agent = make(messages=ctx.prompt)
        assert agent.messages == [native("user", {"text": "hi"})]
        await agent.invoke_async()
        await agent.invoke_async("more")

    outcome, _ = await ran(run, policy, [{"role": "user", "content": content}])
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
    sent = "hi" if content == [{"text": "hi"}] else content
    assert [request.messages[0]["content"] for request in policy.requests] == [sent, sent]
    assert policy.requests[1].prefix_len == 2


@pytest.mark.row("SDK 17")
async def test_other_keys_of_a_message_reach_the_policy():
    call = {"id": "c0", "type": "function", "function": {"name": "add", "arguments": '{"a":  1, "b": 1}'}}
    prompt = [
        {"role": "user", "content": "hi", "name": "bob"},
        {
            "role": "assistant",
            "content": "Adding.",
            "tool_calls": [call, call | {"id": "c1"}],
            "reasoning_content": "hm",
        },
        {"role": "tool", "tool_call_id": "c0", "content": "2", "name": "add"},
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
    ]
    policy = Replies("x", "y")

    async def run(ctx):
        agent = make(messages=ctx.prompt, system_prompt="Be brief.")
        await agent.invoke_async()
        await agent.invoke_async("more")

    outcome, _ = await ran(run, policy, prompt)
    assert policy.requests[0].messages[1:] == prompt, outcome.failure
    assert policy.requests[1].messages[1:-2] == prompt


@pytest.mark.row("SDK 17")
async def test_a_part_without_a_block_is_refused_by_name():
    prompt = [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]
    outcome, _ = await ran(lambda ctx: make(messages=ctx.prompt).invoke_async(), Replies("x"), prompt)
    assert (
        "messages[0].content[0]: Strands has no block for a part of the type 'input_audio'" in outcome.failure.message
    )


# Histories


def long_script(turns):
    return [calls("add", {"a": turn, "b": 1}, number=turn) for turn in range(1, turns + 1)]


@pytest.mark.parametrize("window", [None, 10], ids=["the default", "a window of 10"])
@pytest.mark.row("SDK 54")
async def test_a_rollout_of_60_messages_yields_all_of_them(window):
    from strands.agent.conversation_manager import SlidingWindowConversationManager

    samples, options = {}, {}
    if window:
        options["conversation_manager"] = SlidingWindowConversationManager(window_size=window, per_turn=True)
    prompt = [{"role": "system", "content": "Be brief."}, *QUESTION]
    policy = Replies(*long_script(28), "done")
    outcome, _ = await ran(
        lambda ctx: make(messages=ctx.prompt, tools=[add], **options).invoke_async(),
        policy,
        prompt,
        grader=graded_samples(samples),
        label="",
        max_turns=40,
    )
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
    messages = samples["agent"].messages
    assert len(messages) == 2 + 2 * 28 + 1
    assert bare(messages[:2]) == [native("system", {"text": "Be brief."}), native("user", {"text": "What is 2 + 3?"})]
    used = [block["toolUse"]["input"]["a"] for m in messages for block in m["content"] if "toolUse" in block]
    assert used == list(range(1, 29))
    sample = outcome.samples["agent"]
    assert [message["role"] for message in sample.messages] == [
        "system",
        "user",
        *["assistant", "tool"] * 28,
        "assistant",
    ]
    assert [message for message in sample.messages if message["role"] == "assistant"] == [
        reply.message for reply in policy.given
    ]
    if not window:
        assert len(sample.segments) == 1
    else:
        assert max(len(request.messages) for request in policy.requests) < 20


@pytest.mark.row("SDK 55")
async def test_a_truncated_reply_fails_the_rollout_and_its_sample_is_kept():
    policy = Replies(calls("add", {"a": 2, "b": 3}), "the answer is", finish_reason="length")
    outcome, _ = await ran(lambda ctx: make(messages=ctx.prompt, tools=[add]).invoke_async(), policy)
    assert outcome.status is OutcomeStatus.FAILED
    assert "maximum token limit" in outcome.failure.message
    assert outcome.finish_reason == "length"
    sample = outcome.samples["agent"]
    assert sample.messages[-1]["content"] == "the answer is"
    assert sum(segment.sampled for segment in sample.segments) == sum(len(each.tokens.ids) for each in policy.given)


@pytest.mark.parametrize(
    "reply",
    [
        {"role": "assistant", "content": "", "reasoning_content": "only thoughts"},
        {"role": "assistant", "content": None},
        {"role": "assistant", "content": "  "},
        {"role": "assistant", "content": [{"type": "text", "text": "in "}, {"type": "text", "text": "parts"}]},
        {"role": "assistant", "content": "text", "reasoning_content": "and thoughts", "refusal": None},
        calls("add", '{"a":1,   "b":2}'),
        calls("add", '{"a": 1, "b": '),
        calls("add", ""),
        calls("no tool has this name", {"a": 1}),
        calls("add", {"a": 1, "b": 2}, {"a": 3, "b": 4}) | {"content": "Adding."},
        calls("add", {"a": 1, "b": 2}) | {"content": " ", "reasoning": "so I add"},
        {
            "role": "assistant",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}],
        },
    ],
    ids=range(12),
)
async def test_every_reply_comes_back_word_for_word_so_its_tokens_stay_in_one_segment(reply):
    policy = Replies(reply, "two", "three")

    async def run(ctx):
        agent = make(messages=ctx.prompt, tools=[add])
        await agent.invoke_async()
        await agent.invoke_async("more")

    outcome, _ = await ran(run, policy)
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
    (segment,) = outcome.samples["agent"].segments
    assert segment.chats == tuple(range(1, len(policy.requests) + 1))
    assert policy.requests[-1].messages[1] == policy.given[0].message


async def test_the_reasoning_of_a_reply_is_a_block_for_the_agent():
    reply = {"role": "assistant", "content": "five", "reasoning_content": "2 + 3"}
    outcome, result = await ran(lambda ctx: make(messages=ctx.prompt).invoke_async(), Replies(reply))
    thought = {"reasoningContent": {"reasoningText": {"text": "2 + 3"}}}
    assert result.message["content"] == [thought, {"text": "five"}], outcome.failure


async def test_structured_output_is_a_chat_of_the_sample():
    from pydantic import BaseModel

    class Answer(BaseModel):
        """An answer."""

        value: int

    policy = Replies("five", calls("Answer", {"value": 5}), calls("Answer", {"value": 6}, number=3))

    async def run(ctx):
        agent = make(messages=ctx.prompt)
        await agent.invoke_async()
        asked = await agent.invoke_async("As JSON.", structured_output_model=Answer)
        with pytest.warns(DeprecationWarning, match="structured_output"):
            return asked.structured_output, agent.structured_output(Answer, "Again.")

    outcome, found = await ran(run, policy)
    assert found == (Answer(value=5), Answer(value=6)), outcome.failure
    assert policy.requests[2].params["tool_choice"] == "required"


# Contexts and threads


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.row("SDK 33")
async def test_a_tool_sees_the_context_and_its_sub_agent_is_a_sample(kind):
    threads = []

    @strands.tool(name="research")
    def sync_research(topic: str) -> str:
        """Research a topic."""
        threads.append(threading.current_thread())
        assert get_rollout_context().rollout_id == "r1"
        assert get_rollout_context().samples == ("agent",)
        get_rollout_context().log_event("research", topic=topic)
        return str(make(f"researcher of {topic}")(topic))

    @strands.tool(name="research")
    async def async_research(topic: str) -> str:
        """Research a topic."""
        return str(await make(f"researcher of {topic}").invoke_async(topic))

    def main_or_sub(request):
        if request.sample != "agent":
            return f"{request.messages[-1]['content']}!"
        return request.messages[-1]["content"] if request.chat_number > 1 else calls("research", {"topic": "tea"})

    tool = sync_research if kind == "sync" else async_research
    outcome, result = await ran(
        lambda ctx: make(messages=ctx.prompt, tools=[tool]).invoke_async(), Replies(main_or_sub), rollout_id="r1"
    )
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
    assert set(outcome.samples) == {"agent", "researcher of tea"}
    assert outcome.samples["researcher of tea"].messages[-1]["content"] == "tea!"
    assert str(result).strip() == "tea!"
    assert threading.main_thread() not in threads


@pytest.mark.row("SDK 9")
async def test_a_configuration_with_a_model_and_tools_is_copied():
    class Config(AgentWorkflowConfig):
        name: str = "with a model"
        model: object = None
        tools: list | None = None

    class Workflow(AgentWorkflow[Config]):
        async def run(self, ctx):
            assert ctx.config is not config
            agent = make(model=ctx.config.model, tools=ctx.config.tools, messages=ctx.prompt)
            await agent.invoke_async()

    config = Config(model=model(temperature=0.5), tools=[add])
    policy = Replies(calls("add", {"a": 2, "b": 3}), "5")
    outcome = await run_rollout(WorkflowRunnable(Workflow, config), policy, QUESTION)
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
    assert policy.requests[0].params == {"temperature": 0.5}


@pytest.mark.row("SDK 74")
async def test_an_error_of_the_trainer_is_the_trainers_failure_and_strands_does_not_retry():
    asked = []

    def policy(request):
        asked.append(request)
        raise FailedPrecondition("no model is loaded")

    outcome, _ = await ran(lambda ctx: make(messages=ctx.prompt).invoke_async(), policy)
    assert outcome.failure.boundary == "trainer"
    assert "no model is loaded" in outcome.failure.message
    assert len(asked) == 1


async def test_a_rollout_leaves_no_tasks_and_no_threads_behind():
    await ran(
        lambda ctx: make(messages=ctx.prompt, tools=[add]).invoke_async(), Replies(calls("add", {"a": 1, "b": 1}), "x")
    )
    tasks, threads = asyncio.all_tasks(), set(threading.enumerate())
    for _ in range(3):
        policy = Replies(calls("add", {"a": 1, "b": 1}), "x")
        await ran(lambda ctx: make(messages=ctx.prompt, tools=[add_slowly], name="agent").invoke_async(), policy)
    assert asyncio.all_tasks() == tasks
    assert set(threading.enumerate()) == threads


async def test_an_agent_loop_may_run_a_strands_agent():
    class Loop(RolloutAgentLoop):
        name = "loop"

        def get_tools(self, request):
            return []

        async def run(self, ctx):
            result = await make(messages=ctx.request.messages, tools=[add]).invoke_async()
            return ctx.complete(reward=float(str(result).strip() == "5"))

    outcome = await run_rollout(Loop(), Replies(calls("add", {"a": 2, "b": 3}), "5"), QUESTION)
    assert outcome.reward == 1.0, outcome.failure
    assert list(outcome.samples) == ["agent"]


@pytest.mark.row("SDK 64")
async def test_a_grader_may_ask_a_judge_whose_chats_are_never_trained_on():
    class Judged(Grader):
        async def grade(self, ctx):
            verdict = await make("judge").invoke_async(f"Is {ctx.samples['agent'].messages[-1]['content']} right?")
            ctx.set_sample_reward("agent", float(str(verdict)))

    policy = Replies(lambda request: "0.5" if request.sample == "judge" else "five")
    runnable = WorkflowRunnable(one_agent(), grader=Judged)
    outcome = await run_rollout(runnable, policy, QUESTION, label="5")
    assert [(request.sample, request.purpose) for request in policy.requests] == [
        ("agent", ChatPurpose.POLICY),
        ("judge", ChatPurpose.JUDGE),
    ], outcome.failure
    assert {name: sample.reward for name, sample in outcome.samples.items()} == {"agent": 0.5}


async def test_equal_replies_lead_to_equal_chats_so_a_workflow_can_be_replayed():
    asked = []
    nameless = calls("add", {"a": 1, "b": 1})
    del nameless["tool_calls"][0]["id"]
    for _ in range(2):
        policy = Replies(nameless, calls("add", {"a": 2, "b": 2}, {"a": 3, "b": 3}), "done")
        options = {"tools": [add, add_slowly], "system_prompt": "Be brief."}
        await ran(lambda ctx: make(messages=ctx.prompt, **options).invoke_async(), policy, rollout_id="r")
        asked.append([(each.messages, each.params, each.tools) for each in policy.requests])
    assert asked[0] == asked[1]
    assert len(asked[0]) == 3
