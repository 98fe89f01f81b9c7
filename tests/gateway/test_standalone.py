"""The gateway in a process of its own, in front of a gRPC server; killed, and started again."""

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
import sys
from dataclasses import replace

import aiohttp
import pytest

from osmosis_gateway.standalone import serve_standalone
from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.protocol.types import events
from osmosis_grpc.server import AgentServer, ServerConfig
from osmosis_grpc.testing.calculator import CalculatorAgent
from osmosis_grpc.trainer import RolloutClient
from tests.gateway.legacy import LegacyTrainer
from tests.gateway.test_contract import init
from tests.gateway.test_health import delivered
from tests.processes import ROOT, run
from tests.waiting import until

QUICK = ServerConfig(outbox_delay=(0.05, 0.2), retry_delay=(0.05, 0.2), stop_again_after=(0.05, 0.1))


@contextlib.contextmanager
def gateway_process(target, http="0", callback="0"):
    command = [sys.executable, "-m", "osmosis_gateway", "--target", target, "-p", http, "--callback-port", callback]
    process = subprocess.Popen(
        [*command, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    with process:
        try:
            line = process.stdout.readline()
            assert line, process.stderr.read()
            yield process, json.loads(line)
        finally:
            process.kill()


async def started(*arguments):
    """A gateway process, and what closes it."""
    context = gateway_process(*arguments)
    process, ready = await asyncio.to_thread(context.__enter__)
    return process, ready, context


@pytest.mark.slow
async def test_rollouts_through_a_gateway_of_its_own():
    async with AgentServer([CalculatorAgent()], port=0, config=QUICK) as server, LegacyTrainer() as trainer:
        process, ready, context = await started(server.address)
        try:
            async with aiohttp.ClientSession(f"http://{ready['http']}") as session:
                answers = await asyncio.gather(*(init(session, trainer.init_body(f"r{i}")) for i in range(10)))
                again = await init(session, trainer.init_body("r0"))
                refused = await init(session, trainer.init_body("x", server_url="http://169.254.169.254"))
                await trainer.completed(10)
                counts = await until(lambda: delivered(session))
        finally:
            process.terminate()
            code = await asyncio.to_thread(process.wait, 10)
            context.__exit__(None, None, None)
    assert {status for status, _, _ in answers} == {202}
    assert again[:2] == answers[0][:2]
    assert refused[0] == 422
    assert refused[1]["detail"][0]["loc"] == ["body", "server_url"]
    assert code == 0
    assert len(trainer.outcomes) == 10
    assert all(done["reward"] == 1.0 for done in trainer.outcomes)
    assert set(trainer.keys) == {f"Bearer key-r{i}" for i in range(10)}
    assert "tools" not in trainer.chats[0]
    assert counts.pop("process_id") == server.engine.context.earlier_runs.process_id
    assert counts == {
        "status": "healthy",
        "agent_loop": "calculator",
        "active_rollouts": 0,
        "completed_rollouts": 10,
        "undelivered": 0,
        "concurrency": {"max_concurrent": 100, "queued": 0, "running": 0},
        "instance_id": server.engine.journal.journal_id,
        "lifecycle": {"accepting_rollouts": True, "active_rollouts": 0},
    }


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
async def test_ended_in_the_middle_and_started_again_every_rollout_ends_once(end):
    async with AgentServer([CalculatorAgent()], port=0, config=QUICK) as server, LegacyTrainer() as trainer:
        trainer.latency = 0.8
        process, ready, context = await started(server.address)
        async with aiohttp.ClientSession(f"http://{ready['http']}") as session:
            await asyncio.gather(*(init(session, trainer.init_body(f"r{i}")) for i in range(20)))
        await until(lambda: len(trainer.chats) >= 25)
        process.send_signal(end)
        await asyncio.to_thread(process.wait)
        context.__exit__(None, None, None)
        ports = (ready["http"].rsplit(":", 1)[1], ready["callback"].rsplit(":", 1)[1])
        process, again, context = await started(server.address, *ports)
        try:
            await trainer.completed(20, seconds=30)
            await until(lambda: not server.engine.capacity().undelivered)
        finally:
            context.__exit__(None, None, None)
    assert (again["http"], again["callback"]) == (ready["http"], ready["callback"])
    assert sorted(done["rollout_id"] for done in trainer.outcomes) == sorted(f"r{i}" for i in range(20))
    assert {done["status"] for done in trainer.outcomes} == {"COMPLETED"}


async def test_a_name_that_does_not_resolve_for_a_while_costs_nothing(monkeypatch):
    """In this process, so that its name service can be away."""
    loop = asyncio.get_running_loop()
    resolve, away = loop.getaddrinfo, []

    async def getaddrinfo(host, port, **options):
        if host == "trainer.example":
            if len(trainer.chats) == 1 and len(away) < 6:  # from the first chat on, also when the result goes out
                away.append(host)
                raise socket.gaierror(socket.EAI_AGAIN, "try again")
            host = "127.0.0.1"
        return await resolve(host, port, **options)

    monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
    async with (
        AgentServer([Once()], port=0, config=QUICK) as server,
        LegacyTrainer() as trainer,
        serve_standalone(server.address, port=0, callback_port=0) as (http, _),
        aiohttp.ClientSession(f"http://{http.address}") as session,
    ):
        body = trainer.init_body(server_url=f"http://trainer.example:{trainer.port}")
        assert (await init(session, body))[0] == 202
        done = await trainer.completed()
    assert done["status"] == "COMPLETED"
    assert len(away) == 6


class Once(RolloutAgentLoop):
    name = "once"

    def get_tools(self, request):
        return []

    async def run(self, ctx):
        messages = list(ctx.request.messages)
        await ctx.chat(messages)
        return ctx.complete(messages)


async def test_a_chat_that_is_asked_before_its_init_is_answered_carries_no_tools_either(monkeypatch):
    seen = []
    answer = RolloutClient.init

    async def late(*arguments, **options):
        started = await answer(*arguments, **options)
        await until(lambda: any(isinstance(event.kind, events.ChatRequested) for event in seen))
        await asyncio.sleep(0.1)  # the chat reaches the gateway, which nothing shows
        return started

    monkeypatch.setattr(RolloutClient, "init", late)
    async with (
        AgentServer([CalculatorAgent()], port=0, config=QUICK) as server,
        LegacyTrainer() as trainer,
        serve_standalone(server.address, port=0, callback_port=0) as (http, _),
        aiohttp.ClientSession(f"http://{http.address}") as session,
    ):
        server.engine.log.add_sink(seen.append)
        await init(session, trainer.init_body())
        done = await trainer.completed()
    assert not any("tools" in chat for chat in trainer.chats)
    assert [message["role"] for message in done["final_messages"]] == ["user", "assistant", "tool", "assistant"]


async def test_its_refusals_name_keys_of_the_body_and_not_fields_of_the_protocol():
    class Other(Once):
        name = "other"

    async with (
        AgentServer([Once(), Other()], port=0, config=replace(QUICK, max_metadata_bytes=100)) as server,
        LegacyTrainer() as trainer,
        serve_standalone(server.address, port=0, callback_port=0) as (http, _),
        aiohttp.ClientSession(f"http://{http.address}") as session,
    ):
        unnamed = await init(session, trainer.init_body())
        large = await init(session, trainer.init_body(agent_loop="once", metadata={"a": "a" * 100}))
        body = trainer.init_body(agent_loop="once")
        assert (await init(session, body))[0] == 202
        changes = {"completion_params": {"top_p": 0.5}, "metadata": {"ground_truth": "7"}, "max_turns": 3}
        other = await init(session, body | changes)
        loop = await init(session, body | {"agent_loop": "other"})
        await trainer.completed()
    assert (unnamed[0], large[0], other[0], loop[0]) == (422, 422, 409, 409)
    assert unnamed[1]["detail"][0]["loc"] == ["body", "agent_loop"]
    assert large[1]["detail"][0]["loc"] == ["body", "metadata"]
    assert other[1]["detail"].endswith("it differs in completion_params, max_turns, metadata")
    assert loop[1]["detail"].endswith("it differs in agent_loop")


@pytest.mark.slow
async def test_without_an_agent_server_it_says_so():
    process, ready, context = await started("127.0.0.1:1")
    try:
        async with LegacyTrainer() as trainer, aiohttp.ClientSession(f"http://{ready['http']}") as session:
            async with session.get("/health") as answer:
                assert answer.status == 503
            assert (await init(session, trainer.init_body()))[0] == 503
    finally:
        process.terminate()
        context.__exit__(None, None, None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "--target"),
        (("--target", "http://127.0.0.1:1"), "HOST:PORT"),
        (("--target", "127.0.0.1:1", "--allow-target", "10.0.0.0/99"), "10.0.0.0/99"),
    ],
)
def test_called_wrongly(forked, arguments, text):
    done = forked.run("-m", "osmosis_gateway", *arguments)
    assert done.returncode == 2
    assert text in done.stderr
    assert "Traceback" not in done.stderr


FAILING_RECORDER = """
import typer
from osmosis_gateway import standalone
from osmosis_gateway.__main__ import NAME, add_gateway
from osmosis_grpc.supervise import OnFailure, job

JOB = job("test.trainer", OnFailure.FAIL_OWNER)

async def fail():
    raise OSError("injected")

class FailingRecorder(standalone.CallbackRecorder):
    async def __aenter__(self):
        entered = await super().__aenter__()
        self.supervisor.start(JOB, fail)
        return entered

standalone.CallbackRecorder = FailingRecorder
app = typer.Typer()
add_gateway(app, NAME)
app()
"""


@pytest.mark.slow
def test_a_gateway_whose_trainer_side_fails_ends_with_exit_code_1(tmp_path):
    arguments = ("--target", "127.0.0.1:1", "-p", "0", "--callback-port", "0")
    ended = run("-c", FAILING_RECORDER, *arguments, cwd=tmp_path)
    assert ended.returncode == 1
    assert "the gateway has failed: OSError('injected'); it stops with exit code 1" in ended.stderr
