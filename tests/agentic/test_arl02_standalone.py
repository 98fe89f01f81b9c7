"""The package needs its declared libraries only: a process that can import nothing else runs an agent over gRPC."""

import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, re, sys
from importlib.metadata import PackageNotFoundError, packages_distributions, requires

def closure(name, extras, found):
    name = re.sub("[-_.]+", "-", name).lower()
    if (name, extras) in found:
        return
    found.add((name, extras))
    try:
        needed = requires(name) or ()
    except PackageNotFoundError:
        return
    for line in needed:
        need, _, marker = line.partition(";")
        wanted = re.findall(r'extra == [\"\\']([^\"\\']+)', marker)
        if wanted and not set(wanted) & set(extras):
            continue
        parts = re.match(r"([\\w.-]+)\\s*(?:\\[([^\\]]*)\\])?", need)
        closure(parts[1], tuple((parts[2] or "").split(",")), found)

found = set()
closure("osmosis-grpc", ("server",), found)
declared = {name for name, _ in found}
def flat(names):
    return {re.sub("[-_.]+", "-", name).lower() for name in names}

owners = {module: flat(names) for module, names in packages_distributions().items()}
hidden = {module for module, names in owners.items() if not names & declared}

class Clean:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

assert "grpc" not in hidden and "pytest" in hidden, hidden
sys.meta_path.insert(0, Clean())

from osmosis_grpc.agentic import AgenticRolloutConfig, ReActAgent, agent_runnable
from osmosis_grpc.errors import MissingExtraError
from osmosis_grpc.policies import ScriptedPolicy
from osmosis_grpc.server import AgentServer
from osmosis_grpc.trainer import Trainer

async def main():
    agent = ReActAgent(tools_config={"calculator": {}})
    policy = ScriptedPolicy(["Action: calculator(expression='6*7')", "Final Answer: 42"])
    async with AgentServer([agent_runnable(agent)], port=0) as server, Trainer([server.address], policy) as trainer:
        outcome = await trainer.rollout(rollout_id="r", messages=[{"role": "user", "content": "6*7?"}])
    assert outcome.finish_reason == "final_answer", outcome
    assert "Observation: " in outcome.messages[3]["content"] and "42" in outcome.messages[3]["content"]

asyncio.run(main())
try:
    AgenticRolloutConfig.from_yaml("{}")
except MissingExtraError as error:
    print(error)
"""


@pytest.mark.slow
def test_arl02_a_process_with_the_declared_libraries_runs_react_over_grpc():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr
    assert "agentic" in done.stdout
