"""The totals of several runs are the sums of their records."""

import json
import sys

import pytest

from tests.simulation import __main__ as command
from tests.simulation.totals import Totals


def run(monkeypatch, file, seed):
    monkeypatch.setattr(sys, "argv", ["simulation", "--seed", str(seed), "--rollouts", "1", "--record", str(file)])
    assert command.main() == 0


def test_runs_append_their_records_and_these_add_up(tmp_path, monkeypatch, capsys):
    file = tmp_path / "record"
    run(monkeypatch, file, 26)
    run(monkeypatch, file, 41)
    lines = file.read_text().splitlines()
    one, two = map(json.loads, lines)
    assert (one["first"], two["first"], one["seeds"]) == ([26], [41], 1)
    assert one["rollouts"] > 10
    totals = Totals()
    for line in lines:
        totals.add(line)
    assert totals.rollouts == one["rollouts"] + two["rollouts"]
    assert totals.coverage.counts["answer to Init"]["OK created"] == sum(
        each["coverage"]["answer to Init"]["OK created"] for each in (one, two)
    )
    assert totals.faults.total() == sum(one["faults"].values()) + sum(two["faults"].values())
    assert totals.line() == json.dumps(json.loads(totals.line()))
    assert f"{totals.rollouts} rollouts, 2 seeds" in str(totals)
    assert "searches for an order of calls that were given up: 0" in str(totals)


def test_a_file_that_cannot_be_written_is_named_before_the_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["simulation", "--record", str(tmp_path / "missing" / "record")])
    with pytest.raises(SystemExit):
        command.main()
    assert "argument --record: " in capsys.readouterr().err
