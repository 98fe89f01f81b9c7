"""The kill loop, small. `make faults` runs it with hundreds of kills."""

from pathlib import Path

import pytest

from osmosis_grpc.protocol.types import Receipt, events
from tests.faults.kill_loop.history import History, read
from tests.faults.kill_loop.promises import Evidence, Kept
from tests.programs import figures_of

pytestmark = pytest.mark.timeout(180)


def killed(who: str, replies: str, kills: int, seed: int) -> dict:
    options = {"who": who, "replies": replies, "kills": kills, "rollouts": 40, "in-flight": 8, "seed": seed}
    return figures_of("tests.faults.kill_loop", *(f"--{name}={value}" for name, value in options.items()))


@pytest.mark.parametrize(
    ("who", "replies"),
    [
        pytest.param("server", "random", marks=pytest.mark.long),
        pytest.param("server", "fixed", marks=pytest.mark.long),
        pytest.param("trainer", "random", marks=pytest.mark.long),
        pytest.param("both", "random", marks=pytest.mark.long),
    ],
)
def test_six_kills_lose_nothing(who, replies):
    received = killed(who, replies, 6, seed=11)
    assert sum(received["kills"].values()) == 6
    assert (received["accepted"], received["delivered"], received["applied"]) == (40, 40, 40)
    assert (received["lost"], received["applied_twice"], received["sampled_twice"], received["other_breaks"]) == (
        0,
        0,
        0,
        {},
    )
    assert received["replayed_equal"] == received["replayable"] == 32
    if who == "server":
        assert received["resampled"] == 0


@pytest.mark.long
@pytest.mark.parametrize("mode", ["attach", "callback"])
def test_ten_kills_of_workers_supervisor_and_trainer_lose_nothing(mode):
    options = {"workers": 3, "mode": mode, "replies": "random", "kills": 10, "rollouts": 80, "in-flight": 8, "seed": 11}
    received = figures_of("tests.faults.kill_loop", *(f"--{name}={value}" for name, value in options.items()))
    assert received["kills"] == {"worker": 6, "server": 2, "trainer": 2}
    assert (received["applied"], received["lost"], received["applied_twice"], received["sampled_twice"]) == (
        80,
        0,
        0,
        0,
    )


# The judge is judged, too: each promise that is broken is named, with the lines that show it.

ENDED = {"status": "COMPLETED", "reason": "stop", "digest": "d"}


def history(path: Path, *lines: tuple) -> Evidence:
    for who, op, name, key, outcome in lines:
        History(path, who).note(op, name, *key, outcome=outcome)
    recorded = [(1.0, events.Delivered(Receipt.RECORDED, "", 1))]
    return Evidence(list(read(path)), [Kept("r", 1, 0.0, 0.5, True, recorded)], {"r": "d"}, {"r"})


GOOD = (
    ("trainer", "sampled", "r", (1, "main", 1), "1-1"),
    ("server", "got", "r", ("main", 1), "1-1"),
    ("trainer", "applied", "r", (1, "result"), ENDED),
    ("trainer", "confirmed", "r", (1, "result"), None),
)
BROKEN = {
    "lost": GOOD[:2],
    "applied twice": (*GOOD, ("trainer", "applied", "r", (1, "another"), ENDED)),
    "sampled twice": (*GOOD, ("trainer", "sampled", "r", (1, "main", 1), "1-2")),
    "replayed": (*GOOD[:2], ("trainer", "applied", "r", (1, "result"), ENDED | {"digest": "other"})),
    "attempt kept": (*GOOD[:2], ("trainer", "applied", "r", (2, "result"), ENDED)),
}


def test_a_good_history_is_good(tmp_path):
    assert history(tmp_path / "history", *GOOD).broken() == []


@pytest.mark.parametrize("promise", BROKEN)
def test_a_broken_promise_is_named_with_its_lines(tmp_path, promise):
    (found,) = history(tmp_path / "history", *BROKEN[promise]).broken()
    assert found.promise == promise
    assert "r" in found.what
    assert all("line " in text for text in str(found).splitlines()[1:])


def test_a_chat_that_died_with_its_trainer_may_be_sampled_again(tmp_path):
    killed = ("supervisor", "killed", "", ("trainer", "any time", 7), None)
    again = ("trainer", "sampled", "r", (1, "main", 1), "2-1")
    evidence = history(tmp_path / "history", GOOD[0], killed, again, *GOOD[2:])
    assert evidence.broken() == []
    (found,) = history(tmp_path / "history", GOOD[1], ("server", "got", "r", ("main", 1), "2-1")).broken()
    assert found.promise == "sampled twice"


def test_what_is_not_delivered_is_named(tmp_path):
    evidence = history(tmp_path / "history", *GOOD)
    evidence.journal[0].delivered[:] = [(1.0, events.Delivered(None, "expired", 1))]
    (found,) = evidence.broken()
    assert found.promise == "delivered"


@pytest.mark.parametrize(("kills", "promises"), [(3, ["replayed"]), (4, [])])
def test_a_rollout_whose_server_is_killed_again_and_again_may_end_failed(tmp_path, kills, promises):
    run = ("server", "run", "r", ("talker",), None)
    kill = ("loop", "killed", "", ("server", 1, "anywhere"), None)
    failed = {"status": "FAILED", "reason": "crashed_server", "digest": ""}
    end = ("trainer", "applied", "r", (1, "result"), failed)
    evidence = history(tmp_path / "history", run, *GOOD[:2], *[kill] * kills, end)
    assert [found.promise for found in evidence.broken()] == promises
