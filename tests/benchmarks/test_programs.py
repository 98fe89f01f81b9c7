"""The benchmarks run, small, and end badly when a rollout does. Their figures are for `make bench`."""

import os
import subprocess

import pytest

from tests.programs import figures_of, run_module

pytestmark = pytest.mark.slow

WORK = ("--rollouts", "24", "--turns", "3", "--tokens", "16", "--in-flight", "8")


def run(name: str, *options: str) -> subprocess.CompletedProcess:
    return run_module(f"benchmarks.{name}", *options)


def figures(name: str, *options: str) -> dict:
    return figures_of(f"benchmarks.{name}", *options)


LONG = [pytest.param(mode, marks=pytest.mark.long) for mode in ("callback", "http", "sdk", "tuned")]


@pytest.mark.parametrize("mode", ["attach", *LONG])
def test_every_mode_makes_its_rollouts(mode):
    shown = figures("rollouts", "--mode", mode, *WORK)
    assert (shown["mode"], shown["rollouts"], shown["lost"]) == (mode, 24, 0)
    assert shown["rollouts_per_s"] > 0
    assert shown["wire_bytes_per_rollout"] > 3 * 16 * 8
    assert shown["machine"]["cores"] == os.cpu_count()


def test_bytes_over_an_attachment_grow_with_the_turns_and_no_faster():
    shown = figures("growth", "--rollouts", "8", "--in-flight", "4")
    assert shown["times_from_32_to_128_turns"] <= 4.2, shown


def test_many_in_flight_all_end():
    shown = figures("in_flight", "--rollouts", "300", "--turns", "2", "--latency", "0.5")
    assert shown["lost"] == 0


@pytest.mark.parametrize("mode", ["attach", *LONG[:2]])
def test_the_added_time_is_measured_in_both_runs(mode):
    shown = figures("added_time", "--mode", mode, "--rollouts", "64", "--turns", "3", "--tokens", "16")
    assert shown["lost"] == 0
    assert shown["one_in_flight"]["chats"] > 0
    assert shown["256_in_flight"]["chats"] > 0


@pytest.mark.parametrize("burden", ["stalled", pytest.param("hostile", marks=pytest.mark.long)])
def test_a_burden_leaves_two_trainers_a_rate(burden):
    few = ("--attachments", "30", "--trainers", "3") if burden == "hostile" else ()
    shown = figures("noisy_neighbours", "--burden", burden, "--alternations", "1", "--seconds", "1", *few)
    assert len(shown["ratios"]) == 1
    assert shown["rollouts_per_s_with_burden"] > 0


@pytest.mark.long
def test_lists_are_measured():
    shown = figures("list_rollouts", "--rollouts", "300", "--starts", "1", "--calls", "2")
    assert shown["command_s"] > 0
    assert len(shown["all_rpc_ms"]) == 6


def test_an_option_that_nothing_serves_is_refused():
    ended = run("rollouts", "--mode", "sdk", "--state-dir", ":memory:", *WORK)
    assert ended.returncode == 2
    assert "state-dir" in ended.stderr


def test_the_bytes_of_the_journal_are_those_of_its_rollouts():
    shown = figures("journal_bytes", *WORK)
    assert shown["file_bytes"] > shown["array_bytes"] == 3 * (8 * 16 + 64)
    assert shown["written_bytes"] > 0


def test_a_full_journal_is_opened_again():
    shown = figures("reopened", "--rollouts", "200", "--openings", "1")
    assert shown["open_s"] > 0


def test_two_workers_are_measured_against_one_process():
    few = ("--rollouts", "8", "--turns", "2", "--cpu-ms", "1", "--latency", "0.01", "--alternations", "1")
    shown = figures("workers", *few)
    assert len(shown["ratios"]) == 1
    assert shown["ratio"] > 0
