"""The demo: eight rollouts over real sockets, every reward recomputed here."""

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.processes import run
from tests.waiting import wait_until

DEMO = ("-m", "osmosis_grpc", "demo")
NO_SETTINGS = {name: value for name, value in os.environ.items() if not name.startswith("OSMOSIS_")}
"""The environment of a user: tests/conftest.py sets the state folder for all others."""


def reward(messages, label):
    """1.0 when the last answer's number is the label, else 0.0."""
    said = re.search(r"####\s*(\S+)", messages[-1]["content"])
    return float(float(said[1]) == float(label))


@pytest.mark.slow
def test_the_rollouts_of_a_demo_are_kept_on_request_and_exported(tmp_path):
    made = run("-m", "osmosis_grpc", "demo", "--state-dir", "kept", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    *_, line = made.stdout.splitlines()
    assert line.endswith("export --to messages --from kept")
    made = run("-m", "osmosis_grpc", "export", "--to", "messages", "--from", "kept", cwd=tmp_path)
    assert made.stdout == "8 rollouts read, 8 lines written: messages.jsonl\n"


@pytest.mark.slow
def test_records_can_be_recomputed():
    result = run("-m", "osmosis_grpc", "demo", "--json")
    assert result.returncode == 0, result.stderr
    records = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(records) == 8
    assert {record["event"] for record in records} == {"outcome"}
    assert len({record["rollout_id"] for record in records}) == 8
    for record in records:
        assert record["status"] == "COMPLETED"
        assert record["finish_reason"] == "stop"
        assert record["reward"] == reward(record["messages"], record["label"])
    assert {record["reward"] for record in records} == {0.0, 1.0}, "a reward that is always 1 shows nothing"


def test_the_table_for_people(forked):
    result = forked.run("-m", "osmosis_grpc", "demo")
    assert result.returncode == 0, result.stderr
    assert len(re.findall(r"demo-[0-9a-f]{4}-\d\s+COMPLETED", result.stdout)) == 8
    assert max(map(len, result.stdout.partition("Next:")[0].splitlines())) <= 80
    assert "Next:" in result.stdout


AGENT = """
from pathlib import Path

from osmosis_grpc.rollout import RolloutAgentLoop, tool

@tool
def read(name: str) -> str:
    "Reads a file."
    return Path("note.txt").read_text()

class Mine(RolloutAgentLoop):
    name = "mine"
    tools = (read,)

    async def run(self, ctx):
        messages = await ctx.tool_loop(ctx.request.messages)
        assert "from the folder" in str(messages)
        return ctx.complete(messages, reward=float(ctx.request.label in str(messages[-1]["content"])))

agent = Mine()
"""


def test_the_demo_runs_an_agent_of_the_user_in_its_folder(forked, tmp_path):
    (tmp_path / "mine.py").write_text(AGENT)
    (tmp_path / "note.txt").write_text("from the folder")
    result = forked.run(*DEMO, "-m", "mine:agent", "--json", cwd=tmp_path, env=NO_SETTINGS)
    assert len(ids(result)) == 8
    assert {json.loads(line)["reward"] for line in result.stdout.splitlines()} == {1.0}
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "__pycache__") == ["mine.py", "note.txt"]


PROGRAM = """
import json, os, sys, urllib.request

task = json.load(sys.stdin)
data = json.dumps({"model": "policy", "messages": task["messages"]}).encode()
headers = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", data, headers)
text = json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
json.dump({"reward": float(task["label"] in text)}, open(os.environ["OSMOSIS_RESULT_FILE"], "w"))
"""


