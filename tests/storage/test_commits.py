"""A token is told after its commit and not before; what cannot be committed is told, too."""

import asyncio
import json
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from osmosis_grpc.storage import Reader
from osmosis_grpc.storage.journal import writer
from osmosis_grpc.types import events
from tests.processes import ROOT
from tests.storage import disk as disks
from tests.storage.journals import CALLBACK, Kept, keeping

CHILD = """
import asyncio, sys
from pathlib import Path
from tests.storage.journals import Kept
from osmosis_grpc.types import events

async def main(folder):
    kept = Kept(Path(folder))
    told = kept.store.on_commit
    def note(tokens, ok):
        told(tokens, ok)
        sys.stdout.write("".join(f"{token}\\n" for token in tokens if ok))
        sys.stdout.flush()
    kept.store.on_commit = note
    for name in range(10_000):
        kept.accept(f"r{name}")
        for number in range(20):
            kept.append(events.Logged(f"{number}", {"filler": "x" * 500}), f"r{name}")
            if number % 3 == 0:
                await asyncio.sleep(0)
        kept.end(f"r{name}")
        kept.deliver(f"r{name}")
        await asyncio.sleep(0.002)  # or this loop would be done before the second commit

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.parametrize("tokens", [1, 300, 2000])
async def test_what_was_told_survives_kill_9(tmp_path, tokens):
    """Killed at once, by a signal that nobody can catch: everything told is there, and no hole before it."""
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    with child:
        told = [int(child.stdout.readline()) for _ in range(tokens)]
        child.send_signal(signal.SIGKILL)
        told += [int(line) for line in child.stdout if line.endswith("\n")]
    assert told == list(range(1, len(told) + 1))
    async with keeping(tmp_path) as kept:
        kept.store.unsettled()
        assert kept.store.last_position >= told[-1]
        found = kept.everything()
        assert [position for position, _ in found] == list(range(1, kept.store.last_position + 1))
        numbers = {}
        for _, event in found:
            numbers.setdefault(event.rollout_id, []).append(event.number)
        assert all(row == list(range(1, len(row) + 1)) for row in numbers.values())
        for name in numbers:
            assert [event.number for event in kept.trajectory(name)] == numbers[name]


async def test_tokens_are_told_in_order_and_not_before_their_commit(tmp_path):
    async with keeping(tmp_path) as kept:
        told = kept.store.on_commit
        seen = []

        def note(tokens, ok):
            told(tokens, ok)
            reader = Reader.look(tmp_path)  # another connection sees them: they are committed
            seen.append((max(tokens), len(list(reader.trajectory("r1", 1)))))
            reader.close()

        kept.store.on_commit = note
        kept.accept()
        for number in range(300):
            kept.append(events.Logged(str(number)))
            if number % 7 == 0:
                await asyncio.sleep(0.001)  # the next transaction
        await kept.all_told()
        assert kept.told == [(token, True) for token in range(1, 302)]
        assert all(newest >= token for token, newest in seen)
        assert len(seen) < 301  # many share a commit


async def test_nothing_is_shown_before_its_commit(tmp_path):
    async with keeping(tmp_path) as kept:
        kept.accept()
        assert (kept.trajectory(), kept.everything(), kept.store.last_position) == ([], [], 0)
        assert kept.store.find("r1") == []
        await kept.all_told()
        assert len(kept.trajectory()) == len(kept.everything()) == kept.store.last_position == 1


async def test_closing_commits_what_waits(tmp_path):
    kept = Kept(tmp_path)
    kept.accept()
    kept.append(events.Started())
    kept.store.close()
    async with keeping(tmp_path) as again:
        assert len(again.store.unsettled()) == 1
        assert len(again.trajectory()) == 2


class Disk:
    """Fails when it is told to: the file may grow no further."""

    def __init__(self, kept, monkeypatch):
        self.fails = False
        real = writer.execute

        def execute(database, statement, rows):
            pages = database.execute("PRAGMA page_count").fetchone()[0] if self.fails else 2**30
            database.execute(f"PRAGMA max_page_count = {pages}")
            real(database, statement, rows)

        monkeypatch.setattr(writer, "execute", execute)
        monkeypatch.setattr(writer, "RETRY", 0.01)


BIG = events.Logged("x" * 50_000)


async def test_what_cannot_be_written_is_told(tmp_path, monkeypatch):
    async with keeping(tmp_path) as kept:
        disk, problems = Disk(kept, monkeypatch), []
        kept.store.on_problem = problems.append
        kept.accept("r1")
        kept.accept("r2")
        await kept.all_told()
        disk.fails = True
        failing = kept.append(BIG, "r1")
        await kept.until(lambda: (failing, False) in kept.told)
        await kept.until(lambda: problems)
        assert "full" in problems[0]
        disk.fails = False
        await kept.until(lambda: problems[-1] == "")
        assert kept.store.problem == ""
        later, other = kept.append(events.Logged("small"), "r1"), kept.append(BIG, "r2")
        await kept.all_told()
        assert {(later, False), (other, True)} < set(kept.told)
        assert [len(kept.kinds(name)) for name in ("r1", "r2")] == [1, 2]
        kept.accept("r3")
        kept.end("r2")
        await kept.all_told()
        assert kept.told[-2:] == [(kept.tokens - 1, True), (kept.tokens, True)]
    async with keeping(tmp_path) as kept:
        kept.store.unsettled()
        assert [len(kept.kinds(name)) for name in ("r1", "r2", "r3")] == [1, 3, 1]
        assert [event.number for event in kept.trajectory("r2")] == [1, 2, 3]


async def test_a_barrier_is_passed_after_what_came_before_it(tmp_path, monkeypatch):
    disk, told = disks.Disk(monkeypatch), []
    async with keeping(tmp_path) as kept:
        disk.hold()
        kept.accept()
        kept.store.barrier(lambda ok: told.append((1, ok, len(kept.told))))
        await kept.until(lambda: disk.held)
        kept.store.barrier(lambda ok: told.append((2, ok, len(kept.told))))  # with nothing of its own to write
        assert told == []
        disk.go()
        await kept.until(lambda: len(told) == 2)
        assert told == [(1, True, 1), (2, True, 1)]
        kept.store.barrier(lambda ok: told.append((3, ok, len(kept.told))))
        await kept.until(lambda: len(told) == 3)
        assert told[2] == (3, True, 1)


async def test_a_barrier_tells_what_failed_before_it(tmp_path, monkeypatch):
    """Also where its own transaction could be written: what it waits for may stand in the one that could not."""
    disk, told = disks.Disk(monkeypatch), []
    monkeypatch.setattr(writer, "RETRY", 3600.0)

    def first(ok):
        told.append(ok)
        disk.failing = False

    async with keeping(tmp_path) as kept:
        disk.hold()
        disk.failing = True
        kept.accept()
        kept.store.barrier(first)
        await kept.until(lambda: disk.held)
        kept.store.barrier(told.append)
        disk.go()
        await kept.until(lambda: len(told) == 2)
        assert told == [False, False]
        kept.store.barrier(told.append)
        await kept.until(lambda: len(told) == 3)
        assert (told[2], kept.store.problem) == (True, "the disk is full")  # to write nothing shows nothing


async def test_a_rollout_that_is_refused_leaves_nothing(tmp_path, monkeypatch):
    async with keeping(tmp_path) as kept:
        disk = Disk(kept, monkeypatch)
        disk.fails = True
        kept.accept("r1", callback=CALLBACK, messages=[{"role": "user", "content": "x" * 50_000}])
        await kept.all_told()
        assert kept.told == [(1, False)]
        assert list((tmp_path / "credentials").iterdir()) == []
        assert (kept.store.find("r1"), kept.trajectory()) == ([], [])
        assert kept.store.live_size == 0
        disk.fails = False
        await kept.until(lambda: not kept.store.problem)
        kept.accept("r1", callback=CALLBACK)
        await kept.all_told()
        assert kept.told[-1] == (2, True)


async def test_what_a_sweep_could_not_delete_is_deleted_later(tmp_path, monkeypatch):
    now = [0.0]
    async with keeping(tmp_path, record_ttl=10.0, monotonic=lambda: now[0]) as kept:
        monkeypatch.setattr(writer, "RETRY", 0.01)
        kept.accept()
        kept.end()
        kept.deliver()
        await kept.all_told()
        now[0] = 11.0
        kept.store.writer.batch().statements.append(("INSERT INTO nowhere VALUES (1)", ()))
        kept.store.sweep()
        kept.store.sweep()
        await kept.commit()
        assert kept.store.find("r1")
        await kept.until(lambda: not kept.store.problem)
        kept.store.sweep()
        await kept.commit()
        assert kept.store.find("r1") == []


async def test_whatever_goes_wrong_in_the_thread_is_told(tmp_path, monkeypatch):
    """A value that SQLite cannot hold is no reason to wait for ever."""
    async with keeping(tmp_path) as kept:
        monkeypatch.setattr(writer, "RETRY", 0.01)
        kept.store.add_tombstone("me", "r1", 2**70, 1.0)
        kept.accept()
        await kept.all_told()
        assert kept.told == [(1, False)]
        await kept.until(lambda: not kept.store.problem)
        kept.accept("r2")
        await kept.all_told()
        assert kept.told[-1] == (2, True)


LIMITED = """
import asyncio, json, resource, signal, sys
from pathlib import Path
from tests.storage.journals import Kept
from osmosis_grpc.types import events
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

