"""The totals of several runs are the sums of their records."""

import json
import sys

import pytest

from tests.simulation import __main__ as command
from tests.simulation.totals import Totals


def test_a_run_appends_its_record_and_records_add_up(tmp_path, monkeypatch, capsys):
    file = tmp_path / "record"
    file.write_text(Totals(first=[7], seeds=2, rollouts=5, failed=[8], undecided=3).line() + "\n")
    monkeypatch.setattr(sys, "argv", ["simulation", "--seed", "26", "--rollouts", "1", "--record", str(file)])
    assert command.main() == 0
    lines = file.read_text().splitlines()
    one = json.loads(lines[1])
    assert (one["first"], one["seeds"]) == ([26], 1)
    assert one["rollouts"] > 10
    totals = Totals()
    for line in [*lines, lines[1]]:
        totals.add(line)
    assert (totals.first, totals.seeds, totals.failed, totals.undecided) == ([7, 26, 26], 4, [8], 3)
    assert totals.rollouts == 5 + 2 * one["rollouts"]
    for group, counts in one["coverage"].items():
        assert totals.coverage.counts[group] == {name: 2 * count for name, count in counts.items()}
    assert totals.faults == {kind: 2 * count for kind, count in one["faults"].items()}
    assert totals.line() == json.dumps(json.loads(totals.line()))
    assert f"{totals.rollouts} rollouts, 4 seeds" in str(totals)
    assert "searches for an order of calls that were given up: 3" in str(totals)


def test_a_file_that_cannot_be_written_is_named_before_the_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["simulation", "--record", str(tmp_path / "missing" / "record")])
    with pytest.raises(SystemExit):
        command.main()
    assert "argument --record: " in capsys.readouterr().err
