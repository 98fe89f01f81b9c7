"""The history of a simulated run: order, digest, bound, and the story of one rollout."""

import pytest

from tests.simulation.__main__ import main
from tests.simulation.history import History, HistoryFull
from tests.simulation.operations import OPERATIONS


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def written(*, draw: str = "1", until: float = 9.0) -> History:
    time = Time()
    history = History(time)
    history.note("trainer-1", "submitted", "r1", agent="traveller")
    call = history.call("trainer-1", "server-1", "Init", "r1", 1)
    time.now = 1.5
    history.note("network", "cut", to="server-1")
    history.answer("trainer-1", call, "Init", "r1", 1, "UNAVAILABLE")
    history.note("trainer-1", "sampled", "r1", 1, sample="main", chat=1, draw=draw)
    history.note("trainer-1", "submitted", "r2", agent="traveller")
    time.now = until
    history.note("server-2", "crash", where="any time")
    return history


def test_a_story_has_one_rollout_and_the_faults_around_it():
    lines = written(until=3.0).story("r1").splitlines()
    assert [line[0] for line in lines] == [" ", " ", "!", " ", " ", "!"]
    assert "server-1: Init (call 1)" in lines[1]
    assert "samples main/1 (draw 1)" in lines[4]
    assert not any("r2" in line for line in lines)
    assert "crashes" not in written(until=9.0).story("r1")
    assert written().story("r3") == "the history has no record of rollout r3"


def test_a_long_story_leaves_its_middle_out():
    history = History(lambda: 0.0)
    for number in range(50):
        history.note("server-1", "event", "r1", 1, reader=1, number=number, kind="Logged")
    lines = history.story("r1", most=10).splitlines()
    assert len(lines) == 11
    assert "40 records are left out" in lines[5]


def test_equal_runs_have_equal_digests_and_others_do_not():
    assert written().digest() == written().digest()
    assert written().digest() != written(draw="2").digest()
    assert written().digest() != written(until=9.5).digest()


def test_a_run_that_does_not_end_is_found_by_its_length():
    history = History(lambda: 0.0, capacity=3)
    with pytest.raises(HistoryFull, match="3 records"):
        for _ in range(4):
            history.note("server-1", "restart")


@pytest.mark.parametrize("op", OPERATIONS)
def test_the_text_of_an_operation_uses_details_that_it_has(op):
    details = dict.fromkeys(OPERATIONS[op].details, "value")
    history = History(lambda: 0.0)
    history.note("server-1", op, "r1", 1, **details)
    assert "r1.1" in str(next(iter(history)))


def test_the_text_of_a_history_has_each_record():
    lines = written().text().splitlines()
    assert [line[0] for line in lines] == [" ", " ", "!", " ", " ", " ", "!"]
    assert "server-1: Init (call 1)" in lines[1]


@pytest.mark.parametrize("option", ["--rollouts", "--seed"])
def test_a_wrong_number_is_refused_by_the_name_of_its_option(option, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["python", option, "-1"])
    with pytest.raises(SystemExit):
        main()
    assert f"argument {option}: '-1' is not a whole number of at least" in capsys.readouterr().err