async def main(folder):
    kept = Kept(Path(folder))
    kept.accept("r1")
    kept.accept("r2")
    await kept.all_told()
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))
    count = 0
    while all(ok for _, ok in kept.told):
        kept.append(events.Logged("x" * 20_000), "r1")
        await kept.all_told()
        count += 1
    await kept.until(lambda: kept.store.problem)
    problem = kept.store.problem
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    await kept.until(lambda: not kept.store.problem)
    last = kept.append(events.Logged("x" * 20_000), "r2")
    await kept.all_told()
    print(json.dumps([problem, count, kept.told[-1][1], len(kept.trajectory("r1"))]))

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.slow
async def test_a_full_disk_in_earnest(tmp_path):
    """A file that may not grow: the kernel says no, and later yes."""
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
    async with keeping(tmp_path) as kept:
        kept.store.unsettled()
        assert len(kept.trajectory("r1")) == count
        assert len(kept.trajectory("r2")) == 2


async def test_what_is_so_from_now_on_is_written_again_after_a_failure(tmp_path, monkeypatch):
    """Tombstones and re-pointings, with their secrets: the newest of each."""
    async with keeping(tmp_path) as kept:
        disk = Disk(kept, monkeypatch)
        monkeypatch.setattr(writer, "RETRY", 3600.0)
        entry = kept.accept("r0", callback=replace(CALLBACK, credential="the first"))
        kept.accept("r1")
        kept.accept("r2")
        kept.store.add_tombstone("me", "used up", 1, 4e9)
        await kept.commit()
        disk.fails = True
        for number, until in ((1, 4e9), (2, 0.0)):
            callback = replace(CALLBACK, target=f"127.0.0.1:{number}", credential=f"number {number}")
            kept.store.repoint(replace(entry, init=replace(entry.init, callback=callback)))
            kept.store.add_tombstone("me", f"tomb {number}", 7, 4e9)
            kept.store.add_tombstone("me", "used up", 1, until)
            failing = kept.append(BIG, f"r{number}")
            await kept.all_told()
            assert kept.told[-1] == (failing, False)
        disk.fails = False
        kept.append(events.Logged("the next batch"), "r0")
        await kept.all_told()
        assert kept.told[-1] == (kept.tokens, True)
        copy = tmp_path / "copy"
        shutil.copytree(tmp_path, copy, ignore=shutil.ignore_patterns("copy"))
    async with keeping(copy) as kept:
        assert {row[1:3] for row in kept.store.tombstones()} == {("tomb 1", 7), ("tomb 2", 7)}
        entry = kept.store.unsettled()[0]
        assert (entry.init.callback.target, entry.init.callback.credential) == ("127.0.0.1:2", "number 2")


