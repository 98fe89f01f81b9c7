"""The tools of a Strands agent in the trajectory: their times, names and results."""

import asyncio

import pytest

from osmosis_grpc.protocol.types import OutcomeStatus, events
from osmosis_grpc.rollout import AgentWorkflow
from osmosis_grpc.server import AgentServer
from osmosis_grpc.trainer import Trainer
from tests.integrations.strands_policy import Replies, calls

pytestmark = pytest.mark.adapters
strands = pytest.importorskip("strands")

QUESTION = [{"role": "user", "content": "Look up tea and milk."}]


@strands.tool
def look_up(word: str) -> str:
    """Look a word up."""
    return f"{word} is a word"


@strands.tool
def refuse(word: str) -> str:
    """Refuse."""
    raise ValueError(f"{word} is refused")


def workflow(*tools, act=None, **options):
    class Search(AgentWorkflow):
        async def run(self, ctx):
            from osmosis_grpc.rollout import OsmosisRolloutModel, OsmosisStrandsAgent

            agent = OsmosisStrandsAgent(
                OsmosisRolloutModel(),
                ctx.prompt,
                list(tools),
                name="agent",
                callback_handler=None,
                **{name: make() for name, make in options.items()},
            )
            await (act or type(agent).invoke_async)(agent)

    return Search


async def told(cls, policy, folder=None):
    """Run one rollout. Return its outcome, the calls and the ends of its tools."""
    state = {} if folder is None else {"state_dir": folder}
    async with AgentServer([cls], port=0, **state) as server, Trainer([server.address], policy) as trainer:
        outcome = await trainer.rollout(rollout_id="r", messages=QUESTION)
        kinds = [event.kind async for event in trainer.events("r")]
    return outcome, *(
        [kind for kind in kinds if isinstance(kind, each)] for each in (events.ToolCalled, events.ToolReturned)
    )


async def test_each_call_and_its_result_are_events_of_the_chat_that_asked_for_them():
    policy = Replies(
        calls("look_up", {"word": "tea"}, {"word": "milk"}), calls("refuse", {"word": "ale"}, number=2), "done"
    )
    outcome, called, returned = await told(workflow(look_up, refuse), policy)
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
    asked = [call for reply in policy.given for call in reply.message.get("tool_calls") or ()]
    found = sorted(called, key=lambda kind: kind.call["id"])
    assert [dict(kind.call) for kind in found] == asked
    assert [(kind.sample, kind.chat_number) for kind in found] == [("agent", 1), ("agent", 1), ("agent", 2)]
    ends = {kind.tool_call_id: kind for kind in returned}
    assert {name: (kind.name, kind.sample, kind.chat_number) for name, kind in ends.items()} == {
        "c1-0": ("look_up", "agent", 1),
        "c1-1": ("look_up", "agent", 1),
        "c2-0": ("refuse", "agent", 2),
    }
    results = {m["tool_call_id"]: m for m in outcome.samples["agent"].messages if m["role"] == "tool"}
    assert {name: kind.message for name, kind in ends.items()} == results
    assert [(name, kind.error) for name, kind in ends.items() if kind.error] == [("c2-0", "ale is refused")]
    assert outcome.metrics.num_tool_calls == 3
    assert 0 < outcome.metrics.tool_time <= outcome.metrics.total_latency_ms / 1000
    spent = outcome.metrics
    assert spent.tool_latency_ms == pytest.approx(sum(kind.latency for kind in returned) * 1000)


async def test_the_recorded_call_and_result_are_those_after_the_hooks_of_the_user():
    class Rewrites:
        def register_hooks(self, registry):
            registry.add_callback(strands.hooks.BeforeToolCallEvent, self.before)
            registry.add_callback(strands.hooks.AfterToolCallEvent, self.after)

        def before(self, event):
            event.tool_use["input"]["word"] = "coffee"

        def after(self, event):
            event.result["content"] = [{"text": "rewritten"}]

    _, called, returned = await told(
        workflow(look_up, hooks=lambda: [Rewrites()]), Replies(calls("look_up", {"word": "tea"}), "done")
    )
    assert [kind.call["function"]["arguments"] for kind in called] == ['{"word": "coffee"}']
    assert [kind.message["content"] for kind in returned] == ["rewritten"]


async def test_a_call_that_a_hook_cancels_has_the_message_as_its_error():
    def no(event: strands.hooks.BeforeToolCallEvent) -> None:
        event.cancel_tool = "not today"

    outcome, _, returned = await told(
        workflow(look_up, hooks=lambda: [no]), Replies(calls("look_up", {"word": "tea"}), "done")
    )
    assert [kind.error for kind in returned] == ["not today"], outcome.failure


@pytest.mark.parametrize("where", ["run", "thread"])
async def test_a_tool_that_the_agents_code_calls_is_recorded(where):
    async def act(agent):
        if where == "thread":
            await asyncio.to_thread(lambda: agent.tool.look_up(word="tea"))
        else:
            agent.tool.look_up(word="tea")
        await agent.invoke_async()

    outcome, called, returned = await told(workflow(look_up, act=act), Replies("done"))
    assert [kind.call["function"]["name"] for kind in called] == ["look_up"], outcome.failure
    assert [kind.message["content"] for kind in returned] == ["tea is a word"]


async def test_an_interrupted_call_ends_its_time_and_begins_again():
    def ask(event: strands.hooks.BeforeToolCallEvent) -> None:
        event.interrupt("approve", reason="look_up?")

    async def act(agent):
        result = await agent.invoke_async()
        assert result.stop_reason == "interrupt"
        answers = [{"interruptResponse": {"interruptId": each.id, "response": "yes"}} for each in result.interrupts]
        await agent.invoke_async(answers)

    outcome, called, returned = await told(
        workflow(look_up, act=act, hooks=lambda: [ask]), Replies(calls("look_up", {"word": "tea"}), "done")
    )
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
    assert [kind.call["id"] for kind in called] == ["c1-0", "c1-0"]
    assert [kind.message["content"] for kind in returned] == ["tea is a word"]
