"""The rescore command: new scores of recorded rollouts, in a folder and on a server."""

import pytest

from tests.cli.evaluated import MODEL, REWARDS, arguments, environment, records, results_of, write
from tests.processes import run, server_process

STRICT = ("--eval-fn", "rewards:strict")


@pytest.fixture
def folder(forked, tmp_path):
    """A folder with a run of eval in `run`."""
    write(tmp_path)
    more = ("--eval-fn", "rewards:exact", "--n", "2", "--save-dir", "run", "-q", *MODEL)
    assert forked.run(*arguments("eval", *more), cwd=tmp_path, env=environment()).returncode == 0
    return tmp_path


def rescore(forked, folder, *options):
    return forked.run("-m", "osmosis_grpc", "rescore", *options, cwd=folder, env=environment())


@pytest.mark.slow
def test_c11_a_new_score_is_an_annotation_and_the_old_ones_stay(forked, folder):
    before = (folder / "run" / "results.jsonl").read_bytes()
    done = rescore(forked, folder, "run", "--eval-fn", "rewards:length", *STRICT, "--author", "ada")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    rollout = next(result["rollout_id"] for result in results_of(folder / "run") if result["run_index"] == 1)
    assert f"{rollout}  reward 0.25  rewards:length 0.5  rewards:strict 0" in lines
    assert lines[-4:] == [
        "reward of the agent: mean 0.25 (0.25 to 0.25), std 0, 6 of 6 scored",
        "rewards:length: mean 0.5 (0.5 to 0.5), std 0, 6 of 6 scored",
        "rewards:strict: mean 0 (0 to 0), std 0, 6 of 6 scored",
        "12 annotations added, 0 known already",
    ]
    again = rescore(forked, folder, "run", *STRICT)
    assert again.stdout.splitlines()[-1] == "0 annotations added, 6 known already"
    assert rollout not in again.stdout
    shown = forked.run("-m", "osmosis_grpc", "show", rollout, "--state-dir", "run", cwd=folder).stdout
    assert shown.count("annotated by ") == 3
    assert "annotated by eval: reward " in shown
    assert "annotated by ada: reward 0, labels rewards:strict\n" in shown
    assert "\nreward 0.25\n" in shown
    assert (folder / "run" / "results.jsonl").read_bytes() == before
    (folder / "rewards.py").write_text(REWARDS.replace("float(solution_str == ground_truth)", "2"))
    changed = rescore(forked, folder, "run", *STRICT)
    assert changed.stdout.splitlines()[-1] == "6 annotations added, 0 known already"


def test_c11_a_score_that_fails_adds_nothing_and_the_exit_code_is_1(forked, folder):
    done = rescore(forked, folder, "--state-dir", "run", "--eval-fn", "rewards:fails", "--json")
    assert done.returncode == 1
    *rollouts, summary = records(done.stdout)
    assert [record["event"] for record in rollouts] == ["rollout"] * 6
    errors = sorted(record["errors"].get("rewards:fails", "") for record in rollouts)
    assert errors[:4] == ["", "", *["ValueError: \x1b[31mI cannot judge\nthis at rewards.py:14"] * 2]
    assert {name: summary[name] for name in ("rollouts", "added", "known", "failed")} == {
        "rollouts": 6,
        "added": 2,
        "known": 0,
        "failed": 4,
    }
    assert (summary["reward"]["mean"], summary["eval_fns"]["rewards:fails"]["mean"]) == (0.25, 1.0)


@pytest.mark.slow
def test_c11_a_usage_error_is_one_line(forked, folder):
    for options, problem in (
        (("run",), "--eval-fn names a function that scores"),
        (("run", "--state-dir", "run", *STRICT), "RUN, --state-dir and --server exclude each other"),
        (("none", *STRICT), "none is not the folder of a run"),
        (("run", *STRICT, "--agent", "nobody"), "the state folder run has no rollout that completed"),
        (("--state-dir", "nowhere", *STRICT), "there is no journal nowhere/journal.db; --state-dir names the folder"),
        (("run", "--eval-fn", "rewards:nothing"), "rewards has no attribute 'nothing'"),
    ):
        done = rescore(forked, folder, *options)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"rescore: {problem}")
        assert done.stderr.count("\n") == 1
    assert not (folder / "nowhere").exists()


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_c11_rollouts_on_a_server_are_scored_over_the_network(folder):
    command = ["-m", "osmosis_grpc", "rescore", *STRICT]
    with server_process("-m", "agent:agent_loop", "--state-dir", "run", cwd=folder) as (process, address):
        used = run(*command, "run", cwd=folder)
        assert used.returncode == 2
        assert (
            f"is in use by process {process.pid}: stop it, or name the server that uses it with --server" in used.stderr
        )
        done = run(*command, "--server", address, cwd=folder)
        assert done.stdout.splitlines()[-1] == "6 annotations added, 0 known already", done.stderr
        again = run(*command, "--server", address, "--json", cwd=folder)
        assert records(again.stdout)[-1]["known"] == 6
