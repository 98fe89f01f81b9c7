"""The events command, on a server and on the state folder that the server uses."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from tests.cli.looked_at import record
from tests.waiting import wait_until

COMMAND = ("-m", "osmosis_grpc", "events")
KINDS = [
    "accepted",
    "started",
    "sample_added",
    "chat_requested",
    "chat_answered",
    "tool_called",
    "tool_returned",
    "chat_requested",
    "chat_answered",
    "tool_called",
    "tool_returned",
    "segment_closed",
    "ended",
    "delivered",
]
TEXTS = [
    "accepted: 2 messages, 2 tools",
    "started after T s in the queue",
    "sample main began",
    "chat main 1 asked: 2 new messages: How is Paris?",
    'chat main 1 answered in T s, N tokens: calls weather {"city": "Paris"}',
    'tool weather called: {"city": "Paris"}',
]


@pytest.mark.parametrize("kind", ["server", "folder"])
def test_one_line_for_each_event(forked, looked_at, kind):
    done = forked.run(
        *COMMAND, "bad", *looked_at.options(kind), cwd=looked_at.folder, env=os.environ | {"COLUMNS": "120"}
    )
    assert (done.returncode, done.stderr) == (0, "")
    rows = [re.fullmatch(r"(\d\d:\d\d:\d\d\.\d{3}) +(\d+) (.*)", line) for line in done.stdout.splitlines()]
    assert [int(row[2]) for row in rows] == list(range(1, len(KINDS) + 1))
    texts = [re.sub(r"\d+ tokens", "N tokens", re.sub(r"\d+\.\d+ s", "T s", row[3])) for row in rows]
    assert texts[: len(TEXTS)] == TEXTS
    assert re.fullmatch(
        r"FAILED at agents\.py:\d+ in read: LookupError: cannot read 'no such city: Atlantis'", texts[-2]
    )
    assert texts[-1] == "delivered: RECORDED, 1 try"


@pytest.mark.parametrize("kind", ["server", "folder"])
def test_records_of_events(forked, looked_at, kind):
    done = forked.run(*COMMAND, "bad", "-f", "--json", *looked_at.options(kind), cwd=looked_at.folder)
    assert (done.returncode, done.stderr) == (0, "")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["event"] for row in rows] == KINDS
    assert [row["event_number"] for row in rows] == list(range(1, len(KINDS) + 1))
    assert {(row["rollout_id"], row["attempt"]) for row in rows} == {("bad", 1)}
    assert rows[6]["message"]["content"].startswith("sunny")
    assert rows[4]["response_tokens"] > 0
    assert "tokens" not in rows[4]["response"]
    assert rows[11]["tokens"] > 0
    assert rows[12]["outcome"]["failure"]["line"] > 0


def test_the_records_of_a_server_are_those_of_its_folder(forked, looked_at):
    found = [
        forked.run(*COMMAND, "good", "--json", *looked_at.options(kind), cwd=looked_at.folder).stdout
        for kind in ("server", "folder")
    ]
    assert found[0] == found[1] != ""


@pytest.mark.parametrize("kind", ["server", "folder"])
def test_all_rollouts_are_followed_until_ctrl_c(forked, written, kind, tmp_path):
    out, err = tmp_path / "out", tmp_path / "err"
    options = written.options(kind)
    record(written.address, f"{kind}-old")
    with forked.start(*COMMAND, "-f", *options, out=out, err=err, cwd=written.folder) as process:
        names = [f"{kind}-followed-0"]

        def follows():
            record(written.address, names[-1])
            names.append(f"{kind}-followed-{len(names)}")
            return out.read_text()

        wait_until(out.exists)
        wait_until(follows)
        last = names[-1]
        record(written.address, last)
        wait_until(lambda: f"{last}  " in out.read_text() and "delivered" in out.read_text().splitlines()[-1])
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
    assert err.read_text() == ""
    rows = [line for line in out.read_text().splitlines() if f" {last} " in line]
    assert re.fullmatch(rf"\d\d:\d\d:\d\d\.\d{{3}} {last}   1 accepted: 2 messages, 2 tools", rows[0])
    assert f" {kind}-old " not in out.read_text()


@pytest.mark.parametrize("kind", ["server", "folder"])
def test_ctrl_c_ends_the_following_of_one_rollout(forked, looked_at, kind, tmp_path):
    out, err = tmp_path / "out", tmp_path / "err"
    command = (*COMMAND, "stuck", "--follow", *looked_at.options(kind))
    with forked.start(*command, out=out, err=err, cwd=looked_at.folder) as process:
        wait_until(lambda: out.exists() and "tool forever called" in out.read_text())
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
    assert err.read_text() == ""


def test_a_reader_that_leaves_ends_the_command_without_a_trace(looked_at):
    line = f"{sys.executable} -m osmosis_grpc events good {' '.join(looked_at.options('folder'))} | head -n 1"
    done = subprocess.run(line, shell=True, capture_output=True, text=True, cwd=looked_at.folder, check=False)
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""


def test_without_a_rollout_it_has_to_follow(forked, looked_at):
    done = forked.run(*COMMAND, *looked_at.options("folder"), cwd=looked_at.folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "events: name a rollout, or follow all rollouts with -f\n"
