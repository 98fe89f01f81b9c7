"""Asynchronous training, with the agent server and the trainer each killed once by SIGKILL."""

import asyncio
import contextlib
import json
import re
import signal
import subprocess
import sys
from collections import Counter

import pytest

from osmosis_grpc.trainer import RolloutClient
from tests.ports import quiet_port
from tests.processes import ROOT, run
from tests.waiting import is_empty, until

FOLDER = ROOT / "examples" / "asynchronous"
PATIENCE = 120


@contextlib.asynccontextmanager
async def started(*arguments, log):
    """A process of Python. It is killed at the end, if it still runs."""
    with log.open("ab") as file:
        process = await asyncio.create_subprocess_exec(
            sys.executable, *arguments, cwd=FOLDER, stdin=subprocess.DEVNULL, stdout=file, stderr=file
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def updates(state):
    """The updates of the checkpoint."""
    with contextlib.suppress(FileNotFoundError):
        return json.loads((state / "checkpoint.json").read_text())["updates"]
    return []


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_nothing_is_lost_or_trained_twice(tmp_path):
    state, log, port = tmp_path / "state", tmp_path / "log", quiet_port()
    serve = ["-m", "osmosis_grpc", "serve", "-m", "speller:agent_loop", "--grpc-port", str(port), "--no-http"]
    serve += ["--state-dir", str(tmp_path / "server")]
    train = [str(FOLDER / "train.py"), f"127.0.0.1:{port}", "--state", str(state)]

    async with asyncio.timeout(3 * PATIENCE):
        async with started(*serve, log=log) as server:
            async with started(*train, log=log) as trainer:
                await until(lambda: len(updates(state)) >= 3, timeout=PATIENCE)
                trainer.kill()
            async with started(*train, log=log) as trainer:
                await until(lambda: len(updates(state)) >= 6, timeout=PATIENCE)
                server.kill()
                await server.wait()
                async with started(*serve, log=log) as again:
                    assert await trainer.wait() == 0, log.read_text()
                    async with RolloutClient(f"127.0.0.1:{port}") as client:
                        await until(lambda: is_empty(client.rollouts(undelivered=True)), timeout=PATIENCE)
                    assert again.returncode is None
            assert server.returncode == -signal.SIGKILL

    found = updates(state)
    trained = Counter(rollout_id.partition("-")[2] for update in found for rollout_id in update["versions"])
    assert trained == {f"g{group}-{member}": 1 for group in range(100) for member in range(5)}
    assert len(found) == 10
    for version, update in enumerate(found):
        for rollout_id, spans in update["versions"].items():
            words = 8 if int(re.search(r"-g(\d+)-", rollout_id)[1]) % 10 == 0 else 3
            assert sum(tokens for _, tokens in spans) == 4 * words, "every token has its version"
            assert all(version - 2 <= sampled <= version for sampled, _ in spans), "none exceeds the lag"
    several = [spans for update in found for spans in update["versions"].values() if len({v for v, _ in spans}) > 1]
    assert several, "rollouts continue after an update"


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_it_runs_alone_with_a_pause_at_each_update(tmp_path):
    done = run(str(FOLDER / "train.py"), "--pause", cwd=tmp_path, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "trained on 500 rollouts in 10 updates"
    assert list(tmp_path.iterdir()) == [], "it leaves nothing behind"
    assert "HOST:PORT" in run(str(FOLDER / "train.py"), "--help").stdout
