"""Imports of agents: one sentence says what to do about each one that fails, and litellm reads no prices."""

import sys

import pytest

from osmosis_grpc.agent.loader import LoadError, load_agents, load_object
from tests.processes import run

PREFIX = "change the prefix 'osmosis_ai' to 'osmosis_grpc' in its imports"
AGENTIC = "the names of the Agentic Rollout Library are in osmosis_grpc.agentic"
REWARD = "compute the reward in the agent and pass it to ctx.complete(messages, reward=...)"

IMPORTS = {
    "from osmosis_ai.rollout import RolloutAgentLoop": f"there is no module 'osmosis_ai': {PREFIX}",
    "import osmosis_ai.rollout.server": f"there is no module 'osmosis_ai': {PREFIX}",
    "from osmosis_grpc.rollout import BaseAgent": (
        "ImportError: BaseAgent is not in osmosis_grpc.rollout: import BaseAgent from osmosis_grpc.agentic"
    ),
    "from osmosis_grpc import osmosis_rubric": f"ImportError: osmosis_rubric is not in osmosis_grpc.rollout: {REWARD}",
    "from osmosis_grpc import execute_tool_calls": (
        "ImportError: execute_tool_calls is in osmosis_grpc.rollout: import it from there"
    ),
    "import osmosis_grpc.rollout.core.bases": (
        "there is no module 'osmosis_grpc.rollout.core.bases': the names for agents are in osmosis_grpc.rollout"
    ),
    "from workers.agentic_rollout import AgenticRollout": f"there is no module 'workers': {AGENTIC}",
    "from osmosis_grpc.rollout import RolloutContxt": (
        "ImportError: cannot import name 'RolloutContxt' from 'osmosis_grpc.rollout'"
    ),
    "import numpi": "ModuleNotFoundError: No module named 'numpi'; install its package with pip install PACKAGE",
    "raise ModuleNotFoundError('no client', name='anthropic.run')": (
        "ModuleNotFoundError: no client; install its package with pip install anthropic"
    ),
}


@pytest.fixture
def module(tmp_path, monkeypatch, request):
    """Writes a module of a name of its own, in a folder of the path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    name = f"agent_{abs(hash(request.node.nodeid))}"

    def write(source):
        (tmp_path / f"{name}.py").write_text(source)
        return name, f"{tmp_path / name}.py"

    return write


@pytest.mark.parametrize(("statement", "says"), IMPORTS.items(), ids=IMPORTS)
def test_an_import_that_fails_says_what_to_do(module, statement, says):
    name, file = module(f"\n{statement}\n")
    with pytest.raises(LoadError) as raised:
        load_agents([f"{name}:agent"])
    text = str(raised.value)
    assert text.startswith(f"{name}:agent: {says}")
    assert text.endswith(f" at {file}:2")
    assert "\n" not in text
    assert isinstance(raised.value.__cause__, ImportError)


EXTRAS = {
    "aiohttp": "policies",
    "fastapi.testclient": "server",
    "litellm": "litellm",
    "mcp": "mcp",
    "openai": "openai",
    "pyarrow": "parquet",
    "strands": "strands",
    "strands.models.litellm": "strands",
}


@pytest.mark.parametrize(("missing", "extra"), EXTRAS.items(), ids=EXTRAS)
def test_a_missing_library_names_its_extra(module, missing, extra):
    name, _ = module(f"raise ModuleNotFoundError('none', name={missing!r})")
    with pytest.raises(LoadError, match=rf"the module '{missing}' .* needs the extra '{extra}': pip install"):
        load_agents([f"{name}:agent"])


SDK = """
from osmosis_ai.rollout import RolloutAgentLoop

class Agent(RolloutAgentLoop):
    name = "agent"

agent = Agent()
"""


def installed(folder):
    """Write a package of the SDK's name, and an agent for it."""
    package = folder / "osmosis_ai" / "rollout"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("class RolloutAgentLoop: ...")
    (folder / "sdk_agents.py").write_text(SDK)


def test_an_agent_of_an_installed_sdk_gets_the_prefix(tmp_path, monkeypatch):
    installed(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "modules", {**sys.modules})
    with pytest.raises(LoadError) as raised:
        load_agents(["sdk_agents:agent"])
    assert str(raised.value).endswith(f"Agent derives from osmosis_ai.rollout.RolloutAgentLoop: {PREFIX}")


@pytest.mark.slow
def test_validate_names_the_prefix_too(tmp_path):
    installed(tmp_path)
    done = run("-m", "osmosis_grpc", "validate", "-m", "sdk_agents:agent", cwd=tmp_path)
    assert done.returncode == 1
    assert f"Agent derives from osmosis_ai.rollout.RolloutAgentLoop: {PREFIX}" in done.stdout


NAME = "LITELLM_LOCAL_MODEL_COST_MAP"


@pytest.mark.parametrize(("given", "seen"), [(None, "True"), ("False", "False"), ("", "")])
def test_the_code_of_an_agent_sees_the_variable_unless_the_user_has_set_it(given, seen, tmp_path, monkeypatch):
    monkeypatch.setenv(NAME, "")  # the test restores the variable
    if given is None:
        monkeypatch.delenv(NAME)
    else:
        monkeypatch.setenv(NAME, given)
    name = f"sees_prices_{given}"
    (tmp_path / f"{name}.py").write_text(f"import os\n\nSEEN = os.environ.get({NAME!r})\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert load_object(f"{name}:SEEN") == seen
