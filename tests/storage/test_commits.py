"""The journal reports a token after its commit, or when the commit has failed."""

import asyncio
import json
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from osmosis_grpc.protocol.types import OutcomeStatus, events
from osmosis_grpc.storage import Reader
from osmosis_grpc.storage.journal import writer
from tests.processes import ROOT
from tests.storage import disk as disks
from tests.storage.journals import CALLBACK, JournalUser, opened

CHILD = """
import asyncio, sys
from pathlib import Path
from tests.storage.journals import JournalUser
from osmosis_grpc.protocol.types import events

async def main(folder):
    user = JournalUser(Path(folder))
    reports = user.journal.on_commit
    def note(tokens, ok):
        reports(tokens, ok)
        sys.stdout.write("".join(f"{token}\\n" for token in tokens if ok))
        sys.stdout.flush()
    user.journal.on_commit = note
    for name in range(10_000):
        user.accept(f"r{name}")
        for number in range(20):
            user.append(events.Logged(f"{number}", {"filler": "x" * 500}), f"r{name}")
            if number % 3 == 0:
                await asyncio.sleep(0)
        user.end(f"r{name}")
        user.deliver(f"r{name}")
        await asyncio.sleep(0.002)  # without it, this loop ends before the second commit

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.parametrize("tokens", [300, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2000))])
async def test_reported_commits_survive_kill_9(tmp_path, tokens):
    """After SIGKILL the journal has every reported event, and all events before it."""
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    with child:
        reports = [int(child.stdout.readline()) for _ in range(tokens)]
        child.send_signal(signal.SIGKILL)
        reports += [int(line) for line in child.stdout if line.endswith("\n")]
    assert reports == list(range(1, len(reports) + 1))
    async with opened(tmp_path) as user:
        user.journal.unsettled()
        assert user.journal.last_position >= reports[-1]
        found = user.everything()
        assert [position for position, _ in found] == list(range(1, user.journal.last_position + 1))
        numbers = {}
        for _, event in found:
            numbers.setdefault(event.rollout_id, []).append(event.event_number)
        assert all(row == list(range(1, len(row) + 1)) for row in numbers.values())
        for name in numbers:
            assert [event.event_number for event in user.trajectory(name)] == numbers[name]


async def test_tokens_are_reported_in_order_and_not_before_their_commit(tmp_path):
    async with opened(tmp_path) as user:
        reports = user.journal.on_commit
        seen = []

        def note(tokens, ok):
            reports(tokens, ok)
            reader = Reader.look(tmp_path)  # another connection sees them: they are committed
            seen.append((max(tokens), len(list(reader.trajectory("r1", 1)))))
            reader.close()

        user.journal.on_commit = note
        user.accept()
        for number in range(300):
            user.append(events.Logged(str(number)))
            if number % 7 == 0:
                await asyncio.sleep(0.001)  # the next transaction
        await user.all_reported()
        assert user.reported == [(token, True) for token in range(1, 302)]
        assert all(newest >= token for token, newest in seen)
        assert len(seen) < 301  # many share a commit


async def test_readers_see_nothing_before_its_commit(tmp_path):
    async with opened(tmp_path) as user:
        user.accept()
        assert (user.trajectory(), user.everything(), user.journal.last_position) == ([], [], 0)
        assert user.journal.find("r1") == []
        await user.all_reported()
        assert len(user.trajectory()) == len(user.everything()) == user.journal.last_position == 1


async def test_close_commits_waiting_events(tmp_path):
    user = JournalUser(tmp_path)
    user.accept()
    user.append(events.Started())
    user.journal.close()
    async with opened(tmp_path) as again:
        assert len(again.journal.unsettled()) == 1
        assert len(again.trajectory()) == 2


class Disk:
    """A disk that fails on request: the file cannot grow."""

    def __init__(self, user, monkeypatch):
        self.fails = False
        real = writer.execute

        def execute(database, statement, rows):
            pages = database.execute("PRAGMA page_count").fetchone()[0] if self.fails else 2**30
            database.execute(f"PRAGMA max_page_count = {pages}")
            real(database, statement, rows)

        monkeypatch.setattr(writer, "execute", execute)
        monkeypatch.setattr(writer, "RETRY", 0.01)


BIG = events.Logged("x" * 50_000)


async def test_a_failed_commit_is_reported(tmp_path, monkeypatch):
    async with opened(tmp_path) as user:
        disk, problems = Disk(user, monkeypatch), []
        user.journal.on_problem = problems.append
        user.accept("r1")
        user.accept("r2")
        await user.all_reported()
        disk.fails = True
        failing = user.append(BIG, "r1")
        await user.until(lambda: (failing, False) in user.reported)
        await user.until(lambda: problems)
        assert "full" in problems[0]
        disk.fails = False
        await user.until(lambda: problems[-1] == "")
        assert user.journal.problem == ""
        later, other = user.append(events.Logged("small"), "r1"), user.append(BIG, "r2")
        await user.all_reported()
        assert {(later, False), (other, True)} < set(user.reported)
        assert [len(user.kinds(name)) for name in ("r1", "r2")] == [1, 2]
        user.accept("r3")
        user.end("r2")
        await user.all_reported()
        assert user.reported[-2:] == [(user.tokens - 1, True), (user.tokens, True)]
    async with opened(tmp_path) as user:
        user.journal.unsettled()
        assert [len(user.kinds(name)) for name in ("r1", "r2", "r3")] == [1, 3, 1]
        assert [event.event_number for event in user.trajectory("r2")] == [1, 2, 3]


async def test_a_barrier_is_called_after_earlier_commits(tmp_path, monkeypatch):
    disk, reports = disks.Disk(monkeypatch), []
    async with opened(tmp_path) as user:
        disk.hold()
        user.accept()
        user.journal.barrier(lambda ok: reports.append((1, ok, len(user.reported))))
        await user.until(lambda: disk.held)
        user.journal.barrier(lambda ok: reports.append((2, ok, len(user.reported))))  # without writes of its own
        assert reports == []
        disk.go()
        await user.until(lambda: len(reports) == 2)
        assert reports == [(1, True, 1), (2, True, 1)]
        user.journal.barrier(lambda ok: reports.append((3, ok, len(user.reported))))
        await user.until(lambda: len(reports) == 3)
        assert reports[2] == (3, True, 1)


async def test_a_barrier_reports_an_earlier_failure(tmp_path, monkeypatch):
    """A barrier gets False also if its own transaction succeeds: the failed one may have what it waits for."""
    disk, reports = disks.Disk(monkeypatch), []
    monkeypatch.setattr(writer, "RETRY", 3600.0)

    def first(ok):
        reports.append(ok)
        disk.failing = False

    async with opened(tmp_path) as user:
        disk.hold()
        disk.failing = True
        user.accept()
        user.journal.barrier(first)
        await user.until(lambda: disk.held)
        user.journal.barrier(reports.append)
        disk.go()
        await user.until(lambda: len(reports) == 2)
        assert reports == [False, False]
        user.journal.barrier(reports.append)
        await user.until(lambda: len(reports) == 3)
        assert (reports[2], user.journal.problem) == (True, "the disk is full")  # an empty transaction proves nothing


async def test_a_refused_rollout_leaves_nothing(tmp_path, monkeypatch):
    async with opened(tmp_path) as user:
        disk = Disk(user, monkeypatch)
        disk.fails = True
        user.accept("r1", callback=CALLBACK, messages=[{"role": "user", "content": "x" * 50_000}])
        await user.all_reported()
        assert user.reported == [(1, False)]
        assert list((tmp_path / "credentials").iterdir()) == []
        assert (user.journal.find("r1"), user.trajectory()) == ([], [])
        assert user.journal.live_size == 0
        disk.fails = False
        await user.until(lambda: not user.journal.problem)
        user.accept("r1", callback=CALLBACK)
        await user.all_reported()
        assert user.reported[-1] == (2, True)


async def test_a_later_sweep_deletes_what_one_could_not_delete(tmp_path, monkeypatch):
    now = [0.0]
    async with opened(tmp_path, record_ttl=10.0, monotonic=lambda: now[0]) as user:
        monkeypatch.setattr(writer, "RETRY", 0.01)
        user.accept()
        user.end()
        user.deliver()
        await user.all_reported()
        now[0] = 11.0
        user.journal.writer.batch().statements.append(("INSERT INTO nowhere VALUES (1)", ()))
        user.journal.sweep()
        user.journal.sweep()
        await user.commit()
        assert user.journal.find("r1")
        await user.until(lambda: not user.journal.problem)
        user.journal.sweep()
        await user.commit()
        assert user.journal.find("r1") == []


async def test_any_error_in_the_thread_is_reported(tmp_path, monkeypatch):
    """A value that SQLite cannot store."""
    async with opened(tmp_path) as user:
        monkeypatch.setattr(writer, "RETRY", 0.01)
        user.journal.add_tombstone("me", "r1", 2**70, 1.0)
        user.accept()
        await user.all_reported()
        assert user.reported == [(1, False)]
        await user.until(lambda: not user.journal.problem)
        user.accept("r2")
        await user.all_reported()
        assert user.reported[-1] == (2, True)


LIMITED = """
import asyncio, json, resource, signal, sys
from pathlib import Path
from tests.storage.journals import JournalUser
from osmosis_grpc.protocol.types import events
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

