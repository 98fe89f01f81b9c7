"""validate --run with sync agents, tools of `@tool`, and functions that use the openai package."""

import json

import pytest

from tests.processes import run

HEAD = """
import time
from osmosis_grpc.rollout import RolloutAgentLoop, rollout_agent, tool

@tool
def add(a: float, b: float) -> float:
    "Adds two numbers."
    time.sleep(0.5)
    return a + b

"""
CLASS = """
class Agent(RolloutAgentLoop):
    name = "agent"
    tools = (add,)

    def run(self, ctx):
        messages = list(ctx.request.messages)
        while True:
            time.sleep(0.3)
            reply = ctx.chat(messages)
            messages.append(reply.message)
            if not reply.has_tool_calls:
                return ctx.complete(reward=float(ctx.request.label in reply.content))
            messages += ctx.run_tools(reply)

agent = Agent()
"""
FUNCTION = """
@rollout_agent("agent", tools=[add])
{prefix}def agent(task, client):
    messages = list(task.messages)
    while True:
        reply = {wait}client.chat.completions.create(model="policy", messages=messages)
        message = reply.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return {{"reward": float(task.label in message.content)}}
        messages += {wait}task.ctx.run_tools(message)
"""


def validated(tmp_path, source):
    """Returns the records of validate --run, by event."""
    (tmp_path / "module.py").write_text(HEAD + source)
    done = run("-m", "osmosis_grpc", "validate", "--run", "--json", "-m", "module:agent", cwd=tmp_path)
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert records, done.stderr
    return {record["event"]: record for record in records}


@pytest.mark.parametrize(
    "source",
    [
        CLASS,
        pytest.param(FUNCTION.format(prefix="async ", wait="await "), marks=pytest.mark.adapters),
        pytest.param(FUNCTION.format(prefix="", wait=""), marks=pytest.mark.adapters),
    ],
    ids=["class", "async function", "sync function"],
)
def test_an_agent_runs_and_its_tools_are_called(source, tmp_path):
    records = validated(tmp_path, source)
    assert "finding" not in records, records.get("finding")
    found = records["run"]
    assert (found["status"], found["reward"], found["turns"], found["tool_calls"]) == ("COMPLETED", 1.0, 2, 1)
    assert [message["role"] for message in found["messages"]] == ["user", "assistant", "tool", "assistant"]


def test_without_the_openai_package_the_error_names_the_extra(tmp_path):
    (tmp_path / "openai.py").write_text('raise ModuleNotFoundError("No module named openai", name="openai")\n')
    (tmp_path / "module.py").write_text(HEAD + '@rollout_agent("agent")\nasync def agent(task, client): ...\n')
    done = run("-m", "osmosis_grpc", "validate", "-m", "module:agent", cwd=tmp_path)
    assert done.returncode == 2
    assert "@rollout_agent needs the extra 'openai': pip install" in done.stderr
