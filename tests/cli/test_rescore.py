"""The rescore command: new scores of recorded rollouts, in a folder and on a server."""

import pytest

from osmosis_grpc.cli.rescore import RecordedGrader
from osmosis_grpc.policies import EchoPolicy
from osmosis_grpc.protocol.types import RolloutRequest
from osmosis_grpc.testing import collect_rollout
from tests.agent.workflows.made import QUESTION, AsksTwice
from tests.cli.evaluated import MODEL, REWARDS, arguments, environment, records, results_of, write
from tests.processes import run, server_process

BY_SAMPLE = """
import asyncio
from osmosis_grpc.rollout import Grader

class BySample(Grader):
    async def grade(self, ctx):
        ctx.set_sample_reward("first", 4)
        ctx.samples["second"].remove_sample = True

class Slow(Grader):
    async def grade(self, ctx):
        await asyncio.Event().wait()
"""
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
def test_a_new_score_is_an_annotation_and_the_old_ones_stay(forked, folder):
    before = (folder / "run" / "results.jsonl").read_bytes()
    done = rescore(forked, folder, "--from", "run", "--eval-fn", "rewards:length", *STRICT, "--author", "ada")
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
    again = rescore(forked, folder, "--from", "run", *STRICT)
    assert again.stdout.splitlines()[-1] == "0 annotations added, 6 known already"
    assert rollout not in again.stdout
    shown = forked.run("-m", "osmosis_grpc", "show", rollout, "--from", "run", cwd=folder).stdout
    assert shown.count("annotated by ") == 3
    assert "annotated by eval: score " in shown
    assert "annotated by ada: score rewards:strict 0\n" in shown
    assert "\nreward 0.25\n" in shown
    assert (folder / "run" / "results.jsonl").read_bytes() == before
    (folder / "rewards.py").write_text(REWARDS.replace("float(solution_str == ground_truth)", "2"))
    changed = rescore(forked, folder, "--from", "run", *STRICT)
    assert changed.stdout.splitlines()[-1] == "6 annotations added, 0 known already"


def test_a_score_that_fails_adds_nothing_and_the_exit_code_is_1(forked, folder):
    done = rescore(forked, folder, "--from", "run", "--eval-fn", "rewards:fails", "--json")
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


def test_a_grader_scores_recorded_rollouts(forked, folder):
    grader = ("--grader", "graders:Exact")
    done = rescore(forked, folder, "--from", "run", *grader, "--grader-config", "right=0.5", "--json")
    assert (done.returncode, done.stderr) == (1, "")
    *rollouts, summary = records(done.stdout)
    assert sorted(record["scores"].get("graders:Exact", -1) for record in rollouts) == [-1, -1, 0, 0.5, 0.5, 0.5]
    problems = [record["errors"]["graders:Exact"] for record in rollouts if record["errors"]]
    assert problems == ["ValueError: I cannot judge\nthis at graders.py:11"] * 2
    assert {name: summary[name] for name in ("added", "known", "failed")} == {"added": 4, "known": 0, "failed": 2}
    assert summary["eval_fns"]["graders:Exact"]["scored"] == 4
    again = rescore(forked, folder, "--from", "run", *grader, "--grader-config", "right=0.5", "--author", "ada")
    assert again.stdout.splitlines()[-1] == "0 annotations added, 4 known already, 2 scores failed"
    other = rescore(forked, folder, "--from", "run", *grader, *STRICT, "--author", "ada")
    assert other.stdout.splitlines()[-1] == "10 annotations added, 0 known already, 2 scores failed"
    rollout = next(record["rollout_id"] for record in rollouts if record["scores"].get("graders:Exact") == 0.5)
    shown = forked.run("-m", "osmosis_grpc", "show", rollout, "--from", "run", cwd=folder).stdout
    assert "annotated by rescore: score graders:Exact 0.5\n" in shown
    assert "annotated by ada: score graders:Exact 1\n" in shown


async def test_each_sample_that_a_grader_rewards_has_an_annotation(tmp_path, monkeypatch):
    (tmp_path / "by_sample.py").write_text(BY_SAMPLE)
    monkeypatch.chdir(tmp_path)
    grader = RecordedGrader("by_sample:BySample", (), author="ada", timeout=10)
    outcome, trail = await collect_rollout(AsksTwice, EchoPolicy(), QUESTION)
    request = RolloutRequest(rollout_id=outcome.rollout_id, label="x")
    regraded = await grader.grade(request, outcome, trail, {})
    assert (regraded.score, regraded.known, regraded.error) == (4.0, 0, "")
    (note,) = regraded.added
    assert (note.sample, note.reward, note.author) == ("first", 4.0, "ada")
    assert note.id.startswith("by_sample:BySample@")
    assert note.id.endswith("/first")
    again = await grader.grade(request, outcome, trail, {note.id: 3.0})
    assert (again.score, again.added, again.known) == (3.0, (), 1)
    slow = RecordedGrader("by_sample:Slow", (), author="ada", timeout=0.01)
    assert (await slow.grade(request, outcome, trail, {})).error == "it took longer than 0.01 s"


@pytest.mark.slow
def test_a_usage_error_is_one_line(forked, folder):
    for options, problem in (
        (
            ("--from", "run"),
            "--eval-fn MODULE:FUNCTION names a function that scores, and --grader MODULE:CLASS a grader",
        ),
        (("--from", "run", *STRICT, "--grader-config", "right=1"), "--grader-config goes with --grader MODULE:CLASS"),
        (("--from", "run", "--grader", "rewards:exact"), "rewards:exact is not a subclass of Grader: it is a function"),
        (("--from", "run", "--grader", "graders:Exakt"), "graders has no attribute 'Exakt'; it has: Exact"),
        (
            ("--from", "run", "--grader", "graders:Exact", "--grader-config", "right=no"),
            "--grader-config: right: Input should",
        ),
        (("--from", "none", *STRICT), "--from: none is no folder and no run"),
        (("--from", "run", *STRICT, "--agent", "nobody"), "the state folder run has no rollout that completed"),
        (("--from", "nowhere", *STRICT), "--from: nowhere is no folder and no run"),
        (("--from", "run", "--eval-fn", "rewards:nothing"), "rewards has no attribute 'nothing'"),
    ):
        done = rescore(forked, folder, *options)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"rescore: {problem}")
        assert done.stderr.count("\n") == 1
    assert not (folder / "nowhere").exists()


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_rollouts_on_a_server_are_scored_over_the_network(folder):
    command = ["-m", "osmosis_grpc", "rescore", *STRICT]
    with server_process("-m", "agent:agent_loop", "--state-dir", "run", cwd=folder) as (process, address):
        used = run(*command, "--from", "run", cwd=folder)
        assert used.returncode == 2
        assert (
            f"is in use by process {process.pid}: stop it, or name the server that uses it with --from" in used.stderr
        )
        done = run(*command, "--from", address, cwd=folder)
        assert done.stdout.splitlines()[-1] == "6 annotations added, 0 known already", done.stderr
        again = run(*command, "--from", address, "--json", cwd=folder)
        assert records(again.stdout)[-1]["known"] == 6
