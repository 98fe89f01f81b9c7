"""The context of the running rollout (rows 30 to 35 and 42 to 45 of the SDK's list)."""

import asyncio
import logging

import pytest

from osmosis_grpc.engine import Engine, EngineConfig, Peer
from osmosis_grpc.policies import EchoPolicy
from osmosis_grpc.protocol.types import InitRequest, Receipt, RolloutRequest
from osmosis_grpc.rollout import AgentWorkflow, RolloutAgentLoop, RolloutContext, get_rollout_context, tool
from osmosis_grpc.storage import MemoryJournal
from osmosis_grpc.testing import collect_rollout, run_rollout
from tests.agent.workflows.made import QUESTION, Asks

CANARY = "sk-canary-0123456789"


@pytest.mark.row("SDK 30")
async def test_the_context_is_set_inside_of_run_only():
    seen = []

    class Looks(Asks):
        async def run(self, ctx):
            seen.append(get_rollout_context().rollout_id)
            await super().run(ctx)

    await run_rollout(Looks, EchoPolicy(), QUESTION, rollout_id="r30")
    assert seen == ["r30"]
    assert get_rollout_context() is None


@pytest.mark.row("SDK 30")
async def test_agent_loops_and_their_tools_have_the_context_too():
    seen = []

    @tool
    async def look() -> str:
        """Look."""
        seen.append(get_rollout_context())
        return "ok"

    class Loop(RolloutAgentLoop):
        name = "loop"
        tools = (look,)

        async def run(self, ctx):
            seen.append(get_rollout_context())
            seen.append(await asyncio.create_task(asyncio.to_thread(get_rollout_context)))
            call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
            await ctx.run_tools({"role": "assistant", "tool_calls": [call]})
            assert all(found is ctx for found in seen)
            return ctx.complete([])

    assert (await run_rollout(Loop(), EchoPolicy())).failure is None
    assert len(seen) == 3


@pytest.mark.row("SDK 31")
async def test_100_rollouts_at_once_with_equal_sample_names_stay_apart():
    class Echoes(AgentWorkflow):
        async def run(self, ctx):
            await get_rollout_context().chat(ctx.prompt, sample="agent")
            await asyncio.sleep(0)
            assert get_rollout_context().rollout_id == ctx.prompt[0]["content"]

    done: dict[str, asyncio.Future] = {f"r{number}": asyncio.Future() for number in range(100)}

    async def complete(outcome):
        done[outcome.rollout_id].set_result(outcome)
        return Receipt.RECORDED

    async with Engine([Echoes], EngineConfig(max_concurrent=100), journal=MemoryJournal()) as engine:
        for name in done:
            request = RolloutRequest(rollout_id=name, messages=[{"role": "user", "content": name}])
            await engine.init(InitRequest(request=request), owner="", peer=Peer(EchoPolicy(), complete))
        outcomes = await asyncio.gather(*done.values())
    for outcome in outcomes:
        assert [message["content"] for message in outcome.samples["agent"].messages] == [outcome.rollout_id] * 2


@pytest.mark.row("SDK 32")
def test_the_exit_restores_the_outer_context():
    with RolloutContext(rollout_id="outer") as outer:
        with RolloutContext(rollout_id="inner") as inner:
            assert get_rollout_context() is inner
            with outer:
                assert get_rollout_context() is outer
            assert get_rollout_context() is inner
        assert get_rollout_context() is outer
    assert get_rollout_context() is None


@pytest.mark.row("SDK 35")
async def test_no_key_is_in_a_repr_an_event_or_the_log(caplog):
    caplog.set_level(logging.DEBUG)

    class Shows(Asks):
        async def run(self, ctx):
            context = get_rollout_context()
            context.log_event("shown", context=context, request=context.request, key=context.request.api_key is None)
            keys.extend((context.api_key, CANARY))
            logging.getLogger("agent").info("%r %r %s", context, context.request, context.request)
            await super().run(ctx)

    keys: list[str] = []
    outcome, events = await collect_rollout(Shows, EchoPolicy(), QUESTION, api_key=CANARY)
    assert outcome.failure is None
    assert len(keys) == 2
    for key in keys:
        assert key not in caplog.text
        assert key not in repr(events)
        assert key not in repr(RolloutContext(api_key=key))


class Native:
    """An agent of another library."""

    def __init__(self, *texts):
        self.messages = [{"role": "user", "content": [{"text": text}]} for text in texts]


@pytest.mark.parametrize("name", ["naïve agent", "name with spaces", "日本", "x" * 256])
@pytest.mark.row("SDK 42")
async def test_an_odd_name_works(name):
    class Odd(AgentWorkflow):
        async def run(self, ctx):
            get_rollout_context().register_agent(name, Native())
            await get_rollout_context().chat(ctx.prompt, sample=name)

    assert list((await run_rollout(Odd, EchoPolicy(), QUESTION)).samples) == [name]


@pytest.mark.parametrize("name", ["", "two\nlines", "x" * 1000, None, 3])
@pytest.mark.row("SDK 42")
async def test_a_name_that_cannot_be_used_is_refused_clearly(name):
    class Odd(Asks):
        async def run(self, ctx):
            with pytest.raises(ValueError, match="sample"):
                get_rollout_context().register_agent(name, Native())
            await super().run(ctx)

    assert (await run_rollout(Odd, EchoPolicy(), QUESTION)).failure is None


@pytest.mark.row("SDK 43")
async def test_a_second_agent_of_a_name_is_refused():
    class Twice(AgentWorkflow):
        async def run(self, ctx):
            for _ in range(2):
                get_rollout_context().register_agent("searcher", Native())

    outcome = await run_rollout(Twice, EchoPolicy(), QUESTION)
    assert "'searcher'" in outcome.failure.message


@pytest.mark.row("SDK 43")
def test_without_a_rollout_agents_can_be_registered_too():
    context = RolloutContext()
    context.register_agent("searcher", Native("hello"))
    assert context.get_samples()["searcher"].messages == [{"role": "user", "content": [{"text": "hello"}]}]
    assert list(context.registered_agents) == ["searcher"]
    with pytest.raises(ValueError, match="'searcher'"):
        context.register_agent("searcher", Native())


@pytest.mark.row("SDK 44", "SDK 45")
async def test_only_registered_agents_have_native_messages():
    class Whole(Native):
        def rollout_messages(self):
            return [{"role": "user", "content": [{"text": "first"}]}, *self.messages]

    class Mixed(AgentWorkflow):
        async def run(self, ctx):
            context = get_rollout_context()
            context.register_agent("native", Whole("last"))
            context.register_agent("silent", Native("never asked"))
            for sample in ("native", "plain"):
                await context.chat(ctx.prompt, sample=sample)
            samples = context.get_samples()
            assert list(samples) == ["native", "silent", "plain"]
            assert [message["content"][0]["text"] for message in samples["native"].messages] == ["first", "last"]
            assert [message["role"] for message in samples["plain"].messages] == ["system", "user", "assistant"]

    outcome = await run_rollout(Mixed, EchoPolicy(), QUESTION)
    assert outcome.failure is None
    assert list(outcome.samples) == ["native", "plain"]
