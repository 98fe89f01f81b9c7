"""The simulated disk: the real journal and ledger over it commit, fail and die where a test says."""

import asyncio
from random import Random

import pytest

from osmosis_grpc.protocol.errors import LedgerError
from osmosis_grpc.storage.journal.schema import LOCK
from osmosis_grpc.storage.journal.sqlite_journal import SqliteJournal
from osmosis_grpc.storage.ledger import SqliteLedger
from osmosis_grpc.supervise import Supervisor
from tests.simulation.committer import Crash, Disk
from tests.simulation.system import SimulatedSystem
from tests.storage.journals import CALLBACK, JournalUser
from tests.waiting import until


class Slow(Random):
    """Chooses the longest time for each commit and each report."""

    def uniform(self, low, high):
        return high


class Process:
    """A process with a simulated disk."""

    def __init__(self, seed=1):
        self.deaths, self.notes, self.failures = [], [], []
        self.disk = Disk(Slow(seed), self.deaths.append, lambda kind, **fields: self.notes.append((kind, fields)))
        system = SimulatedSystem(asyncio.get_running_loop(), Random(seed), self.disk)
        self.supervisor = Supervisor("the process", self.failures.append, system)

    def journal(self, folder):
        return JournalUser(folder, supervisor=self.supervisor)

    async def ledger(self, path):
        return await SqliteLedger.open(path, 60.0, self.supervisor)


async def settled():
    """Let everything happen that a commit leads to."""
    await asyncio.sleep(0.03)  # six times the slowest commit, for what must not happen


def known(folder):
    """Return the rollouts that the next process finds."""
    journal = SqliteJournal(folder)
    try:
        return [entry.init.request.rollout_id for entry in journal.unsettled()]
    finally:
        journal.close()


async def test_a_journal_commits_without_a_thread(tmp_path):
    process = Process()
    user = process.journal(tmp_path)
    user.accept("r1")
    await user.all_reported()
    assert user.reported == [(1, True)]
    user.accept("r2")
    user.journal.close()
    assert known(tmp_path) == ["r1", "r2"]
    assert process.notes[0] == ("commit", {"store": "journal", "size": 1})


@pytest.mark.parametrize(
    ("where", "kept"),
    [
        (Crash.BEFORE, ["r1"]),
        (Crash.DURING, ["r1"]),
        (Crash.COMMITTED, ["r1", "r2"]),
        (Crash.UNREPORTED, ["r1", "r2"]),
        (Crash.REPORTED, ["r1", "r2"]),
    ],
)
async def test_a_process_dies_at_a_commit_of_its_journal(tmp_path, where, kept):
    process = Process()
    user = process.journal(tmp_path)
    user.accept("r1")
    await user.all_reported()
    process.disk.crash = where
    user.accept("r2")
    await until(lambda: process.deaths)
    await settled()
    assert process.deaths == [f"{where} of its journal"]
    assert user.reported[1:] == ([(2, True)] if where is Crash.REPORTED else [])
    assert known(tmp_path) == kept  # the lock is free, although nothing was closed in good order


@pytest.mark.parametrize("where", Crash)
async def test_a_process_dies_at_a_commit_of_its_ledger(tmp_path, where):
    process = Process()
    ledger = await process.ledger(tmp_path / "ledger")
    ledger.attachment("server")
    await ledger.written()
    process.disk.crash = where
    ledger.record_server("server", "journal")
    reported = asyncio.ensure_future(ledger.written())
    await until(lambda: process.deaths)
    await settled()
    assert reported.done() == (where is Crash.REPORTED)
    reported.cancel()
    again = await Process().ledger(tmp_path / "ledger")
    assert again.attachment("server")[1] == ("" if where in (Crash.BEFORE, Crash.DURING) else "journal")
    await again.close()


@pytest.mark.parametrize(("where", "left"), [(Crash.COMMITTED, 1), (Crash.UNREPORTED, 0)])
async def test_a_process_dies_before_or_after_the_steps_that_follow_a_commit(tmp_path, where, left):
    process = Process()
    user = process.journal(tmp_path)
    user.accept("r1", callback=CALLBACK)
    user.end("r1")
    await user.all_reported()
    process.disk.crash = where
    user.deliver("r1")
    await until(lambda: process.deaths)
    assert len(list((tmp_path / "credentials").iterdir())) == left
    assert known(tmp_path) == []
    assert not list((tmp_path / "credentials").iterdir())


async def test_a_process_that_is_killed_gets_no_report(tmp_path):
    process = Process()
    process.disk.note = lambda kind, **fields: process.disk.kill()  # between a commit and its report
    user = process.journal(tmp_path)
    user.accept("r1")
    await until(lambda: process.disk.dead)
    await settled()
    assert user.reported == []
    assert known(tmp_path) == ["r1"]


async def test_a_commit_that_fails_is_reported_and_writing_works_again(tmp_path):
    process = Process()
    user = process.journal(tmp_path)
    process.disk.failures = 1
    user.accept("r1")
    await user.all_reported()
    assert user.reported == [(1, False)]
    assert user.journal.problem
    await until(lambda: not user.journal.problem)
    user.accept("r2")
    await user.all_reported()
    user.journal.close()
    assert known(tmp_path) == ["r2"]
    assert process.notes[0] == ("commit failed", {"store": "journal", "error": "the disk is full"})
    assert not process.failures


async def test_a_full_disk_refuses_what_the_ledger_writes(tmp_path):
    process = Process()
    ledger = await process.ledger(tmp_path / "ledger")
    process.disk.full = True
    with pytest.raises(LedgerError, match="cannot be written"):
        await ledger.confirm("r1", 1, "result")
    process.disk.full = False
    await ledger.confirm("r1", 1, "result")
    await ledger.close()


async def test_a_lost_lock_ends_the_owner(tmp_path):
    process = Process()
    user = process.journal(tmp_path)
    (tmp_path / LOCK).unlink()
    user.accept("r1")
    await until(lambda: process.failures and user.reported)
    assert user.reported == [(1, False)]
    assert "was removed" in str(process.failures[0])


async def test_the_same_seed_makes_the_same_ids_and_times(tmp_path):
    async def run(folder):
        process = Process(seed=7)
        user, ledger = process.journal(folder), await process.ledger(folder / "ledger")
        found = user.journal.journal_id, ledger.attachment("server"), process.supervisor.system.new_id()
        user.journal.close()
        await ledger.close()
        return found

    first, second = await run(tmp_path / "a"), await run(tmp_path / "b")
    assert first == second
