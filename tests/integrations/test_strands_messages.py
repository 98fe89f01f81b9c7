"""Conversion between OpenAI's format and the blocks of Strands, without Strands."""

import base64

import pytest

from osmosis_grpc.agent.grading import grade_recorded
from osmosis_grpc.agent.results import CompletionsResult
from osmosis_grpc.agent.workflow_runnable import WorkflowRunnable
from osmosis_grpc.integrations._strands_messages import (
    in_short,
    recorded_samples,
    reply_blocks,
    resent,
    stream_events,
    to_strands,
)
from osmosis_grpc.protocol.types import RolloutRequest
from osmosis_grpc.rollout import AgentWorkflow, Grader, get_rollout_context
from osmosis_grpc.testing import collect_rollout
from tests.integrations.strands_policy import Replies, calls

CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
PNG = base64.b64encode(b"a picture").decode()


def reply(finish_reason=None, usage=None, **message):
    return CompletionsResult(
        message={"role": "assistant", "content": None} | message,
        token_ids=None,
        logprobs=None,
        usage=usage or {},
        finish_reason=finish_reason,
        extra={},
        chat_number=3,
    )


@pytest.mark.parametrize(
    ("message", "content"),
    [
        ({"role": "user", "content": "hi"}, [{"text": "hi"}]),
        ({"role": "system", "content": "hi"}, [{"text": "hi"}]),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"text": "b"}, "c"]},
            [{"text": x} for x in "abc"],
        ),
        ({"role": "assistant", "content": None}, []),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}]},
            [{"image": {"format": "png", "source": {"bytes": b"a picture"}}}],
        ),
        (
            {"role": "assistant", "content": "x", "tool_calls": [CALL]},
            [{"text": "x"}, {"toolUse": {"toolUseId": "c1", "name": "add", "input": {"a": 1}}}],
        ),
    ],
    ids=["string", "system", "parts", "nothing", "image", "call"],
)
@pytest.mark.row("SDK 15", "SDK 17")
def test_a_message_becomes_blocks(message, content):
    made = to_strands([message])
    assert made == [{"role": message["role"], "content": content}]
    assert to_strands(made) == made


@pytest.mark.row("SDK 17")
def test_results_of_tools_in_a_row_become_one_message():
    results = [{"role": "tool", "tool_call_id": f"c{n}", "content": str(n)} for n in (1, 2)]
    after = {"role": "tool", "tool_call_id": "c3", "content": "3"}
    made = to_strands([*results, {"role": "user", "content": "and"}, after])
    assert [message["role"] for message in made] == ["user", "user", "user"]
    assert [block["toolResult"]["toolUseId"] for block in made[0]["content"]] == ["c1", "c2"]
    assert made[2]["content"][0]["toolResult"] == {"toolUseId": "c3", "status": "success", "content": [{"text": "3"}]}


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ({"role": "user", "content": 5}, r"messages\[0\].content: is a int"),
        ({"role": "user", "content": [5]}, r"messages\[0\].content\[0\]: is a int"),
        ({"role": "user", "content": [{"type": "file"}]}, r"content\[0\]: Strands has no block .*'file'"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}, "is not a data URL"),
        ({"role": "tool", "content": "x"}, r"messages\[0\].tool_call_id: is missing"),
    ],
)
@pytest.mark.row("SDK 17")
def test_a_message_without_a_form_is_refused_by_name(message, problem):
    with pytest.raises(ValueError, match=problem):
        to_strands([message])


