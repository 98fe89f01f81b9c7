"""The examples run as they stand."""

import re

import pytest

from tests.processes import ROOT, run, server_process

EXAMPLES = ROOT / "examples"


def test_the_minimal_trainer_drives_the_calculator(forked):
    source = EXAMPLES / "trainer_minimal.py"
    assert len(source.read_text().splitlines()) < 40
    with forked.serving("-m", "server:agent_loop", cwd=EXAMPLES / "calculator") as address:
        result = forked.run(str(source), address, str(EXAMPLES / "calculator" / "test_data.jsonl"))
    assert result.returncode == 0, result.stderr
    rows = sorted(result.stdout.splitlines(), key=lambda row: "7 / 2" in row)
    assert [re.search(r"reward (\S+)", row)[1] for row in rows] == ["1.0", "1.0", "1.0", "0.0"]
    assert all("COMPLETED" in row for row in rows)


def test_the_debate_trains_two_policies(forked, tmp_path):
    check_debate(forked.run(str(EXAMPLES / "debate.py"), cwd=tmp_path))
    assert list(tmp_path.iterdir()) == [], "it leaves nothing behind"


@pytest.mark.slow
def test_the_debate_uses_a_server_with_two_workers():
    with server_process("-m", "debate:Debate", "--workers", "2", cwd=EXAMPLES) as (_, address):
        for _ in range(2):
            check_debate(run(str(EXAMPLES / "debate.py"), address))


def check_debate(result):
    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["proposer", "critic"]
    rewards = [[float(found) for found in re.findall(r"-?\d\.", line.partition("advantages")[0])] for line in lines]
    assert rewards[0] == [-reward for reward in rewards[1]], "the critic wins what the proposer loses"
    assert len(rewards[0]) == 4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["grpo_numpy.py", "trainer_minimal.py"])
def test_an_example_with_arguments_has_help(name):
    result = run(str(EXAMPLES / name), "--help")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith(f"usage: {name}")
    assert "HOST:PORT" in result.stdout
    wrong = run(str(EXAMPLES / name), "--bogus")
    assert wrong.returncode == 2
    assert "Traceback" not in wrong.stderr


def rewards(output):
    """The mean rewards that examples/grpo_numpy.py printed, step by step, the evaluation last."""
    return [float(found) for found in re.findall(r"mean reward (\S+)", output)]


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_numpy_trainer_learns_the_calculator_twice(tmp_path):
    """From an empty folder, twice, beside nothing and with a server of its own; its random numbers are seeded."""
    source = EXAMPLES / "grpo_numpy.py"
    assert sum(bool(line.strip()) for line in source.read_text().splitlines()) < 120
    results = [run(str(source), cwd=tmp_path, timeout=80) for _ in range(2)]
    assert [result.returncode for result in results] == [0, 0], results[0].stderr
    first, second = (rewards(result.stdout) for result in results)
    assert len(first) == 16
    assert max(first[:2]) < 0.3
    assert min(first[-4:]) > 0.9, "the mean reward rises"
    assert first == second
    assert [result.stderr for result in results] == ["", ""]
    assert list(tmp_path.iterdir()) == [], "it leaves nothing behind"


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_numpy_trainer_uses_a_server_that_runs(tmp_path):
    source = EXAMPLES / "grpo_numpy.py"
    with server_process("-m", "osmosis_grpc.testing.calculator:agent_loop", "--state-dir", str(tmp_path)) as (
        _,
        address,
    ):
        results = [run(str(source), address, timeout=80) for _ in range(2)]
    assert [result.returncode for result in results] == [0, 0], results[0].stderr
    assert rewards(results[0].stdout) == rewards(results[1].stdout)
    assert run(str(source), address, "too much").returncode == 2
