"""Strands agents on a real server: many at once, tokens and bytes on the wire, secrets, cancelled tools."""

import asyncio
import threading

import pytest

from osmosis_grpc.agent.workflow_runnable import WorkflowRunnable
from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.types import OutcomeStatus, events
from osmosis_grpc.rollout import AgentWorkflow, Grader
from osmosis_grpc.server import AgentServer
from osmosis_grpc.testing import run_rollout
from osmosis_grpc.trainer import Trainer
from tests.integrations.strands_policy import Replies, calls
from tests.integrations.wire_tap import tapped
from tests.ports import quiet_port
from tests.processes import serving
from tests.waiting import until

pytestmark = pytest.mark.adapters
strands = pytest.importorskip("strands")

CANARY = "sk-canary-3141592653"


@strands.tool
async def look_up(word: str) -> str:
    """Look a word up."""
    await asyncio.sleep(0)  # lets the other rollouts run
    return f"{word} is a word. " + "x" * 100


class Search(AgentWorkflow):
    async def run(self, ctx):
        from osmosis_grpc.rollout import OsmosisRolloutModel, OsmosisStrandsAgent

        model = OsmosisRolloutModel(params={"temperature": 1.0})
        agent = OsmosisStrandsAgent(
            name="agent", model=model, tools=[look_up], messages=ctx.prompt, callback_handler=None
        )
        await agent.invoke_async()


class OwnMessagesOnly(Grader):
    async def grade(self, ctx):
        (sample,) = ctx.samples.values()
        told = [block["text"] for message in sample.messages for block in message["content"] if "text" in block]
        used = [
            block["toolUse"]["input"]
            for message in sample.messages
            for block in message["content"]
            if "toolUse" in block
        ]
        own = told == [f"Look up {ctx.label}.", f"found {ctx.label}"] and used == [{"word": ctx.label}] * 3
        ctx.set_sample_reward(sample.id, float(own))


def by_rollout(request):
    word = request.messages[0]["content"].removeprefix("Look up ").removesuffix(".")
    if request.chat_number < 4:
        return answer(request, calls("look_up", {"word": word}, number=request.chat_number))
    assert word in request.messages[-1]["content"]
    return answer(request, f"found {word}")


@pytest.mark.row("SDK 31")
async def test_100_concurrent_rollouts_with_equal_agent_names_keep_their_samples_apart():
    agent = WorkflowRunnable(Search, grader=OwnMessagesOnly)
    async with AgentServer([agent], port=0) as server, Trainer([server.address], by_rollout) as trainer:
        outcomes = await asyncio.gather(
            *(
                trainer.rollout(
                    rollout_id=f"r{number}",
                    messages=[{"role": "user", "content": f"Look up word{number}."}],
                    label=f"word{number}",
                )
                for number in range(100)
            )
        )
    for number, outcome in enumerate(outcomes):
        assert outcome.rollout_id == f"r{number}"
        assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
        assert outcome.samples["agent"].reward == 1.0
        assert f"word{number}" in outcome.samples["agent"].messages[-1]["content"]


