"""Agents whose run() is not async: they run on threads, and their context waits."""

import asyncio
import threading

import pytest

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.policies.scripted import EchoPolicy, answer
from osmosis_grpc.protocol.errors import RolloutEndedError, Unavailable
from osmosis_grpc.protocol.types import OutcomeStatus, events
from osmosis_grpc.server import AgentServer, ServerConfig
from osmosis_grpc.testing import collect_rollout, run_rollout
from osmosis_grpc.tools import tool
from osmosis_grpc.trainer import Trainer
from tests.ports import quiet_port
from tests.waiting import until

USER = {"role": "user", "content": "hello"}


def agent(run, **fields):
    """An agent loop with this method run."""
    return type("Sync", (RolloutAgentLoop,), {"name": "sync", "run": lambda self, ctx: run(ctx), **fields})()


@tool
def double(number: int) -> int:
    """Doubles a number."""
    return 2 * number


async def test_a_sync_agent_has_every_method_of_the_context():
    seen = {}

    def run(ctx):
        seen["thread"] = threading.current_thread()
        seen["tools"] = [schema["function"]["name"] for schema in ctx.tools]
        messages = list(ctx.request.messages)
        reply = ctx.chat(messages, temperature=0.5)
        messages.append(reply.message)
        call = {"id": "c", "type": "function", "function": {"name": "double", "arguments": '{"number": 4}'}}
        seen["results"] = ctx.run_tools({"role": "assistant", "tool_calls": [call]})
        judge = ctx.add_sample("judge", policy="big", parent=("main", reply.chat_number), train=False)
        ctx.chat([USER], sample=judge)
        seen["samples"] = ctx.samples
        ctx.set_reward(0.5, sample="main")
        ctx.record_tool_call(3.0)
        ctx.log_event("note", value=1)
        return ctx.complete(messages, reward=0.75)

    outcome, trail = await collect_rollout(agent(run, tools=[double]), EchoPolicy(), [USER])
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
    assert seen["thread"] is not threading.main_thread()
    assert (seen["tools"], [m["content"] for m in seen["results"]]) == (["double"], ["8"])
    assert seen["samples"] == tuple(outcome.samples) == ("main", "judge")
    assert outcome.samples["judge"].policy == "big"
    assert outcome.samples["main"].reward == 0.5
    assert outcome.reward == 0.75
    assert any(isinstance(event.kind, events.Logged) for event in trail)


async def test_wait_raises_what_its_function_raises_and_refuses_a_function_that_is_not_async():
    errors = []

    def fails():
        raise KeyError("on purpose")

    def run(ctx):
        for work in (lambda: 5, fails):
            try:
                ctx.wait(work)
            except (TypeError, KeyError) as error:
                errors.append(type(error))
        return ctx.complete([])

    async with asyncio.timeout(10):
        outcome = await run_rollout(agent(run), EchoPolicy(), [USER])
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
    assert errors == [TypeError, KeyError]


async def test_an_exception_of_a_sync_agent_is_its_failure_with_its_line():
    def run(ctx):
        raise KeyError("on purpose")

    outcome = await run_rollout(agent(run), EchoPolicy(), [USER])
    assert (outcome.status, outcome.failure.boundary) == (OutcomeStatus.FAILED, "agent")
    assert "on purpose" in outcome.failure.message
    assert outcome.failure.file.endswith("test_sync_agents.py")


async def test_a_plain_run_that_returns_a_coroutine_fails_with_what_to_write():
    async def later(ctx):
        pass

    outcome = await run_rollout(agent(later), EchoPolicy(), [USER])
    assert outcome.failure.message == (
        "RunNotAsyncError: run is a plain function, and returned a coroutine: write `async def run`"
    )


async def test_an_error_of_the_trainer_is_raised_in_the_thread():
    caught = []

    def policy(request):
        raise Unavailable("no model")

    def run(ctx):
        try:
            ctx.chat([USER])
        except Unavailable as error:
            caught.append(error)
            return ctx.error("gave up")

    async with (
        AgentServer([agent(run)], port=0, config=ServerConfig(trainer_grace=0.05)) as server,
        Trainer([server.address], policy) as trainer,
    ):
        outcome = await trainer.rollout(rollout_id="r", messages=[USER])
    assert outcome.failure.message == "gave up"
    assert len(caught) == 1