async def main(folder):
    user = JournalUser(Path(folder))
    user.accept("r1")
    user.accept("r2")
    await user.all_reported()
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))
    count = 0
    while all(ok for _, ok in user.reported):
        user.append(events.Logged("x" * 20_000), "r1")
        await user.all_reported()
        count += 1
    await user.until(lambda: user.journal.problem)
    problem = user.journal.problem
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    await user.until(lambda: not user.journal.problem)
    last = user.append(events.Logged("x" * 20_000), "r2")
    await user.all_reported()
    print(json.dumps([problem, count, user.reported[-1][1], len(user.trajectory("r1"))]))

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.slow
async def test_a_disk_that_is_really_full(tmp_path):
    """A file that the kernel does not let grow, and later does."""
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", LIMITED, str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    problem, count, ok, length = json.loads(done.stdout)
    assert problem
    assert ok
    assert length == count  # its Accepted, and all but the one that failed
    async with opened(tmp_path) as user:
        user.journal.unsettled()
        assert len(user.trajectory("r1")) == count
        assert len(user.trajectory("r2")) == 2


async def test_latest_values_are_written_again_after_a_failure(tmp_path, monkeypatch):
    """Tombstones and new destinations with their credentials: the newest of each."""
    async with opened(tmp_path) as user:
        disk = Disk(user, monkeypatch)
        monkeypatch.setattr(writer, "RETRY", 3600.0)
        entry = user.accept("r0", callback=replace(CALLBACK, credential="the first"))
        user.accept("r1")
        user.accept("r2")
        user.journal.add_tombstone("me", "used up", 1, 4e9)
        await user.commit()
        disk.fails = True
        for number, until in ((1, 4e9), (2, 0.0)):
            callback = replace(CALLBACK, target=f"127.0.0.1:{number}", credential=f"number {number}")
            user.journal.repoint(replace(entry, init=replace(entry.init, callback=callback)))
            user.journal.add_tombstone("me", f"tomb {number}", 7, 4e9)
            user.journal.add_tombstone("me", "used up", 1, until)
            failing = user.append(BIG, f"r{number}")
            await user.all_reported()
            assert user.reported[-1] == (failing, False)
        disk.fails = False
        user.append(events.Logged("the next batch"), "r0")
        await user.all_reported()
        assert user.reported[-1] == (user.tokens, True)
        copy = tmp_path / "copy"
        shutil.copytree(tmp_path, copy, ignore=shutil.ignore_patterns("copy"))
    async with opened(copy) as user:
        assert {row[1:3] for row in user.journal.tombstones()} == {("tomb 1", 7), ("tomb 2", 7)}
        entry = user.journal.unsettled()[0]
        assert (entry.init.callback.target, entry.init.callback.credential) == ("127.0.0.1:2", "number 2")


