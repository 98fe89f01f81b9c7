"""ATIF v1.7: every trajectory is valid, and tokens are those of the replies."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import ChatRef, RolloutOutcome, Sample
from osmosis_grpc.records.export import RecordedRollout, atif_trajectory
from tests.records.export.atif_schema import check
from tests.records.export.histories import MESSAGE, MESSAGES, TOKENS
from tests.records.export.outcomes import failed, outcome, sample, segment


def made(*messages, **more):
    return replace(outcome("r"), samples={"main": Sample(messages=messages, **more)})


@pytest.mark.row("SDK 79")
def test_a_conversation_with_tools_reasoning_images_and_tokens():
    rollout = made(*MESSAGES, segments=(TOKENS,), trainable=True)
    tools = [{"type": "function", "function": {"name": "add"}}]
    trajectory = atif_trajectory(RecordedRollout(outcome=rollout, agent_loop="calc", tools=tools, label="2"))
    check(json.loads(json.dumps(trajectory, allow_nan=False)))
    assert trajectory["agent"] == {"name": "calc", "version": "unknown", "tool_definitions": tools}
    assert trajectory["extra"]["osmosis"]["reward"] == 1.0
    assert trajectory["extra"]["osmosis"]["label"] == "2"
    system, user, calls, last = trajectory["steps"]
    assert (system["source"], system["extra"]) == ("system", {"role": "developer"})
    assert user["message"][1] == {"type": "image", "source": {"media_type": "image/png", "path": "a.png"}}
    assert calls["reasoning_content"] == "I add."
    assert calls["tool_calls"][0]["arguments"] == {"a": 1}
    assert calls["tool_calls"][1]["extra"] == {"raw_arguments": "[1"}
    assert [each["source_call_id"] for each in calls["observation"]["results"]] == ["c2", "c1"]
    assert last["metrics"] == {
        "prompt_tokens": 5,
        "completion_tokens": 1,
        "prompt_token_ids": [1, 2, 3, 4, 5],
        "completion_token_ids": [6],
        "logprobs": [-2.0],
        "extra": {"policy_version": "8"},
    }
    without = atif_trajectory(RecordedRollout(outcome=rollout), tokens=False)
    assert "metrics" not in without["steps"][2]


def test_the_other_samples_are_subagents():
    judge = sample(segment([9], [8], [1], [-1]), parent=ChatRef("main", 1), reward=0.5)
    rollout = made(*MESSAGES, segments=(TOKENS,))
    rollout = replace(rollout, samples=rollout.samples | {"judge": judge})
    trajectory = atif_trajectory(RecordedRollout(outcome=rollout))
    check(trajectory)
    (subagent,) = trajectory["subagent_trajectories"]
    assert subagent["trajectory_id"] == "r/1/judge"
    assert subagent["extra"]["osmosis"] == {
        "sample": "judge",
        "parent": {"sample": "main", "chat_number": 1},
        "reward": 0.5,
    }


def test_without_messages_in_main_the_first_sample_with_messages_is_the_trajectory():
    rollout = replace(outcome("r"), samples={"main": Sample(), "other": Sample(messages=MESSAGES[:2])})
    trajectory = atif_trajectory(RecordedRollout(outcome=rollout))
    check(trajectory)
    assert trajectory["trajectory_id"] == "r/1/other"


def test_tokens_that_belong_to_no_message_are_not_put_into_a_step():
    trajectory = atif_trajectory(RecordedRollout(outcome=made(*MESSAGES[:3], segments=(TOKENS,))))
    check(trajectory)
    replies = trajectory["extra"]["osmosis"]["unmatched_replies"]
    assert [each["completion_token_ids"] for each in replies] == [[3], [6]]
    joined = replace(TOKENS, chats=(1,))
    trajectory = atif_trajectory(RecordedRollout(outcome=made(*MESSAGES, segments=(joined,))))
    assert "tokens_left_out" in trajectory["extra"]["osmosis"]


def test_a_rollout_without_messages_has_those_of_its_request():
    rollout = RecordedRollout(outcome=failed("r"), messages=[{"role": "user", "content": "hi"}])
    trajectory = atif_trajectory(rollout)
    check(trajectory)
    assert trajectory["extra"]["osmosis"]["failure"]["message"] == "no tool"
    with pytest.raises(InvalidArgument, match="rollout r has no message"):
        atif_trajectory(RecordedRollout(outcome=failed("r")))


@settings(max_examples=25)
@given(st.lists(MESSAGE, min_size=1, max_size=6))
def test_any_history_is_a_valid_trajectory(messages):
    rollout = RolloutOutcome(rollout_id="r", status="COMPLETED", samples={"main": Sample(messages=messages)})
    check(json.loads(json.dumps(atif_trajectory(RecordedRollout(outcome=rollout)))))
