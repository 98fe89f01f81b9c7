"""A damaged ledger. One damaged row costs one rollout at most, which is named; all else goes on."""

import asyncio
import sqlite3
from contextlib import aclosing, closing
from pathlib import Path

import pytest

from osmosis_grpc.protocol.errors import AlreadyExists
from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.trainer import RolloutRequest, Trainer
from tests.trainer.conftest import PATIENCE, USER, reply, talker
from tests.trainer.test_ledger import copied
from tests.waiting import until

NAMES = ("r0", "r1", "r2", "r3")


def request(name: str) -> RolloutRequest:
    return RolloutRequest(rollout_id=name, messages=[USER], metadata={"turns": 3})


def change(ledger: Path, statement: str) -> None:
    with closing(sqlite3.connect(ledger)) as connection, connection:
        assert connection.execute(statement).rowcount


async def collect(outcomes):
    async with asyncio.timeout(PATIENCE), aclosing(outcomes):
        return {outcome.rollout_id: outcome async for outcome in outcomes}


def is_lost(outcome) -> bool:
    if outcome.status is OutcomeStatus.COMPLETED:
        return False
    assert outcome.status is OutcomeStatus.FAILED
    assert (outcome.failure.reason, outcome.failure.boundary) == ("DATA_LOSS", "trainer")
    assert outcome.failure.retryable
    return True


DAMAGES = [
    ("UPDATE chat SET reply = x'00' WHERE rollout_id = 'r1' AND number = 2", "chat 2 of sample main"),
    ("UPDATE chat SET continues = 0 WHERE rollout_id = 'r1' AND number = 3", "chat 3 of sample main"),
    ("DELETE FROM chat WHERE rollout_id = 'r1' AND number = 3", "is missing"),
    ("UPDATE rollout SET outcome = x'00' WHERE rollout_id = 'r1'", "end_sum"),
    ("UPDATE rollout SET init = x'00' WHERE rollout_id = 'r1'", "assignment_sum"),
    ("UPDATE rollout SET result_id = 'another' WHERE rollout_id = 'r1'", "end_sum"),
]


@pytest.mark.parametrize(("statement", "why"), DAMAGES)
async def test_a_damaged_outcome_blocks_no_other(serve, tmp_path, caplog, statement, why):
    server, path = await serve(talker()), tmp_path / "ledger"
    async with Trainer([server.address], reply, ledger=path) as trainer:
        first = {name: await trainer.rollout(request(name)) for name in NAMES}
    change(path, statement)
    async with Trainer([server.address], reply, ledger=path) as trainer:
        again = await collect(trainer.unconfirmed())
        assert list(again) == list(NAMES)
        assert [name for name in NAMES if is_lost(again[name])] == ["r1"]
        assert all(again[name] == first[name] for name in NAMES if name != "r1")
        assert why in again["r1"].failure.message
        assert "the outcome of rollout r1 is damaged" in caplog.text
        await again["r1"].confirm()
        another = await trainer.rollout(request("r1"), attempt=2)
        assert another.status is OutcomeStatus.COMPLETED, "it may run again"
    async with Trainer([server.address], reply, ledger=path) as trainer:
        assert not any(map(is_lost, (await collect(trainer.unconfirmed())).values()))


async def test_what_was_confirmed_stays_so(serve, tmp_path, caplog):
    server, path = await serve(talker()), tmp_path / "ledger"
    async with Trainer([server.address], reply, ledger=path) as trainer:
        for name in NAMES:
            await (await trainer.rollout(request(name))).confirm()
    change(path, "UPDATE confirmed SET time = 1.0 WHERE rollout_id = 'r1'")
    async with Trainer([server.address], reply, ledger=path) as trainer:
        assert await collect(trainer.unconfirmed()) == {}
        with pytest.raises(AlreadyExists, match="is over"):
            await trainer.rollout(request("r1"))
        assert "the confirmed rollout r1 is damaged" in caplog.text


@pytest.mark.parametrize(
    ("statement", "lost", "log"),
    [
        ("UPDATE rollout SET init = x'00' WHERE rollout_id = 'r1'", True, "rollout r1 is damaged in the ledger"),
        ("UPDATE rollout SET server_key = 'target 127.0.0.1:1' WHERE rollout_id = 'r1'", True, "rollout r1 is damaged"),
        ("UPDATE rollout SET tools = x'00' WHERE rollout_id = 'r1'", False, "the tools of rollout r1 are damaged"),
        ("UPDATE chat SET reply = x'00' WHERE rollout_id = 'r1'", False, "chat 1 of rollout r1 is damaged"),
        pytest.param(
            "UPDATE attachment SET attachment_id = 'another'", False, "is damaged in the ledger", marks=pytest.mark.slow
        ),
    ],
)
async def test_a_running_rollout_continues_where_it_can(serve, tmp_path, caplog, statement, lost, log):
    agent, path, gate, seen = talker(), tmp_path / "ledger", asyncio.Event(), []

    async def halting(asked):
        if asked.chat_number > 1:
            seen.append(asked.rollout_id)
            await gate.wait()
        return reply(asked)

    server = await serve(agent)
    async with Trainer([server.address], halting, ledger=path) as trainer:
        running = [asyncio.create_task(trainer.rollout(request(name))) for name in NAMES]
        await until(lambda: len(seen) == len(NAMES))
        left = copied(path)
        change(left, statement)
        async with Trainer([server.address], halting, ledger=left) as other:
            gate.set()
            got = await collect(other.unconfirmed())
            assert set(got) == set(NAMES)
            assert [name for name in NAMES if is_lost(got[name])] == ["r1"] * lost
            for name in set(NAMES) - {"r1"} if lost else NAMES:
                assert [chat.chat_number for chat in got[name].samples["main"].chats] == [1, 2, 3]
            assert log in caplog.text
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