NAMES = ("ended", "annotated", "running", "superseded")


@pytest.mark.parametrize("fails_while_it_settles", [True, False])
async def test_a_rollout_with_a_lost_event_is_settled_later(tmp_path, monkeypatch, fails_while_it_settles):
    """It stays with its outcome if its end is committed. Otherwise it is deleted. Its position is not used again."""
    copy = tmp_path / "copy"
    async with opened(tmp_path) as user:
        disk = disks.Disk(monkeypatch)
        for name in ("other", *NAMES):
            user.accept(name, callback=CALLBACK)
            if name in ("ended", "annotated"):
                user.end(name)
        await user.commit()
        disk.failing = True
        user.append(events.Logged("lost"), "running")
        user.deliver("ended")
        user.append(events.Logged("lost"), "annotated")
        user.end("superseded", status=OutcomeStatus.CANCELLED, finish_reason="superseded")
        await user.all_reported()
        assert not any(ok for _, ok in user.reported[-4:])
        disk.failing = fails_while_it_settles
        for name in NAMES:
            user.journal.settle_unrecorded(name, 1)
        if fails_while_it_settles:
            await user.until(lambda: user.journal.problem)
        disk.failing = False
        await user.until(lambda: not user.journal.problem)
        await user.commit()
        assert [len(user.trajectory(name)) for name in NAMES] == [2, 2, 0, 0]
        (found,) = user.journal.find("ended")
        assert (found.settled, found.outcome.status) == (True, OutcomeStatus.COMPLETED)
        await user.until(lambda: len(list((tmp_path / "credentials").iterdir())) == 1)
        used = user.journal.last_sequence, user.journal.last_position
        shutil.copytree(tmp_path, copy, ignore=shutil.ignore_patterns("copy"))
    for folder in (tmp_path, copy):  # closed, and as after a crash
        async with opened(folder) as user:
            await user.commit()
            assert [entry.init.request.rollout_id for entry in user.journal.unsettled()] == ["other"]
            assert [len(user.journal.find(name)) for name in NAMES] == [1, 1, 0, 0]
            assert len(list((folder / "credentials").iterdir())) == 1
            assert (user.journal.last_sequence, user.journal.last_position) == used
            user.accept("running")
            await user.commit()


