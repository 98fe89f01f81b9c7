"""The Osmosis SDK's import paths: all names are there, and cost nothing that is not used."""

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from osmosis_grpc import rollout
from osmosis_grpc.compat.older_paths import names_of, recorded
from osmosis_grpc.protocol.errors import MissingExtraError

PACKAGES = sorted(f"osmosis_grpc.{module}" for module in recorded() if module.startswith("rollout"))
OF_THE_SDK = {
    "registry": {
        "AgentLoopRegistry",
        "get_agent_loop",
        "list_agent_loops",
        "register_agent_loop",
        "unregister_agent_loop",
    },
    "testing": {"RolloutCompletionTracker", "create_mock_trainer_app", "fake_prompt_token_ids", "fake_token_ids"},
    "tools": {
        "ToolArgumentError",
        "ToolExecutionError",
        "create_tool_error_result",
        "create_tool_result",
        "execute_tool_calls",
        "get_tool_call_info",
        "serialize_tool_result",
    },
    "utils": {
        "count_messages_by_role",
        "get_message_content",
        "get_message_role",
        "is_assistant_message",
        "is_tool_message",
        "is_user_message",
        "normalize_stop",
        "parse_tool_calls",
    },
    "validator": {"AgentLoopValidationError", "ValidationResult", "validate_agent_loop"},
}
ONLY_BELOW = {"fake_prompt_token_ids", "fake_token_ids"}
IN_THE_GATEWAY = set(
    re.findall(r"from osmosis_gateway\.\w+ import (\w+)", Path(rollout.__file__).with_suffix(".pyi").read_text())
)
WITH_STRANDS = {"OsmosisRolloutModel", "OsmosisStrandsAgent"}
"""tests/integrations/test_strands.py tests these names."""


@pytest.mark.parametrize("package", PACKAGES)
def test_every_name_resolves(package):
    module = importlib.import_module(package)
    if package.endswith(".openai_agents"):
        pytest.importorskip("agents")
    for name in set(module.__all__) - WITH_STRANDS:
        assert getattr(module, name) is not None
    assert set(module.__all__) <= set(dir(module))
    assert module.__all__ == names_of(package.removeprefix("osmosis_grpc."))


@pytest.mark.parametrize("package", OF_THE_SDK)
def test_the_names_of_the_sdk_are_exported_by_both_packages(package):
    module = importlib.import_module(f"osmosis_grpc.rollout.{package}")
    assert set(module.__all__) >= OF_THE_SDK[package]
    for name in OF_THE_SDK[package] - ONLY_BELOW:
        assert getattr(rollout, name) is getattr(module, name)


@pytest.mark.parametrize("package", ["osmosis_grpc.rollout", "osmosis_grpc.rollout.testing"])
def test_an_unknown_name_is_an_attribute_error(package):
    with pytest.raises(AttributeError, match=f"'{package}' has no attribute 'create_mock_trainr_app'"):
        importlib.import_module(package).create_mock_trainr_app


@pytest.mark.parametrize("package", ["osmosis_grpc.rollout", "osmosis_grpc.rollout.testing"])
def test_without_fastapi_the_extra_is_named(package, monkeypatch):
    monkeypatch.delitem(sys.modules, "osmosis_gateway.mock_trainer", raising=False)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    with pytest.raises(MissingExtraError, match=rf"{package}.create_mock_trainer_app needs .*pip install .*\[server\]"):
        importlib.import_module(package).create_mock_trainer_app


@pytest.mark.parametrize("package", ["osmosis_grpc.rollout", "osmosis_grpc.rollout.integrations.agents.strands"])
@pytest.mark.parametrize("name", sorted(WITH_STRANDS))
@pytest.mark.row("SDK 3")
def test_without_strands_the_names_of_strands_name_the_extra(package, name, monkeypatch):
    monkeypatch.delitem(sys.modules, "osmosis_grpc.integrations.strands", raising=False)
    for missing in ("strands", "litellm"):
        monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(MissingExtraError, match=r"OsmosisStrandsAgent needs .*'strands': pip install .*\[strands\]"):
        getattr(importlib.import_module(package), name)


TOUCH = """
import importlib, json, sys
packages, names = json.loads(sys.argv[1])
for package in packages:
    importlib.import_module(package)
for name in names:
    getattr(sys.modules["osmosis_grpc.rollout"], name)
heavy = "fastapi", "aiohttp", "uvicorn", "osmosis_gateway", "litellm"
print(json.dumps([name for name in heavy if name in sys.modules]))
"""


def imported(names):
    """Which of the heavy packages are there after all packages were opened and these names were used."""
    done = subprocess.run(
        [sys.executable, "-c", TOUCH, json.dumps([PACKAGES, sorted(names)])], capture_output=True, text=True, timeout=50
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
def test_only_the_gateways_names_import_the_gateway():
    assert {"create_app", "create_mock_trainer_app", "RolloutCompletionTracker"} <= IN_THE_GATEWAY
    assert imported(set(rollout.__all__) - IN_THE_GATEWAY - WITH_STRANDS) == []
    assert "fastapi" in imported({"create_mock_trainer_app"})


@pytest.mark.parametrize(
    "statement",
    [
        "from osmosis_grpc.rollout import BaseAgent",
        "from osmosis_grpc import BaseAgent",
        "import osmosis_grpc.rollout; osmosis_grpc.rollout.BaseAgent",
        "from osmosis_grpc.rollout.server import BaseAgent",
        "from osmosis_grpc.rollout.integrations.agents.strands import BaseAgent",
    ],
)
def test_a_plain_import_says_where_a_name_is(statement):
    with pytest.raises(
        ImportError, match=r"^BaseAgent is not in osmosis_grpc.*: import BaseAgent from osmosis_grpc.agentic$"
    ):
        exec(statement)


def test_other_names_are_attribute_errors():
    import osmosis_grpc

    assert not hasattr(osmosis_grpc, "nowhere")
    assert not hasattr(rollout, "nowhere")
