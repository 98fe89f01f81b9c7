"""The command doctor names what is damaged, and changes nothing."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from osmosis_grpc.cli.doctor import examine_all
from osmosis_grpc.protocol.types import OutcomeStatus, RolloutOutcome
from osmosis_grpc.storage.ledger import ChatRow, SqliteLedger
from tests.damaged import flip
from tests.storage.journals import opened
from tests.storage.test_damage import TEXT, change, spoil, written


@pytest.fixture
def doctor(forked) -> Callable[..., tuple[int, str, str]]:
    """Runs the command and returns its exit code, stdout and stderr."""

    def command(*arguments: object) -> tuple[int, str, str]:
        done = forked.run("-m", "osmosis_grpc", "doctor", *map(str, arguments))
        return done.returncode, done.stdout, done.stderr

    return command


def all_bytes(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def kept_ledger(path: Path) -> None:
    """A ledger with three outcomes of two chats each."""
    ledger = await SqliteLedger.open(path, 60.0)
    for name in ("a", "b", "c"):
        ledger.record_assignment(
            name, 1, b"init of " + name.encode(), "target 127.0.0.1:9", "", lambda value, error: None
        )
        for number in (1, 2):
            text = f"{TEXT} {name} {number}".encode()
            chat = ChatRow(name, 1, "main", number, number - 1, "", text, text)
            ledger.chat(chat, lambda value, error: None, enter=False)
        outcome = RolloutOutcome(rollout_id=name, status=OutcomeStatus.COMPLETED, result_id=f"result of {name}")
        ledger.complete(outcome, b"as it came", lambda value, error: None, enter=False)
    await ledger.close()


async def test_doctor_finds_nothing_in_sound_files(doctor, tmp_path):
    await written(tmp_path / "state")
    await kept_ledger(tmp_path / "ledger")
    before = all_bytes(tmp_path)
    code, stdout, stderr = doctor("--state-dir", tmp_path / "state", "--ledger", tmp_path / "ledger")
    assert (code, stderr) == (0, "")
    assert f"journal {tmp_path}/state/journal.db: sound" in stdout
    assert "6 rollouts" in stdout
    assert f"ledger {tmp_path}/ledger: sound" in stdout
    assert "6 chat," in stdout
    assert all_bytes(tmp_path) == before


async def test_doctor_names_rollouts_and_rows(doctor, tmp_path):
    await written(tmp_path / "state")
    await kept_ledger(tmp_path / "ledger")
    journal, ledger = tmp_path / "state" / "journal.db", tmp_path / "ledger"
    flip(journal, 8 * journal.read_bytes().index(f"{TEXT} r4 7 ".encode() * 9))
    change(tmp_path / "state", "DELETE FROM events WHERE sequence = 6 AND number = 9")
    flip(ledger, 8 * ledger.read_bytes().index(f"{TEXT} b 2".encode()))
    before = all_bytes(tmp_path)
    code, stdout, _ = doctor("--state-dir", tmp_path / "state", "--ledger", ledger)
    assert code == 1
    lines = stdout.splitlines()
    assert re.search(r"^  r4 attempt 1: row \d+ of events: checksum does not match$", stdout, re.MULTILINE)
    assert "  r5 attempt 1: events: event 9 is missing" in lines
    assert "  b attempt 1: row 4 of chat: checksum does not match" in lines
    assert max(len(line) for line in lines if str(tmp_path) not in line) <= 80
    code, stdout, _ = doctor("--state-dir", tmp_path / "state", "--ledger", ledger, "--json")
    records = [json.loads(line) for line in stdout.splitlines()]
    assert code == 1
    named = [(record["rollout_id"], record["table"]) for record in records if record["event"] == "damaged"]
    assert named == [("r4", "events"), ("r5", "events"), ("b", "chat")]
    assert [record["damaged"] for record in records if record["event"] == "examined"] == [2, 1]
    assert all_bytes(tmp_path) == before


async def test_doctor_reports_a_damaged_page_and_the_rows_beside_it(doctor, tmp_path):
    await written(tmp_path)
    path = tmp_path / "journal.db"
    spoil(path, slice(path.read_bytes().index(f"{TEXT} r4 7 ".encode()) // 8192, -1))
    before = all_bytes(tmp_path)
    code, stdout, _ = doctor("--state-dir", tmp_path)
    assert code == 1
    assert "  the file: " in stdout
    assert "  r4 attempt 1: events: " in stdout
    assert "6 rollouts" in stdout
    assert all_bytes(tmp_path) == before


@pytest.mark.slow
async def test_doctor_says_what_it_cannot_read(doctor, tmp_path):
    code, _, stderr = doctor("--state-dir", tmp_path)
    assert (code, stderr) == (2, f"doctor: there is no journal {tmp_path}/journal.db\n")
    (tmp_path / "journal.db").write_bytes(b"no journal at all" * 1000)
    code, _, stderr = doctor("--state-dir", tmp_path)
    assert code == 2
    assert "file is not a database" in stderr
    code, _, stderr = doctor("--ledger", tmp_path / "none")
    assert (code, stderr) == (2, f"doctor: there is no ledger {tmp_path}/none\n")


@pytest.mark.parametrize(
    ("content", "code", "told"),
    [(b"", 2, "is empty"), (b"garbage\n", 2, "file is not a database"), (bytes(9000), 2, "file is not a database")],
)
def test_a_file_without_tables_is_not_sound(tmp_path, capsys, content, code, told):
    (tmp_path / "journal.db").write_bytes(content)
    assert examine_all(str(tmp_path), None, json=False) == code
    printed = capsys.readouterr()
    assert told in printed.out + printed.err
    assert ": sound" not in printed.out


async def test_doctor_looks_while_a_server_has_it(doctor, tmp_path):
    async with opened(tmp_path) as user:
        user.accept("r0")
        await user.commit()
        code, stdout, stderr = doctor("--state-dir", tmp_path)
        assert (code, stderr) == (0, ""), stdout
        assert "1 rollouts" in stdout
        user.end("r0")
        await user.commit()
