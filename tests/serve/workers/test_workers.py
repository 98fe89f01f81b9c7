"""`serve --workers` as processes: crashes, restarts one by one, a dead supervisor, and wrong options."""

import asyncio
import json
import os
import re
import signal
import socket
from collections import Counter
from pathlib import Path

import pytest

from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.errors import Unavailable
from osmosis_grpc.protocol.types import OutcomeStatus, RolloutFilter, RolloutState
from osmosis_grpc.trainer import RolloutClient, Trainer
from tests.callback_trainer import CallbackTrainer
from tests.ports import quiet_port
from tests.processes import run
from tests.serve.workers.server import AGENT, QUESTION, runs, started
from tests.waiting import until

pytestmark = pytest.mark.slow

IDS = [f"r{number}" for number in range(40)]


class Policy:
    """Counts the replies by rollout and chat. `pause` seconds pass before each."""

    def __init__(self, pause=0.0):
        self.sampled = Counter()
        self.pause = pause

    async def __call__(self, request):
        self.sampled[request.rollout_id, request.chat_number] += 1
        await asyncio.sleep(self.pause)  # a model takes time, so that rollouts run when a worker ends
        return answer(request, f"reply {request.chat_number}")


async def finished(trainer, ids):
    """Run rollouts; each ends once, with its reward."""
    outcomes = await asyncio.gather(*(trainer.rollout(rollout_id=name, messages=QUESTION) for name in ids))
    assert [(outcome.status, outcome.reward) for outcome in outcomes] == [(OutcomeStatus.COMPLETED, 0.5)] * len(ids)


async def test_a_worker_that_is_killed_loses_no_rollout(tmp_path):
    policy = Policy(0.3)
    with started(tmp_path) as server:
        async with Trainer(server.targets, policy) as trainer:
            running = asyncio.ensure_future(finished(trainer, IDS))
            for _ in range(2):
                known = len(policy.sampled)
                await until(lambda known=known: len(policy.sampled) > known)
                before = {*server.pids()}
                server.kill(max(before))
                await until(lambda before=before: len({*server.pids()} - before) == 1, timeout=60)
            await asyncio.wait_for(running, 120)
            async with RolloutClient(server.targets[1]) as client:
                assert await until(lambda: listed(client), timeout=60) == {*IDS}
        server.process.send_signal(signal.SIGTERM)
        out, err = await asyncio.to_thread(server.process.communicate)
    assert server.process.returncode == 0
    assert max(policy.sampled.values()) == 1
    assert [json.loads(line)["event"] for line in out.splitlines()] == ["draining", "stopped"]
    assert err.count("ended with exit code 137; it starts again") == 2
    check_secret(server, err)


async def listed(client):
    """Return the ids of all rollouts; nothing while a worker restarts."""
    try:
        return {row.rollout_id async for row in client.rollouts()}
    except Unavailable:
        return set()


def check_secret(server, log):
    """The secret of the workers has 64 hex digits. Neither a log nor a command line nor an environment has it."""
    assert not re.search("[0-9a-f]{64}", log)


async def test_sighup_restarts_the_workers_one_by_one_under_load(tmp_path, caplog):
    policy = Policy(0.3)
    with started(tmp_path, "--drain-timeout", "20", "-m", "agents:once", "--log-level", "debug") as server:
        places = [*server.pids()]
        texts = [Path(f"/proc/{pid}/{name}").read_bytes().decode() for pid in places for name in ("cmdline", "environ")]
        assert not any(re.search("[0-9a-f]{64}", text) for text in texts)
        async with Trainer(server.targets, policy) as trainer:
            running = asyncio.ensure_future(
                asyncio.gather(
                    *(
                        trainer.rollout(rollout_id=name, messages=QUESTION, agent_loop=("agent", "once")[at % 2])
                        for at, name in enumerate(IDS)
                    )
                )
            )
            await until(lambda: policy.sampled)
            server.process.send_signal(signal.SIGHUP)
            await until(lambda: not {*places} & {*server.pids()} and len(server.pids()) == 2, timeout=120)
            outcomes = await asyncio.wait_for(running, 120)
            assert {(outcome.status, outcome.reward) for outcome in outcomes} == {(OutcomeStatus.COMPLETED, 0.5)}
            assert max(policy.sampled.values()) == 1
            server.process.send_signal(signal.SIGTERM)
            _, err = await asyncio.to_thread(server.process.communicate)
    assert server.process.returncode == 0
    assert "restarts; trying again" in caplog.text
    assert "SIGHUP: the workers restart, one by one" in err
    assert "it starts again" not in err
    check_secret(server, err)
    assert {json.loads(line).get("worker") for line in err.splitlines() if line.startswith("{")} >= {0, 1, None}


