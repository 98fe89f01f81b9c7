"""The checks of workflows before they run."""

import pytest

from osmosis_grpc.rollout import AgentWorkflow, AgentWorkflowConfig, Grader, GraderConfig, validate_workflow
from tests.agent.workflows.made import Asks, Ones
from tests.processes import ROOT


class Sync(AgentWorkflow):
    def run(self, ctx): ...


class Yields(AgentWorkflow):
    async def run(self, ctx):
        yield


class NoRun(AgentWorkflow):
    pass


class Picky(Asks):
    def __init__(self, config):
        self.limit = config.limit


class SyncGrader(Grader):
    def grade(self, ctx): ...


class SyncGroups(Ones):
    def grade_group(self, contexts): ...


class PickyGrader(Ones):
    def __init__(self, config):
        raise OSError("no model")


LONG = AgentWorkflowConfig(name="x" * 257)

CASES = {
    "valid": ((Asks, None, Ones), []),
    "not a workflow": ((Ones, None, Ones), ["INVALID_WORKFLOW_CLASS"]),
    "no class": ((3, None, Ones), ["INVALID_AGENT_NAME", "INVALID_WORKFLOW_CLASS"]),
    "no run": ((NoRun, None, Ones), ["INVALID_WORKFLOW_CLASS"]),
    "sync": ((Sync, None, Ones), ["WORKFLOW_RUN_NOT_ASYNC"]),
    "yields": ((Yields, None, Ones), ["WORKFLOW_RUN_NOT_ASYNC"]),
    "init": ((Picky, None, Ones), ["WORKFLOW_INIT_FAILED"]),
    "long name": ((Asks, LONG, Ones), ["INVALID_AGENT_NAME"]),
    "blank name": ((Asks, AgentWorkflowConfig(name=" "), Ones), []),
    "misspelt": ((Asks, AgentWorkflowConfig(name="a", descripton="b", other=1), Ones), ["MISSPELT_CONFIG_KEY"]),
    "no grader": ((Asks, None, None), ["MISSING_GRADER"]),
    "not a grader": ((Asks, None, Asks), ["INVALID_GRADER_CLASS"]),
    "sync grader": ((Asks, None, SyncGrader), ["GRADER_GRADE_NOT_ASYNC"]),
    "sync groups": ((Asks, None, SyncGroups), ["GRADER_GRADE_NOT_ASYNC"]),
    "grader init": ((Asks, None, PickyGrader, GraderConfig(name="g")), ["GRADER_INIT_FAILED"]),
    "all at once": ((Sync, LONG, PickyGrader), ["INVALID_AGENT_NAME", "WORKFLOW_RUN_NOT_ASYNC", "GRADER_INIT_FAILED"]),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.row("SDK 7", "SDK 29")
def test_all_problems_are_reported_at_once(case):
    given, codes = CASES[case]
    result = validate_workflow(*given)
    assert [finding.code for finding in result.findings] == codes
    assert result.valid is (set(codes) <= {"MISSING_GRADER", "MISSPELT_CONFIG_KEY"})
    for finding in result.findings:
        assert finding.hint
        assert "\n" not in finding.message
    if case not in ("no class",):
        assert all(
            finding.file == __file__ or finding.file.endswith(("made.py", "workflow.py")) for finding in result.findings
        )


@pytest.mark.row("SDK 29")
def test_the_eight_codes_of_the_sdk_and_ours_are_all_tested():
    codes = {code for _, codes in CASES.values() for code in codes}
    assert len(codes) == 8 + len({"MISSPELT_CONFIG_KEY"})
    page = (ROOT / "docs" / "workflows.md").read_text()
    assert all(f"| `{code}` |" in page for code in codes)
