"""A server of this version and one of the next take over each other's rollouts in a rolling restart."""

import asyncio
import json
import re
import shutil
import subprocess
from contextlib import ExitStack

import pytest

import osmosis_grpc
from osmosis_grpc.policies.scripted import EchoPolicy
from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.trainer import RolloutClient, Trainer
from tests.packages.conftest import ROOT, build, call, clean
from tests.ports import quiet_port
from tests.serve.workers.server import AGENT, QUESTION
from tests.waiting import until

pytestmark = pytest.mark.packages
NEXT = "0.1.1"
ROLLOUTS = 8
TREE = ("osmosis_grpc", "gateway", "proto", "conformance", "docs", "deploy")


class Gate:
    """A policy that answers chats of the first or second turn, and those of the third once it is open."""

    def __init__(self):
        self.opened = asyncio.Event()
        self.asked, self.waiting = [], set()

    async def __call__(self, request):
        self.asked.append((request.rollout_id, request.chat_number))
        if request.chat_number == 3:
            self.waiting.add(request.rollout_id)
            await self.opened.wait()
        return await EchoPolicy()(request)


@pytest.fixture(scope="module")
def versions(wheel, environment, tmp_path_factory):
    """The Python of an environment with this version, and of one with the next, which differs in its number."""
    tree = tmp_path_factory.mktemp("next")
    for name in TREE:
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    init = tree / "osmosis_grpc" / "__init__.py"
    init.write_text(re.sub(r'__version__ = ".+"', f'__version__ = "{NEXT}"', init.read_text()))
    (tree / "out").mkdir()
    later = build(tree, tree / "out")
    return {
        osmosis_grpc.__version__: environment("3.11", f"{wheel}[server]"),
        NEXT: environment("3.11", f"{later}[server]"),
    }


async def start(stack, python, folder, port):
    """Start a server on the folder, and return its process when it is ready."""
    command = [python, "-m", "osmosis_grpc.serve", "-m", "agents:agent_loop", "--no-http", "--json"]
    options = ["--grpc-port", str(port), "--state-dir", "state", "--drain-timeout", "0"]
    with (folder / "log").open("a") as log:
        process = subprocess.Popen(
            [*map(str, command), *options], cwd=folder, stdout=subprocess.PIPE, stderr=log, text=True, env=clean()
        )
    stack.enter_context(process)
    stack.callback(process.kill)
    line = await asyncio.to_thread(process.stdout.readline)
    assert line, (folder / "log").read_text()
    assert json.loads(line)["event"] == "ready"
    return process


@pytest.mark.parametrize("order", ["up", "down"])
@pytest.mark.parametrize("how", ["terminate", "kill"])
async def test_each_version_goes_on_with_the_rollouts_of_the_other(versions, tmp_path, order, how):
    """Two servers are restarted one after the other; the rollouts of both end once, in their first attempt."""
    before, after = versions if order == "up" else reversed(versions)
    ports, policy = [quiet_port(), quiet_port()], Gate()
    folders = [tmp_path / "one", tmp_path / "two"]
    targets = [f"127.0.0.1:{port}" for port in ports]
    with ExitStack() as stack:
        servers = []
        for folder, port in zip(folders, ports, strict=True):
            folder.mkdir()
            (folder / "agents.py").write_text(AGENT)
            servers.append(await start(stack, versions[before], folder, port))
        async with Trainer(targets, policy, ledger=tmp_path / "ledger.db") as trainer:
            rollouts = [trainer.rollout(rollout_id=f"r{number}", messages=QUESTION) for number in range(ROLLOUTS)]
            outcomes = asyncio.ensure_future(asyncio.gather(*rollouts))
            await until(lambda: len(policy.waiting) == ROLLOUTS, "the last chat of each rollout")
            for server, folder, port in zip(servers, folders, ports, strict=True):
                getattr(server, how)()
                await asyncio.to_thread(server.wait)
                await start(stack, versions[after], folder, port)
            policy.opened.set()
            ended = await asyncio.wait_for(outcomes, 60)
        for target in targets:
            async with RolloutClient(target) as client:
                assert (await client.info()).version == after
    assert {outcome.status for outcome in ended} == {OutcomeStatus.COMPLETED}
    assert {outcome.attempt for outcome in ended} == {1}
    assert sorted(policy.asked) == [(f"r{n}", chat) for n in range(ROLLOUTS) for chat in (1, 2, 3)]


def test_a_backup_of_one_version_is_read_by_the_other(versions, tmp_path):
    older, later = versions.values()
    call(older, "-m", "osmosis_grpc", "demo", "--json", "--state-dir", "state", cwd=tmp_path, env=clean())
    call(older, "-m", "osmosis_grpc", "backup", "copy", "--state-dir", "state", cwd=tmp_path, env=clean())
    told = call(later, "-m", "osmosis_grpc", "list", "--from", "copy", "--json", cwd=tmp_path, env=clean())
    assert told.count('"COMPLETED"') == 8