async def test_new_code_that_does_not_start_is_a_record_of_the_log(tmp_path):
    with (tmp_path / "log").open("w") as log, started(tmp_path, stderr=log) as server:

        def problems():
            records = map(json.loads, (tmp_path / "log").read_text().splitlines())
            return [record["event"] for record in records if record["level"] == "error"]

        (tmp_path / "agents.py").write_text("def broken(:\n")
        server.process.send_signal(signal.SIGHUP)
        (problem, *_) = await until(problems, timeout=60)
        assert re.match(r"worker 0 does not start: agents:agent_loop: SyntaxError: .* at \S*agents.py:1$", problem)
        async with RolloutClient(server.targets[1]) as client:
            assert (await client.info()).agent_loops, "worker 1 has the old code"
        (tmp_path / "agents.py").write_text(AGENT)
        await until(lambda: "all workers have restarted" in (tmp_path / "log").read_text(), timeout=60)


async def test_workers_stop_when_their_supervisor_is_killed(tmp_path):
    with started(tmp_path) as server:
        pids = server.pids()
        server.process.kill()
        await until(lambda: not any(runs(pid) for pid in pids))
    with started(tmp_path) as server:  # the folder is free
        async with RolloutClient(server.targets[0]) as client:
            assert len((await client.info()).workers) == 2


async def test_a_second_signal_ends_all_at_once(tmp_path):
    with started(tmp_path) as server:
        async with CallbackTrainer(Policy(600.0)) as trainer, RolloutClient(server.targets[0]) as client:
            for name in IDS[:8]:
                await client.init(rollout_id=name, messages=QUESTION, callback=trainer.callback())
            server.process.send_signal(signal.SIGTERM)
            assert json.loads(await asyncio.to_thread(server.process.stdout.readline))["event"] == "draining"
            server.process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(server.process.wait, 60) == 128 + signal.SIGTERM


async def test_a_worker_beyond_the_number_finishes_its_rollouts_and_leaves(tmp_path):
    go, policy = asyncio.Event(), Policy()

    async def held(request):
        await go.wait()
        return await policy(request)

    async with CallbackTrainer(held) as trainer:
        with started(tmp_path, workers=3) as server:
            async with RolloutClient(server.targets[0]) as client:
                for name in IDS[:9]:
                    await client.init(rollout_id=name, messages=QUESTION, callback=trainer.callback())
            server.process.kill()
        with started(tmp_path, workers=1) as server:
            async with RolloutClient(server.targets[0]) as client:
                assert len(server.ports) == 3
                left = RolloutFilter(states=(RolloutState.RUNNING, RolloutState.QUEUED))
                assert len([row async for row in client.rollouts(left)]) == 9
                await client.init(rollout_id="new", messages=QUESTION, callback=trainer.callback())
                go.set()
                for name in (*IDS[:9], "new"):
                    assert (await trainer.outcome(name, timeout=60)).reward == 0.5
                await until(lambda: one_worker(client), timeout=60)
                assert len(server.pids()) == 1


async def one_worker(client):
    return len((await client.info()).workers) == 1


