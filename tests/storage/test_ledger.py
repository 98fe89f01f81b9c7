"""The ledger's file: who may open it, what a dead thread and a limit on its size do."""

import asyncio
import os
import shutil
import sqlite3
from contextlib import closing

import pytest

from osmosis_grpc import supervise
from osmosis_grpc.protocol.errors import LedgerError
from osmosis_grpc.protocol.types import OutcomeStatus, RolloutOutcome
from osmosis_grpc.storage.ledger import SqliteLedger
from osmosis_grpc.storage.ledger.rows import LEDGER
from osmosis_grpc.storage.ledger.writer import COMMIT
from osmosis_grpc.supervise import Supervisor, System
from tests.processes import run


def within(awaitable):
    return asyncio.wait_for(awaitable, 10.0)


def _tables(path):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT name FROM sqlite_schema").fetchall()


async def test_a_second_process_is_refused_with_the_pid_of_the_first(tmp_path):
    ledger = await SqliteLedger.open(tmp_path / "ledger", 60.0)
    try:
        other = "import asyncio, sys; from osmosis_grpc.trainer import Trainer\n"
        other += "async def main():\n    async with Trainer([], print, ledger=sys.argv[1]): pass\nasyncio.run(main())"
        told = await asyncio.to_thread(run, "-c", other, str(tmp_path / "ledger"))
        assert told.returncode == 1
        assert f"{tmp_path / 'ledger'} is in use by process {os.getpid()}: end that one, or name" in (told.stderr)
        with pytest.raises(LedgerError, match=rf"process {os.getpid()} \(this one\)"):
            await SqliteLedger.open(tmp_path / "ledger", 60.0)
    finally:
        await ledger.close()
    await (await SqliteLedger.open(tmp_path / "ledger", 60.0)).close()


async def test_a_forked_child_does_not_hold_the_ledger(tmp_path):
    ledger = await SqliteLedger.open(tmp_path / "ledger", 60.0)
    waits, wakes = os.pipe()
    child = os.fork()
    if not child:
        os.close(wakes)
        os.read(waits, 1)
        os._exit(0)
    try:
        await ledger.close()
        await (await SqliteLedger.open(tmp_path / "ledger", 60.0)).close()
    finally:
        os.close(wakes)
        os.close(waits)
        os.waitpid(child, 0)


async def test_a_file_that_is_no_ledger_is_refused_and_not_changed(tmp_path):
    (tmp_path / "text").write_text("not a database at all, but long enough to be looked at" * 100)
    with closing(sqlite3.connect(tmp_path / "other")) as connection:
        connection.execute("CREATE TABLE mine (x)")
    with pytest.raises(LedgerError, match="is a database of another program: use another file"):
        await SqliteLedger.open(tmp_path / "other", 60.0)
    with pytest.raises(LedgerError, match="cannot be used as a ledger: file is not a database"):
        await SqliteLedger.open(tmp_path / "text", 60.0)
    with pytest.raises(LedgerError, match="is a folder: name a file"):
        await SqliteLedger.open(tmp_path, 60.0)
    assert _tables(tmp_path / "other") == [("mine",)]


@pytest.mark.parametrize(("version", "age"), [(2, "an older"), (6, "an older"), (99, "a newer")])
async def test_a_ledger_of_another_version_is_refused_by_name(tmp_path, version, age):
    path = tmp_path / "ledger"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE chat (rollout_id TEXT)")
        connection.execute(f"PRAGMA application_id = {LEDGER.application_id(version)}")
        connection.execute(f"PRAGMA user_version = {version}")
    before = path.read_bytes()
    with pytest.raises(LedgerError) as refused:
        await SqliteLedger.open(path, 60.0)
    told = (
        f"{path} was written by {age} version (schema {version}, this one reads 7): move it away, or use another file"
    )
    assert str(refused.value) == told
    assert path.read_bytes() == before


async def test_a_write_to_a_dead_thread_fails_at_once(tmp_path):
    ledger = await SqliteLedger.open(tmp_path / "ledger", 60.0)
    supervise.inject(COMMIT.name, MemoryError("injected"))
    with pytest.raises(LedgerError, match=r"ledger\.commit"):
        for number in range(3):  # the step that waits already commits the first one
            await within(ledger.confirm(f"r{number}", 1, "x"))
    with pytest.raises(LedgerError, match=r"ledger\.commit"):
        await within(ledger.confirm("r", 1, "x"))
    await within(ledger.close())
    await (await SqliteLedger.open(tmp_path / "ledger", 60.0)).close()


