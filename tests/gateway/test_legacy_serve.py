"""HttpAgent begins: whom it asks, what it refuses, and `serve --legacy-agent` as a process."""

import asyncio
import contextlib
import signal

import pytest

from osmosis_gateway.http_agent import HttpAgent
from osmosis_grpc.engine import Engine
from osmosis_grpc.protocol.errors import CallError, InvalidArgument
from osmosis_grpc.storage import MemoryJournal
from osmosis_grpc.trainer import RolloutClient
from tests.callback_trainer import CallbackTrainer
from tests.gateway.legacy_agent import QUESTION, TOOL, OldAgentServer, never, plays, says
from tests.gateway.legacy_deployment import SETTINGS, Policy, left_over
from tests.processes import run, serving


@pytest.fixture
async def old():
    async with OldAgentServer() as old:
        yield old


async def enter_and_leave(url: str, **more) -> str:
    async with HttpAgent(url, settings=SETTINGS, **more) as loop:
        return loop.name


async def test_the_name_is_the_old_servers(old):
    assert await enter_and_leave(old.url) == "old"
    assert await enter_and_leave(old.url, name="mine") == "mine"
    assert old.posts == 0, "tools are not asked for"


async def test_the_old_server_is_not_there():
    with pytest.raises(CallError, match=r"127\.0\.0\.1:1 cannot be reached"):
        await enter_and_leave("http://127.0.0.1:1")
    assert await enter_and_leave("http://127.0.0.1:1", name="known") == "known"
    await asyncio.sleep(0)
    assert left_over() == []


@pytest.mark.parametrize(
    "health",
    [
        says(404),
        says(401),
        says(500),
        says(302, Location="/elsewhere"),
        says(200, b""),
        says(200, b"\xff"),
        says(200, []),
        says(200, {}),
        says(200, {"agent_loop": ""}),
        says(200, {"agent_loop": 3}),
        says(200, b"[" * 3000),
        says(200, {"agent_loop": "x" * 300}),
    ],
)
async def test_health_without_a_name(old, health):
    old.health = health
    with pytest.raises(CallError):
        await enter_and_leave(old.url)


async def test_health_that_is_not_answered(old, monkeypatch):
    monkeypatch.setattr("osmosis_gateway.http_agent.ANSWER_WITHIN", 0.2)
    old.health = lambda request: never()
    with pytest.raises(CallError, match=r"within 0\.2 s"):
        await enter_and_leave(old.url)


@pytest.mark.parametrize("url", ["", "ftp://x", "http://", "http://u:p@x", "http://x/?a", "http://x:99999", "x:1"])
def test_what_is_no_url(url):
    with pytest.raises(InvalidArgument, match="url"):
        HttpAgent(url)


async def test_a_taken_port(old):
    with pytest.raises(OSError, match="cannot listen"):
        await enter_and_leave(old.url, listen=("127.0.0.1", old.port))


async def test_two_of_one_name(old):
    async with HttpAgent(old.url) as one, HttpAgent(old.url) as two:
        with pytest.raises(ValueError, match="unique names: old, old"):
            Engine([one, two], journal=MemoryJournal())


async def serve(*arguments: str) -> str:
    """What `serve` says when it does not start."""
    done = await asyncio.to_thread(
        run, "-m", "osmosis_grpc.serve", *arguments, "--grpc-port", "0", "--no-http", "--json"
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.slow
async def test_serve_that_does_not_start(old):
    without, twice = await asyncio.gather(
        serve("--legacy-agent", "http://127.0.0.1:1"), serve("--legacy-agent", old.url, "--legacy-agent", old.url)
    )
    assert "--legacy-agent http://127.0.0.1:1" in without
    assert "cannot be reached" in without
    assert "the same name: old, old" in twice


@contextlib.asynccontextmanager
async def process(*arguments: str):
    """A server process and its ready record; this event loop goes on meanwhile."""
    with contextlib.ExitStack() as blocking:
        try:
            yield await asyncio.to_thread(blocking.enter_context, serving(*arguments))
        finally:
            await asyncio.to_thread(blocking.close)


@pytest.mark.slow
async def test_serve_hosts_it(old, monkeypatch):
    """A process of its own between a new trainer and an old agent server; many rollouts at once."""
    monkeypatch.setenv("OSMOSIS_ROLLOUT_SERVER_LEGACY_AGENT_TOKEN", "from-env")
    old.script = plays
    async with process("--legacy-agent", old.url, "--legacy-agent", f"two={old.url}") as (server, ready):
        assert ready["agent_loops"] == ["old", "two"]
        async with CallbackTrainer(Policy()) as trainer, RolloutClient(ready["grpc"]) as client:

            async def rollout(number: int):
                name = ("old", "two")[number % 2]
                started = await client.init(
                    rollout_id=f"r{number}", messages=QUESTION, callback=trainer.callback(), agent_loop=name
                )
                assert list(started.tools) == [TOOL]
                return await trainer.outcome(f"r{number}", timeout=10)

            for outcome in await asyncio.gather(*(rollout(number) for number in range(40))):
                assert (outcome.status, outcome.reward) == ("COMPLETED", 1.0)
                assert outcome.samples["main"].trainable
        assert old.keys == ["Bearer from-env"] * 40
        server.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(server.wait, 10) == 0
