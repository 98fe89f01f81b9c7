"""Who may open a journal, which files it reads, and what stands in no file but one."""

import os
import sqlite3
import stat
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import pytest

from osmosis_grpc.storage import JournalError, Reader, SqliteJournal
from tests.processes import ROOT, run
from tests.storage.journals import CALLBACK, OWN, SECRETS, keeping

OPEN = """
import asyncio, sys
from pathlib import Path
from osmosis_grpc.storage import JournalError, SqliteJournal

async def main(folder):
    try:
        SqliteJournal(Path(folder)).close()
    except JournalError as error:
        print(error)

if len(sys.argv) > 2:
    import os
    os.setgid(65534)
    os.setuid(65534)
asyncio.run(main(sys.argv[1]))
"""


async def refusal(folder):
    with pytest.raises(JournalError) as refused:
        SqliteJournal(folder)
    return str(refused.value)


async def test_a_folder_has_one_owner(tmp_path):
    async with keeping(tmp_path):
        told = run("-c", OPEN, str(tmp_path)).stdout
        assert told.strip() == f"{tmp_path} is in use by process {os.getpid()}: stop it"
        assert f"process {os.getpid()}" in await refusal(tmp_path)
    assert run("-c", OPEN, str(tmp_path)).stdout == ""


async def test_an_owner_that_was_killed_holds_nothing(tmp_path):
    hold = OPEN.replace(
        "SqliteJournal(Path(folder)).close()", "s = SqliteJournal(Path(folder)); print(1, flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(tmp_path)], stdout=subprocess.PIPE, stdin=subprocess.PIPE, cwd=ROOT
    ) as child:
        child.stdout.readline()
        assert f"process {child.pid}" in await refusal(tmp_path)
        child.kill()
        child.wait()
        async with keeping(tmp_path):
            pass


async def test_a_newer_file_is_refused_and_left_alone(tmp_path):
    async with keeping(tmp_path) as kept:
        kept.accept()
        await kept.all_told()
    with closing(sqlite3.connect(tmp_path / "journal.db")) as database:
        database.execute("PRAGMA user_version = 99")
    before = (tmp_path / "journal.db").read_bytes()
    told = await refusal(tmp_path)
    assert "was written by a newer version (schema 99, this one reads 3): move it away, or use another folder" in told
    assert (tmp_path / "journal.db").read_bytes() == before
    with pytest.raises(JournalError, match="schema 99"):
        Reader.look(tmp_path)


async def test_x09_an_older_file_is_refused_by_name_and_left_alone(tmp_path):
    path = tmp_path / "journal.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE rollouts (sequence INTEGER PRIMARY KEY)")
        database.execute("PRAGMA user_version = 1")
    before = path.read_bytes()
    told = f"{path} was written by an older version (schema 1, this one reads 3): move it away, or use another folder"
    assert await refusal(tmp_path) == told
    with pytest.raises(JournalError, match="schema 1"):
        Reader.look(tmp_path)
    assert path.read_bytes() == before


async def test_a_file_that_is_no_journal(tmp_path):
    (tmp_path / "journal.db").write_bytes(b"no database at all " * 200)
    assert "cannot be used as a journal: file is not a database" in await refusal(tmp_path)
    assert (tmp_path / "journal.db").read_bytes() == b"no database at all " * 200
    (tmp_path / "journal.db").unlink()
    async with keeping(tmp_path):  # whoever was refused holds the folder no longer
        pass


@pytest.mark.parametrize("pragma", ["application_id = 7", "user_version = 0"])
async def test_a_database_of_another_program_is_left_alone(tmp_path, pragma):
    with closing(sqlite3.connect(tmp_path / "journal.db")) as database:
        database.execute("CREATE TABLE mine (x)")
        database.execute("PRAGMA user_version = 1")
        database.execute(f"PRAGMA {pragma}")
    before = (tmp_path / "journal.db").read_bytes()
    told = f"{tmp_path / 'journal.db'} is a database of another program: use another folder"
    assert await refusal(tmp_path) == told
    with pytest.raises(JournalError, match="of another program"):
        Reader.look(tmp_path)
    assert (tmp_path / "journal.db").read_bytes() == before


async def test_a_forked_child_does_not_hold_the_folder(tmp_path):
    waits, wakes = os.pipe()
    async with keeping(tmp_path):
        child = os.fork()
        if not child:
            os.close(wakes)
            os.read(waits, 1)
            os._exit(0)
    try:
        async with keeping(tmp_path):
            pass
    finally:
        os.close(wakes)
        os.close(waits)
        os.waitpid(child, 0)