def test_a_table_has_a_checksum_for_every_column():
    for table in LEDGER.tables.values():
        covered = {column for columns in table.sums.values() for column in columns}
        assert covered | set(table.sums) == set(table.columns)


async def test_the_drop_of_an_attempt_takes_the_unconfirmed_outcome_of_a_lower_one(tmp_path):
    ledger = await SqliteLedger.open(tmp_path / "ledger", 60.0)
    loop = asyncio.get_running_loop()
    done = [loop.create_future() for _ in range(4)]

    def then(future):
        return lambda value, error: future.set_result(error)

    for name, recorded in zip(("r1", "r2"), done[:2], strict=True):
        outcome = RolloutOutcome(rollout_id=name, attempt=1, status=OutcomeStatus.COMPLETED, result_id="x")
        ledger.complete(outcome, b"", then(recorded), enter=True)
        ledger.unconfirmed[name] = 1
    ledger.drop("r1", 2, then(done[2]))
    ledger.drop("r2", 1, then(done[3]))  # an outcome of the same attempt stays
    assert [await within(future) for future in done] == [None] * 4
    assert ledger.unconfirmed == {"r2": 1}
    await ledger.close()
    again = await SqliteLedger.open(tmp_path / "ledger", 60.0)
    assert [row.rollout_id for row in again.take_restored()] == ["r2"]
    await again.close()


class Clock(System):
    """A wall clock that a test sets."""

    now = 0.0

    def __init__(self):
        self.time = lambda: self.now


async def number_of_process(path, clock):
    ledger = await SqliteLedger.open(path, 60.0, Supervisor("test", system=clock))
    await ledger.close()
    return ledger.process_number


async def test_each_process_has_a_higher_number_whatever_the_clock_says(tmp_path):
    clock, numbers = Clock(), []
    for clock.now in (1000.0, 1000.5, 3.0, 2000.0, 1e12, 1e12, 2001.0):
        numbers.append(await number_of_process(tmp_path / "ledger", clock))
    assert numbers == sorted(set(numbers))
    assert max(numbers) < 2**32


async def test_the_number_rises_although_its_row_is_damaged_or_the_ledger_is_an_old_copy(tmp_path):
    clock, path, old = Clock(), tmp_path / "ledger", tmp_path / "old"
    for clock.now in (1000.0, 1000.0):
        first = await number_of_process(path, clock)
        shutil.copy(path, old)
    for clock.now in (1000.0, 1000.0, 1000.0):
        newest = await number_of_process(path, clock)
    clock.now = 2000.0
    assert first < newest < await number_of_process(old, clock)
    with closing(sqlite3.connect(path)) as connection, connection:
        assert connection.execute("UPDATE attachment SET journal_id = '7'").rowcount == 1
    assert newest < await number_of_process(path, clock)


@pytest.mark.slow
async def test_a_limit_of_the_system_on_the_file_is_survived(tmp_path):
    """RLIMIT_FSIZE in a process of its own: writing beyond it is EFBIG, as a full disk is ENOSPC."""
    code = """
import asyncio, resource, signal, sys
from osmosis_grpc.storage.ledger import ChatRow, SqliteLedger
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

async def main():
    ledger = await SqliteLedger.open(sys.argv[1], 60.0)
    loop = asyncio.get_running_loop()
    def write(n):
        done = loop.create_future()
        chat = ChatRow("r", 1, "main", n, 0, "", b"", bytes(60_000))
        ledger.chat(chat, lambda _, error: done.set_result(error), enter=n == 1)
        return done
    assert await write(1) is None
    resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, resource.RLIM_INFINITY))
    errors = [await write(n) for n in range(2, 6)]
    assert errors[-1] is not None and sys.argv[1] in str(errors[-1]), errors
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert await write(9) is None
    await ledger.close()
    ledger = await SqliteLedger.open(sys.argv[1], 60.0)
    (row,) = ledger.take_restored()
    assert {1, 9} <= {chat.chat_number for chat in row.chats}, row.chats
    await ledger.close()

asyncio.run(main())
"""
    told = await asyncio.to_thread(run, "-c", code, str(tmp_path / "ledger"))
    assert told.returncode == 0, told.stderr
