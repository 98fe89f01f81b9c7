"""How each job of engine, journal, server and link is made to run, and what its failure does."""

import asyncio

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from osmosis_grpc import supervise
from osmosis_grpc.agent.validator import validate_agent_loop
from osmosis_grpc.policies.scripted import EchoPolicy, answer
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import attach_pb2, control_pb2
from osmosis_grpc.protocol.errors import Internal, Unavailable
from osmosis_grpc.protocol.types import Fork, OutcomeStatus
from osmosis_grpc.server import AgentServer, ServerSecurity
from osmosis_grpc.testing import collect_rollout
from osmosis_grpc.testing.raw.trainer_frames import init
from osmosis_grpc.trainer import Trainer
from tests.deployment import PATIENCE, USER, SlowTools, Talk

FRAME = attach_pb2.TrainerFrame


async def goes_on(h, fail):
    """A job that runs again and again, or at once: it fails, and a rollout goes well."""
    fail()
    await h.completes("r1")


async def fails_its_rollout(h, fail, agent_loop="talk", **fields):
    fail()
    await h.ends_as_ours("r1", agent_loop, **fields)


async def refuses_the_init(h, fail, agent_loop="talk"):
    fail()
    with pytest.raises(Internal):
        await h.start("r1", agent_loop)


async def fails_the_agents_chat(h, fail):
    fail()
    outcome, _ = await collect_rollout(Talk(), lambda request: EchoPolicy()(request), [USER])
    assert (outcome.status, outcome.failure.boundary) == (OutcomeStatus.FAILED, "agent")
    assert "injected" in outcome.failure.message


async def fork(h, fail):
    await h.completes("r1")
    fail()
    with pytest.raises(Internal):
        await h.start("r2", fork=Fork("r1", 1))


async def decide(h, fail):
    await h.start("r1", "hangs")
    fail()
    await h.client.cancel("r1")
    outcome = await h.end("r1")
    assert (outcome.status, outcome.failure.boundary) == (OutcomeStatus.FAILED, "server")


async def deliver(h, fail):
    supervise.inject("engine.complete", OSError("the first try"))
    await goes_on(h, fail)


async def resend(h, fail):
    await h.completes("r1")
    await h.until(lambda: not h.server.engine.capacity().undelivered)
    fail()
    assert not (await h.start("r1")).created


async def fails_the_writer(h, fail):
    fail()

    async def ask():
        for number in range(1000):
            await h.start(f"r{number}", "hangs")

    with pytest.raises(Unavailable):
        await asyncio.wait_for(ask(), PATIENCE)


async def barrier(h, fail):
    await h.start("r1", "hangs")
    fail()
    await asyncio.wait_for(h.client.cancel("r1"), PATIENCE)  # the client asks again
    assert (await h.end("r1")).status is OutcomeStatus.CANCELLED


async def start_server(h, fail):
    fail()
    with pytest.raises(OSError, match="injected"):
        async with AgentServer([Talk()], port=0):
            pass


async def answers_the_probe(h, fail):
    async with (
        AgentServer([Talk()], port=0, security=ServerSecurity(["a-secret"])) as server,
        grpc.aio.insecure_channel(server.address) as channel,
    ):
        health = health_pb2_grpc.HealthStub(channel)
        fail()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health.Check(health_pb2.HealthCheckRequest())
        assert caught.value.code() is grpc.StatusCode.INTERNAL
        await health.Check(health_pb2.HealthCheckRequest())


async def breaks_the_stream(h, fail):
    async with h.raw() as raw:
        stream = raw.open()
        fail()
        await stream.send(raw.hello())
        assert await stream.ended() in ("INTERNAL", "UNKNOWN")
        await raw.attach()
        await raw.start("r1")
        await raw.finish()


async def ask_again(h, fail):
    async with h.raw() as raw:
        fail()
        await raw.attach()
        await h.until(lambda: h.failed("server.ask_again"))
        await raw.start("r1")
        await raw.finish()


async def dial(h, fail):
    async with Trainer([], lambda request: answer(request, "fine"), listen="127.0.0.1:0") as trainer:
        fail()
        async with AgentServer([Talk()], port=0, connect=[trainer.address]) as server:
            h.supervisor = server.supervisor
            async with asyncio.timeout(PATIENCE):
                outcome = await trainer.rollout(rollout_id="r1", messages=[USER])
            assert outcome.status is OutcomeStatus.COMPLETED


async def follow_events(h, fail):
    async with h.raw() as raw:
        stream = await raw.attach()
        await raw.start("r1", agent_loop="hangs")
        fail()
        request = control_pb2.StreamEventsRequest(rollout_id="r1")
        await raw.send(FRAME(subscribe=attach_pb2.Subscribe(id="s", request=request)))
        assert (await stream.next("unsubscribed")).status.code == 13


