"""Which agent server is which to a trainer, and what becomes of the rollouts of one that is lost or forgets."""

import asyncio
import functools
from typing import Any

import pytest

from osmosis_grpc.network import dialled_stream
from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.errors import Unavailable
from osmosis_grpc.testing.raw.server_frames import HEARTBEAT
from osmosis_grpc.trainer import Trainer, TrainerConfig
from tests.server.attached import Talk
from tests.trainer.deployment import Deployment
from tests.waiting import until


async def test_two_servers_without_a_journal_are_two_servers(listening):
    deployment = await listening()
    one, two = await deployment.server(), await deployment.server()
    first, second = await one.attach(journal_id=""), await two.attach(journal_id="")
    assert first.attachment_id != second.attachment_id
    assert len(deployment.trainer.servers) == 2
    await one.send(HEARTBEAT)
    assert one.stream.over is None


async def test_a_lost_servers_rollouts_go_to_another(listening):
    deployment = await listening(lost_after=0.2)
    server, other = await deployment.server(), await deployment.server()
    await server.attach()
    done = deployment.run("r")
    await server.accept()
    await other.attach()
    await server.stream.cut()
    request = await other.accept()
    assert request.attempt == 2
    await other.complete(request)
    assert (await done).attempt == 2
    await server.attach()
    cancel = (await server.stream.next("cancel")).request
    assert (cancel.rollout_id, cancel.attempt) == ("r", 1), "it is told what runs elsewhere"


async def test_a_lost_server_that_comes_back_with_all_its_rollouts_is_of_use_again(serve, policy, stack, monkeypatch):
    redial = functools.partial(dialled_stream.redial, pauses=(0.2, 0.4))
    monkeypatch.setattr("osmosis_grpc.trainer.transports.transport.redial", redial)
    servers = [await serve(Talk(), max_concurrent=1, max_queued=0) for _ in range(2)]

    async def hold(request: Any) -> Any:
        return await policy(request) if request.rollout_id == "held" else answer(request, "fine", tokens=2)

    policy.may.clear()
    trainer = await stack.enter_async_context(
        Trainer([s.address for s in servers], hold, config=TrainerConfig(lost_after=0.05))
    )
    deployment = Deployment(trainer, stack)
    await until(lambda: all(server.attached for server in trainer.servers))
    talk = {"metadata": {"turns": 1}}
    held = deployment.run("held", **talk)
    await until(lambda: policy.asked)
    (holder,) = [server for server in servers if server.engine.capacity().running]
    link = next(link for link in trainer.scheduler.servers if link.name == holder.address)
    link.stream.end(Unavailable("cut"))
    await until(lambda: ("held", 2, "main", 1) in policy.asked)
    other = deployment.run("other", **talk)
    await asyncio.wait({other}, timeout=2)
    assert other.done(), "the server of the first attempt has a free slot"
    policy.may.set()
    assert (await held).attempt == 2


async def test_rollouts_without_a_server_end_with_unavailable(listening):
    deployment = await listening(lost_after=0.1)
    with pytest.raises(Unavailable, match="no agent server was there"):
        await deployment.run("r")
