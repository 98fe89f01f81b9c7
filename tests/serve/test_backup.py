"""`backup` while a server works: a server that starts with the copy delivers each outcome once, and continues."""

import asyncio
import json
import stat
from collections import Counter

import pytest

from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.errors import Unavailable
from osmosis_grpc.protocol.types import OutcomeStatus, RolloutFilter, RolloutState
from osmosis_grpc.trainer import RolloutClient
from tests.callback_trainer import CallbackTrainer
from tests.processes import run, server_process
from tests.server.test_journal import AGENT, QUESTION
from tests.waiting import until

pytestmark = pytest.mark.slow

COMMAND = ("-m", "agents:agent_loop", "--state-dir")
ENDED = [f"ended-{number}" for number in range(8)]
RUNNING = "running"
TOKEN = "canary-token-of-the-trainer"


def backup(tmp_path, *arguments):
    return run("-m", "osmosis_grpc", "backup", *arguments, cwd=tmp_path)


async def undelivered(client, count):
    """Return whether so many ended rollouts have an outcome that is not delivered."""
    where = RolloutFilter(states=(RolloutState.COMPLETED,), undelivered=True)
    return len([found async for found in client.rollouts(where=where)]) == count


async def test_each_undelivered_outcome_of_a_backup_is_delivered_once(tmp_path):
    (tmp_path / "agents.py").write_text(AGENT)
    sampled, recorded, away = Counter(), Counter(), True
    go_on = asyncio.Event()

    async def policy(request):
        sampled[request.rollout_id, request.chat_number] += 1
        if request.rollout_id == RUNNING and request.chat_number == 2:
            await go_on.wait()
        return answer(request, f"reply {request.chat_number}")

    async def recorder(outcome, _state, _credential):
        if away:
            raise Unavailable("the trainer's disk is full")
        recorded[outcome.rollout_id, outcome.status] += 1

    async with CallbackTrainer(policy, recorder=recorder, tokens=TOKEN) as trainer:
        callback = trainer.callback()
        with server_process(*COMMAND, "state", cwd=tmp_path) as (process, address):
            async with RolloutClient(address) as client:
                for name in (*ENDED, RUNNING):
                    await client.init(rollout_id=name, messages=QUESTION, callback=callback)
                await until(lambda: sampled[RUNNING, 2])
                await until(lambda: undelivered(client, len(ENDED)))
                done = await asyncio.to_thread(backup, tmp_path, "copy", "--state-dir", "state", "--json")
                process.kill()
        assert (done.returncode, done.stderr) == (0, "")
        (record,) = map(json.loads, done.stdout.splitlines())
        assert (record["event"], record["kind"], record["damaged"]) == ("copied", "journal", 0)
        assert record["sound"]["rollouts"] == len(ENDED) + 1
        away = False
        go_on.set()
        with server_process(*COMMAND, "copy", cwd=tmp_path) as (_, address):
            async with RolloutClient(address) as client:
                await until(lambda: len(recorded) == len(ENDED) + 1)
                await until(lambda: undelivered(client, 0))
    assert recorded == {(name, OutcomeStatus.COMPLETED): 1 for name in (*ENDED, RUNNING)}
    assert set(sampled.values()) == {1}
    assert {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in (tmp_path / "copy").rglob("*")} == {0}