async def answer_init(h, fail):
    async with h.raw() as raw:
        stream = await raw.attach()
        fail()
        await raw.send(init("r1"))
        assert await stream.ended() == "INTERNAL"
        await raw.attach()
        await raw.send(init("r1"))
        assert (await raw.stream.next("init_reply")).WhichOneof("result") == "response"
        await raw.finish()


async def answer_cancel(h, fail):
    async with h.raw() as raw:
        stream = await raw.attach()
        fail()
        request = control_pb2.CancelRequest(group_id="g")
        await raw.send(FRAME(cancel=attach_pb2.CancelFrame(id="c", request=request)))
        assert await stream.ended() == "INTERNAL"
        await raw.attach()
        await raw.barrier()


async def annotate(h, fail):
    async with h.raw() as raw:
        stream = await raw.attach()
        fail()
        await raw.send(FRAME(annotate=attach_pb2.AnnotateFrame(id="a")))
        assert await stream.ended() == "INTERNAL"
        await raw.attach()
        await raw.barrier()


async def serve_grpc(h, fail):
    fail()
    async with AgentServer([Talk()], port=0) as server:
        h.server, h.supervisor = server, server.supervisor
        await h.until(lambda: server.supervisor.failure is not None)
        await not_serving(h)


async def not_serving(h):
    async with asyncio.timeout(PATIENCE):
        while await h.health() != "NOT_SERVING":
            await asyncio.sleep(0.01)  # between two looks at the health


async def update_health(h, fail):
    fail()
    h.supervisor.failed(supervise.declared()["server.serve_grpc"], OSError("for the health"))
    await not_serving(h)


async def trainer_grace(h, fail):
    async with h.raw() as raw:
        stream = await raw.attach()
        await raw.start("r1", agent_loop="hangs")
        fail()
        await stream.cut()
        await h.until(lambda: not h.server.engine.capacity().running)
        await raw.attach()
        assert (await raw.outcome()).failure.message.startswith("the trainer was away")


async def get_tools(h, fail):
    fail()
    async with AgentServer([SlowTools()], port=0) as server:
        assert server.address
    fail()
    findings = await asyncio.to_thread(validate_agent_loop, SlowTools())
    assert "injected" in next(row for row in findings.findings if row.code == "GET_TOOLS_FAILED").message
    await refuses_the_init(h, fail, "slow tools")


def agent_loop(scenario, name, **fields):
    return lambda h, fail: scenario(h, fail, name, **fields)


SCENARIOS = {
    "agent.get_tools": get_tools,
    "engine.abandon": agent_loop(fails_its_rollout, "stubborn", agent_timeout=0.05),
    "engine.accept": refuses_the_init,
    "engine.accept_later": agent_loop(refuses_the_init, "slow tools"),
    "engine.agent": fails_its_rollout,
    "engine.agent_over": fails_its_rollout,
    "engine.chat": fails_the_agents_chat,
    "engine.committed": fails_its_rollout,
    "engine.complete": goes_on,
    "engine.deadline": agent_loop(fails_its_rollout, "hangs", agent_timeout=0.05),
    "engine.decide": decide,
    "engine.deliver": deliver,
    "engine.fork": fork,
    "engine.first_delivery": goes_on,
    "engine.resend": resend,
    "engine.start": fails_its_rollout,
    "engine.stop_again": agent_loop(fails_its_rollout, "stubborn", agent_timeout=0.05),
    "engine.sum_up": goes_on,
    "engine.sweep": goes_on,
    "engine.watchdog": goes_on,
    "journal.barrier": barrier,
    "journal.commit": fails_the_writer,
    "journal.flush": fails_the_writer,
    "journal.sweep_folders": goes_on,
    "link.handle_frames": breaks_the_stream,
    "link.read_stream": breaks_the_stream,
    "link.read_request_of_stranger": answers_the_probe,
    "link.start_server": start_server,
    "link.watch_stream": breaks_the_stream,
    "link.write_stream": breaks_the_stream,
    "server.ask_again": ask_again,
    "server.dial": dial,
    "server.follow_events": follow_events,
    "server.serve_grpc": serve_grpc,
    "server.answer_init": answer_init,
    "server.answer_cancel": answer_cancel,
    "server.annotate": annotate,
    "server.update_health": update_health,
    "server.trainer_grace": trainer_grace,
}
"""By job: makes it run after fail(), and checks what its failure does to those who wait."""
ENDS_BADLY = {"server.update_health"}
"""Jobs whose scenario makes the owner fail by another job."""