async def test_secrets_that_cannot_be_written_are_written_later(tmp_path, monkeypatch):
    async with keeping(tmp_path) as kept:
        monkeypatch.setattr(writer, "RETRY", 0.01)
        entry = kept.accept(callback=CALLBACK)
        await kept.commit()
        (tmp_path / "credentials").rename(tmp_path / "away")
        kept.store.repoint(replace(entry, init=replace(entry.init, callback=replace(CALLBACK, credential="newer"))))
        await kept.until(lambda: kept.store.problem)
        (tmp_path / "away").rename(tmp_path / "credentials")
        await kept.until(lambda: not kept.store.problem)
    async with keeping(tmp_path) as kept:
        (entry,) = kept.store.unsettled()
        assert entry.init.callback.credential == "newer"


async def test_a_rollout_that_is_refused_leaves_nothing_though_it_was_repointed(tmp_path, monkeypatch):
    async with keeping(tmp_path) as kept:
        disk = Disk(kept, monkeypatch)
        disk.fails = True
        kept.store.repoint(kept.accept(callback=CALLBACK, messages=[{"role": "user", "content": "x" * 50_000}]))
        await kept.all_told()
        assert kept.told == [(1, False)]
        disk.fails = False
        await kept.until(lambda: not kept.store.problem)
        assert list((tmp_path / "credentials").iterdir()) == []


async def test_secrets_that_cannot_be_deleted_keep_nobody_waiting(tmp_path, monkeypatch):
    """A disk that has become read-only refuses even to delete what is not there."""
    async with keeping(tmp_path) as kept:
        disk = Disk(kept, monkeypatch)
        (tmp_path / "credentials").rmdir()
        (tmp_path / "credentials").touch()
        disk.fails = True
        kept.accept("r1", messages=[{"role": "user", "content": "x" * 50_000}])
        kept.accept("r2")
        await kept.all_told()
        assert kept.told == [(1, False), (2, False)]


@pytest.mark.parametrize("value", [2**70, None])
async def test_what_no_disk_would_take_is_not_tried_for_ever(tmp_path, monkeypatch, value):
    """Too large a number, and a NULL where none may stand."""
    async with keeping(tmp_path) as kept:
        monkeypatch.setattr(writer, "RETRY", 0.01)
        kept.store.add_tombstone("me", "r1", value, 4e9)
        await kept.until(lambda: kept.store.problem)
        await kept.until(lambda: not kept.store.problem)
