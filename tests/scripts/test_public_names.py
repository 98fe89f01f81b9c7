"""docs/public-names.md lists what users import; docs, examples and templates import nothing else."""

import ast
import importlib
import re

import pytest

from osmosis_grpc.protocol.errors import MissingExtraError
from scripts import public_names
from scripts.public_names import ROOT

SHOWN = [
    *ROOT.glob("docs/*.md"),
    ROOT / "README.md",
    *ROOT.glob("examples/**/*.py"),
    *ROOT.glob("osmosis_grpc/cli/templates/**/*.py.template"),
]
OLDER = {"osmosis_grpc", "osmosis_grpc.rollout", "osmosis_grpc.agentic"}


def test_the_page_is_fresh_and_each_argument_is_described(capsys):
    assert public_names.main(check=True) == 0, capsys.readouterr().err


def test_a_name_of_the_last_release_that_is_gone_is_found(monkeypatch, capsys, tmp_path):
    before = tmp_path / "released_names.txt"
    before.write_text(
        public_names.frozen().replace("RolloutAgentLoop", "RolloutAgentLoop Gone") + "osmosis_grpc.old: X\n"
    )
    monkeypatch.setattr(public_names, "RELEASED", before)
    assert public_names.main(check=True) == 1
    told = capsys.readouterr().err
    assert "osmosis_grpc.agent.Gone " in told
    assert "osmosis_grpc.old.X " in told


@pytest.mark.parametrize("module", public_names.modules())
def test_each_name_can_be_imported(module):
    try:
        found = importlib.import_module(module)
        for name in public_names.names_of(module):
            assert getattr(found, name) is not None
    except MissingExtraError as error:
        pytest.skip(str(error))


def test_a_name_means_one_thing():
    meanings: dict[str, set] = {}
    for module in set(public_names.modules()) - OLDER:
        for name in public_names.names_of(module):
            meanings.setdefault(name, set()).add(public_names.definition(module, name))
    assert {name: found for name, found in meanings.items() if len(found) > 1} == {}


def test_the_request_of_the_older_system_is_a_request():
    rollout, agent = importlib.import_module("osmosis_grpc.rollout"), importlib.import_module("osmosis_grpc.agent")
    assert issubclass(rollout.RolloutRequest, agent.RolloutRequest)


@pytest.mark.parametrize("path", SHOWN, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_users_read_imports_public_names(path):
    texts = [path.read_text()]
    if path.suffix == ".md":
        texts = re.findall(r"^```python\n(.*?)^```", texts[0], re.M | re.S)
    for text in texts:
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("osmosis_grpc"):
                assert {alias.name for alias in node.names} <= set(public_names.names_of(node.module))
                assert node.module in public_names.modules()
                assert node.module != "osmosis_grpc.rollout" or path.name == "compatibility.md"