async def test_credentials_that_cannot_be_written_are_written_later(tmp_path, monkeypatch):
    async with opened(tmp_path) as user:
        monkeypatch.setattr(writer, "RETRY", 0.01)
        entry = user.accept(callback=CALLBACK)
        await user.commit()
        (tmp_path / "credentials").rename(tmp_path / "away")
        user.journal.repoint(replace(entry, init=replace(entry.init, callback=replace(CALLBACK, credential="newer"))))
        await user.until(lambda: user.journal.problem)
        (tmp_path / "away").rename(tmp_path / "credentials")
        await user.until(lambda: not user.journal.problem)
    async with opened(tmp_path) as user:
        (entry,) = user.journal.unsettled()
        assert entry.init.callback.credential == "newer"


async def test_a_refused_and_repointed_rollout_leaves_nothing(tmp_path, monkeypatch):
    async with opened(tmp_path) as user:
        disk = Disk(user, monkeypatch)
        disk.fails = True
        user.journal.repoint(user.accept(callback=CALLBACK, messages=[{"role": "user", "content": "x" * 50_000}]))
        await user.all_reported()
        assert user.reported == [(1, False)]
        disk.fails = False
        await user.until(lambda: not user.journal.problem)
        assert list((tmp_path / "credentials").iterdir()) == []


async def test_credentials_that_cannot_be_deleted_delay_no_commit(tmp_path, monkeypatch):
    """A read-only disk refuses even to delete a missing file."""
    async with opened(tmp_path) as user:
        disk = Disk(user, monkeypatch)
        (tmp_path / "credentials").rmdir()
        (tmp_path / "credentials").touch()
        disk.fails = True
        user.accept("r1", messages=[{"role": "user", "content": "x" * 50_000}])
        user.accept("r2")
        await user.all_reported()
        assert user.reported == [(1, False), (2, False)]


@pytest.mark.parametrize("value", [2**70, None])
async def test_an_invalid_value_is_not_retried_forever(tmp_path, monkeypatch, value):
    """A number that is too large, and a NULL in a NOT NULL column."""
    async with opened(tmp_path) as user:
        monkeypatch.setattr(writer, "RETRY", 0.01)
        user.journal.add_tombstone("me", "r1", value, 4e9)
        await user.until(lambda: user.journal.problem)
        await user.until(lambda: not user.journal.problem)
