"""The examples with Strands agents."""

import importlib.util

import pytest

from osmosis_grpc.agent.workflow_runnable import WorkflowRunnable
from osmosis_grpc.testing import run_rollout
from tests.integrations.strands_policy import Replies, calls
from tests.processes import ROOT

pytestmark = pytest.mark.adapters
pytest.importorskip("strands")

QUESTION = [{"role": "user", "content": "When was the bridge across the Tagus opened?"}]


@pytest.fixture
def example():
    path = ROOT / "examples" / "strands_search" / "entrypoint.py"
    spec = importlib.util.spec_from_file_location("strands_search_example", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("replies", "reward"),
    [
        ([calls("search", {"query": "Tagus"}), "1998"], 1.0),
        ([calls("search", {"query": "Tagus"}, {"query": "Oslo"}), "1999"], 0.5),
        (["1998"], 0.5),
    ],
    ids=["right", "wrong", "a guess"],
)
async def test_the_search_example_is_rewarded(example, replies, reward):
    policy = Replies(*replies)
    agent = WorkflowRunnable(example.SearchWorkflow, example.search_workflow_config, example.AnswerGrader)
    outcome = await run_rollout(agent, policy, QUESTION, label="1998")
    assert outcome.samples["search-agent"].reward == reward, outcome.failure
    if len(replies) > 1:
        assert "opened in 1998" in policy.requests[1].messages[3]["content"]
