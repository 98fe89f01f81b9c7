"""The query command, as a user runs it: on the state folder of a server that runs, and on a journal with secrets."""

import asyncio
import csv
import io
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys

import pytest

from osmosis_grpc.cli.command_options import QueryOptions
from osmosis_grpc.cli.query import run_query
from osmosis_grpc.protocol.types import (
    Annotation,
    Callback,
    ChatResponse,
    Group,
    InitRequest,
    JournaledRollout,
    OutcomeStatus,
    Receipt,
    RolloutOutcome,
    RolloutRequest,
    TrajectoryEvent,
    events,
)
from osmosis_grpc.records.query import VIEWS, VIEWS_VERSION, QueryDatabase, QueryError
from osmosis_grpc.storage import SqliteJournal
from tests.processes import run

ENDLESS = "SELECT range FROM range(1000000000000)"
KNOWN = {
    "rollouts": """
        agent_loop VARCHAR, state VARCHAR, group_id VARCHAR, group_index BIGINT, forked_from VARCHAR,
        forked_sample VARCHAR, forked_chat BIGINT, reward DOUBLE, failure_reason VARCHAR, failure_summary
        VARCHAR, failure_message VARCHAR, failure_place VARCHAR, boundary VARCHAR, retryable BOOLEAN,
        finish_reason VARCHAR, chats BIGINT, tool_calls BIGINT, prompt_tokens BIGINT, response_tokens BIGINT,
        accept_time DOUBLE, start_time DOUBLE, end_time DOUBLE, seconds DOUBLE, queue_seconds DOUBLE,
        model_seconds DOUBLE, tool_seconds DOUBLE, agent_seconds DOUBLE, activity VARCHAR, progress_time
        DOUBLE, undelivered BOOLEAN, label VARCHAR, metadata JSON, messages JSON, evaluation BOOLEAN,
        agent_version VARCHAR""",
    "chats": """
        sample VARCHAR, chat_number BIGINT, parent_chat BIGINT, purpose VARCHAR, policy VARCHAR, state
        VARCHAR, forked BOOLEAN, request_time DOUBLE, seconds DOUBLE, finish_reason VARCHAR, prompt_tokens
        BIGINT, response_tokens BIGINT, tool_calls BIGINT, text VARCHAR, reasoning VARCHAR, reply JSON,
        new_messages JSON, params JSON, tries_failed BIGINT, error VARCHAR""",
    "tools": """
        sample VARCHAR, chat_number BIGINT, tool_call_id VARCHAR, name VARCHAR, arguments JSON, state VARCHAR,
        call_time DOUBLE, seconds DOUBLE, result VARCHAR, error VARCHAR""",
    "samples": """
        sample VARCHAR, policy VARCHAR, reward DOUBLE, trainable BOOLEAN, not_trainable_reason VARCHAR, train
        BOOLEAN, cut VARCHAR, dropped BIGINT, parent_sample VARCHAR, parent_chat BIGINT, segments BIGINT,
        tokens BIGINT, sampled_tokens BIGINT""",
    "rewards": """
        sample VARCHAR, chat_number BIGINT, name VARCHAR, reward DOUBLE""",
    "tokens": """
        sample VARCHAR, chat_number BIGINT, position BIGINT, token_id BIGINT, logprob DOUBLE""",
    "annotations": """
        annotation_id VARCHAR, author VARCHAR, time DOUBLE, reward DOUBLE, sample VARCHAR, advantage DOUBLE,
        trained BOOLEAN, dropped_reason VARCHAR, weight_step VARCHAR, labels JSON, note VARCHAR""",
    "logs": """
        sample VARCHAR, chat_number BIGINT, time DOUBLE, name VARCHAR, data JSON""",
    "events": """
        event_number BIGINT, time DOUBLE, kind VARCHAR, text VARCHAR, data JSON""",
}
"""The columns of version 2 after the ids. New columns may come; if one is changed or removed, VIEWS_VERSION grows."""


