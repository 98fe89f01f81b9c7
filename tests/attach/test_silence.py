"""A connection that stays and carries nothing any more, in one direction: noticed by silence, and mended."""

import asyncio
import logging

import pytest

from osmosis_grpc.link import stream
from osmosis_grpc.trainer import attach
from tests.attach.agents import Talker
from tests.attach.cutting_proxy import CuttingProxy
from tests.attach.policies import CountingPolicy, check_run, requests
from tests.attach.servers import until

pytestmark = pytest.mark.usefixtures("quick_redial")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hearts beat, and silence is noticed, a hundred times as fast."""
    for name, seconds in {"SILENCE": 0.45, "HEARTBEAT": 0.15, "_BEAT": 0.05, "HELLO_LIMIT": 0.3}.items():
        monkeypatch.setattr(stream, name, seconds)


@pytest.mark.parametrize("direction", ["up", "down"])
async def test_what_comes_no_more_in_one_direction_is_noticed_and_mended(stack, serve, impatient, caplog, direction):
    server = await serve(Talker())
    proxy = await stack.enter_async_context(CuttingProxy(server.address))
    policy, completions = CountingPolicy(), []
    policy.gate.clear()
    trainer = await stack.enter_async_context(attach([proxy.address], policy, lost_after=60))
    asked = list(requests("silent", 5))

    async def gather() -> None:
        async for completion in trainer.run(asked):
            completions.append(completion)

    running = asyncio.create_task(gather())
    await until(lambda: policy.open == 5, "chats open")
    with caplog.at_level(logging.WARNING):
        proxy.hold(direction)
        policy.gate.set()
        await asyncio.wait_for(running, 3)
    assert "nothing was heard" in caplog.text
    check_run([request.rollout_id for request in asked], completions, policy)
    assert {completion.attempt for completion in completions} == {1}
