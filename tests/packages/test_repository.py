"""The workflows and the forms of the repository: linters accept them, and they run targets that exist."""

import re

import pytest

from tests.packages.conftest import ROOT, TOOLS, call

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
SCHEMAS = {
    "vendor.github-workflows": WORKFLOWS,
    "vendor.github-issue-forms": [ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml" for name in ("bug", "idea")],
    "vendor.github-issue-config": [ROOT / ".github" / "ISSUE_TEMPLATE" / "config.yml"],
}
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.M))


@pytest.mark.packages
def test_the_linter_of_workflows_finds_nothing():
    call(TOOLS / "zizmor", "--offline", "--quiet", "--persona=auditor", *WORKFLOWS)


@pytest.mark.packages
@pytest.mark.parametrize("schema", SCHEMAS)
def test_the_files_fit_their_schemas(schema):
    call(TOOLS / "check-jsonschema", "--builtin-schema", schema, *SCHEMAS[schema])


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_what_everybody_runs(path):
    commands = re.findall(r"^ *- run: (.+)$", path.read_text(), re.M)
    made = [command.split()[1] for command in commands if command.startswith("make ")]
    assert set(made) <= TARGETS
    assert made or "bash .ci/run" in commands
