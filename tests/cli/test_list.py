"""The list command shows what rollouts do and how they ended, from a server and from its state folder."""

import json
import re
import shutil
import sqlite3
from contextlib import closing

import pytest

from osmosis_grpc.cli.list import Listed, rewards, table
from osmosis_grpc.protocol.types import Activity, RolloutInfo, RolloutState
from osmosis_grpc.storage import SqliteJournal
from osmosis_grpc.storage.journal import open_trails as open_trails_file
from osmosis_grpc.storage.lock_file import Lock, is_held
from tests.processes import run


@pytest.fixture(params=["server", "folder"])
def listing(request, looked_at, forked):
    """Runs the command with options, on the server and on its folder."""
    return lambda *options: forked.run("-m", "osmosis_grpc", "list", *looked_at.options(request.param), *options)


def rows(done):
    """The records of rollouts by id, in order. The last record counts them."""
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert found.pop() == {"event": "listed", "rollouts": len(found), "more": False, "as_of": None}, done.stderr
    assert {each.pop("event") for each in found} <= {"rollout"}
    return {each["rollout_id"]: each for each in found}


def test_the_newest_rollout_is_first_and_has_all_columns(listing):
    found = rows(listing("--json"))
    assert list(found) == ["stuck", "evil", "bad", "good"]
    good, bad, stuck = found["good"], found["bad"], found["stuck"]
    assert (good["agent_loop"], good["state"], good["reward"], good["chats"]) == ("traveller", "COMPLETED", 1.0, 4)
    assert good["response_tokens"] > 0
    assert good["prompt_tokens"] > good["response_tokens"]
    assert [found[name]["finish_reason"] for name in ("stuck", "bad", "good")] == [None, "error", "stop"]
    assert good["activity"] is good["idle"] is good["failure_reason"] is None
    assert good["elapsed"] == pytest.approx(good["end_time"] - good["accept_time"])
    assert (bad["failure_reason"], bad["failure_summary"]) == (
        "AGENT_EXCEPTION",
        "LookupError: cannot read 'no such city: Atlantis'",
    )
    assert (stuck["state"], stuck["activity"]["description"], stuck["chats"]) == ("RUNNING", "tool forever", 1)
    assert 0 < stuck["idle"] <= stuck["elapsed"]


OPTIONS = {
    "state": (["--state", "completed"], ["evil", "good"]),
    "states": (["--state", "FAILED", "--state", "running"], ["stuck", "bad"]),
    "agent": (["--agent", "other"], []),
    "group": (["--group", "g"], []),
    "reason": (["--reason", "agent_exception"], ["bad"]),
    "finish reason": (["--finish-reason", "error"], ["bad"]),
    "reward": (["--min-reward", "0.5", "--max-reward", "1"], ["evil", "good"]),
    "age": (["--since", "1h"], ["stuck", "evil", "bad", "good"]),
    "old": (["--before", "1h"], []),
    "undelivered": (["--undelivered"], []),
    "stalled": (["--stalled", "10ms"], ["stuck"]),
    "stalled for long": (["--stalled", "1d"], []),
    "oldest": (["--oldest"], ["good", "bad", "evil", "stuck"]),
    "all": (["--limit", "0"], ["stuck", "evil", "bad", "good"]),
}


@pytest.mark.parametrize(("options", "names"), OPTIONS.values(), ids=OPTIONS)
def test_filters(listing, options, names):
    assert list(rows(listing("--json", *options))) == names


def test_a_stuck_tool_is_in_the_table_with_its_name(listing):
    done = listing("--stalled", "10ms")
    assert done.returncode == 0, done.stderr
    head, row, below = done.stdout.splitlines()
    assert head.split() == ["ID", "AGENT", "STATE", "CHATS", "ELAPSED", "IDLE", "TOKENS", "LABEL", "PROMPT"]
    assert re.fullmatch(r"stuck +traveller +RUNNING +1 +\S+ +\S+ +\d+/\d+  sunny +How is Paris\?", row), row
    assert re.fullmatch(r"  tool forever \S+", below), below


def test_the_table_has_rewards_and_failures_and_no_escape_sequence(listing):
    done = listing()
    assert "AGENT_EXCEPTION: LookupError: cannot read 'no such city: Atlantis'" in done.stdout
    assert done.stdout.replace("\n", "").isprintable()
    assert "more rollouts match; --limit 2 shows more" in listing("--limit", "1").stdout
    assert "no rollout matches in the s" in listing("--agent", "other").stdout


WRONG = {
    "state": (["--state", "sleeping"], "--state: 'sleeping' is not a state; the states are accepted, queued, running"),
    "time": (["--since", "soon"], "--since: 'soon' is not a time; name one such as 5s, 10m, 2h or 1d"),
    "stall": (["--stalled", "0s"], "--stalled: 0 is not a time greater than zero"),
    "reason": (["--reason", "no such"], "--reason: 'no such' is not a reason; the reasons are AGENT_EXCEPTION, "),
    "near reason": (
        ["--reason", "AGENT_EXCEPTON"],
        "--reason: 'AGENT_EXCEPTON' is not a reason; do you mean AGENT_EXCEPTION or ",
    ),
    "reward": (["--min-reward", "nan"], "--min-reward: nan is not a number"),
    "folder": (["--from", "nowhere"], "--from: nowhere is no folder and no run"),
    "folder without a journal": (["--from", "."], "there is no journal journal.db"),
}


@pytest.mark.parametrize(("options", "told"), WRONG.values(), ids=WRONG)
def test_a_wrong_option_is_one_line_and_code_2(forked, tmp_path, options, told):
    done = forked.run("-m", "osmosis_grpc", "list", *options, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"list: {told}")
    assert done.stderr.count("\n") == 1


