"""Every Python block of seed pages 002 and 003 runs as the page has it, with only osmosis_ai renamed to osmosis_grpc.

Page 002 has lost its line breaks, so its blocks are compared without white space. The blocks are in blocks/strands.
"""

import re
from pathlib import Path

import pytest

from osmosis_grpc.agent.workflow_runnable import WorkflowRunnable
from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.testing import run_rollout
from tests.integrations.strands_policy import Replies, calls

pytestmark = pytest.mark.adapters
pytest.importorskip("strands")

HERE = Path(__file__).parent
SEEDS = HERE.parents[2] / "shared" / "seeds"
BLOCKS = sorted((HERE / "blocks" / "strands").glob("*.py"), key=lambda path: path.name)
PROMPT = [{"role": "system", "content": "Answer briefly."}, {"role": "user", "content": "What is 2 * 6?"}]


def names_of(block):
    (path,) = [path for path in BLOCKS if path.stem == block]
    names = {"__name__": block}
    exec(compile(path.read_text(), path, "exec"), names)
    return names


def squeezed(text):
    return re.sub(r"\s", "", text)


@pytest.mark.parametrize(("number", "count"), [("002", 2), ("003", 4)])
def test_the_blocks_are_the_pages_own_and_none_is_missing(number, count):
    pages = list(SEEDS.glob(f"{number}_*"))
    if not pages:
        pytest.skip(f"the seed pages are not beside the checkout: no {SEEDS}/{number}_*")
    page = pages[0].read_text().replace("osmosis_ai", "osmosis_grpc")
    rest, form = (squeezed(page), squeezed) if number == "002" else (page, str)
    own = [path for path in BLOCKS if path.stem.startswith(f"seed{number}")]
    assert len(own) == count
    for path in own:
        before, found, rest = rest.partition(form(path.read_text()))
        assert found, f"{path.name} is not in page {number} word for word, after the block before it"
        assert not re.search(r"^(class \w+\(|@tool|model = )", before, re.M), path.name
    assert not re.search(r"^(class \w+\(|@tool|model = )|classWorkflow\(", rest, re.M)


@pytest.mark.parametrize("block", [path.stem for path in BLOCKS])
@pytest.mark.row("SDK 1", "SDK 2")
def test_a_block_runs(block):
    names_of(block)


@pytest.mark.row("SDK 12")
async def test_the_search_example_of_page_002_runs_with_and_without_its_configuration():
    names = names_of("seed002_01_search")
    for config in (names["search_workflow_config"], None):
        policy = Replies(calls("search", {"query": "a"}), calls("search", {"query": "b"}), "The answer is 12.")
        outcome = await run_rollout(WorkflowRunnable(names["SearchWorkflow"], config), policy, PROMPT)
        assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
        sample = outcome.samples["search-agent"]
        assert [message["role"] for message in sample.messages] == [
            *("system", "user", "assistant", "tool", "assistant", "tool", "assistant")
        ]
        assert sample.messages[3]["content"] == "results for a"
        assert [request.params for request in policy.requests] == [{"temperature": 1.0}] * 3


@pytest.mark.row("SDK 11")
async def test_the_configurable_workflow_of_page_002_asks_no_model():
    """Without a sample a workflow fails. Another error of the block would have another text."""
    names = names_of("seed002_02_config")
    for config in (None, names["MyConfig"](max_iterations=3)):
        outcome = await run_rollout(WorkflowRunnable(names["ConfigurableWorkflow"], config), Replies("x"), PROMPT)
        assert outcome.status is OutcomeStatus.FAILED
        assert outcome.failure.message.startswith("the workflow has no sample")


@pytest.mark.row("SDK 46")
async def test_the_search_example_of_page_003_runs():
    policy = Replies(calls("search", {"query": "a"}), "found")
    outcome = await run_rollout(names_of("seed003_01_search")["SearchWorkflow"], policy, PROMPT)
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
    assert outcome.samples["search-agent"].messages[-2]["content"] == "Results for: a"
    assert outcome.samples["search-agent"].messages[0] == {"role": "system", "content": "You are a helpful assistant."}


@pytest.mark.parametrize(("label", "reward"), [("12", 1.0), ("13", 0.0)])
@pytest.mark.row("SDK 53")
async def test_the_math_example_of_page_003_is_graded(label, reward):
    names = names_of("seed003_02_math")
    policy = Replies(calls("calculator", {"expression": "2 * 6"}), lambda request: request.messages[-1]["content"])
    runnable = WorkflowRunnable(names["MathAgentWorkflow"], grader=names["MathGrader"])
    outcome = await run_rollout(runnable, policy, PROMPT, label=label)
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
    assert outcome.samples["math-agent"].reward == reward