async def test_blocking_agents_stall_nothing_and_run_at_once():
    together = threading.Barrier(20, timeout=20)

    def run(ctx):
        ctx.chat([USER])
        together.wait()  # all 20 threads get here, or the barrier breaks
        return ctx.complete([], reward=1.0)

    config = ServerConfig(max_concurrent=20)
    async with AgentServer([agent(run)], port=0, config=config) as server, Trainer([server.address], EchoPolicy()) as t:
        outcomes = await asyncio.gather(*(t.rollout(rollout_id=f"r{n}", messages=[USER]) for n in range(20)))
    assert {outcome.status for outcome in outcomes} == {OutcomeStatus.COMPLETED}


@pytest.mark.parametrize("where", ["in its own code", "in a chat", "in a tool"])
async def test_a_cancelled_rollout_ends_at_once_with_its_partial_sample(where):
    here, ended, go_on = threading.Event(), [], threading.Event()

    @tool
    def blocks() -> str:
        """Blocks."""
        here.set()
        go_on.wait(20)
        return ""

    call = {"id": "c", "type": "function", "function": {"name": "blocks", "arguments": "{}"}}

    def run(ctx):
        messages = [USER, ctx.chat([USER]).message]
        try:
            if where == "in its own code":
                here.set()
                go_on.wait(20)
            elif where == "in a tool":
                ctx.run_tools({"role": "assistant", "tool_calls": [call]})
            ctx.chat([*messages, USER])
        except RolloutEndedError as error:
            ended.append(error)
            raise

    async def policy(request):
        if request.chat_number == 2:
            here.set()
            await asyncio.Event().wait()
        return answer(request, "hello")

    async with (
        AgentServer([agent(run, tools=[blocks])], port=0) as server,
        Trainer([server.address], policy) as trainer,
    ):
        rollout = asyncio.create_task(trainer.rollout(rollout_id="r", messages=[USER]))
        await until(here.is_set)
        await trainer.cancel("r")
        outcome = await rollout
        assert outcome.status is OutcomeStatus.CANCELLED
        assert [message["role"] for message in outcome.messages][:2] == ["user", "assistant"]
        go_on.set()
        await until(lambda: ended)


async def test_the_context_is_refused_on_the_event_loop_and_after_the_end():
    kept = []

    def run(ctx):
        kept.append(ctx)
        return ctx.complete([])

    await run_rollout(agent(run), EchoPolicy(), [USER])
    with pytest.raises(RuntimeError, match="async def run"):
        kept[0].chat([USER])
    with pytest.raises(RolloutEndedError):
        await asyncio.to_thread(kept[0].chat, [USER])


async def test_a_sync_agent_continues_after_a_restart_of_the_server(tmp_path):
    asked, go_on = [], asyncio.Event()

    async def policy(request):
        asked.append(request.chat_number)
        if request.chat_number == 2:
            await go_on.wait()
        return answer(request, f"reply {request.chat_number}")

    def run(ctx):
        messages = [USER]
        for _ in range(2):
            messages += [ctx.chat(messages).message, USER]
        return ctx.complete(messages, reward=1.0)

    def server(port):
        return AgentServer([agent(run, replayable=True)], port=port, state_dir=tmp_path)

    port = quiet_port()
    async with Trainer([f"127.0.0.1:{port}"], policy) as trainer:
        async with server(port):
            rollout = asyncio.create_task(trainer.rollout(rollout_id="r", messages=[USER]))
            await until(lambda: 2 in asked)
        go_on.set()
        async with server(port):
            outcome = await rollout
    assert (outcome.status, outcome.reward) == (OutcomeStatus.COMPLETED, 1.0)
    assert asked.count(1) == 1, "its first reply is replayed"