@pytest.mark.slow
def test_the_demo_runs_a_program_of_the_user(forked, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    result = forked.run(*DEMO, "--command", f"{sys.executable} program.py", "--json", cwd=tmp_path, env=NO_SETTINGS)
    assert len(ids(result)) == 8
    assert {json.loads(line)["reward"] for line in result.stdout.splitlines()} == {1.0}


@pytest.mark.slow
def test_an_agent_that_fails_or_is_not_there_is_said(forked, tmp_path):
    (tmp_path / "mine.py").write_text(AGENT)
    failed = forked.run(*DEMO, "-m", "mine:agent", cwd=tmp_path, env=NO_SETTINGS)
    assert failed.returncode == 1
    assert "0 of 8 rollouts COMPLETED" in failed.stdout
    assert failed.stdout.count("A rollout failed: ") == 1
    missing = forked.run(*DEMO, "-m", "mine:nobody", cwd=tmp_path, env=NO_SETTINGS)
    assert missing.returncode == 1
    assert "nobody" in missing.stderr
    assert "Traceback" not in missing.stderr
    both = forked.run(*DEMO, "-m", "mine:agent", "--command", "python mine.py", cwd=tmp_path, env=NO_SETTINGS)
    assert (both.returncode, both.stdout) == (2, "")
    assert both.stderr == "demo: -m and --command name two agents; give one of them\n"


def ids(result):
    """The rollouts of a demo --json that went well; nothing else was printed."""
    assert (result.returncode, result.stderr) == (0, "")
    records = [json.loads(line) for line in result.stdout.splitlines()]
    assert {record["status"] for record in records} == {"COMPLETED"}
    return {record["rollout_id"] for record in records}


@pytest.mark.slow
def test_the_demo_runs_again_and_leaves_nothing(tmp_path):
    here, temporary = tmp_path / "here", tmp_path / "temporary"
    here.mkdir()
    temporary.mkdir()
    env = NO_SETTINGS | {"TMPDIR": str(temporary)}
    first = ids(run(*DEMO, "--json", cwd=here, env=env))
    second = ids(run(*DEMO, "--json", cwd=here, env=env))
    assert len(first | second) == 16
    assert [*here.iterdir(), *temporary.iterdir()] == []


@pytest.mark.slow
def test_no_setting_and_no_file_of_this_folder_reaches_the_demo(tmp_path):
    (tmp_path / ".env").write_text("OSMOSIS_ROLLOUT_SERVER_MAX_CONCURRENT_ROLLOUTS=many\n")
    (tmp_path / "uvloop.py").write_text("raise SystemExit('of this folder')")
    env = NO_SETTINGS | {"OSMOSIS_ROLLOUT_SERVER_RECORD_TTL_SECONDS": "-1", "HOME": "/nonexistent"}
    assert len(ids(run(*DEMO, "--json", cwd=tmp_path, env=env))) == 8


@pytest.mark.slow
def test_the_demo_runs_in_a_folder_that_cannot_be_written(tmp_path):
    here = tmp_path / "here"
    here.mkdir()
    command, options = [sys.executable, *DEMO, "--json"], {"env": NO_SETTINGS | {"HOME": str(here)}}
    if os.geteuid() == 0:
        if subprocess.run(["unshare", "-m", "true"], check=False).returncode:
            pytest.skip("may not mount")
        script = f"mount -t tmpfs -o ro none {shlex.quote(str(here))} && cd {shlex.quote(str(here))} && exec "
        command = ["unshare", "-m", "sh", "-c", script + shlex.join(command)]
    else:
        here.chmod(0o555)
        options["cwd"] = here
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=50, **options)
    assert len(ids(result)) == 8


@pytest.mark.slow
def test_without_a_folder_for_temporary_files_one_line_says_so():
    if os.geteuid() or subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        pytest.skip("may not mount")
    if Path(sys.executable).is_relative_to("/tmp") or Path(sys.executable).is_relative_to("/var/tmp"):
        pytest.skip("the interpreter is in a folder that is hidden here")
    script = "for folder in /tmp /var/tmp; do mount -t tmpfs -o ro none $folder; done; cd /proc; exec "
    result = subprocess.run(
        ["unshare", "-m", "sh", "-c", script + shlex.join([sys.executable, *DEMO, "--json"])],
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("demo: no folder for the server's journal: ")


@contextlib.contextmanager
def demo_process(tmp_path, **more):
    """A demo in a session of its own, whose folder is below tmp_path."""
    env = NO_SETTINGS | {"TMPDIR": str(tmp_path)} | more
    with subprocess.Popen(
        [sys.executable, *DEMO],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=env,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def server_of(process):
    """The process id of a demo's server; 0 before it has one."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(children[0]) if children else 0


@pytest.mark.parametrize(
    ("when", "number"),
    [
        ("the server has its journal", signal.SIGINT),
        pytest.param("the server has its journal", signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param("the server starts", signal.SIGINT, marks=pytest.mark.slow),
        pytest.param("the server starts", signal.SIGTERM, marks=pytest.mark.slow),
    ],
)
def test_a_signal_ends_the_demo_without_a_trace(tmp_path, number, when):
    for _ in range(5):  # on a busy machine the demo may end before the signal
        with demo_process(tmp_path) as process:
            pattern = "osmosis-demo-*" if when == "the server starts" else "osmosis-demo-*/state/lock"
            wait_until(lambda: list(tmp_path.glob(pattern)) and server_of(process))
            server = server_of(process)
            os.killpg(process.pid, number)  # as Ctrl-C does: the group in the foreground
            out, err = process.communicate(timeout=30)
        if process.returncode:
            break
    assert (process.returncode, out) == (130, "")
    assert err == "starting an agent server in a separate process ...\n"
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.kill(server, 0)


AT_START = """
    import os, signal, sys
    if "osmosis_grpc.serve" in sys.orig_argv:
        {body}
"""


@pytest.mark.parametrize(
    ("body", "said"),
    [
        pytest.param(
            "os.kill(os.getpid(), signal.SIGKILL)",
            "the server did not start: killed by SIGKILL",
            id="killed at its start",
            marks=pytest.mark.slow,
        ),
        pytest.param("os._exit(3)", "the server did not start: exit code 3", id="ends at its start"),
        pytest.param(
            "os.environ['OSMOSIS_FAILPOINT'] = 'chat.open:3'",
            "the server ended before all rollouts had ended: killed by SIGKILL",
            id="killed in the middle",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_server_that_ends_is_said_in_one_line(tmp_path, body, said):
    modules, temporary = tmp_path / "modules", tmp_path / "temporary"
    modules.mkdir()
    temporary.mkdir()
    (modules / "sitecustomize.py").write_text(textwrap.dedent(AT_START).format(body=body))
    with demo_process(temporary, PYTHONPATH=str(modules)) as process:
        out, err = process.communicate(timeout=40)
    lines = [line for line in err.splitlines() if not line.startswith("killed at failpoint")]
    assert (process.returncode, out) == (1, "")
    assert lines[1:] == [f"demo: {said}"]
    assert list(temporary.iterdir()) == []
