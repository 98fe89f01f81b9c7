"""The eval command, as a user runs it: scores, pass@k, and runs that continue."""

import json
import random
import re
import shlex
import signal
import subprocess
import sys

import pytest

from osmosis_grpc.protocol.types import RolloutFilter, RolloutState
from osmosis_grpc.records.evaluate import RunError, RunFolder
from osmosis_grpc.records.evaluate.run_folder import RUNS
from osmosis_grpc.storage import Reader
from tests.cli.evaluated import MODEL, ROWS, arguments, environment, records, results_of, write
from tests.model_server import KEY, model_server, reply
from tests.waiting import wait_until

EXACT = ("--eval-fn", "rewards:exact")


@pytest.fixture
def folder(tmp_path):
    write(tmp_path)
    return tmp_path


@pytest.fixture
def evaluate(forked, folder):
    def command(*more, **variables):
        return forked.run(*arguments("eval", *more), cwd=folder, env=environment(**variables))

    return command


@pytest.fixture(scope="module")
def finished(forked, tmp_path_factory):
    """A finished run in the folder `run`, and what the command printed."""
    folder = tmp_path_factory.mktemp("finished")
    write(folder)
    options = (*EXACT, "--eval-fn", "rewards:length", "--n", "2", "--batch-size", "1", *MODEL)
    done = forked.run(
        *arguments("eval", *options, "--save-dir", "run", "-o", "out.json"), cwd=folder, env=environment()
    )
    return folder, done


def test_each_row_runs_n_times_and_has_the_scores_of_every_function(finished):
    _, done = finished
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line for line in done.stdout.splitlines() if line != "the agent prints"]
    assert lines.pop(0).endswith(" eval --resume run")
    assert re.fullmatch(
        r"row 0\.0  COMPLETED  reward 0\.25  rewards:exact 1  rewards:length 0\.5  1 chat  \d+ tokens  \d\.\d\d s"
        r"  label 3  What is 6 / 2\?",
        lines[0],
    )
    assert lines[6:10] == [
        "rewards:exact: mean 0.5 (0 to 1), std 0.548, 6 of 6 scored",
        "  pass@1 0.5 (0 to 1), pass@2 0.667 (0 to 1)",
        "rewards:length: mean 0.5 (0.5 to 0.5), std 0, 6 of 6 scored",
        "  pass@1 0 (0 to 0), pass@2 0 (0 to 0)",
    ]
    assert re.fullmatch(r"6 of 6 rollouts scored, mean reward 0\.25, \d+ \+ \d+ tokens, 6 chats, \d+\.\d s", lines[10])
    assert [line.partition(" (rows ")[0] for line in lines[11:13]] == ["lowest rewards:exact 0", "The run is in run."]
    assert [line.partition("osmosis")[2].partition(" ")[2] for line in lines[13:]] == [
        "view --from run",
        "eval --replay run",
    ]


def test_the_output_file_has_the_shape_of_the_sdk(finished):
    folder, _ = finished
    written = json.loads((folder / "out.json").read_text())
    assert written["config"] == {
        "model": "mock:script=script.json",
        "n_runs": 2,
        "pass_threshold": 1.0,
        "eval_fns": ["rewards:exact", "rewards:length"],
    }
    summary = written["summary"]
    assert (summary["total_rows"], summary["total_runs"], summary["unscored"]) == (3, 6, 0)
    exact = summary["eval_fns"]["rewards:exact"]
    assert {name: exact[name] for name in ("mean", "min", "max", "pass_at_1", "pass_at_2")} == {
        "mean": 0.5,
        "min": 0.0,
        "max": 1.0,
        "pass_at_1": 0.5,
        "pass_at_2": pytest.approx(2 / 3),
    }
    assert [row["row_index"] for row in written["rows"]] == [0, 1, 2]
    first, second = written["rows"][0]["runs"]
    assert (first["run_index"], first["success"], first["scores"]["rewards:exact"]) == (0, True, 1.0)
    assert (second["run_index"], second["scores"]["rewards:exact"]) == (1, 0.0)
    assert first["tokens"] == first["token_usage"]["total_tokens"] > 0