@pytest.fixture
def query(forked, looked_at):
    """Runs the command on the state folder of a server that is running."""

    def command(*arguments):
        return forked.run("-m", "osmosis_grpc", "query", *arguments, "--from", str(looked_at.folder / "state"))

    return command


def test_the_views_are_those_of_their_version():
    assert VIEWS_VERSION == 2
    ids = "rollout_id VARCHAR, attempt BIGINT, "
    known = {name: ids + " ".join(columns.split()) for name, columns in KNOWN.items()}
    found = {name: ", ".join(f"{each.name} {each.type}" for each in view.columns) for name, view in VIEWS.items()}
    assert found == known


QUESTIONS = {
    "SELECT cut, sum(dropped) FROM samples WHERE rollout_id = 'good' GROUP BY 1": [(None, 0)],
    "SELECT rollout_id, state, activity FROM rollouts": [
        ("good", "COMPLETED", None),
        ("bad", "FAILED", None),
        ("evil", "COMPLETED", None),
        ("stuck", "RUNNING", "tool forever"),
    ],
    "SELECT count(*) FROM rollouts WHERE state = 'failed'": [(1,)],
    "SELECT failure_reason, failure_place, boundary FROM rollouts WHERE failure_reason = 'agent_exception'": [
        ("AGENT_EXCEPTION", "agents.py:11 in read", "agent")
    ],
    "SELECT name, state, count(*), sum(seconds) BETWEEN 0 AND 600 FROM tools WHERE rollout_id <> 'evil' "
    "GROUP BY 1, 2 ORDER BY 1": [("forever", "open", 1, 1), ("weather", "returned", 4, 1)],
    "SELECT chat_number, result FROM tools WHERE rollout_id = 'bad' ORDER BY 1 DESC LIMIT 1": [
        (2, "no such city: Atlantis")
    ],
    "SELECT sample, chat_number, finish_reason, text, (params->>'temperature')::DOUBLE FROM chats "
    "WHERE rollout_id = 'good' AND tool_calls = 0 ORDER BY 2": [
        ("critic", 1, "stop", "It is right.", None),
        ("main", 3, "stop", "It is sunny in Paris.", 0.5),
    ],
    "SELECT sum(c.response_tokens) = any_value(r.response_tokens), count(*) = any_value(r.chats) FROM chats c "
    "JOIN rollouts r USING (rollout_id, attempt) GROUP BY rollout_id": [(1, 1)] * 4,
    "SELECT sample, train, parent_sample, sampled_tokens <= tokens FROM samples WHERE rollout_id = 'good'": [
        ("main", 1, None, 1),
        ("critic", 0, "main", 1),
    ],
    "SELECT sample, name, reward FROM rewards WHERE rollout_id = 'good'": [
        (None, None, 1.0),
        ("main", "format", 1.0),
        ("critic", None, 0.5),
    ],
    "SELECT name, data FROM logs": [("graded", '{"by": "hand"}')],
    "SELECT kind, count(*) FROM events WHERE rollout_id = 'stuck' GROUP BY 1 HAVING kind LIKE 'tool%'": [
        ("tool_called", 1)
    ],
    "SELECT count(*) FROM annotations": [(0,)],
    "SELECT count(*), any_value(author), max(reward) FROM annotations": [(0, None, None)],
    "SELECT DISTINCT a.author FROM rollouts r LEFT JOIN annotations a USING (rollout_id)": [(None,)],
}


def asked(folder, sql, timeout=20):
    """The rows of a query."""
    with QueryDatabase(folder) as database, database.select(sql, timeout) as answer:
        return list(answer.rows)


@pytest.mark.parametrize("sql", QUESTIONS)
def test_a_question_is_answered_while_a_server_uses_the_folder(looked_at, sql):
    assert asked(looked_at.folder / "state", sql) == QUESTIONS[sql]


@pytest.mark.parametrize("view", VIEWS)
def test_every_column_of_every_view_can_be_read(looked_at, view):
    found = asked(looked_at.folder / "state", f"SELECT * FROM {view}")
    assert all(len(row) == len(VIEWS[view].columns) for row in found)


