"""`backup` of folders and ledgers: what it copies, what it refuses, and that it leaves nothing half done."""

import json
import os
import shutil
import stat

import pytest

from osmosis_grpc.cli.backup import back_up
from tests.cli.test_doctor import all_bytes, kept_ledger
from tests.damaged import flip
from tests.storage.test_damage import TEXT, written

ALL = ("--state-dir", "state", "--ledger", "ledger")


@pytest.fixture
def backup(forked, tmp_path):
    """Runs `backup ARGUMENTS` in tmp_path: the exit code, stdout and stderr."""

    def command(*arguments):
        done = forked.run("-m", "osmosis_grpc", "backup", *map(str, arguments), cwd=tmp_path)
        return done.returncode, done.stdout, done.stderr

    return command


async def test_a_folder_and_a_ledger_are_copied_and_checked(backup, tmp_path):
    await written(tmp_path / "state")
    await kept_ledger(tmp_path / "ledger")
    (tmp_path / "state" / "rollouts" / "3").mkdir(parents=True)
    (tmp_path / "state" / "rollouts" / "3" / "snapshot").write_bytes(b"files")
    before = all_bytes(tmp_path)
    code, stdout, stderr = backup("copies/first", *ALL, "--json")
    assert (code, stderr) == (0, "")
    kinds = {record["kind"]: record for record in map(json.loads, stdout.splitlines())}
    assert {kind: record["damaged"] for kind, record in kinds.items()} == {"journal": 0, "ledger": 0}
    assert kinds["journal"]["sound"]["rollouts"] == 6
    copy = tmp_path / "copies" / "first"
    assert (copy / "rollouts" / "3" / "snapshot").read_bytes() == b"files"
    assert stat.S_IMODE(copy.stat().st_mode) == 0o700
    assert os.listdir(tmp_path / "copies") == ["first"]
    shutil.rmtree(tmp_path / "copies")
    assert all_bytes(tmp_path) == before


async def test_a_ledger_alone_needs_no_state_folder(backup, tmp_path):
    await kept_ledger(tmp_path / "ledger")
    assert backup("copy", "--ledger", "ledger")[0] == 0
    assert os.listdir(tmp_path / "copy") == ["ledger.db"]


async def test_a_copy_of_a_damaged_journal_is_made_and_named(backup, tmp_path):
    await written(tmp_path / "state")
    journal = tmp_path / "state" / "journal.db"
    flip(journal, 8 * journal.read_bytes().index(f"{TEXT} r4 7 ".encode() * 9))
    code, stdout, _ = backup("copy", "--state-dir", "state")
    assert code == 1
    assert "DAMAGED, as the original is" in stdout
    assert (tmp_path / "copy" / "journal.db").stat().st_size == journal.stat().st_size


def test_what_cannot_be_copied_is_named_and_leaves_nothing(tmp_path, capsys):
    full, file = tmp_path / "full", tmp_path / "file"
    full.mkdir()
    (full / "kept").write_text("kept")
    file.write_text("kept")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "journal.db").write_bytes(b"no journal at all" * 1000)
    before = all_bytes(tmp_path)
    none = str(tmp_path / "none")
    for target, state, ledger, told in (
        (full, none, None, f"{full} is there already; name a new folder"),
        (file, none, None, f"{file} is there already; name a new folder"),
        (tmp_path / "new", none, None, f"there is no {none}/journal.db; --state-dir DIR names the folder of a server"),
        (tmp_path / "new", None, none, f"there is no {none}; --ledger FILE names the ledger of a trainer"),
        (tmp_path / "new", str(tmp_path / "other"), None, "file is not a database"),
        (file / "new", none, None, f"{file}: File exists"),
    ):
        assert back_up(str(target), state, ledger, json=False) == 2
        error = capsys.readouterr().err
        assert told in error
        assert error.endswith("; nothing was copied\n")
        assert all_bytes(tmp_path) == before


async def test_a_backup_that_was_killed_is_no_hindrance(backup, tmp_path):
    await kept_ledger(tmp_path / "ledger")
    (tmp_path / ".copy.new").mkdir()
    (tmp_path / ".copy.new" / "half").write_text("half")
    assert backup("copy", "--ledger", "ledger")[0] == 0
    assert os.listdir(tmp_path / "copy") == ["ledger.db"]
    assert not (tmp_path / ".copy.new").exists()