def test_show_prints_the_scores_and_the_agents_reward(forked, finished):
    folder, _ = finished
    rollout = next(result["rollout_id"] for result in results_of(folder / "run") if result["run_index"] == 1)
    shown = forked.run("-m", "osmosis_grpc", "show", rollout, "--from", "run", cwd=folder)
    assert "annotated by eval: score rewards:exact 0\n" in shown.stdout
    assert "annotated by eval: score rewards:length 0.5\n" in shown.stdout
    assert "\nreward 0.25\n" in shown.stdout


def test_a_second_run_with_replay_asks_no_model_and_has_the_same_scores(forked, finished):
    folder, _ = finished
    more = (*EXACT, "--n", "2", "--replay", "run", "--save-dir", "replayed", "--json")
    done = forked.run(*arguments("eval", *more), cwd=folder, env=environment())
    assert done.returncode == 0, done.stderr
    started, *rows, summary = records(done.stdout)
    assert (started["event"], started["model"], started["n"]) == ("started", None, 2)
    before = {(r["row_index"], r["run_index"]): r["scores"]["rewards:exact"] for r in results_of(folder / "run")}
    assert {(r["row_index"], r["run_index"]): r["scores"]["rewards:exact"] for r in rows} == before
    assert summary["eval_fns"]["rewards:exact"]["pass_at_2"] == pytest.approx(2 / 3)
    assert "the agent prints" in done.stderr


def test_failed_scores_have_their_texts_and_the_exit_code_is_1(evaluate, forked, folder):
    write(folder, [*ROWS, {"user_prompt": "fail"}])
    done = evaluate("--eval-fn", "rewards:fails", "--model", "mock:echo", "--concurrency", "1", "-o", "out.json")
    assert done.returncode == 1
    assert "\x1b" not in done.stdout + done.stderr
    place = re.escape("rewards:fails has no score: ValueError: \\x1b[31mI cannot judge")
    assert re.search(rf"^row 0 \(data\.jsonl:1\)  {place}$", done.stdout, re.M), done.stdout
    assert "row 1 (data.jsonl:2)  rewards:fails has no score: it returned nan, not a finite number" in done.stdout
    assert (
        "row 3 (data.jsonl:4)  FAILED  AGENT_EXCEPTION: ValueError: \\x1b[31mI fail (at agent.py:11 in Asker.run)"
        in done.stdout
    )
    assert "rewards:fails: mean 1, 1 of 4 scored, 2 failed\n  pass@1 0.5 (0 to 1)\n" in done.stdout
    assert "1 of 4 rollouts scored, 1 failed, 2 without a score, " in done.stdout
    line = next(line for line in done.stdout.splitlines() if line.startswith("2 without a score (rows 0, 1): "))
    shown = " ".join(forked.run("-m", "osmosis_grpc", *shlex.split(line)[-4:], cwd=folder).stdout.split())
    told = "ValueError: \\x1b[31mI cannot judge this at rewards.py:14 "
    assert f"annotated by eval: labels rewards:fails, note no score: {told}" in shown
    (row,) = [row for row in json.loads((folder / "out.json").read_text())["rows"] if row["row_index"] == 0]
    assert row["runs"][0]["scores"] == {}
    error = row["runs"][0]["score_errors"]["rewards:fails"]
    assert error == "ValueError: \x1b[31mI cannot judge\nthis at rewards.py:14"