def test_rows_are_records(query):
    done = query(
        "--json", "SELECT rollout_id, reward, reward, '\\x00'::BLOB AS bytes FROM rollouts WHERE state = 'failed'"
    )
    row, end = (json.loads(line) for line in done.stdout.splitlines())
    assert row == {"event": "row", "row": {"rollout_id": "bad", "reward": None, "reward_2": None, "bytes": "AA=="}}
    assert end == {
        "event": "queried",
        "rows": 1,
        "more": False,
        "columns": ["rollout_id", "reward", "reward_2", "bytes"],
        "views_version": VIEWS_VERSION,
    }


def test_a_table_for_people_has_no_escape_sequence_and_fits(query):
    done = query(
        "SELECT rollout_id, text, length(text) AS size FROM chats WHERE rollout_id = 'evil' ORDER BY chat_number"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "..." not in done.stdout
    head, *lines, count = done.stdout.splitlines()
    assert re.fullmatch(r"rollout_id  text +size", head)
    assert lines[0].startswith(r"evil        \x1b[2J\x1b]0;owned\x07 \x9b31m hidden\u202e")
    assert count == "(2 rows)"
    wide = query("SELECT * FROM chats WHERE rollout_id = 'evil'")
    assert wide.stdout.startswith("row 1\n  rollout_id       evil\n")
    for text in (done.stdout, wide.stdout):
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)


@pytest.fixture
def printed(looked_at, monkeypatch, capsys):
    """Runs a query in this process, and returns the lines that it prints on a terminal with 60 columns."""

    def command(sql):
        monkeypatch.setenv("COLUMNS", "60")
        monkeypatch.setenv("NO_COLOR", "1")
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        assert run_query(QueryOptions(sql=sql, where=str(looked_at.folder / "state")), json=False) == 0
        return capsys.readouterr().out.splitlines()

    return command


LONG_ID = "x" * 45


def test_a_row_whose_ids_do_not_fit_a_terminal_has_one_value_a_line(printed):
    assert printed(f"SELECT '{LONG_ID}' AS id, '{LONG_ID}' AS other") == [
        "row 1",
        f"  id     {LONG_ID}",
        f"  other  {LONG_ID}",
    ]


def test_a_pipe_has_whole_texts(query):
    words = " ".join(["word"] * 30)
    done = query(f"SELECT '{LONG_ID}' AS id, '{words}' AS a_text")
    assert done.stdout.splitlines()[1] == f"{LONG_ID}  {words}"
    done = query(f"SELECT '{LONG_ID}' AS id, '{words * 2}' AS a_text")
    assert done.stdout.splitlines() == ["row 1", f"  id      {LONG_ID}", f"  a_text  {words * 2}"]


def test_csv_has_the_texts_as_they_are(query):
    done = query(
        "--csv", "SELECT rollout_id, result, error FROM tools WHERE rollout_id = 'evil' ORDER BY call_time LIMIT 1"
    )
    found = list(csv.reader(io.StringIO(done.stdout)))
    assert found == [["rollout_id", "result", "error"], ["evil", "\x1b[2J\x1b]0;owned\x07\x9b31mred\u202e", ""]]


def test_a_table_is_cut_at_its_limit_and_says_so(query):
    done = query("SELECT * FROM range(3)", "--limit", "2")
    assert "(2 rows)" in done.stdout
    assert done.stderr == "query: there are more rows; --limit 4 shows more, and --limit 0 shows all\n"
    records = query("--json", "--limit", "2", "SELECT * FROM range(3)").stdout
    assert json.loads(records.splitlines()[-1])["more"] is True


