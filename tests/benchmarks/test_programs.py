"""The benchmarks run, small, and end badly when a rollout does. Their figures are for `make bench`."""

import json
import os
import subprocess
import sys

import pytest

from tests.processes import ROOT

pytestmark = pytest.mark.slow

WORK = ("--rollouts", "24", "--turns", "3", "--tokens", "16", "--in-flight", "8")


def run(name: str, *options: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", *options, "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


def figures(name: str, *options: str) -> dict:
    ended = run(name, *options)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return json.loads(ended.stdout.strip().splitlines()[-1])


@pytest.mark.parametrize("mode", ["attach", "callback", "http", "sdk", "tuned"])
def test_every_mode_makes_its_rollouts(mode):
    told = figures("rollouts", "--mode", mode, *WORK)
    assert (told["mode"], told["rollouts"], told["lost"]) == (mode, 24, 0)
    assert told["rollouts_per_s"] > 0
    assert told["wire_bytes_per_rollout"] > 3 * 16 * 8
    assert told["machine"]["cores"] == os.cpu_count()


def test_bytes_over_an_attachment_grow_with_the_turns_and_no_faster():
    told = figures("growth", "--rollouts", "8", "--in-flight", "4")
    assert told["times_from_32_to_128_turns"] <= 4.2, told


def test_many_in_flight_all_end():
    told = figures("in_flight", "--rollouts", "300", "--turns", "2", "--latency", "0.5")
    assert told["lost"] == 0


@pytest.mark.parametrize("disks", [False, True])
def test_a_short_soak_holds_on_to_nothing(tmp_path, disks):
    kept = ("--state-dir", str(tmp_path / "state"), "--ledger", str(tmp_path / "ledger")) if disks else ()
    told = figures("soak", "--rollouts", "300", "--ttl", "1", "--rate", "200", *kept)
    assert told["rollouts_counted"] >= 250
    assert told["before"]["tasks"] == told["after"]["tasks"]
    assert told["before"]["fds"] == told["after"]["fds"]


def test_a_short_run_keeps_its_files_small():
    told = figures("housekeeping", "--rollouts", "1500", "--ttl", "1", "--budget", "10", "--quiet", "8")
    assert told["most_mb"] < 20
    assert told["left_mb"] < 2


def test_an_option_that_nothing_serves_is_refused():
    ended = run("rollouts", "--mode", "sdk", "--state-dir", ":memory:", *WORK)
    assert ended.returncode == 2
    assert "state-dir" in ended.stderr
