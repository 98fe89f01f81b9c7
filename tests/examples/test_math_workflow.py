"""examples/math_workflow: its calculator is safe, and the workflow runs."""

import json
import time

import pytest

from osmosis_grpc.agent.config_sources import ConfigSources
from osmosis_grpc.agent.loader import load_agents
from osmosis_grpc.agent.workflow_toml import WorkflowToml
from osmosis_grpc.policies import ScriptedPolicy
from osmosis_grpc.testing import run_rollout
from tests.processes import ROOT, run

FOLDER = ROOT / "examples" / "math_workflow"


@pytest.fixture
def evaluate(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    from arithmetic import evaluate

    return evaluate


@pytest.mark.parametrize(
    ("expression", "value"),
    [("(2 + 3) * 4", 20), ("7 / 2", 3.5), ("-2 ** 4", -16), ("10 // 3 % 2", 1), ("1e3 - .5", 999.5), (" 2**-1 ", 0.5)],
)
def test_the_calculator_calculates(evaluate, expression, value):
    assert evaluate(expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        "__import__('os').system('true')",
        "().__class__",
        "open('/etc/passwd')",
        "[1] * 9",
        "'a' * 9",
        "True",
        "1j",
        "a",
        "lambda: 1",
        "2 ** 65",
        "9 ** 9 ** 9",
        "(-8) ** 0.5",
        "1e999",
        "1e18 * 10",
        "1 / 0",
        "1 +",
        "",
        "(" * 100,
        "-" * 150 + "1" * 60,
        "1" * 190,
    ],
)
def test_the_calculator_refuses_the_rest_at_once(evaluate, expression):
    began = time.monotonic()
    with pytest.raises(ValueError, match=r"\w"):
        evaluate(expression)
    assert time.monotonic() - began < 0.5


def calls(expression, number):
    function = {"name": "calculator", "arguments": json.dumps({"expression": expression})}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": f"c{number}", "type": "function", "function": function}],
    }


@pytest.mark.adapters
@pytest.mark.parametrize(("label", "reward"), [("45", 1.0), ("4", 0.0)])
async def test_the_workflow_calculates_and_is_graded(monkeypatch, label, reward):
    pytest.importorskip("strands")
    monkeypatch.chdir(FOLDER)
    (agent,) = load_agents(["entrypoint.py"], ConfigSources(toml=WorkflowToml.read("math.toml")))
    assert (agent.name, agent.config.temperature) == ("math", 0.7)
    replies = [calls("2 +", 1), calls("(2 + 3) * (4 + 5)", 2), "The answer is #### 45."]
    question = [{"role": "user", "content": "What is (2 + 3) * (4 + 5)?"}]
    outcome = await run_rollout(agent, ScriptedPolicy(replies), question, label=label)
    assert (outcome.failure, outcome.reward) == (None, reward)
    told = [message["content"] for message in outcome.messages if message["role"] == "tool"]
    assert "is not an expression" in str(told[0])
    assert "45" in str(told[1])


@pytest.mark.adapters
def test_the_commands_of_the_example_run(tmp_path):
    pytest.importorskip("strands")
    done = run("-m", "osmosis_grpc", "validate", "--run", "-m", "entrypoint.py", cwd=FOLDER)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = ("-d", "test_data.jsonl", "--model", "mock:echo", "--config", "math.toml", "--json", "--save-dir")
    done = run("-m", "osmosis_grpc", "test", "-m", "entrypoint.py", *rows, str(tmp_path / "run"), cwd=FOLDER)
    assert done.returncode == 0, done.stderr
