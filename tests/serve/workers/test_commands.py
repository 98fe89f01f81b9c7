"""Commands with a server of two workers need no other option: the demo, and what reads a folder or asks a server."""

import asyncio
import contextlib
import json
import re
import signal
import subprocess
import sys
import urllib.request
from collections import Counter

import pytest

from osmosis_grpc.records.reading.folder_source import FolderSource
from osmosis_grpc.trainer import Trainer
from tests.serve.workers.server import started
from tests.serve.workers.test_workers import IDS, Policy, finished

pytestmark = pytest.mark.slow

SOME = IDS[:8]


@pytest.fixture
def grpc(forked, tmp_path):
    """Runs a command of osmosis-grpc in the test's folder, and returns what it prints."""

    def grpc(*arguments):
        done = forked.run("-m", "osmosis_grpc", *arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return grpc


@contextlib.contextmanager
def viewing(folder, *arguments):
    """Start a viewer, and yield its URL."""
    command = [sys.executable, "-m", "osmosis_grpc", "view", *arguments, "--port", "0", "--json"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield json.loads(process.stdout.readline())["url"]
        finally:
            process.send_signal(signal.SIGINT)


def rows(url):
    """Return the ids of the rollouts in the table of a viewer."""
    with urllib.request.urlopen(url, timeout=20) as page:
        return {*re.findall(r'data-id="(\S+) ', page.read().decode())}


def test_the_demo_runs_twice_with_workers_and_its_folder_is_read_as_one(grpc, tmp_path):
    ids = set()
    for _ in range(2):
        lines = grpc("demo", "--workers", "2", "--state-dir", "kept", "--json").splitlines()
        outcomes = [json.loads(line) for line in lines]
        assert [outcome["status"] for outcome in outcomes] == ["COMPLETED"] * 8
        ids |= {outcome["rollout_id"] for outcome in outcomes}
    assert len(ids) == 16
    where = "--from", "kept"
    assert {*re.findall(r"^demo\S+", grpc("list", *where), re.MULTILINE)} == ids
    checked = [json.loads(line) for line in grpc("doctor", "--state-dir", "kept", "--json").splitlines()]
    sound = [record["sound"]["rollouts"] for record in checked if record["event"] == "examined"]
    assert (len(sound), sum(sound), all(sound)) == (2, 16, True)
    assert grpc("export", "--to", "messages", *where).startswith("16 rollouts read, 16 lines written")
    agent = "osmosis_grpc.testing.calculator:agent_loop"
    assert "16 equal, 0 different" in grpc("replay", "--all", "-m", agent, *where)
    with viewing(tmp_path, "--from", "kept") as url:
        assert rows(url) == ids


async def test_a_server_with_workers_is_asked_through_any_of_them(grpc, tmp_path):
    with started(tmp_path) as server:
        async with Trainer(server.targets, Policy()) as trainer:
            await finished(trainer, SOME)
        places = Counter(FolderSource(tmp_path / "state").holder(name).folder for name in SOME)
        assert len(places) == 2, "each worker has some of them"
        await asyncio.to_thread(ask, grpc, tmp_path, server)


def ask(grpc, folder, server):
    """Use every command that asks a server, through one worker or the other."""
    first, second = server.targets
    for target in (first, second):
        config = grpc("ctl", "config", "--server", target)
        assert f"2 processes, with the ports {', '.join(map(str, server.ports))}" in config
        assert re.search(r"max_concurrent +200", config)
    assert grpc("export", "--to", "messages", "--from", second).startswith("8 rollouts read, 8 lines written")
    forks = set()
    for name in SOME[:4]:
        options = "--at-chat", "2", "--model", "mock:echo", "--from", first, "--json"
        lines = grpc("fork", name, *options).splitlines()
        forked = json.loads(lines[-1])
        assert (forked["forked_from"]["rollout_id"], forked["status"], forked["chats"]) == (name, "COMPLETED", 1)
        forks.add(forked["rollout_id"])
        assert FolderSource(folder / "state").holder(forked["rollout_id"]).attempts(name), "it is beside its original"
    with viewing(folder, "--from", second) as url:
        assert rows(url) == {*SOME} | forks
    cancelled = json.loads(grpc("ctl", "cancel", SOME[0], "--server", second, "--json").splitlines()[0])
    assert cancelled["rollout_id"] == SOME[0]
    assert "0 running" in grpc("ctl", "drain", "--server", second)