def refused(tmp_path, *arguments):
    """Return the message of a server that does not start, and check that it leaves nothing."""
    (tmp_path / "agents.py").write_text(AGENT)
    command = ("-m", "osmosis_grpc.serve", "--no-http", "--state-dir", "state", "--workers", "2", *arguments)
    done = run(*command, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert not (tmp_path / "state").exists()
    (line,) = done.stderr.strip().splitlines()
    return line


def test_what_cannot_start_is_said_once_before_anything_starts(tmp_path):
    module = ("-m", "agents:agent_loop")
    port = quiet_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        line = refused(tmp_path, *module, "--grpc-port", str(port - 1))
    assert line == (
        f"serve: cannot listen on 127.0.0.1:{port}: the port is in use; worker 1 needs it: --grpc-port chooses the "
        "first of 2 ports"
    )
    assert "above 65535" in refused(tmp_path, *module, "--grpc-port", "65535")
    assert "--reload goes with one process" in refused(tmp_path, *module, "--reload")
    assert "--legacy-listen needs the port 0" in refused(tmp_path, *module, "--legacy-listen", "127.0.0.1:7000")
    assert "there is nothing to host" in refused(tmp_path, "--grpc-port", "0")
    assert "no_such" in refused(tmp_path, "--grpc-port", "0", "-m", "agents:no_such")


DYING = """
import os, signal
with open("starts", "a+") as file:
    file.write("x")
    file.flush()
    if file.seek(0, 1) in range(*map(int, os.environ["DEATHS"].split())):
        os.kill(os.getpid(), signal.SIGKILL)
from agents import agent_loop
"""
"""The processes whose starts have these numbers are killed before they are ready."""


async def test_a_worker_that_is_killed_before_it_is_ready_starts_again(tmp_path):
    (tmp_path / "dying.py").write_text(DYING)
    with started(tmp_path, "-m", "dying:agent_loop", module=False, env=os.environ | {"DEATHS": "2 4"}) as server:
        async with Trainer(server.targets, Policy()) as trainer:
            await finished(trainer, IDS[:8])
        server.process.send_signal(signal.SIGTERM)
        _, err = await asyncio.to_thread(server.process.communicate)
    assert server.process.returncode == 0
    assert err.count("worker 1 ended with exit code 137; it starts again") == 2
    assert (tmp_path / "starts").read_text() == "xxxx"


def test_a_worker_that_is_killed_at_every_start_ends_the_server(tmp_path):
    (tmp_path / "agents.py").write_text(AGENT)
    (tmp_path / "dying.py").write_text(DYING)
    command = ("-m", "osmosis_grpc.serve", "-m", "dying:agent_loop", "--workers", "2", "--grpc-port", "0", "--no-http")
    done = run(*command, "--state-dir", "state", cwd=tmp_path, env=os.environ | {"DEATHS": "1 99"})
    assert (done.returncode, done.stdout) == (137, "")
    assert "worker 0 ended 5 times before it was ready, at last with exit code 137; the server ends" in done.stderr


async def test_a_folder_belongs_to_one_server_and_every_command_reads_all_of_it(tmp_path):
    policy = Policy()
    with started(tmp_path, "-p", "0", "--metrics-port", "0") as server:
        async with Trainer(server.targets, policy) as trainer:
            await finished(trainer, IDS)
        second = run(
            "-m",
            "osmosis_grpc.serve",
            "-m",
            "agents:agent_loop",
            "--grpc-port",
            "0",
            "--no-http",
            "--state-dir",
            "state",
            cwd=tmp_path,
        )
        assert second.returncode == 2
        assert f"state is in use by process {server.process.pid}: stop it; --state-dir" in second.stderr
        for where in (("--state-dir", "state"), ("--server", server.targets[0]), ("--server", server.targets[1])):
            listed = await command(tmp_path, "list", "--json", "--limit", "100", *where)
            assert {row["rollout_id"] for row in listed if row["event"] == "rollout"} == {*IDS}
            for name in IDS[:4]:
                shown = await asyncio.to_thread(run, "-m", "osmosis_grpc", "show", name, *where, cwd=tmp_path)
                assert shown.returncode == 0, shown.stderr
    backed = await asyncio.to_thread(run, "-m", "osmosis_grpc", "backup", "copy", "--state-dir", "state", cwd=tmp_path)
    assert backed.returncode == 0, backed.stderr
    rows = await command(tmp_path, "query", "--json", "SELECT rollout_id FROM rollouts", "--state-dir", "copy")
    assert {row["row"]["rollout_id"] for row in rows if row["event"] == "row"} == {*IDS}
    (tmp_path / "state").rename(tmp_path / "old")
    (tmp_path / "copy").rename(tmp_path / "state")
    with started(tmp_path) as server:
        async with RolloutClient(server.targets[1]) as client:
            assert {row.rollout_id async for row in client.rollouts()} == {*IDS}


async def command(folder, *arguments):
    done = await asyncio.to_thread(run, "-m", "osmosis_grpc", *arguments, cwd=folder)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]
