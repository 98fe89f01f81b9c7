"""How a legacy agent's rollout ends before the agent is through."""

import asyncio

import pytest

from osmosis_grpc.protocol.errors import CallError, Unavailable
from osmosis_grpc.protocol.types import RolloutState
from tests.gateway.legacy_agent import QUESTION, REPLY, never, plays
from tests.gateway.legacy_deployment import builder, closings, usual  # noqa: F401  # fixtures
from tests.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")


# By a cancel, or a higher attempt


async def test_cancelled_while_it_waits(build):
    deployment = await build(max_concurrent=1)
    await deployment.init("r1")
    await deployment.init("r2")
    chat = asyncio.create_task(deployment.old.chat("r2"))
    await deployment.open_chats()
    await deployment.client.cancel("r2", reason="enough")
    assert (await chat)[0] == 410
    await deployment.gone("r2")
    assert (await deployment.end("r2")).status == "CANCELLED"
    assert (await deployment.wait("r2")).reward is None
    assert deployment.policy.asked == []
    await deployment.finish("r1")


async def test_cancelled_while_it_runs(deployment):
    chat = await deployment.held()
    await deployment.client.cancel("r1")
    assert (await chat)[0] == 410
    await deployment.gone("r1")
    assert (await deployment.end()).status == "CANCELLED"
    assert len(deployment.policy.asked) == 1


async def test_cancelled_before_its_init_was_answered(deployment):
    go = asyncio.Event()
    deployment.old.init_answers.append(deployment.old.answers(go.wait))
    init = asyncio.create_task(deployment.init())
    await until(lambda: deployment.old.inits)
    chat = asyncio.create_task(deployment.old.chat("r1"))
    await deployment.open_chats()
    await deployment.client.cancel("r1")
    go.set()
    await init
    assert (await chat)[0] == 410
    await deployment.gone("r1")
    assert (await deployment.end()).status == "CANCELLED"


async def test_superseded(deployment):
    chat = await deployment.held()
    second = await deployment.init(attempt=2)
    assert (second.rollout_id, second.attempt) == ("r1", 2)
    assert [init["rollout_id"] for init in deployment.old.inits] == ["r1", "r1~2"]
    assert (await chat)[0] == 410
    await deployment.gone("r1")
    deployment.policy.gate.set()
    status, body = await deployment.old.chat("r1~2")
    assert (status, body["id"]) == (200, "r1~2")
    assert (deployment.policy.asked[-1].rollout_id, deployment.policy.asked[-1].attempt) == ("r1", 2)
    assert await deployment.old.complete("r1~2", reward=0.5) == 200
    outcome = await deployment.end(attempt=2)
    assert (outcome.attempt, outcome.status, outcome.reward) == (2, "COMPLETED", 0.5)
    assert (await deployment.wait(attempt=1)).finish_reason == "superseded"


async def test_an_attempt_overtaken_before_its_init_was_answered(deployment):
    go = asyncio.Event()
    deployment.old.init_answers.append(deployment.old.answers(go.wait))
    first = asyncio.create_task(deployment.init())
    await until(lambda: deployment.old.inits)
    await deployment.init(attempt=2)
    go.set()
    with pytest.raises(CallError, match="attempt 2"):
        await first
    await deployment.gone("r1")
    assert await deployment.old.complete("r1~2") == 200
    assert (await deployment.end(attempt=2)).status == "COMPLETED"


async def test_many_cancelled_at_any_time(build):
    """Whatever a cancel meets, nothing is left."""
    deployment = await build(script=plays, max_concurrent=5, max_queued=200)

    async def one(number: int) -> str:
        init = asyncio.create_task(deployment.init(f"r{number}"))
        await asyncio.sleep(number * 0.002)  # each cancel meets another moment
        await deployment.client.cancel(f"r{number}")
        await init
        return (await deployment.end(f"r{number}")).status

    async with asyncio.timeout(10):
        statuses = await asyncio.gather(*(one(number) for number in range(40)))
    assert set(statuses) <= {"COMPLETED", "CANCELLED"}
    await until(lambda: all(task.done() for task in deployment.old.tasks))


