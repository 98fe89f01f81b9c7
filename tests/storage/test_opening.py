"""Which processes open a journal, which files it accepts, and where credentials are stored."""

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
from osmosis_grpc.storage.journal.schema import JOURNAL
from tests.processes import ROOT, run
from tests.storage.journals import CALLBACK, OWN, SECRETS, opened

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


async def test_a_folder_has_one_process(tmp_path):
    async with opened(tmp_path):
        told = run("-c", OPEN, str(tmp_path)).stdout
        assert told.strip() == f"{tmp_path} is in use by process {os.getpid()}: stop it"
        assert f"process {os.getpid()}" in await refusal(tmp_path)
    assert run("-c", OPEN, str(tmp_path)).stdout == ""


async def test_a_killed_process_leaves_no_lock(tmp_path):
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
        async with opened(tmp_path):
            pass


@pytest.mark.parametrize(("version", "age"), [(2, "an older"), (6, "an older"), (99, "a newer")])
async def test_a_file_of_another_version_is_refused_by_name_and_unchanged(tmp_path, version, age):
    path = tmp_path / "journal.db"
    async with opened(tmp_path) as user:
        user.accept()
        await user.all_reported()
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"PRAGMA application_id = {JOURNAL.application_id(version)}")
        database.execute(f"PRAGMA user_version = {version}")
    before = path.read_bytes()
    told = f"{path} was written by {age} version (schema {version}, this one reads 7): move it away"
    assert await refusal(tmp_path) == f"{told}, or use another folder"
    with pytest.raises(JournalError):
        Reader.look(tmp_path)
    assert path.read_bytes() == before


async def test_a_file_that_is_no_journal(tmp_path):
    (tmp_path / "journal.db").write_bytes(b"no database at all " * 200)
    assert "cannot be used as a journal: file is not a database" in await refusal(tmp_path)
    assert (tmp_path / "journal.db").read_bytes() == b"no database at all " * 200
    (tmp_path / "journal.db").unlink()
    async with opened(tmp_path):  # the refused journal does not hold the folder
        pass


@pytest.mark.parametrize("pragma", ["application_id = 7", "user_version = 0"])
async def test_a_database_of_another_program_is_unchanged(tmp_path, pragma):
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
    async with opened(tmp_path):
        child = os.fork()
        if not child:
            os.close(wakes)
            os.read(waits, 1)
            os._exit(0)
    try:
        async with opened(tmp_path):
            pass
    finally:
        os.close(wakes)
        os.close(waits)
        os.waitpid(child, 0)


@pytest.mark.parametrize("name", ["journal.db", "credentials", "lock"])
async def test_a_folder_with_something_else_in_place_of_a_file(tmp_path, name):
    if name == "credentials":
        (tmp_path / name).write_text("a file")
    else:
        (tmp_path / name).mkdir()
    told = await refusal(tmp_path)
    assert str(tmp_path) in told


async def test_a_folder_that_cannot_be_created(tmp_path):
    (tmp_path / "file").write_text("")
    assert "cannot be used as a journal: Not a directory" in await refusal(tmp_path / "file" / "below")
    assert "cannot be used as a journal: File exists" in await refusal(tmp_path / "file")


async def test_a_read_only_folder():
    """Opens it as another user if this one may write everywhere."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o711)
        folder = Path(name) / "state"
        async with opened(folder):
            pass
        folder.chmod(0o555)
        done = run("-c", OPEN, str(folder), *(["as nobody"] if os.geteuid() == 0 else []))
    assert f"{folder} cannot be used as a journal: Permission denied" in done.stdout, done.stderr


def everywhere(folder):
    """Return the files that contain each secret."""
    found = {}
    for path in folder.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            for secret in SECRETS:
                if secret.encode() in data or secret.encode().hex().encode() in data:
                    found.setdefault(secret, []).append(path.parent.name)
    return found


async def test_credentials_are_in_one_file_and_restored(tmp_path):
    folder = tmp_path / "state"
    async with opened(folder) as user:
        user.accept("r1", callback=CALLBACK, **OWN)
        user.accept("plain")
        user.end("r1")
        await user.all_reported()
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
    async with opened(folder) as user:
        one, plain = user.journal.unsettled()
        assert one.init.callback == CALLBACK
        assert (one.init.request.api_key, one.init.request.server_url) == (SECRETS[2], SECRETS[3])
        assert (plain.init.callback, plain.init.request.api_key) == (None, None)
        assert all(secret not in repr(one) for secret in (SECRETS[0], SECRETS[1], SECRETS[2]))
        user.numbers["r1", 1] = 2
        user.deliver("r1")
        await user.commit()
        await user.until(lambda: not everywhere(folder))
        assert list((folder / "credentials").iterdir()) == []
        assert user.journal.find("r1")[0].init.callback.credential == ""


async def test_forget_deletes_credentials(tmp_path):
    async with opened(tmp_path) as user:
        user.accept(callback=CALLBACK)
        await user.all_reported()
        user.journal.forget("r1", 1)
        await user.commit()
        assert everywhere(tmp_path) == {}


async def test_the_next_start_deletes_credentials_that_a_crash_left(tmp_path):
    """After a kill between the commit of an acknowledgement and the deletion, or before the commit of an Init."""
    async with opened(tmp_path) as user:
        user.accept("r1", callback=CALLBACK)
        user.accept("r2", callback=CALLBACK)
        await user.all_reported()
        (left,) = [p for p in (tmp_path / "credentials").iterdir() if p.name in user.journal.secrets.path("r2", 1).name]
        data = left.read_bytes()
        user.end("r2")
        user.deliver("r2")
        await user.commit()
    left.write_bytes(data)
    left.with_suffix(".new").write_bytes(data)
    async with opened(tmp_path) as user:
        (entry,) = user.journal.unsettled()
        assert entry.init.callback == CALLBACK
        assert len(list((tmp_path / "credentials").iterdir())) == 1


async def test_a_settled_rollout_gets_no_new_credentials(tmp_path):
    """A new destination while the acknowledgement is on its way to the disk."""
    async with opened(tmp_path) as user:
        entry = user.accept(callback=CALLBACK)
        user.end()
        await user.all_reported()
        user.deliver()
        user.journal.writer.flush()
        user.journal.repoint(entry)
        await user.commit()
        await user.until(lambda: not list((tmp_path / "credentials").iterdir()))
