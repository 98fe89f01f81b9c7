"""The compare command: two runs, row by row."""

import json

import pytest

from osmosis_grpc.cli.compare import run_compare
from osmosis_grpc.records.evaluate import RunFolder


def made(path, scores, *, dataset="sha256:1", name="rewards:exact", more=None, **inputs):
    """Write a run. `scores` has the scores of each row's runs."""
    about = {"command": "eval", "inputs": {"dataset": {"file": dataset}, **inputs}} | (more or {})
    folder = RunFolder.create(path, about)
    for row, values in scores.items():
        for index, value in enumerate(values):
            status = "COMPLETED" if value is not None else "FAILED"
            record = {"row_index": row, "line": row + 1, "rollout_id": f"r-{row}.{index}", "status": status}
            given = {} if value is None else {name: value}
            folder.add(record | {"run_index": index, "scores": given, "score_errors": {}, "later": "version"})
    folder.end("finished", {})
    folder.unlock()
    return str(path)


@pytest.fixture
def runs(tmp_path):
    first = made(tmp_path / "a", {0: [0, 0], 1: [1, 1], 2: [0, 1], 3: [1], 4: [None]}, runs={"n": 2})
    second = made(tmp_path / "b", {0: [1, 1], 1: [0.5, 0.5], 2: [1, 0], 4: [1], 5: [1, 1]}, runs={"n": 3})
    return first, second


def test_two_runs_are_compared_row_by_row(runs, capsys):
    assert run_compare(*runs, json=False) == 0
    printed = capsys.readouterr().out
    assert "other inputs: runs (n 3, was 2)\n" in printed
    # The differences of rows 0, 1 and 2 are 1, -0.5 and 0: their mean is 1/6, and its standard error 0.441.
    assert "rewards:exact: A 0.5, B 0.667, B - A 0.167 (-1 to 1) over 3 rows\n" in printed
    assert "  1 better, 1 worse, 1 the same, 2 without a score in A, 1 without a score in B\n" in printed
    assert "  no score in A: rows 4, 5; not in the means above\n  no score in B: row 3; not in the" in printed
    table = [line.split() for line in printed.splitlines() if line.startswith("  ")][-3:]
    assert table == [["row", "A", "B", "B", "-", "A", "prompt"], ["1", "1", "0.5", "-0.5"], ["0", "0", "1", "+1"]]
    assert [line.partition(" show ")[2] for line in printed.splitlines() if " show " in line] == [
        f"1.0 --from {run}" for run in runs
    ]


def test_what_completed_in_one_run_only_is_named_and_a_replay_is_no_other_model(tmp_path, capfd):
    model = {"model": {"model": "mock:echo"}}
    first = made(tmp_path / "a", {0: [1], 1: [None], 2: [1]}, **model)
    replayed = {"model": {"replay": first}}
    second = made(tmp_path / "b", {0: [1], 1: [1], 2: [None]}, more={"replay": first}, **replayed)
    assert run_compare(first, second, json=False) == 0
    printed = capfd.readouterr().out
    assert "other inputs: B replays A\n" in printed
    assert (
        "completed: A 2 of 3, B 2 of 3\n  failed in A and not in B: row 1\n  failed in B and not in A: row 2" in printed
    )
    assert run_compare(second, first, json=True) == 0
    found = json.loads(capfd.readouterr().out.splitlines()[0])
    assert (found["completed_a"], found["rows_mended"], found["rows_broken"]) == (2, [2], [1])
    assert found["different"] == ["A replays B"]


def test_a_row_that_failed_in_one_run_has_not_passed_there(tmp_path, capfd):
    more = {"pass_threshold": 1.0, "eval_fns": ["rewards:exact"]}
    first = made(tmp_path / "a", {0: [1, 0], 1: [1, 1]}, more=more)
    second = made(tmp_path / "b", {0: [1, 0], 1: [None, None]}, more=more)
    assert run_compare(first, second, json=False) == 0
    printed = capfd.readouterr().out
    assert "rewards:exact: A 0.5, B 0.5, B - A 0 over 1 row\n" in printed
    assert "  pass@1: A 0.75, B 0.25, B - A -0.5 (-1 to 1) over 2 rows\n  pass@2: A 1, B 0.5, B - A -0.5" in printed
    assert "  0 better, 0 worse, 1 the same, 1 without a score in B\n  no score in B: row 1; not in the" in printed
    assert run_compare(first, second, json=True) == 0
    found = json.loads(capfd.readouterr().out.splitlines()[1])
    assert (found["rows_only_a"], found["rows_only_b"], found["pass_at_k"]["2"]["b"]["mean"]) == ([1], [], 0.5)


def test_pass_at_k_of_the_own_rewards_is_compared(tmp_path, capfd):
    more = {"pass_threshold": 1.0, "eval_fns": []}
    runs = [
        made(tmp_path / name, scores, name="reward", more=more)
        for name, scores in (("a", {0: [1, 0]}), ("b", {0: [1, 1]}))
    ]
    assert run_compare(*runs, json=True) == 0
    found = json.loads(capfd.readouterr().out.splitlines()[1])
    assert {k: (pair["a"]["mean"], pair["b"]["mean"]) for k, pair in found["pass_at_k"].items()} == {
        "1": (0.5, 1.0),
        "2": (1.0, 1.0),
    }


def test_failed_rollouts_of_a_row_are_counted(tmp_path, capfd):
    first = made(tmp_path / "a", {0: [1, None, None], 1: [1]})
    second = made(tmp_path / "b", {0: [1, 1, 1], 1: [None, 0], 2: [None]})
    assert run_compare(first, second, json=False) == 0
    printed = capfd.readouterr().out
    assert "  2 rollouts of A in these rows have no score; not in the means above\n" in printed
    assert "  1 rollout of B in these rows has no score; not in the means above\n" in printed
    assert run_compare(first, second, json=True) == 0
    found = json.loads(capfd.readouterr().out.splitlines()[1])
    assert (found["unscored_a"], found["unscored_b"]) == (2, 1)


def test_the_comparison_as_json(runs, capfd):
    assert run_compare(*runs, json=True) == 0
    head, found = map(json.loads, capfd.readouterr().out.splitlines())
    assert (head["event"], head["a"], head["b"]) == ("runs", *runs)
    assert head["different"] == ["runs (n 3, was 2)"]
    assert (found["name"], found["rows"], found["only_a"], found["only_b"], found["same"]) == (
        "rewards:exact",
        3,
        1,
        2,
        1,
    )
    assert found["difference"]["mean"] == pytest.approx(1 / 6)
    assert found["difference"]["ci95"] == [-1.0, 1.0]
    assert found["better"] == [{"row_index": 0, "a": 0.0, "b": 1.0, "difference": 1.0}]
    assert found["worse"] == [{"row_index": 1, "a": 1.0, "b": 0.5, "difference": -0.5}]


def test_runs_that_have_nothing_in_common_are_refused(tmp_path, runs, capsys):
    from typer import Exit

    other = made(tmp_path / "other", {0: [1]}, dataset="sha256:2")
    apart = made(tmp_path / "apart", {9: [1]})
    for second, problem in (
        (other, "are runs over different datasets, so their rows are not the same: dataset (file)"),
        (apart, "no row has a score of the same function in both runs"),
        (str(tmp_path / "none"), "is no folder and no run"),
    ):
        with pytest.raises(Exit) as ended:
            run_compare(runs[0], second, json=False)
        assert ended.value.exit_code == 2
        written = capsys.readouterr().err
        assert written.startswith("compare: ")
        assert problem in written
