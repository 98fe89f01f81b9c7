"""The compare command: two runs, row by row."""

import json

import pytest

from osmosis_grpc.cli.compare import run_compare
from osmosis_grpc.evaluate import RunFolder


def made(path, scores, *, dataset="sha256:1", **inputs):
    """Write a run. `scores` has the scores of each row's runs."""
    about = {"command": "eval", "inputs": {"dataset": {"file": dataset}, **inputs}}
    folder = RunFolder.create(path, about)
    for row, values in scores.items():
        for index, value in enumerate(values):
            status = "COMPLETED" if value is not None else "FAILED"
            record = {"row_index": row, "line": row + 1, "rollout_id": f"r-{row}.{index}", "status": status}
            given = {} if value is None else {"rewards:exact": value}
            folder.add(record | {"run_index": index, "scores": given, "score_errors": {}, "later": "version"})
    folder.end("finished", {})
    folder.unlock()
    return str(path)


@pytest.fixture
def runs(tmp_path):
    first = made(tmp_path / "a", {0: [0, 0], 1: [1, 1], 2: [0, 1], 3: [1], 4: [None]}, runs={"n": 2})
    second = made(tmp_path / "b", {0: [1, 1], 1: [0.5, 0.5], 2: [1, 0], 4: [1], 5: [1, 1]}, runs={"n": 3})
    return first, second


def test_c05_two_runs_are_compared_row_by_row(runs, capsys):
    assert run_compare(*runs, json=False) == 0
    printed = capsys.readouterr().out
    assert "other inputs: runs (n 3, was 2)\n" in printed
    # The differences of rows 0, 1 and 2 are 1, -0.5 and 0: their mean is 1/6, and its standard error 0.441.
    assert "rewards:exact: A 0.5, B 0.667, B - A 0.167 (-1.73 to 2.06) over 3 rows\n" in printed
    assert "  rows with a score in A only: 1, in B only: 2\n  1 better, 1 worse, 1 the same\n" in printed
    assert "  better: row 0  0 to 1\n  worse: row 1  1 to 0.5\n" in printed


def test_c05_the_comparison_as_json(runs, capfd):
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
    assert found["difference"]["ci95"] == pytest.approx([-1.731, 2.064], abs=1e-3)
    assert found["better"] == [{"row_index": 0, "a": 0.0, "b": 1.0, "difference": 1.0}]
    assert found["worse"] == [{"row_index": 1, "a": 1.0, "b": 0.5, "difference": -0.5}]


def test_c05_runs_that_have_nothing_in_common_are_refused(tmp_path, runs, capsys):
    from typer import Exit

    other = made(tmp_path / "other", {0: [1]}, dataset="sha256:2")
    apart = made(tmp_path / "apart", {9: [1]})
    for second, problem in (
        (other, "are runs over different datasets, so their rows are not the same: dataset (file)"),
        (apart, "no row has a score of the same function in both runs"),
        (str(tmp_path / "none"), "is not the folder of a run"),
    ):
        with pytest.raises(Exit) as ended:
            run_compare(runs[0], second, json=False)
        assert ended.value.exit_code == 2
        written = capsys.readouterr().err
        assert written.startswith("compare: ")
        assert problem in written