@pytest.mark.parametrize("name", ["journal.db", "credentials", "lock"])
async def test_a_folder_in_which_something_else_has_a_name(tmp_path, name):
    if name == "credentials":
        (tmp_path / name).write_text("a file")
    else:
        (tmp_path / name).mkdir()
    told = await refusal(tmp_path)
    assert str(tmp_path) in told


async def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    assert "cannot be used as a journal: Not a directory" in await refusal(tmp_path / "file" / "below")
    assert "cannot be used as a journal: File exists" in await refusal(tmp_path / "file")


async def test_a_read_only_folder():
    """By another user, where this one may write anywhere."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o711)
        folder = Path(name) / "state"
        async with keeping(folder):
            pass
        folder.chmod(0o555)
        done = run("-c", OPEN, str(folder), *(["as nobody"] if os.geteuid() == 0 else []))
    assert f"{folder} cannot be used as a journal: Permission denied" in done.stdout, done.stderr


def everywhere(folder):
    """Where secrets stand: file names, by what each holds."""
    found = {}
    for path in folder.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            for secret in SECRETS:
                if secret.encode() in data or secret.encode().hex().encode() in data:
                    found.setdefault(secret, []).append(path.parent.name)
    return found


async def test_secrets_stand_in_one_place_and_are_put_back(tmp_path):
    folder = tmp_path / "state"
    async with keeping(folder) as kept:
        kept.accept("r1", callback=CALLBACK, **OWN)
        kept.accept("plain")
        kept.end("r1")
        await kept.all_told()
        assert (folder / "journal.db-wal").stat().st_size > 0
        apart = {secret: ["credentials"] for secret in SECRETS}
        assert everywhere(folder) == apart
        (file,) = (folder / "credentials").iterdir()
        assert "r1" not in file.name
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / "credentials", file)}
        assert modes == {"state": 0o700, "credentials": 0o700, file.name: 0o600}
        for path in folder.iterdir():
            assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path
    assert everywhere(folder) == apart
    async with keeping(folder) as kept:
        one, plain = kept.store.unsettled()
        assert one.init.callback == CALLBACK
        assert (one.init.request.api_key, one.init.request.server_url) == (SECRETS[2], SECRETS[3])
        assert (plain.init.callback, plain.init.request.api_key) == (None, None)
        assert all(secret not in repr(one) for secret in (SECRETS[0], SECRETS[1], SECRETS[2]))
        kept.numbers["r1", 1] = 2
        kept.deliver("r1")
        await kept.commit()
        await kept.until(lambda: not everywhere(folder))
        assert list((folder / "credentials").iterdir()) == []
        assert kept.store.find("r1")[0].init.callback.credential == ""


async def test_secrets_are_gone_when_a_rollout_is_forgotten(tmp_path):
    async with keeping(tmp_path) as kept:
        kept.accept(callback=CALLBACK)
        await kept.all_told()
        kept.store.forget("r1", 1)
        await kept.commit()
        assert everywhere(tmp_path) == {}


async def test_secrets_that_a_crash_left_behind_are_gone_after_the_next_start(tmp_path):
    """Killed between the commit of an acknowledgement and the unlinking, or before that of an Init."""
    async with keeping(tmp_path) as kept:
        kept.accept("r1", callback=CALLBACK)
        kept.accept("r2", callback=CALLBACK)
        await kept.all_told()
        (left,) = [p for p in (tmp_path / "credentials").iterdir() if p.name in kept.store.secrets.path("r2", 1).name]
        data = left.read_bytes()
        kept.end("r2")
        kept.deliver("r2")
        await kept.commit()
    left.write_bytes(data)
    left.with_suffix(".new").write_bytes(data)
    async with keeping(tmp_path) as kept:
        (entry,) = kept.store.unsettled()
        assert entry.init.callback == CALLBACK
        assert len(list((tmp_path / "credentials").iterdir())) == 1


async def test_what_is_settled_takes_no_new_secrets(tmp_path):
    """Re-pointed in the moment in which its acknowledgement is on its way to the disk."""
    async with keeping(tmp_path) as kept:
        entry = kept.accept(callback=CALLBACK)
        kept.end()
        await kept.all_told()
        kept.deliver()
        kept.store.writer.flush()
        kept.store.repoint(entry)
        await kept.commit()
        await kept.until(lambda: not list((tmp_path / "credentials").iterdir()))