REFUSED = {
    "an unknown column": ("SELECT nam FROM tools", "name"),
    "an unknown table": ("SELECT * FROM tool", "tools"),
    "an unknown function": ("SELECT osmosis_value('x')", "osmosis_value"),
    "no SQL": ("SELEC 1", "SELEC"),
    "two statements": ("SELECT 1; SELECT 2", "only one SELECT"),
    "a comment": ("-- nothing", "for the views: osmosis-grpc query"),
    "a Python variable": ("SELECT * FROM sql", "sql"),
    "a table of the journal": ("SELECT * FROM facts", "facts"),
    "a deletion": ("DELETE FROM rollouts", "only one SELECT"),
    "a new table": ("CREATE TEMP TABLE x (y INT)", "only one SELECT"),
    "another database": ("ATTACH 'x' AS y", "only one SELECT"),
    "a setting": ("SET enable_external_access = true", "only one SELECT"),
    "a transaction": ("BEGIN", "only one SELECT"),
    "a copy": ("COPY (SELECT 1) TO 'x'", "only one SELECT"),
    "an extension": ("INSTALL httpfs", "only one SELECT"),
    "a file": ("SELECT * FROM '/etc/passwd.csv'", "disabled by configuration"),
    "the text of a file": ("SELECT * FROM read_text('/etc/passwd')", "disabled by configuration"),
    "the files of a folder": ("SELECT * FROM glob('*')", "disabled by configuration"),
    "an address": ("SELECT * FROM read_csv('http://127.0.0.1:1/x.csv')", "disabled by configuration"),
    "memory": ("SELECT list(range) FROM range(500000000)", "1GiB"),
}


@pytest.mark.parametrize(("sql", "named"), REFUSED.values(), ids=REFUSED)
def test_a_query_reads_the_views_only_and_an_error_names_what_is_wrong(looked_at, sql, named):
    with pytest.raises(QueryError) as raised:
        asked(looked_at.folder / "state", sql)
    assert named in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_wrong_query_is_one_line_and_exit_code_2(query):
    done = query("SELECT \x1b[1m FROM rollouts")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "\x1b" not in done.stderr


def test_without_duckdb_the_extra_is_named(tmp_path, looked_at):
    (tmp_path / "duckdb.py").write_text("raise ModuleNotFoundError('No module named duckdb', name='duckdb')")
    state = str(looked_at.folder / "state")
    done = run(
        "-m", "osmosis_grpc", "query", "SELECT 1", "--from", state, env=os.environ | {"PYTHONPATH": str(tmp_path)}
    )
    assert done.returncode == 2
    assert "extra 'query'" in done.stderr


WRONG_OPTIONS = {
    "both formats": (["SELECT 1", "--json", "--csv"], "--json and --csv exclude each other"),
    "two queries": (["SELECT 1", "--file", "x"], "SQL and --file exclude each other"),
    "no file": (["--file", "x.sql"], "--file x.sql cannot be read: No such file or directory\n"),
    "a server": (["SELECT 1", "--from", "here:1"], "it asks a folder and no server; --from names the server's folder"),
    "no run": (["SELECT 1", "--from", "last"], "--from: there is no run in .osmosis/runs"),
    "no folder": (["SELECT 1", "--from", "y"], "--from: y is no folder and no run"),
    "no journal": (["SELECT 1", "--from", "."], "there is no journal journal.db"),
    "nothing": (["SELECT 1"], "there is no "),
}


@pytest.mark.parametrize(("options", "told"), WRONG_OPTIONS.values(), ids=WRONG_OPTIONS)
def test_a_wrong_option_is_one_line_and_exit_code_2(forked, tmp_path, options, told):
    done = forked.run("-m", "osmosis_grpc", "query", *options, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"query: {told}")
    assert done.stderr.count("\n") == 1


def test_a_query_can_come_from_a_file(query, tmp_path):
    (tmp_path / "question.sql").write_text("SELECT count(*) AS n FROM rollouts;\n-- the end")
    assert query("--csv", "--file", str(tmp_path / "question.sql")).stdout == "n\n4\n"


