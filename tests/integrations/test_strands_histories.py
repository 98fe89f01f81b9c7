"""What an OsmosisStrandsAgent and its policy read: prompts, histories, the context in tools and threads."""

import asyncio
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
    get_rollout_context,
)
from osmosis_grpc.testing import run_rollout
from tests.integrations.strands_agents import (
    QUESTION,
    add,
    add_slowly,
    bare,
    graded_samples,
    make,
    model,
    native,
    one_agent,
    ran,
)
from tests.integrations.strands_policy import Replies, calls

pytestmark = pytest.mark.adapters
strands = pytest.importorskip("strands")

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