def test_a_folder_without_a_server_stands_still(looked_at, forked, tmp_path):
    shutil.copytree(looked_at.folder / "state", tmp_path / "state")
    listed, shown, record = (
        [forked.run("-m", "osmosis_grpc", *command, "--from", "state", cwd=tmp_path).stdout for _ in range(2)]
        for command in (("list", "--stalled", "1ms"), ("show", "stuck"), ("list", "--json"))
    )
    assert listed[0] == listed[1]
    assert re.search(r"^stuck +traveller +INTERRUPTED ", listed[0], re.M)
    note = r"no server uses the state folder state; shown as of \d+-\d+-\d+ \d+:\d+:\d+Z\n"
    assert re.search(rf"\nstuck .*\n  tool forever \d+\.\ds\n{note}\Z", listed[0]), listed[0]
    assert shown[0] == shown[1]
    assert re.search(rf"\nINTERRUPTED: tool forever, for \d+\.\d s\n{note}\Z", shown[0]), shown[0]
    assert record[0] == record[1]
    assert json.loads(record[0].splitlines()[-1])["as_of"] > 0
    found = [json.loads(line) for line in record[0].splitlines()[:-1]]
    assert [each["rollout_id"] for each in found if each["interrupted"]] == ["stuck"]


def test_the_lock_says_whether_a_server_uses_the_folder(tmp_path):
    assert is_held(tmp_path / "lock") is False
    lock = Lock(tmp_path / "lock")
    assert is_held(tmp_path / "lock") is True
    lock.close()
    assert is_held(tmp_path / "lock") is False


def info(name, **fields):
    return RolloutInfo(
        rollout_id=name,
        attempt=1,
        agent_loop="traveller",
        accept_time=0.0,
        activity=Activity("tool look", 1.0),
        **fields,
    )


def failed(name, text):
    return info(
        name,
        state=RolloutState.FAILED,
        end_time=3.0,
        failure_reason="AGENT_EXCEPTION",
        failure_summary=text,
        reward=0.25,
    )


def test_a_failure_is_below_its_row_and_an_id_is_whole():
    name = "3f" * 30
    infos = failed(name, "ValueError: " + "long text " * 10), info("r2", state=RolloutState.RUNNING)
    lines = list(table(list(map(Listed, infos)), 9.0, 80))
    assert lines[1].startswith(f"{name}  traveller  FAILED ")
    assert f"{lines[2]} {lines[3].strip()}" == "  AGENT_EXCEPTION: ValueError: " + ("long text " * 10).rstrip()
    assert lines[-1] == "  tool look 8.0s"
    assert max(map(len, lines[2:4])) <= 80


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ([1.0, 0.0, None], ["1.0", "0.0", ""]),
        ([1.0, 0.25, 0.0, -0.5], ["1.00", "0.25", "0.00", "-0.50"]),
        ([1e12, 0.0], ["1e+12", "0.0"]),
    ],
)
def test_rewards_have_equally_many_decimals(values, texts):
    assert rewards(values) == texts


async def test_an_empty_folder_has_no_rollouts(forked, tmp_path):
    SqliteJournal(tmp_path / "state").close()
    done = forked.run("-m", "osmosis_grpc", "list", "--from", "state", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "there are no rollouts yet in the state folder state\n")


@pytest.mark.slow
def test_a_list_of_a_folder_imports_no_grpc(looked_at):
    done = run("-X", "importtime", "-m", "osmosis_grpc", "list", *looked_at.options("folder"), "--json")
    assert done.returncode == 0
    imported = {name.split(".")[0] for name in re.findall(r"\|\s+([\w.]+)\s*$", done.stderr, re.M)}
    assert "sqlite3" in imported
    assert not imported & {"grpc", "fastapi", "litellm", "pyarrow", "openai", "pydantic_settings"}


def test_a_list_imports_numpy_only_for_tokens():
    reading = "osmosis_grpc.records.reading"
    code = f"import sys, osmosis_grpc.cli.list, {reading}.folder_source, {reading}.server_source"
    assert run("-c", f"{code}; sys.exit('numpy' in sys.modules)").returncode == 0


def test_an_old_unfinished_rollout_is_read_in_part(looked_at, monkeypatch):
    """Events between the first positions and the newest ones are not read, so its idle time is a lower bound."""
    with closing(sqlite3.connect(f"file:{looked_at.folder}/state/journal.db?mode=ro", uri=True)) as database:
        (sequence,) = database.execute("SELECT sequence FROM rollouts WHERE rollout_id = 'stuck'").fetchone()
        whole = open_trails_file.open_trails(database, [sequence])[sequence]
        assert whole.read_from == 0.0
        own = database.execute("SELECT position FROM events WHERE sequence = ? ORDER BY position", (sequence,))
        *_, before_last, _ = (position for (position,) in own.fetchall())
        (newest,) = database.execute("SELECT max(position) FROM events").fetchone()
        monkeypatch.setattr(open_trails_file, "NEWEST", newest - before_last)
        monkeypatch.setattr(open_trails_file, "FIRST", 0)
        part = open_trails_file.open_trails(database, [sequence])[sequence]
        assert open_trails_file.open_trails(database, [sequence], {sequence: before_last - 1})[sequence] == part
        rest = open_trails_file.open_trails(database, [sequence], {sequence: before_last})[sequence]
        none = open_trails_file.open_trails(database, [sequence], {sequence: newest})[sequence]
    assert [event.event_number for event in whole.events] == list(range(1, len(whole.events) + 1))
    assert [event.event_number for event in part.events] == [1, len(whole.events)]
    assert (rest.events, rest.after, rest.read_to) == (whole.events[-1:], before_last, newest)
    assert none.events == []
    assert whole.events[-2].time <= part.read_from <= whole.events[-1].time
