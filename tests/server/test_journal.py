"""An agent server that is killed at the worst moments, and one whose disk fails: real processes, real files."""

import asyncio
import os
from collections import Counter

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from osmosis_grpc.policies.scripted import EchoPolicy, answer
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import attach_pb2, control_pb2, services_pb2_grpc
from osmosis_grpc.protocol.errors import AlreadyExists, Unavailable
from osmosis_grpc.protocol.types import OutcomeStatus, Receipt, events
from osmosis_grpc.server import AgentServer, ServerConfig
from osmosis_grpc.storage import Reader
from osmosis_grpc.storage.journal import writer
from osmosis_grpc.testing.calculator import CalculatorAgent
from osmosis_grpc.testing.raw import RawTrainer
from osmosis_grpc.testing.raw.trainer_frames import cancel, chat_reply, init, reply, subscribe
from osmosis_grpc.trainer import RolloutClient
from tests.callback_trainer import CallbackTrainer
from tests.ports import quiet_port
from tests.processes import server_process
from tests.server.attached import Talk
from tests.waiting import until

AGENT = """
from osmosis_grpc.rollout import RolloutAgentLoop

class Agent(RolloutAgentLoop):
    name = "agent"
    replayable = True
    def get_tools(self, request):
        return []
    async def run(self, ctx):
        messages = list(ctx.request.messages)
        for _ in range(3):
            messages.append((await ctx.chat(messages)).message)
            messages.append({"role": "user", "content": "go on"})
        return ctx.complete(messages, reward=0.5)

agent_loop = Agent()
"""
QUESTION = [{"role": "user", "content": "hello"}]
PLACES = ["init.committed", "rollout.started", "chat.open:2", "result.before", "result.committed", "outcome.before"]


async def killed_once(tmp_path, place):
    """One rollout, on a server that dies at a place and is started again: what its trainer saw."""
    (tmp_path / "agents.py").write_text(AGENT)
    sampled = Counter()

    async def policy(request):
        sampled[request.rollout_id, request.chat_number] += 1
        return answer(request, f"reply {request.chat_number}")

    command = ("-m", "agents:agent_loop", "--state-dir", "state", "--grpc-port", str(quiet_port()))
    environment = os.environ | {"OSMOSIS_FAILPOINT": place}
    async with CallbackTrainer(policy) as trainer:
        init = {"rollout_id": "r1", "messages": QUESTION, "callback": trainer.callback()}
        with server_process(*command, cwd=tmp_path, env=environment) as (process, address):
            async with RolloutClient(address) as client:
                try:
                    await client.init(**init)
                except Unavailable:
                    assert place in ("init.committed", "rollout.started")
            await asyncio.to_thread(process.wait, 30)
        assert process.returncode == -9
        with server_process(*command, cwd=tmp_path) as (_, address):
            async with RolloutClient(address) as client:
                assert not (await client.init(**init)).created
                outcome = await trainer.outcome("r1", timeout=30)
                async for event in client.events("r1"):
                    last = event
                with pytest.raises(AlreadyExists):
                    await client.init(**init | {"label": "another"})
    assert isinstance(last.kind, events.Delivered)
    assert (outcome.status, outcome.reward) == (OutcomeStatus.COMPLETED, 0.5)
    assert [m["content"] for m in outcome.messages] == [
        "hello",
        "reply 1",
        "go on",
        "reply 2",
        "go on",
        "reply 3",
        "go on",
    ]
    assert set(sampled) == {("r1", number) for number in (1, 2, 3)}
    assert set(sampled.values()) == {1}
    assert last.kind.receipt is (Receipt.ALREADY_RECORDED if place == "outcome.before" else Receipt.RECORDED)
    reader = Reader.look(tmp_path / "state")
    numbers = [event.event_number for event in reader.trajectory("r1", 1)]
    reader.close()
    assert numbers == list(range(1, last.event_number + 1))
    assert list((tmp_path / "state" / "credentials").iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
async def test_a_server_that_is_killed_anywhere(tmp_path, place):
    await killed_once(tmp_path, place)


async def test_a_disk_that_fails_is_reported_and_recovers(tmp_path, monkeypatch, refused_at_once):
    failing, real, go_on = asyncio.Event(), writer.execute, asyncio.Event()

    def execute(database, statement, rows):
        pages = database.execute("PRAGMA page_count").fetchone()[0] if failing.is_set() else 2**30
        database.execute(f"PRAGMA max_page_count = {pages}")
        real(database, statement, rows)

    async def policy(request):
        await go_on.wait()
        return answer(request, "x" * 100_000)

    monkeypatch.setattr(writer, "execute", execute)
    monkeypatch.setattr(writer, "RETRY", 0.02)
    async with (
        CallbackTrainer(policy) as trainer,
        AgentServer([CalculatorAgent()], port=0, state_dir=tmp_path) as server,
        RolloutClient(server.address) as client,
        grpc.aio.insecure_channel(server.address) as channel,
    ):
        stub = health_pb2_grpc.HealthStub(channel)
        seen = []

        async def watch():
            async for status in stub.Watch(health_pb2.HealthCheckRequest(service="")):
                seen.append(health_pb2.HealthCheckResponse.ServingStatus.Name(status.status))

        watching = asyncio.create_task(watch())
        try:
            await client.init(rollout_id="running", messages=QUESTION, callback=trainer.callback())
            await until(lambda: seen == ["SERVING"])
            failing.set()
            large = [{"role": "user", "content": "x" * 100_000}]
            with pytest.raises(Unavailable, match="the journal cannot be written") as refused:
                await client.init(rollout_id="new", messages=large, callback=trainer.callback())
            assert refused.value.retry_after
            await until(lambda: "NOT_SERVING" in seen)
            go_on.set()
            assert (await trainer.outcome("running", timeout=30)).status is OutcomeStatus.COMPLETED
            failing.clear()
            await until(lambda: seen[-1] == "SERVING" and not server.engine.journal.problem)
            await client.init(rollout_id="new", messages=QUESTION, callback=trainer.callback())
            assert (await trainer.outcome("new", timeout=30)).status is OutcomeStatus.COMPLETED
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)