WRONG = [
    (("--eval-fn", "agent:Asker"), "agent:Asker is a class, not a function"),
    (("--eval-fn", "rewards:nothing"), "rewards has no attribute 'nothing'; it has: exact, length, strict, fails"),
    ((*EXACT, *EXACT), "rewards:exact is given twice"),
    ((*EXACT, "--rows", "1,x"), "--rows '1,x' has 'x', which is neither a row nor a range"),
    ((*EXACT, "--rows", "1-4"), "--rows 1-4: data.jsonl has no row 3"),
    ((*EXACT, "--rows", "1", "--limit", "1"), "--rows chooses rows by number; leave out --offset and --limit"),
    ((*EXACT, "--resume", "none"), "none is no folder and no run"),
    ((*EXACT, "--pass-threshold", "nan"), "--pass-threshold nan is not a finite number"),
    ((*EXACT, "--retry-failed"), "--retry-failed needs an earlier run"),
    ((*EXACT, "--resume", "last", "--save-dir", "x"), "--resume and --save-dir name a run each"),
    ((*EXACT, "--fresh", "--retry-failed", "--resume", "x"), "--fresh begins again, and --retry-failed keeps"),
]
"""Wrong options, and how the error begins."""
EACH = """
import sys
from osmosis_grpc.cli.commands import app
for options in {!r}:
    try:
        app(options)
    except SystemExit as ended:
        print(ended.code, file=sys.stderr)
"""
"""Runs several command lines in one process, and prints their exit codes."""


def test_a_usage_error_is_one_line_and_nothing_runs(forked, folder):
    commands = [arguments("eval", "--model", "mock:echo", *options)[2:] for options, _ in WRONG]
    done = forked.run("-c", EACH.format(commands), cwd=folder, env=environment())
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 2 * len(WRONG), done.stderr
    for (_, problem), line, code in zip(WRONG, lines[::2], lines[1::2], strict=True):
        assert line.startswith(f"eval: {problem}")
        assert code == "2"
    assert not (folder / ".osmosis").exists()


def test_without_functions_the_score_is_the_reward_of_the_agent(forked, folder):
    done = forked.run(*arguments("eval", "--n", "4", *MODEL, "--json"), cwd=folder, env=environment())
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert (summary["event"], summary["total_runs"]) == ("summary", 12)
    assert summary["eval_fns"]["reward"]["scored"] == 12
    assert summary["eval_fns"]["reward"]["mean"] == summary["mean_reward"] == 0.25
    assert set(summary["eval_fns"]["reward"]["pass_at_k"]) == {"1", "2", "3", "4"}


def test_an_interrupted_run_prints_the_command_that_continues_it(forked, folder):
    wait = "import asyncio\n        open('began', 'w').close()\n        await asyncio.Event().wait()\n        messages."
    (folder / "agent.py").write_text((folder / "agent.py").read_text().replace("messages.", wait, 1))
    out = folder / "out"
    with forked.start(*arguments("eval", *EXACT, *MODEL), cwd=folder, out=out, err=folder / "err") as process:
        wait_until((folder / "began").exists)
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
    (run,) = (folder / ".osmosis" / "runs").iterdir()
    name = run.name.rpartition("-")[2]
    lines = [line for line in out.read_text().splitlines() if line != "the agent prints"]
    assert lines[0].endswith(f" eval --resume {name}")
    assert lines[-4].startswith("interrupted: 0 of 3 rollouts scored, ")
    assert lines[-3] == f"The run is in {run.relative_to(folder)}."
    assert lines[-1].startswith("To continue it: ")
    assert lines[-1].endswith(f" eval --resume {name}")


def test_a_name_that_is_no_run_gets_the_names_of_the_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number in range(12):
        RunFolder.create(RUNS / f"run-{number:02}", {}).unlock()
    with pytest.raises(RunError) as refused:
        RunFolder.open("other")
    assert "; the runs in .osmosis/runs are run-11, run-10, " in str(refused.value)
    assert str(refused.value).endswith("run-02, and 2 more")
    assert RunFolder.open("run-03").path == RUNS / "run-03"


