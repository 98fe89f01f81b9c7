"""A trainer is killed by SIGKILL at every step of its ledger's: nothing is lost, applied twice, or answered twice."""

import asyncio
import json
import signal
import sqlite3
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from osmosis_grpc.trainer import RolloutClient
from tests.attach.agents import Talker
from tests.attach.policies import REPLIED, made_of, size_of
from tests.processes import ROOT
from tests.trainer.ledger_process import Application, play, trainer_of
from tests.waiting import is_empty, until

COUNT = 6


async def trainer(way: str, target: str, ledger: Path, name: str, armed: str = "", count: int = COUNT) -> int:
    """Run a trainer to its end; its exit code."""
    command = ["-m", "tests.trainer.ledger_process", way, target, str(ledger), name, str(count), armed]
    process = await asyncio.create_subprocess_exec(sys.executable, *command, cwd=ROOT)
    try:
        async with asyncio.timeout(40):
            return await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def told(ledger: Path) -> list[dict]:
    return [json.loads(line) for line in Path(f"{ledger}.told").read_text().splitlines()]


def check(ledger: Path, name: str, count: int = COUNT) -> Counter:
    """Every rollout was applied once, with what the policy said; how often each chat was sampled."""
    lines = told(ledger)
    applied = [line for line in lines if "applied" in line]
    assert sorted(line["applied"] for line in applied) == sorted(f"{name}-{n}" for n in range(count))
    for line in applied:
        assert (line["status"], line["attempt"], line["reward"]) == ("COMPLETED", 1, 3.0)
        said = [f"{REPLIED} {n} to {line['applied']}, attempt 1" for n in (1, 2, 3)]
        assert line["text"][1::2] == said
        assert line["tokens"] == [made_of(text, size_of(text)).ids.tolist() for text in said]
        assert line["sampled"] == sum(map(len, line["tokens"]))
    return Counter(tuple(line["sampled"]) for line in lines if set(line) == {"sampled"})


def committed(ledger: Path) -> set[tuple]:
    """The chats whose reply stands in the ledger."""
    with closing(sqlite3.connect(ledger)) as connection:
        return set(connection.execute("SELECT rollout_id, attempt, sample, number FROM chat"))


async def killed_and_again(
    serve, tmp_path, way: str, armed: str, count: int = COUNT, again=trainer
) -> tuple[Path, Counter]:
    server, ledger = await serve(Talker()), tmp_path / "ledger"
    assert await trainer(way, server.address, ledger, "k", armed, count) == -signal.SIGKILL
    kept, before = committed(ledger), len(told(ledger))
    assert await again(way, server.address, ledger, "k", "", count) == 0
    last = trainer_of(way, Application(str(ledger)), server.address, str(ledger))
    async with RolloutClient(server.address) as client, last:  # the process may end before the server delivers again
        await until(lambda: is_empty(client.rollouts(undelivered=True)), timeout=60)
    again = {tuple(line["sampled"]) for line in told(ledger)[before:] if set(line) == {"sampled"}}
    assert not again & kept, "what was committed is never sampled again"
    return ledger, check(ledger, "k", count)


WAYS = pytest.mark.parametrize("way", ["attach", "callback"])


@pytest.mark.slow
@WAYS
async def test_a_reply_that_was_committed_is_sent_by_the_next_process(serve, tmp_path, way):
    async def here(way, target, ledger, name, armed, count):
        await play(way, Application(str(ledger)), target, str(ledger), name, count)
        return 0

    await killed_and_again(serve, tmp_path, way, "ledger.reply.committed:2", 2, again=here)


STEPS = [
    "ledger.reply.before:4",
    "ledger.reply.committed:1",
    "ledger.reply.committed:11",
    "ledger.complete.before:2",
    "ledger.complete.committed:1",
    "ledger.complete.committed:4",
]


@pytest.mark.slow
@WAYS
@pytest.mark.parametrize("armed", STEPS)
async def test_killed_at_every_step(serve, tmp_path, way, armed):
    await killed_and_again(serve, tmp_path, way, armed)


@pytest.mark.slow
@WAYS
@pytest.mark.parametrize("nth", [1, 3])
async def test_killed_between_the_commit_of_an_init_and_its_sending(serve, tmp_path, nth, way):
    _, sampled = await killed_and_again(serve, tmp_path, way, f"ledger.init.committed:{nth}")
    assert {attempt for _, attempt, _, _ in sampled} == {1}, "what may never have been sent is sent as it was"


@pytest.mark.slow
@WAYS
async def test_outcomes_without_a_caller_are_yielded_by_unconfirmed(serve, tmp_path, way):
    server, ledger = await serve(Talker()), tmp_path / "ledger"
    assert await trainer(way, server.address, ledger, "k", "ledger.complete.committed:2") == -signal.SIGKILL
    assert await trainer(way, server.address, ledger, "", count=0) == 0
    check(ledger, "k")
    before = len(told(ledger))
    assert await trainer(way, server.address, ledger, "", count=0) == 0
    assert len(told(ledger)) == before, "what was confirmed is not yielded again"


@pytest.mark.slow
@pytest.mark.timeout(120)
@WAYS
async def test_killed_again_and_again(serve, tmp_path, way):
    server, ledger = await serve(Talker()), tmp_path / "ledger"
    steps = ["reply.before:9", "reply.committed:9", "complete.before:2", "complete.committed:3"]
    kills, count = 0, 16
    while await trainer(way, server.address, ledger, "k", f"ledger.{steps[kills % len(steps)]}", count):
        kills += 1
        assert kills < 40
    assert kills >= 3
    check(ledger, "k", count)