async def test_a_journal_that_cannot_be_read_is_reported_frame_by_frame(tmp_path):
    """Each frame with an answer of its own is refused in it, and the stream goes on."""
    async with (
        AgentServer([Talk()], port=0, state_dir=tmp_path) as server,
        RawTrainer(server.address) as trainer,
        RolloutClient(server.address) as client,
        grpc.aio.insecure_channel(server.address) as channel,
    ):
        stream = await trainer.attach()
        await trainer.start("over", metadata_json='{"turns": 1}')
        chat = await trainer.chat()
        await trainer.answer(chat)
        await trainer.settled()
        async for _ in client.events("over"):
            pass
        await trainer.start("running")
        database = server.engine.journal.reads
        database.set_progress_handler(lambda: 1, 1)
        unread = chat_reply(chat, response=reply("again"))
        unread.chat_reply.rollout_id = "who"
        await trainer.send(init("new"), cancel("a cancel", rollout_id="who"), subscribe("a reader", "over"), unread)
        statuses = [(await stream.next(kind)).status for kind in ("init_reply", "cancel_reply", "unsubscribed")]
        for status in statuses:
            assert status.code == grpc.StatusCode.UNAVAILABLE.value[0]
            assert status.message == "the journal cannot be read: interrupted"
        stub = services_pb2_grpc.RolloutServiceStub(channel)
        calls = (
            stub.GetRollout(control_pb2.GetRolloutRequest(rollout_id="who")),
            stub.StreamEvents(control_pb2.StreamEventsRequest(rollout_id="over")),
        )
        for call in calls:
            assert await call.code() is grpc.StatusCode.UNAVAILABLE
            assert await call.details() == "the journal cannot be read: interrupted"
        await trainer.barrier()
        open_rollouts = attach_pb2.OpenRollouts(rollouts=[attach_pb2.RolloutRef(rollout_id="who", attempt=1)])
        await trainer.send(attach_pb2.TrainerFrame(open_rollouts=open_rollouts))
        assert await stream.ended() == "UNAVAILABLE"
        assert stream.details == "the journal cannot be read: interrupted"
        database.set_progress_handler(None, 0)
        await trainer.attach()
        await trainer.start("new")
        assert {(await trainer.finish()).rollout_id for _ in range(2)} == {"new", "running"}


async def test_a_window_that_is_full_of_what_cannot_be_read(tmp_path):
    """An Init beyond the window whose rollout cannot be looked up is refused alone."""
    config = ServerConfig(max_concurrent=1, max_queued=0)
    async with (
        AgentServer([Talk()], port=0, state_dir=tmp_path, config=config) as server,
        RawTrainer(server.address) as trainer,
    ):
        stream = await trainer.attach()
        await trainer.start("running")
        server.engine.journal.reads.set_progress_handler(lambda: 1, 1)
        await trainer.send(init("beyond"))
        received = await stream.next("init_reply")
        assert (received.rollout_id, received.status.message) == ("beyond", "the journal cannot be read: interrupted")
        await trainer.barrier()
        await trainer.finish()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("replayable", "received"),
    [
        (True, "rollouts of the previous process: 2 run again"),
        (False, "rollouts of the previous process: 2 ended: the server was started again while it ran"),
    ],
)
async def test_the_log_counts_the_rollouts_of_the_previous_process(tmp_path, replayable, received):
    (tmp_path / "agents.py").write_text(AGENT.replace("replayable = True", f"replayable = {replayable}"))
    command = ("-m", "agents:agent_loop", "--state-dir", "state", "--log-level", "info")
    asked = asyncio.Event()
    number = Counter()

    async def policy(request):
        number[request.chat_number] += 1
        if number[2] == 2:
            asked.set()
        if request.chat_number == 2:
            await asyncio.Event().wait()
        return answer(request, "a reply")

    async with CallbackTrainer(policy) as trainer, asyncio.timeout(60):
        with server_process(*command, cwd=tmp_path) as (process, address):
            async with RolloutClient(address) as client:
                for name in ("r1", "r2"):
                    await client.init(rollout_id=name, messages=QUESTION, callback=trainer.callback())
                await asked.wait()
                for name in ("r1", "r2"):  # what is shown is committed
                    async for event in client.events(name):
                        if isinstance(event.kind, events.ChatAnswered):
                            break
            process.kill()
            process.communicate()
        with server_process(*command, cwd=tmp_path) as (process, _):
            lines = iter(process.stderr.readline, "")
            assert await asyncio.to_thread(lambda: any(f'"event": "{received}"' in line for line in lines))


async def test_a_server_closes_as_soon_as_the_agents_have_stopped(tmp_path):
    """The next process continues their rollouts, so nothing else is left to wait for."""
    begun = asyncio.Event()

    class Waits(Talk):
        name = "waits"
        replayable = True

        async def run(self, ctx):
            begun.set()
            await asyncio.Event().wait()

    config = ServerConfig(stop_again_after=(600.0, 1200.0))
    async with (
        CallbackTrainer(EchoPolicy()) as trainer,
        asyncio.timeout(60),
        AgentServer([Waits()], port=0, config=config, state_dir=tmp_path) as server,
        RolloutClient(server.address) as client,
    ):
        await client.init(rollout_id="r1", messages=QUESTION, callback=trainer.callback())
        await begun.wait()
