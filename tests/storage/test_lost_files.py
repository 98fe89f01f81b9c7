"""A process whose journal or ledger is removed, replaced or cut stops: nobody would find what it writes."""

import asyncio
import os
import shutil

import pytest

from osmosis_grpc.protocol.errors import LedgerError
from osmosis_grpc.storage import SqliteJournal
from osmosis_grpc.storage.ledger import SqliteLedger
from osmosis_grpc.storage.sqlite.database import FilesLost
from osmosis_grpc.supervise import Supervisor

PATIENCE = 10.0


def replace(path):
    shutil.copy(path, f"{path}.new")
    os.replace(f"{path}.new", path)


def cut(path):
    os.truncate(path, 0)


HOW = {
    "the file is removed": ("", os.unlink),
    "its log is removed": ("-wal", os.unlink),
    "the index of its log is removed": ("-shm", os.unlink),
    "the file is replaced": ("", replace),
    "the file is cut": ("", cut),
}


@pytest.mark.parametrize("how", HOW)
async def test_a_server_fails_when_the_files_of_its_journal_are_lost(tmp_path, how):
    failed = asyncio.get_running_loop().create_future()
    supervisor = Supervisor("the server", failed.set_result)
    SqliteJournal(tmp_path / "state").close()  # now its rows are in the file, and not in the log
    journal = SqliteJournal(tmp_path / "state", supervisor=supervisor)
    durable = asyncio.get_running_loop().create_future()
    journal.barrier(durable.set_result)
    assert await asyncio.wait_for(durable, PATIENCE)
    end, harm = HOW[how]
    harm(f"{journal.path}{end}")
    assert isinstance(await asyncio.wait_for(failed, PATIENCE), FilesLost)
    assert f"{journal.path}{end}" in journal.problem
    journal.close()


@pytest.mark.parametrize("how", HOW)
async def test_nothing_is_committed_to_a_ledger_whose_files_are_lost(tmp_path, how):
    await (await SqliteLedger.open(tmp_path / "ledger", 60.0)).close()  # as above
    ledger = await SqliteLedger.open(tmp_path / "ledger", 60.0)
    await asyncio.wait_for(ledger.confirm("before", 1, "x"), PATIENCE)
    end, harm = HOW[how]
    harm(f"{tmp_path / 'ledger'}{end}")
    with pytest.raises(LedgerError):
        await asyncio.wait_for(ledger.confirm("after", 1, "x"), PATIENCE)
    await ledger.close()


async def test_a_file_that_its_own_process_makes_shorter_is_not_lost(tmp_path):
    failed = asyncio.get_running_loop().create_future()
    journal = SqliteJournal(tmp_path / "state", supervisor=Supervisor("the server", failed.set_result))
    for _ in range(3):
        durable = asyncio.get_running_loop().create_future()
        journal.keep_version("x" * 50_000, {})
        journal.barrier(durable.set_result)
        assert await asyncio.wait_for(durable, PATIENCE)
    assert not failed.done()
    journal.close()
