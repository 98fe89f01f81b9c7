"""The version of an agent: what changes it, and what does not."""

import ast
import gc
import importlib
import sys

import pytest

from osmosis_grpc.agent.source_version import AgentVersion, changes
from osmosis_grpc.agent.syntax_tree import parse, parse_expression
from osmosis_grpc.testing.calculator import CalculatorAgent

AGENT = """
import json, numpy
from osmosis_grpc.rollout import RolloutAgentLoop
from {package}.rewards import REWARD
from . import prompts

class Agent(RolloutAgentLoop):
    name = "agent"
    def get_tools(self, request):
        from {package}.tools import TOOLS
        return TOOLS
    async def run(self, ctx):
        return ctx.complete([], reward=REWARD)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A package with an agent, of a name of its own; unloaded after the test."""
    package = f"team_{tmp_path.name}".replace("-", "_")
    path = tmp_path / package
    path.mkdir()
    (path / "__init__.py").touch()
    (path / "agent.py").write_text(AGENT.format(package=package))
    for name, text in (("rewards", "REWARD = 1.0"), ("prompts", "import os"), ("tools", "TOOLS = []"), ("train", "")):
        (path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield path
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[name]


def version(folder):
    return AgentVersion.of(importlib.import_module(f"{folder.name}.agent").Agent())


def test_it_counts_the_files_that_the_agent_imports_and_the_versions_of_packages(folder):
    found = version(folder)
    names = {name.removeprefix(f"{folder.name}/") for name in found.parts}
    assert names == {"agent.py", "__init__.py", "rewards.py", "prompts.py", "tools.py", "numpy", "osmosis-grpc"}
    assert len(found.digest) == 12
    assert version(folder) == found


@pytest.mark.parametrize("name", ["agent", "rewards", "prompts", "tools"])
def test_a_changed_file_changes_it_and_is_named(folder, name):
    before = version(folder)
    path = folder / f"{name}.py"
    path.write_text(path.read_text() + "\nMORE = 1\n")
    after = version(folder)
    assert after.digest != before.digest
    assert changes(before.parts, after.parts) == [f"{folder.name}/{name}.py"]


def test_a_file_that_the_agent_does_not_import_does_not_change_it(folder):
    before = version(folder)
    (folder / "train.py").write_text("LEARNING_RATE = 1e-6")
    importlib.import_module(f"{folder.name}.train")
    assert version(folder) == before


def test_an_agent_of_our_own_has_no_version():
    """What an adapter runs is not known; nothing is claimed of it."""
    assert AgentVersion.of(CalculatorAgent()) == AgentVersion()


def test_a_class_without_a_file_has_none_or_its_own_source():
    made = type("Made", (), {"__module__": "nowhere"})
    assert AgentVersion.of(made()) == AgentVersion()


class ParsesAtItsEnd:
    """Garbage of a cycle. Its finalizer parses, wherever the collector runs. Only the first few do."""

    left = 3

    def __init__(self):
        self.me = self

    def __del__(self):
        if ParsesAtItsEnd.left:
            ParsesAtItsEnd.left -= 1
            ast.parse("1")


def test_a_finalizer_that_parses_does_not_break_a_parse():
    source = b"x = [" + b"(1,)," * 3000 + b"]\n"
    thresholds = gc.get_threshold()
    gc.set_threshold(50)
    try:
        for _ in range(20):
            ParsesAtItsEnd()
        tree = parse(source)
    finally:
        gc.set_threshold(*thresholds)
    assert ast.dump(tree) == ast.dump(ast.parse(source))


def test_wrong_source_is_a_syntax_error():
    with pytest.raises(SyntaxError):
        parse_expression("1 +")
    assert ast.unparse(parse_expression("1 + 2")) == "1 + 2"
