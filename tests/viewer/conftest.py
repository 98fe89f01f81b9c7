"""Rollouts of a real server with a state folder, and a viewer over the folder or the server."""

import asyncio
import shutil
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager

import httpx
import pytest

from osmosis_grpc.network.credentials import Credentials
from osmosis_grpc.network.server_security import ServerSecurity
from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.types import Group
from osmosis_grpc.records.reading.folder_source import FolderSource
from osmosis_grpc.records.reading.server_source import ChosenServer, ServerSource
from osmosis_grpc.rollout import RolloutAgentLoop, tool
from osmosis_grpc.server import AgentServer
from osmosis_grpc.trainer import RolloutClient
from osmosis_grpc.viewer import live, reads
from osmosis_grpc.viewer.app import serve_viewer
from tests.callback_trainer import CallbackTrainer

MARKUP = "<img src=x onerror=alert(1)>"
CANARY = "canary-6b1f0c"
"""A secret of the server: the token that its callers show."""
TURNS = {"good": 3, "bad": 2, "hostile": 2, f"id{MARKUP}": 1, "long": 120}
"""The rollouts, and their turns."""
FEW_TURNS = TURNS | {"long": 4}
"""Those of a server that a test runs for itself."""


@tool
async def weather(city: str) -> str:
    """Tells the weather of a city."""
    if city == "Atlantis":
        raise LookupError(f"no such city {MARKUP}")
    return f"sunny {MARKUP}"


class Traveller(RolloutAgentLoop):
    """Calls its tool until the model has enough. The rollout `bad` fails after the tool has failed."""

    name = "traveller"
    tools = (weather,)

    async def run(self, ctx):
        messages = await ctx.tool_loop(ctx.request.messages)
        if ctx.request.rollout_id == "bad":
            raise LookupError(f"the city is not on the map {MARKUP}")
        return ctx.complete(messages, reward=0.5)


def policy_of(turns):
    """A policy that calls the tool in each turn but the last. `turns` has the number of turns of each rollout."""

    async def policy(request):
        if request.chat_number == turns[request.rollout_id]:
            return answer(request, f"It is sunny {MARKUP}")
        city = "Atlantis" if request.rollout_id == "bad" else "Paris"
        arguments = f'{{"city": "{city}"}}'
        call = {
            "id": f"c{request.chat_number}",
            "type": "function",
            "function": {"name": "weather", "arguments": arguments},
        }
        said = {"content": MARKUP, "reasoning_content": f"thought {MARKUP}"}
        return answer(request, {"role": "assistant", **said, "tool_calls": [call]})

    return policy


@asynccontextmanager
async def serving(folder, turns=TURNS, group_id=f"g{MARKUP}"):
    """A server with a state folder, where all rollouts of a group have ended."""
    async with AgentServer(
        [Traveller()], port=0, state_dir=folder, security=ServerSecurity(admin_tokens=CANARY)
    ) as server:
        async with CallbackTrainer(policy_of(turns)) as trainer, calling(server) as client:
            for index, name in enumerate(turns):
                messages = [{"role": "user", "content": f"How is it? {MARKUP}"}]
                group = Group(group_id, index, len(turns))
                await client.init(
                    rollout_id=name, messages=messages, callback=trainer.callback(), group=group, max_turns=500
                )
            for name in turns:
                await trainer.outcome(name)
        yield server


def calling(server):
    """A client of the server."""
    return RolloutClient(server.address, token=CANARY)


def source_of(server):
    """A source that asks the server."""
    return ServerSource(ChosenServer(server.address, Credentials(token=CANARY), ""))


@asynccontextmanager
async def browsing(source, **options):
    """A client of a viewer over a source."""
    async with source, serve_viewer(source, **options) as http, client_of(f"http://{http.address}") as client:
        yield client


def client_of(address):
    """A client of a viewer. It loads no certificates, which takes longer than most tests."""
    return httpx.AsyncClient(base_url=address, timeout=20, trust_env=False, verify=False)


@contextmanager
def on_thread(source):
    """Serve a viewer over a source on a thread, and yield its address. So it serves several tests."""
    ready = Future()

    async def run():
        async with source, serve_viewer(source) as http:
            stop = asyncio.Event()
            ready.set_result((f"http://{http.address}", asyncio.get_running_loop(), stop))
            await stop.wait()

    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(asyncio.run, run())
        running.add_done_callback(lambda it: ready.done() or ready.set_exception(it.exception()))
        address, loop, stop = ready.result()
        try:
            yield address
        finally:
            loop.call_soon_threadsafe(stop.set)
            running.result()


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """The state folder of a server that has ended."""

    async def run(path):
        async with serving(path):
            return

    path = tmp_path_factory.mktemp("viewed")
    asyncio.run(run(path))
    return path


@pytest.fixture(scope="module")
def viewed(folder):
    """The address of a viewer over the folder. A module may have another folder."""
    with on_thread(FolderSource(folder)) as address:
        yield address


@pytest.fixture
async def viewer(viewed):
    """A client of a viewer over the folder."""
    async with client_of(viewed) as client:
        yield client


@pytest.fixture
def hasty(monkeypatch):
    """Viewers ask for lists, and look for changes, without the pauses between."""
    for name in ("PAUSE", "CALM"):
        monkeypatch.setattr(live, name, 0.02)
    monkeypatch.setattr(reads, "LASTS", 0.01)


@pytest.fixture
async def following(tmp_path, hasty):
    """A server, and a client of a viewer that follows it."""
    async with serving(tmp_path, FEW_TURNS) as server, browsing(source_of(server)) as client:
        yield server, client


@pytest.fixture
def folder_of_one(folder, tmp_path):
    """A copy of the folder, to write to."""
    shutil.copytree(folder, tmp_path / "copy")
    return tmp_path / "copy"
