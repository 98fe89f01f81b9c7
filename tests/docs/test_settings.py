"""docs/settings.md lacks no variable, and no field of a configuration. `make lint` compares the options."""

import ast
import re
import runpy

from tests.processes import ROOT

PAGE = (ROOT / "docs" / "settings.md").read_text()
PACKAGE = ROOT / "osmosis_grpc"
NO_SETTINGS = {"OSMOSIS_FAILPOINT", "OSMOSIS_", "ERROR"}
"""A variable for tests, a prefix, and a value."""
ELSEWHERE = {"RunConfig", "OsmosisHarnessConfig", "WorkersConfig"}
"""Configurations on other pages: the options of the commands test and serve, and a harness of another library."""


def leaves(command, name=()):
    """Every command, with the words of its name."""
    if not hasattr(command, "commands"):
        yield " ".join(name), command
        return
    for word, each in command.commands.items():
        yield from leaves(each, (*name, word))


def variables(tree):
    """The names of variables in the statements that read or write the environment, and in constants that these name."""
    constants = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.stmt) and not hasattr(node, "body")]
    statements += [node.test for node in ast.walk(tree) if isinstance(node, ast.If)]
    statements += [node.iter for node in ast.walk(tree) if isinstance(node, ast.For)]
    for statement in statements:
        nodes = list(ast.walk(statement))
        if any(isinstance(node, ast.Attribute) and node.attr == "environ" for node in nodes):
            for node in nodes:
                value = node.value if isinstance(node, ast.Constant) else None
                value = constants.get(node.id) if isinstance(node, ast.Name) else value
                if isinstance(value, str) and re.fullmatch(r"[A-Z][A-Z0-9_]{3,}", value):
                    yield value


def test_every_variable_that_the_code_reads_is_on_the_page():
    files = [*PACKAGE.rglob("*.py"), *(ROOT / "gateway").rglob("*.py")]
    texts = [text for path in files if "environ" in (text := path.read_text())]
    found = {name for text in texts for name in variables(ast.parse(text))}
    assert {"OPENAI_API_KEY", "NO_COLOR", "GRPC_TRACE", "VIRTUAL_ENV", "LITELLM_LOCAL_MODEL_COST_MAP"} <= found
    assert [name for name in found - NO_SETTINGS if f"| `{name}` |" not in PAGE] == []
    script = runpy.run_path(str(ROOT / "scripts" / "settings.py"))
    assert set(script["VARIABLES"]) <= found


def test_every_field_of_a_configuration_is_on_the_page():
    found = set()
    for path in PACKAGE.rglob("*.py"):
        if not re.search(r"^ *class \w+Config\b", text := path.read_text(), re.M):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef) and node.name.endswith("Config") and node.name not in ELSEWHERE:
                fields = [each.target.id for each in node.body if isinstance(each, ast.AnnAssign)]
                found.add(node.name)
                assert [name for name in fields if f"| `{name}` |" not in PAGE] == []
    assert {"TrainerConfig", "ServerConfig", "EngineConfig"} <= found