async def test_the_key_of_openai_is_nowhere(tmp_path, monkeypatch, caplog):
    """A canary in OPENAI_API_KEY is not on the wire, in the journal, in the log, or in what the trainer gets."""
    monkeypatch.setenv("OPENAI_API_KEY", CANARY)
    caplog.set_level("DEBUG")
    policy = Replies(calls("look_up", {"word": "tea"}), "done")
    async with (
        AgentServer([Search], port=0, state_dir=tmp_path / "state") as server,
        tapped(server.address) as tap,
        Trainer([tap.address], policy) as trainer,
    ):
        outcome = await trainer.rollout(rollout_id="r", messages=[{"role": "user", "content": "Look up tea."}])
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
    files = [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
    journal = b"".join(path.read_bytes() for path in files)
    assert b"tea is a word" in journal
    assert b"tea is a word" in tap.passed
    for place in (
        journal,
        bytes(tap.passed),
        caplog.text.encode(),
        repr(policy.requests).encode(),
        repr(outcome).encode(),
    ):
        assert CANARY.encode() not in place


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_rollout_that_is_cancelled_in_a_tool_ends_with_its_partial_samples(kind):
    began, let_go = threading.Event(), threading.Event()

    @strands.tool(name="look_up")
    def sync_tool(word: str) -> str:
        """Look a word up."""
        began.set()
        let_go.wait(20)
        return "late"

    @strands.tool(name="look_up")
    async def async_tool(word: str) -> str:
        """Look a word up."""
        began.set()
        await asyncio.Event().wait()
        return "never"

    class Slow(AgentWorkflow):
        async def run(self, ctx):
            from osmosis_grpc.rollout import OsmosisRolloutModel, OsmosisStrandsAgent

            tools = [sync_tool if kind == "sync" else async_tool]
            agent = OsmosisStrandsAgent(name="agent", model=OsmosisRolloutModel(), tools=tools, messages=ctx.prompt)
            agent.callback_handler = lambda **event: None
            await agent.invoke_async()

    before = asyncio.all_tasks()
    policy = Replies(calls("look_up", {"word": "tea"}), "done")
    async with AgentServer([Slow], port=0) as server, Trainer([server.address], policy) as trainer:
        rollout = asyncio.create_task(
            trainer.rollout(rollout_id="r", messages=[{"role": "user", "content": "Look up tea."}])
        )
        await until(began.is_set)
        await trainer.cancel("r")
        outcome = await rollout
        let_go.set()
    assert outcome.status is OutcomeStatus.CANCELLED
    sample = outcome.samples["agent"]
    assert [message["role"] for message in sample.messages] == ["user", "assistant"]
    assert sum(segment.sampled for segment in sample.segments) == len(policy.given[0].tokens.ids)
    assert len(policy.requests) == 1
    await until(lambda: asyncio.all_tasks() <= before)


@pytest.mark.parametrize("transport", ["attach", "callback"])
@pytest.mark.row("SDK 54")
async def test_the_trainer_gets_the_messages_that_a_conversation_manager_has_removed(transport, tmp_path):
    class Short(AgentWorkflow):
        async def run(self, ctx):
            from strands.agent.conversation_manager import SlidingWindowConversationManager

            from osmosis_grpc.rollout import OsmosisRolloutModel, OsmosisStrandsAgent

            agent = OsmosisStrandsAgent(
                name="agent",
                model=OsmosisRolloutModel(),
                tools=[look_up],
                messages=ctx.prompt,
                system_prompt="Be brief.",
                callback_handler=None,
                conversation_manager=SlidingWindowConversationManager(window_size=6, per_turn=True),
            )
            await agent.invoke_async()

    policy = Replies(*(calls("look_up", {"word": str(n)}, number=n) for n in range(1, 13)), "done")
    async with (
        AgentServer([Short], port=0, state_dir=tmp_path / "state") as server,
        Trainer([server.address], policy, transport=transport) as trainer,
    ):
        outcome = await trainer.rollout(rollout_id="r", messages=[{"role": "user", "content": "Look up all."}])
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
    sample = outcome.samples["agent"]
    assert [message["role"] for message in sample.messages] == [
        "system",
        "user",
        *["assistant", "tool"] * 12,
        "assistant",
    ]
    assert [m for m in sample.messages if m["role"] == "assistant"] == [reply.message for reply in policy.given]
    assert max(len(request.messages) for request in policy.requests) < 12
    assert sum(segment.sampled for segment in sample.segments) == sum(len(reply.tokens.ids) for reply in policy.given)


def told(outcome):
    """What a restart must not change."""
    return {
        name: (
            [{key: message.get(key) for key in ("role", "content", "tool_calls")} for message in sample.messages],
            [(segment.ids.tobytes(), segment.logprobs.tobytes(), segment.chats) for segment in sample.segments],
            sample.reward,
        )
        for name, sample in outcome.samples.items()
    }


async def test_a_workflow_continues_after_a_kill_in_a_tool_and_no_chat_is_asked_again(tmp_path, monkeypatch):
    from osmosis_grpc.agent.workflow_runnable import WorkflowRunnable
    from tests.integrations import strands_replayable as agents

    monkeypatch.setenv(agents.GATE, str(tmp_path))
    asked = []

    def policy(request):
        asked.append((request.sample, request.chat_number))
        return agents.reply(request)

    module = "tests.integrations.strands_replayable"
    options = ("-m", module, "--state-dir", str(tmp_path / "state"), "--grpc-port", str(quiet_port()))
    with serving(*options) as (process, ready):
        async with Trainer([ready["grpc"]], policy) as trainer:
            rollout = asyncio.create_task(trainer.rollout(rollout_id="r", messages=agents.QUESTION, label="x"))
            await until((tmp_path / "waits").exists)
            process.kill()
            await asyncio.to_thread(process.wait, 60)
            (tmp_path / "go").touch()
            with serving(*options):
                outcome = await rollout
                kinds = [event.kind async for event in trainer.events("r")]
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
    assert sum(isinstance(kind, events.Resumed) for kind in kinds) == 1
    assert sorted(asked) == [("helper", 1), ("helper", 2), *(("main-agent", n) for n in (1, 2, 3, 4))]
    undisturbed = await run_rollout(
        WorkflowRunnable(agents.Counts, grader=agents.Ends), agents.reply, agents.QUESTION, rollout_id="r", label="x"
    )
    assert told(outcome) == told(undisturbed)
    assert {name: sample.reward for name, sample in outcome.samples.items()} == {"main-agent": 1.0, "helper": 1.0}