def test_without_a_query_the_views_are_listed(forked, tmp_path):
    done = forked.run("-m", "osmosis_grpc", "query", cwd=tmp_path)
    assert done.returncode == 0
    for view in VIEWS.values():
        assert f"\n{view.name}\n" in f"\n{done.stdout}"
    assert max(map(len, done.stdout.splitlines())) <= 80
    found = [json.loads(line) for line in forked.run("-m", "osmosis_grpc", "query", "--json").stdout.splitlines()]
    assert [each["name"] for each in found] == list(VIEWS)
    assert {"name", "type", "meaning"} == set(found[0]["columns"][0])


def test_a_query_that_takes_too_long_ends(looked_at):
    with pytest.raises(QueryError, match="--timeout"):
        asked(looked_at.folder / "state", f"SELECT count(*) FROM ({ENDLESS})", 0.2)


def test_ctrl_c_ends_a_query_with_130(looked_at):
    command = [sys.executable, "-m", "osmosis_grpc", "query", "--json", ENDLESS]
    folder = str(looked_at.folder / "state")
    with subprocess.Popen([*command, "--from", folder], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert b'"row"' in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        assert process.stderr.read() == b""


@pytest.mark.slow
def test_a_query_imports_no_library_that_it_does_not_need(looked_at):
    done = run(
        *("-X", "importtime", "-m", "osmosis_grpc", "query", "--from", str(looked_at.folder / "state")),
        "SELECT count(*) FROM tools",
    )
    assert done.returncode == 0
    imported = {name.split(".")[0] for name in re.findall(r"\|\s+([\w.]+)\s*$", done.stderr, re.M)}
    assert not imported & {"grpc", "fastapi", "litellm", "openai", "pydantic_settings", "rich"}


# A journal with secrets, annotations and a restart.

CANARY = "canary-6d1f"


@pytest.fixture
async def journal(tmp_path):
    """A folder with a journal of one ended rollout, whose request has secrets."""
    callback = Callback(target="127.0.0.1:1", credential=CANARY)
    request = RolloutRequest(
        rollout_id="one",
        messages=[{"role": "user", "content": "hi"}],
        group=Group("g", 3, 8),
        metadata={"area": "n\u00f6rth"},
        api_key=CANARY,
        server_url=f"http://{CANARY}",
    )
    init = InitRequest(request=request, callback=callback, digest=b"d")
    entry = JournaledRollout(
        init=init, tools=(), owner="me", attachment_id="", sequence=1, agent_loop="x", accept_time=1.0
    )
    reply = ChatResponse(message={"role": "assistant", "content": "ho"})
    call = {"id": "c", "type": "function", "function": {"name": "find", "arguments": "{}"}}
    outcome = RolloutOutcome(rollout_id="one", status=OutcomeStatus.COMPLETED, reward=0.5)
    correction = Annotation(id="a1", author="ann", reward=1.0, labels=("checked",), trained=True)
    kinds = [
        events.Accepted(init),
        events.Started(),
        events.Logged("lost"),
        events.ToolCalled(call),
        events.Resumed(4),
        events.Logged("kept", {"n": 1}),
        events.ToolCalled(call),
        events.ToolReturned(tool_call_id="c", name="find", error="boom", latency=0.5),
        events.ChatRequested(sample="main", chat_number=1, messages=[{"role": "user", "content": "hi"}]),
        events.ChatFailed(sample="main", chat_number=1, message="busy", will_retry=True),
        events.ChatAnswered(sample="main", chat_number=1, response=reply),
        events.Ended(outcome),
        events.Delivered(Receipt.RECORDED, "", 1),
        events.Annotated(correction),
    ]
    written = SqliteJournal(tmp_path)
    for number, kind in enumerate(kinds, 1):
        written.append(TrajectoryEvent("one", 1, number, 2.0, kind), 0, None, entry if number == 1 else None)
    written.close()
    return tmp_path


async def test_an_open_call_of_a_stopped_server_lasts_until_its_newest_event(tmp_path):
    request = RolloutRequest(rollout_id="one", messages=[{"role": "user", "content": "hi"}])
    init = InitRequest(request=request, callback=Callback(target="127.0.0.1:1", credential="c"), digest=b"d")
    entry = JournaledRollout(
        init=init, tools=(), owner="me", attachment_id="", sequence=1, agent_loop="x", accept_time=1.0
    )
    call = {"id": "c", "type": "function", "function": {"name": "find", "arguments": "{}"}}
    written = SqliteJournal(tmp_path)
    kinds = events.Accepted(init), events.Started(), events.ToolCalled(call), events.Logged("alive")
    for number, kind in enumerate(kinds, 1):
        event = TrajectoryEvent("one", 1, number, float(number**2), kind)
        written.append(event, 0, None, entry if number == 1 else None)
    written.close()
    assert asked(tmp_path, "SELECT state, seconds FROM tools") == [("open", 7.0)]


RESTARTED = {
    "SELECT name, sample, state, seconds, error FROM tools": [("find", None, "failed", 0.5, "boom")],
    "SELECT name, data FROM logs": [("kept", '{"n": 1}')],
    "SELECT state, tries_failed, error FROM chats": [("answered", 1, "busy")],
    "SELECT annotation_id, author, reward, labels, trained FROM annotations": [("a1", "ann", 1.0, '["checked"]', 1)],
    "SELECT group_id, group_index, metadata, undelivered FROM rollouts": [("g", 3, '{"area": "n\u00f6rth"}', 0)],
}


async def test_only_the_last_run_of_the_agent_counts_after_a_restart(journal):
    assert {sql: asked(journal, sql) for sql in RESTARTED} == RESTARTED


async def test_no_output_has_a_secret(forked, journal):
    for view in VIEWS:
        assert CANARY not in repr(asked(journal, f"SELECT * FROM {view}"))
    for option in ("--json", "--csv", "--limit=9"):
        done = forked.run("-m", "osmosis_grpc", "query", option, "SELECT * FROM events", "--from", str(journal))
        assert done.returncode == 0
        assert CANARY not in done.stdout + done.stderr


async def test_a_query_sees_one_moment_of_a_journal_that_a_server_writes(tmp_path):
    init = InitRequest(request=RolloutRequest(rollout_id="one", messages=[]), digest=b"d")
    entry = JournaledRollout(
        init=init, tools=(), owner="me", attachment_id="", sequence=1, agent_loop="x", accept_time=1.0
    )
    written = SqliteJournal(tmp_path)

    async def append(first, *kinds):
        for number, kind in enumerate(kinds, first):
            written.append(TrajectoryEvent("one", 1, number, 2.0, kind), 0, None, entry if number == 1 else None)
        committed = asyncio.get_running_loop().create_future()
        written.barrier(committed.set_result)
        assert await committed

    await append(1, events.Accepted(init), events.Started())
    with QueryDatabase(tmp_path) as database:
        outcome = RolloutOutcome(rollout_id="one", status=OutcomeStatus.COMPLETED, reward=0.5)
        await append(3, events.Ended(outcome), events.Delivered(Receipt.RECORDED, "", 1))
        written.close()
        with database.select("SELECT state, activity, reward, finish_reason FROM rollouts", 20) as answer:
            assert list(answer.rows) == [("RUNNING", "agent", None, None)]
    assert asked(tmp_path, "SELECT state, activity, reward FROM rollouts") == [("COMPLETED", None, 0.5)]


async def test_damaged_rollouts_are_counted(forked, journal):
    with sqlite3.connect(journal / "journal.db") as database:
        database.execute("UPDATE events SET body = x'00' WHERE number = 6")
    database.close()
    done = forked.run("-m", "osmosis_grpc", "query", "--csv", "SELECT name FROM logs", "--from", str(journal))
    assert (done.returncode, done.stdout) == (0, "name\n")
    assert done.stderr == (
        "query: 1 of the rollouts are damaged, and values are missing; "
        f"for details: osmosis-grpc doctor --state-dir {journal}\n"
    )