def test_the_last_run_to_resume_is_one_of_eval(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, command in (("1", "eval"), ("2", "test")):
        RunFolder.create(RUNS / name, {"command": command}).unlock()
        (RUNS / name / "journal.db").touch()
    assert RunFolder.open("last", command="eval").path == RUNS / "1"
    assert RunFolder.open("last").path == RUNS / "2"


def test_of_runs_that_begin_in_one_second_the_last_one_is_the_newest(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(20):
        made = RunFolder.create(None, {"command": "eval"})
        (made.path / "journal.db").touch()
        made.unlock()
        assert RunFolder.open("last").path == made.path


def test_the_same_command_continues_a_run_and_only_missing_rows_run(evaluate, folder):
    command = (*EXACT, "--n", "2", "--save-dir", "run", *MODEL)
    assert evaluate(*command, "--rows", "0").returncode == 0
    done = evaluate(*command, "--rows", "0,2", "-q")
    assert done.stderr == "run has the results of 2 rollouts, and 2 of 4 run now\n"
    assert "4 of 4 rollouts scored" in done.stdout
    again = evaluate("--resume", "run", "--json")  # with the options of the run, and without a model
    assert again.stderr.splitlines()[0] == "run has the results of 4 rollouts, and none is left to run"
    assert [record["event"] for record in records(again.stdout)] == ["started", "summary"]
    assert sorted((each["row_index"], each["run_index"]) for each in results_of(folder / "run")) == [
        (0, 0),
        (0, 1),
        (2, 0),
        (2, 1),
    ]


@pytest.mark.slow
def test_a_run_with_other_inputs_is_refused_by_name_and_fresh_begins_again(evaluate, folder):
    command = (*EXACT, "--save-dir", "run", *MODEL)
    assert evaluate(*command, "--temperature", "0.5").returncode == 0
    before = (folder / "run" / "results.jsonl").read_bytes()
    (folder / "agent.py").write_text((folder / "agent.py").read_text() + "\n# changed\n")
    write_to = folder / "data.jsonl"
    write_to.write_text(write_to.read_text() + json.dumps(ROWS[0]) + "\n")
    (folder / "rewards.py").write_text((folder / "rewards.py").read_text() + "\n# changed\n")
    done = evaluate(*command, "--n", "3")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "eval: run is a run with other inputs: agent (agent.py); dataset (file); sampling (temperature not given, was "
        "0.5); eval functions (rewards.py); runs (n 3, was 1); name another folder, or begin again with --fresh, which "
        "moves the old results away\n"
    )
    assert (folder / "run" / "results.jsonl").read_bytes() == before
    fresh = evaluate(*command, "--n", "3", "--fresh", "-q")
    (archive,) = folder.glob("run.archive-*")
    assert (fresh.returncode, fresh.stderr) == (0, f"the old results are in {archive.name}\n")
    assert (archive / "results.jsonl").read_bytes() == before
    assert len(results_of(folder / "run")) == 12


@pytest.mark.slow
def test_retry_failed_runs_failed_rollouts_again_and_scores_what_completed(evaluate, folder):
    gate = "import os\nif not os.path.exists('open'): raise ValueError('closed')\n"
    judge = "def judge(solution_str):\n    " + gate.replace("\n", "\n    ").rstrip() + "\n    return 1\n"
    (folder / "judges.py").write_text(judge)
    write(folder, [*ROWS[:2], {"user_prompt": "fail"}])
    command = ("--eval-fn", "judges:judge", "--save-dir", "run", "--model", "mock:echo", "-q")
    assert evaluate(*command).returncode == 1
    assert evaluate(*command).stderr == "run has the results of 3 rollouts, and none is left to run\n"
    (folder / "open").touch()
    done = evaluate(*command, "--retry-failed")
    assert done.returncode == 1
    assert "2 of 3 rollouts scored, 1 failed" in done.stdout
    newest = {each["row_index"]: each for each in results_of(folder / "run")}
    assert {row: (each["attempt"], each["scores"]) for row, each in newest.items()} == {
        0: (1, {"judges:judge": 1.0}),  # scored again; its agent did not run again
        1: (1, {"judges:judge": 1.0}),
        2: (2, {}),
    }


@pytest.mark.slow
def test_a_model_server_is_asked_and_its_key_is_nowhere(evaluate, folder):
    with model_server(lambda body: reply("It is 3.")) as server:
        command = (
            *EXACT,
            "--n",
            "2",
            "--save-dir",
            "run",
            "--model",
            "tiny",
            "--base-url",
            server.url,
            "--price",
            "1/2",
        )
        done = evaluate(*command, "--limit", "1", "-o", "out.json", "--debug", OPENAI_API_KEY=KEY)
        assert len(server.asked) == 3  # with the probe
        again = evaluate(*command, "--limit", "2", "--json", OPENAI_API_KEY=KEY)
        assert len(server.asked) == 6
        wrong = evaluate(*command, "--api-key", f"{KEY}-wrong")
    assert (done.returncode, again.returncode, wrong.returncode) == (0, 0, 2), done.stderr + again.stderr
    assert "2,000 + 1,000 tokens, $0.0040, 2 chats" in done.stdout
    assert records(again.stdout)[-1]["cost"] == pytest.approx(0.008)
    assert wrong.stderr.count("\n") == 1
    assert KEY not in "".join(each.stdout + each.stderr for each in (done, again, wrong))
    assert not [path for path in folder.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]


def test_a_terminal_has_a_bar_with_the_mean_scores(forked, folder):
    code, text = forked.shown(*arguments("eval", *EXACT, *MODEL), cwd=folder, columns=200)
    assert code == 0
    assert re.search(
        r"3 of 3 rollouts, mean reward 0\.25, mean rewards:exact 0\.667", re.sub(r"\x1b\[[0-9;?]*\w", "", text)
    )
    assert "row 0  COMPLETED" not in text


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("replayable", [False, True])
def test_a_run_that_is_killed_again_and_again_has_every_row_once(folder, replayable):
    rows = [{"user_prompt": f"Say {number}", "ground_truth": str(number)} for number in range(40)]
    write(folder, rows)
    slow = (
        (folder / "agent.py")
        .read_text()
        .replace('    name = "asker"', f'    name = "asker"\n    replayable = {replayable}')
    )
    slow = slow.replace(
        "        messages.append(", "        import asyncio\n        await asyncio.sleep(0.1)\n        messages.append("
    )
    (folder / "agent.py").write_text(slow)
    judge = (
        "import time\ndef judge(solution_str, ground_truth):\n    time.sleep(0.02)\n    return int(ground_truth) / 40\n"
    )
    (folder / "judges.py").write_text(judge)
    command = arguments("eval", "--eval-fn", "judges:judge", "--n", "2", "--model", "mock:echo", "--save-dir", "run")
    drawn, results, kills = random.Random(4711), folder / "run" / "results.jsonl", 0
    written = -1

    def lines():
        return results.read_bytes().count(b"\n") if results.exists() else 0

    while kills < 6:
        wanted = min(lines() + drawn.randint(0, 14), 79)
        process = subprocess.Popen(
            [sys.executable, *command], cwd=folder, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        wait_until(lambda: lines() >= max(wanted, written + 1) or process.poll() is not None, timeout=60)
        process.send_signal(signal.SIGKILL)
        assert process.wait(30) == -signal.SIGKILL, process.stderr.read()
        process.stderr.close()
        assert lines() >= written
        written = lines()
        kills += 1
    done = subprocess.run(
        [sys.executable, *command, "--json"], cwd=folder, env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = results_of(folder / "run")
    assert sorted((each["row_index"], each["run_index"]) for each in found) == [
        (r, n) for r in range(40) for n in range(2)
    ]
    assert all(
        each["status"] == "COMPLETED" and each["scores"] == {"judges:judge": each["row_index"] / 40} for each in found
    )
    assert records(done.stdout)[-1]["total"] == 80
    assert json.loads((folder / "run" / "run.json").read_text())["resumed"] == kills
    reader = Reader.look(folder / "run")
    completed = reader.entries(None, 0, 1000, RolloutFilter(states=[RolloutState.COMPLETED]))
    reader.close()
    assert sorted(e.init.request.rollout_id for e in completed) == sorted(each["rollout_id"] for each in found)