@pytest.mark.parametrize(
    ("finish_reason", "calls", "reason"),
    [
        ("stop", [], "end_turn"),
        (None, [], "end_turn"),
        ("tool_calls", [CALL], "tool_use"),
        ("stop", [CALL], "tool_use"),
        ("length", [CALL], "max_tokens"),
        ("content_filter", [], "content_filtered"),
    ],
)
def test_a_reply_becomes_stream_events(finish_reason, calls, reason):
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    events = list(stream_events(reply(finish_reason, usage, content="hi", reasoning_content="hm", tool_calls=calls)))
    assert events[0] == {"messageStart": {"role": "assistant"}}
    deltas = [event["contentBlockDelta"]["delta"] for event in events if "contentBlockDelta" in event]
    assert deltas[:2] == [{"reasoningContent": {"text": "hm"}}, {"text": "hi"}]
    assert deltas[2:] == [{"toolUse": {"input": '{"a": 1}'}} for _ in calls]
    starts = [event["contentBlockStart"]["start"] for event in events if "contentBlockStart" in event]
    assert starts[2:] == [{"toolUse": {"name": "add", "toolUseId": "c1"}} for _ in calls]
    assert events[-2] == {"messageStop": {"stopReason": reason}}
    assert events[-1]["metadata"]["usage"] == {"inputTokens": 1, "outputTokens": 2, "totalTokens": 3}


def test_a_call_without_an_id_gets_the_same_id_in_every_run():
    nameless = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    (block,) = reply_blocks(reply(tool_calls=[nameless]))
    assert block == {"toolUse": {"toolUseId": "call_3_1", "name": "add", "input": '{"a": 1}'}}


TEXT = {"type": "text", "text": "hi"}


@pytest.mark.parametrize(
    ("content", "short"),
    [([TEXT], "hi"), ("hi", "hi"), *[(kept, kept) for kept in ([TEXT, TEXT], [TEXT | {"cache_control": {}}])]],
)
def test_one_text_is_written_as_a_string(content, short):
    assert in_short({"role": "user", "content": content}) == {"role": "user", "content": short}


def test_messages_of_others_are_resent_as_they_are():
    message = {"role": "user", "content": [{"text": " "}]}
    assert resent(message) is message


QUESTION = [{"role": "user", "content": "What is 2 + 3?"}]
BLOCKS = {"role": "assistant", "content": [{"text": "5"}]}


class ByBlocks(Grader):
    """Counts the results of tools in the blocks of Strands' messages."""

    def __init__(self, config=None):
        self.seen = seen

    async def grade(self, ctx):
        for name, sample in ctx.samples.items():
            blocks = [block for message in sample.messages for block in message["content"]]
            self.seen.append([(message["role"], message["content"]) for message in sample.messages])
            ctx.set_sample_reward(name, float(sum("toolResult" in block for block in blocks)))


seen: list = []


async def test_the_format_of_an_agents_messages_is_recorded():
    class Registered:
        message_format = "strands"
        messages = (BLOCKS,)

    class Mixed(AgentWorkflow):
        async def run(self, ctx):
            get_rollout_context().register_agent("native", Registered())
            for sample in ("native", "plain"):
                await get_rollout_context().chat(ctx.prompt, sample=sample)

    outcome, trail = await collect_rollout(Mixed, Replies("5"), QUESTION)
    samples = recorded_samples(outcome, trail)
    assert samples["native"] == [{"role": "user", "content": [{"text": "What is 2 + 3?"}]}, BLOCKS]
    assert samples["plain"] == [*QUESTION, {"role": "assistant", "content": "5"}]


@pytest.mark.adapters
async def test_a_strands_rollout_is_graded_again_with_equal_messages():
    strands = pytest.importorskip("strands")
    from osmosis_grpc.rollout import OsmosisRolloutModel, OsmosisStrandsAgent

    @strands.tool
    def add(a: int, b: int) -> str:
        """Add two numbers."""
        return str(a + b)

    class Adds(AgentWorkflow):
        async def run(self, ctx):
            agent = OsmosisStrandsAgent(
                name="agent", model=OsmosisRolloutModel(), tools=[add], messages=ctx.prompt, callback_handler=None
            )
            await agent.invoke_async()

    policy = Replies(calls("add", {"a": 2, "b": 3}, {"a": 1, "b": 1}), "5")
    outcome, trail = await collect_rollout(WorkflowRunnable(Adds, None, ByBlocks), policy, QUESTION, label="5")
    assert (outcome.failure, outcome.reward) == (None, 2.0)
    request = RolloutRequest(rollout_id="r1", messages=QUESTION, label="5")
    graded = await grade_recorded(ByBlocks, request, recorded_samples(outcome, trail))
    assert dict(graded.rewards) == {"agent": 2.0}
    assert seen[-1] == seen[-2]