# By time


@pytest.mark.parametrize(("doing", "boundary"), [("chat", "trainer"), ("nothing", "agent"), ("queued", "server")])
async def test_timed_out(build, doing, boundary):
    deployment = await build(max_concurrent=1)
    deployment.policy.gate.clear()
    if doing == "queued":
        await deployment.init("r0")
    await deployment.init(agent_timeout=0.25)
    chat = asyncio.create_task(deployment.old.chat("r1")) if doing != "nothing" else None
    outcome = await deployment.end()
    if chat is not None:
        # a chat on its way has the deadline of the rollout: its own timeout may come first
        assert (await chat)[0] in (410, 424)
    await deployment.gone("r1")
    assert (outcome.status, outcome.finish_reason) == ("DEADLINE_EXCEEDED", "timeout")
    assert (outcome.failure.boundary, outcome.failure.retryable) == (boundary, True)
    if doing == "queued":
        await deployment.finish("r0")


async def test_an_old_agent_that_is_gone(build):
    deployment = await build(hosted={"silence": 0.2})
    await deployment.init()
    assert (await deployment.old.chat("r1"))[0] == 200
    await deployment.old.runner.cleanup()
    outcome = await deployment.end()
    assert outcome.status == "FAILED"
    assert (outcome.failure.boundary, outcome.failure.retryable) == ("server", True)
    assert "silent for 0.2 s" in outcome.failure.message
    assert list(outcome.messages) == [*QUESTION, REPLY]
    await deployment.gone("r1")


async def test_waiting_is_no_silence(build):
    """Neither for the trainer's reply, nor for a place."""
    deployment = await build(hosted={"silence": 0.3}, max_concurrent=1)
    chat = await deployment.held()
    await deployment.init("r2")
    await asyncio.sleep(0.45)  # longer than the silence that counts as lost
    assert (await deployment.client.get("r1")).state is RolloutState.RUNNING
    deployment.policy.gate.set()
    assert (await chat)[0] == 200
    await deployment.finish("r1")
    assert (await deployment.old.chat("r2"))[0] == 200
    await deployment.finish("r2")


# By our server's


@pytest.mark.parametrize("limit", [0.0, 0.2])
async def test_our_server_stops(build, limit):
    deployment = await build(max_concurrent=1)
    chats = [await deployment.held()]
    await deployment.init("r2")
    chats.append(asyncio.create_task(deployment.old.chat("r2")))
    await deployment.open_chats(2)
    waits = [asyncio.create_task(deployment.end(rollout_id)) for rollout_id in ("r1", "r2")]
    await deployment.server.stop(limit)
    assert [(await chat)[0] for chat in chats] == [410, 410]
    for rollout_id in ("r1", "r2"):
        await deployment.gone(rollout_id)
    if limit:
        for outcome in await asyncio.gather(*waits):
            assert (outcome.status, outcome.failure.boundary) == ("FAILED", "server")
            assert outcome.failure.retryable
    for wait in waits:
        wait.cancel()
    await asyncio.gather(*waits, return_exceptions=True)


async def test_our_server_drains_and_the_old_agent_finishes(deployment):
    await deployment.init()
    stop = asyncio.create_task(deployment.server.stop(20.0))
    await until(lambda: deployment.server.engine.shutdown.draining)
    with pytest.raises(Unavailable, match="draining"):
        await deployment.init("r2")
    assert deployment.old.posts == 1
    assert (await deployment.old.chat("r1"))[0] == 200
    assert await deployment.old.complete("r1") == 200
    await stop
    assert (await deployment.end()).status == "COMPLETED"


async def test_our_server_stops_with_an_init_on_its_way(deployment):
    deployment.old.init_answers.append(deployment.old.answers(never))
    init = asyncio.create_task(deployment.init())
    await until(lambda: deployment.old.inits)
    chat = asyncio.create_task(deployment.old.chat("r1"))
    await deployment.open_chats()
    await deployment.server.__aexit__(None, None, None)
    with pytest.raises(CallError):
        await init
    assert (await chat)[0] == 410
