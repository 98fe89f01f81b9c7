"""A server that is started while the one before still stops: it waits for the folder, and goes on with the rollouts."""

import asyncio
import json
import signal
import subprocess
import sys
import time

import pytest

from osmosis_grpc.policies.scripted import EchoPolicy
from osmosis_grpc.serve.predecessor import wait_for_end
from osmosis_grpc.storage.lock_file import Lock, stop_by
from osmosis_grpc.trainer import Trainer
from tests.ports import quiet_port, quiet_ports
from tests.serve.workers.server import AGENT, QUESTION
from tests.waiting import until

ROLLOUTS = 12


class Gate:
    """A policy that answers when it is opened."""

    def __init__(self):
        self.opened = asyncio.Event()
        self.asked = 0

    async def __call__(self, request):
        self.asked += 1
        await self.opened.wait()
        return await EchoPolicy()(request)


async def start(stack, folder, port, workers):
    command = [sys.executable, "-m", "osmosis_grpc.serve", "-m", "agents:agent_loop", "--no-http", "--json"]
    more = ["--grpc-port", str(port), "--workers", str(workers), "--state-dir", "state", "--drain-timeout", "3"]
    with (folder / "log").open("a") as log:
        process = subprocess.Popen([*command, *more], cwd=folder, stdout=subprocess.PIPE, stderr=log, text=True)
    stack.enter_context(process)
    stack.callback(process.kill)
    line = await asyncio.to_thread(process.stdout.readline)
    assert line, (folder / "log").read_text()
    return process, [f"127.0.0.1:{row['port']}" for row in json.loads(line).get("workers", [{"port": port}])]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("transport", "workers", "how"),
    [
        ("attach", 1, signal.SIGTERM),
        ("callback", 1, signal.SIGTERM),
        ("attach", 3, signal.SIGKILL),
        ("callback", 3, signal.SIGTERM),
        pytest.param("attach", 3, signal.SIGTERM, marks=pytest.mark.long),
        pytest.param("callback", 3, signal.SIGKILL, marks=pytest.mark.long),
    ],
    ids=str,
)
async def test_a_server_starts_while_the_one_before_still_stops(stack, tmp_path, transport, workers, how):
    (tmp_path / "agents.py").write_text(AGENT)
    port, policy = quiet_ports(workers), Gate()
    first, targets = await start(stack, tmp_path, port, workers)
    listen = {"listen": f"127.0.0.1:{quiet_port()}"} if transport == "callback" else {}
    trainer = await stack.enter_async_context(Trainer(targets, policy, transport=transport, **listen))
    rollouts = [trainer.rollout(rollout_id=f"r{number}", messages=QUESTION) for number in range(ROLLOUTS)]
    outcomes = asyncio.ensure_future(asyncio.gather(*rollouts))
    await until(lambda: policy.asked >= ROLLOUTS, "a chat open in each rollout")
    first.send_signal(how)
    await start(stack, tmp_path, port, workers)
    policy.opened.set()
    assert {outcome.status for outcome in await outcomes} == {"COMPLETED"}
    assert first.wait(5) == (0 if how is signal.SIGTERM else -how)


def test_a_holder_that_goes_on_is_not_waited_for(tmp_path):
    lock, said = Lock(tmp_path / "lock"), []
    wait_for_end(tmp_path / "lock", lambda *what: said.append(what))
    stop_by(tmp_path / "lock", time.time() - 1)
    wait_for_end(tmp_path / "lock", lambda *what: said.append(what))
    lock.close()
    wait_for_end(tmp_path / "lock", lambda *what: said.append(what))
    assert said == []


def test_a_holder_that_stops_is_waited_for_until_its_time_is_over(tmp_path):
    lock, said = Lock(tmp_path / "lock"), []
    stop_by(tmp_path / "lock", time.time() + 1.5)
    wait_for_end(tmp_path / "lock", lambda holder, seconds: said.append(str(holder)))
    assert len(said) == 1
    lock.close()
