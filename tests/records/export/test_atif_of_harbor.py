"""Trajectories are read by Harbor's own model of ATIF. Run by `make test-harbor`."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from osmosis_grpc.protocol.types import ChatRef, Group, RolloutMetrics, RolloutOutcome, Sample
from osmosis_grpc.records.export import RecordedRollout, atif_trajectory, export
from tests.records.export.histories import MESSAGE, MESSAGES, TOKENS
from tests.records.export.outcomes import failed, golden, outcome, sample, segment

pytestmark = [pytest.mark.harbor, pytest.mark.filterwarnings("ignore")]
Trajectory = pytest.importorskip("harbor.models.trajectories").Trajectory

QUESTION = {"role": "user", "content": "hi"}


def read(rollout, **more):
    """The trajectory of a rollout as Harbor reads it, and as it was written."""
    written = json.loads(json.dumps(atif_trajectory(rollout, **more), allow_nan=False))
    return Trajectory.model_validate(written), written


def with_judge():
    judge = sample(segment([9], [8], [1], [-1]), parent=ChatRef("main", 1), reward=0.5)
    main = Sample(messages=MESSAGES, segments=(TOKENS,), trainable=True)
    return replace(outcome("r"), samples={"main": main, "judge": judge})


CASES = {
    "tools, reasoning, images and tokens": RecordedRollout(
        outcome=replace(outcome("r"), samples={"main": Sample(messages=MESSAGES, segments=(TOKENS,), trainable=True)}),
        agent_loop="calc",
        tools=[{"type": "function", "function": {"name": "add"}}],
        label="2",
    ),
    "another sample": RecordedRollout(outcome=with_judge()),
    "replies of no message": RecordedRollout(
        outcome=replace(outcome("r"), samples={"main": Sample(messages=MESSAGES[:3], segments=(TOKENS,))})
    ),
    "a failure": RecordedRollout(outcome=failed("r"), messages=[QUESTION]),
    "a group and metrics": RecordedRollout(
        outcome=replace(golden()[0], group=Group("g", 0, 2), metrics=RolloutMetrics(prompt_tokens=3, num_tool_calls=2))
    ),
}


@pytest.mark.parametrize("tokens", [True, False], ids=["with tokens", "without tokens"])
@pytest.mark.parametrize("name", CASES)
def test_harbor_reads_everything_that_a_trajectory_has(name, tokens):
    trajectory, written = read(CASES[name], tokens=tokens)
    assert trajectory.to_json_dict() == written


def test_harbor_has_the_tokens_of_each_reply():
    trajectory, _ = read(CASES["tools, reasoning, images and tokens"])
    assert [step.metrics.completion_token_ids for step in trajectory.steps if step.source == "agent"] == [[3], [6]]
    assert trajectory.steps[-1].metrics.prompt_token_ids == [1, 2, 3, 4, 5]
    assert trajectory.steps[2].observation.results[0].source_call_id == "c2"


def test_harbor_reads_the_files_of_an_export(tmp_path):
    export(golden(), tmp_path / "files", "atif")
    export(golden(), tmp_path / "lines.jsonl", "atif")
    files = [path.read_text() for path in (tmp_path / "files").glob("r*")]
    for texts in (files, (tmp_path / "lines.jsonl").read_text().splitlines()):
        assert {Trajectory.model_validate_json(text).session_id for text in texts} == {"r1", "r2"}


@settings(max_examples=200, deadline=None)
@given(st.lists(MESSAGE, min_size=1, max_size=6))
def test_harbor_reads_any_history_and_writes_it_back_equal(messages):
    rollout = RolloutOutcome(rollout_id="r", status="COMPLETED", samples={"main": Sample(messages=messages)})
    trajectory, written = read(RecordedRollout(outcome=rollout))
    assert trajectory.to_json_dict() == written
