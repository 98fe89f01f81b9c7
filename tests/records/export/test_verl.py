"""verl: our padded batch is the batch that verl makes, and what verl does not check is refused before."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import Group, Tensor, VersionSpan
from osmosis_grpc.records.export import VerlConfig, agent_loop_outputs, padded_batch, verl_records
from tests.records.export.outcomes import GOLDEN, case, failed, golden, outcome, sample, segment

RECORDED = [json.loads(line) for line in (Path(__file__).parent / "verl_batches.jsonl").read_text().splitlines()]
"""Batches of verl 0.9.1, recorded by tests/trainers/test_verl_batches.py."""


@pytest.mark.parametrize("wanted", RECORDED, ids=[f"seed{each['seed']}" for each in RECORDED])
@pytest.mark.row("ARL 46")
def test_the_padded_batch_equals_that_of_verl(wanted):
    outcomes, config, pad_id = case(wanted["seed"]) if wanted["seed"] >= 0 else (golden(), GOLDEN, 0)
    made = padded_batch(outcomes, config, pad_id=pad_id)
    assert made.batch.keys() == wanted["batch"].keys()
    for name, column in wanted["batch"].items():
        assert made.batch[name].dtype == column["dtype"], name
        np.testing.assert_array_equal(made.batch[name], np.array(column["values"], dtype=column["dtype"]), name)
    assert made.non_tensor_batch.keys() == wanted["non_tensor_batch"].keys()
    for name, column in wanted["non_tensor_batch"].items():
        assert made.non_tensor_batch[name].dtype == column["dtype"], name
        assert made.non_tensor_batch[name].tolist() == column["values"], name
    assert made.meta_info == wanted["meta_info"]


@pytest.mark.row("ARL 46")
def test_the_golden_vector():
    made = padded_batch(golden(), GOLDEN, pad_id=0).batch
    assert made["prompts"].tolist() == [[0, 0, 0, 11, 12, 13], [0, 0, 0, 0, 0, 11]]
    assert made["responses"].tolist() == [[21, 22, 31, 32, 23, 24, 0, 0, 0, 0], [41, 42, 0, 0, 0, 0, 0, 0, 0, 0]]
    assert made["response_mask"].tolist() == [[1, 1, 0, 0, 1, 1, 0, 0, 0, 0], [1, 1] + [0] * 8]
    assert made["position_ids"].tolist() == [
        [0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 8, 8, 8, 8],
        [0, 0, 0, 0, 0, 0, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2],
    ]
    logprobs = [[-0.1, -0.2, 0, 0, -0.3, -0.4, 0, 0, 0, 0], [-0.5, -0.6] + [0] * 8]
    np.testing.assert_array_equal(made["rollout_log_probs"], np.array(logprobs, dtype=np.float32))
    assert made["rm_scores"].tolist() == [[0, 0, 0, 0, 0, 1, 0, 0, 0, 0], [0] * 10]


@pytest.mark.row("ARL 45")
def test_an_output_has_the_fields_of_verl():
    first, second = [agent_loop_outputs(each)[0] for each in golden()]
    assert first.keys() == second.keys()
    assert first == {
        "prompt_ids": [11, 12, 13],
        "response_ids": [21, 22, 31, 32, 23, 24],
        "response_mask": [1, 1, 0, 0, 1, 1],
        "response_logprobs": pytest.approx([-0.1, -0.2, 0, 0, -0.3, -0.4]),
        "reward_score": 1.0,
        "num_turns": 4,
        "metrics": {"generate_sequences": 1.5, "tool_calls": 0.25, "compute_score": 0.0, "num_preempted": -1},
        "extra_fields": {
            "turn_scores": [],
            "tool_rewards": [],
            "min_global_steps": None,
            "max_global_steps": None,
            "reward_extra_info": {},
        },
    }


def test_the_weights_of_a_rollout_add_up_to_one():
    one = segment([1], [2], [1], [-1])
    made = padded_batch([outcome("a", one, one, one), outcome("b", one)], GOLDEN, pad_id=9)
    assert made.weights.tolist() == pytest.approx([1 / 3] * 3 + [1])
    assert [(row.rollout_id, row.segment) for row in made.rows] == [("a", 0), ("a", 1), ("a", 2), ("b", 0)]


def test_tokens_after_the_last_sampled_one_are_no_part_of_the_response():
    (made,) = agent_loop_outputs(outcome("a", segment([1, 2], [3, 4, 5], [1, 0, 0], [-1, 0, 0])))
    assert (made["response_ids"], made["response_mask"]) == ([3], [1])


ONE = segment([1, 2], [3, 4, 5], [1, 0, 1], [-1, 0, -1])
NAN = segment([1], [2], [1], [float("nan")])
EXPERTS = Tensor.of(np.zeros((5, 2, 3), dtype=np.int16))


@pytest.mark.parametrize(
    ("refused", "config", "reason"),
    [
        (failed("a"), {}, "rollout a is not trained on: it ended FAILED: no tool"),
        (replace(outcome("a", ONE), evaluation=True), {}, "rollout a is not trained on: it is an evaluation"),
        (replace(outcome("a", ONE), reward=None), {}, "rollout a is not trained on: it has no reward"),
        (
            replace(outcome("a", ONE), samples={"x": sample(ONE), "y": replace(sample(), trainable=False)}),
            {},
            "rollout a, sample y is not trained on: it is not trainable",
        ),
        (outcome("a", ONE), {"prompt_length": 1}, "its prompt has 2 tokens, more than prompt_length 1"),
        (outcome("a", ONE), {"response_length": 2}, "its response has 3 tokens, more than response_length 2"),
        (outcome("a", segment([1, 2], [], [], [])), {}, "sample main, segment 0: no token of it is sampled"),
        (outcome("a", segment([], [1], [1], [-1])), {}, "its prompt is empty"),
        (outcome("a", NAN), {}, "is nan"),
        (outcome("a", ONE), {"extras": ("routed_experts",)}, "has routed experts of no or some tokens"),
        (
            outcome("a", replace(ONE, sampled_extras={"routed_experts": EXPERTS})),
            {"extras": ("routed_experts",)},
            "has routed experts of its replies only",
        ),
        (outcome("a", ONE), {"extras": ("entropy",)}, r"segment 0: extras\[entropy\]: is not in the segment"),
        (
            outcome("a", replace(ONE, versions=(VersionSpan("v1", 2),))),
            {"step_of": lambda version: 1.5},
            "returns 1.5 for version 'v1'",
        ),
    ],
)
@pytest.mark.row("ARL 45")
def test_what_verl_does_not_check_is_refused(refused, config, reason):
    with pytest.raises(InvalidArgument, match=reason):
        agent_loop_outputs(refused, VerlConfig(**config))


def test_rows_that_differ_in_their_keys_are_refused():
    parts = replace(outcome("b", ONE), reward_components={"format": 1.0})
    with pytest.raises(InvalidArgument, match=r"rollout b.* has the parts \['format'\], and rows before it \[\]"):
        padded_batch([outcome("a", ONE), parts], GOLDEN, pad_id=1)
    with pytest.raises(InvalidArgument, match=r"rollout b.* has none|rollout b.* of no or some tokens"):
        experts = replace(ONE, token_extras={"routed_experts": EXPERTS})
        config = replace(GOLDEN, extras=("routed_experts",))
        padded_batch([outcome("a", experts), outcome("b", ONE)], config, pad_id=1)


def test_untrainable_and_long_samples_are_skipped_and_counted():
    config = VerlConfig(prompt_length=6, response_length=2, untrainable="skip", too_long="skip")
    short = segment([1], [2], [1], [-1])
    made = padded_batch([failed("a"), outcome("b", ONE), outcome("c", short)], config, pad_id=1)
    assert ([row.rollout_id for row in made.rows], made.skipped) == (["c"], 2)
    with pytest.raises(InvalidArgument, match="no segment can be trained on"):
        padded_batch([failed("a")], config, pad_id=1)


def test_a_long_response_is_cut():
    config = VerlConfig(prompt_length=6, response_length=2, too_long="truncate")
    made = padded_batch([outcome("a", ONE)], config, pad_id=1).batch
    assert (made["responses"].tolist(), made["rm_scores"].tolist()) == ([[3, 4]], [[0, 1]])


@pytest.mark.row("ARL 47")
def test_a_record_of_the_v1_trainer():
    versions = (VersionSpan("4", 1), VersionSpan("6", 1))
    grouped = replace(outcome("r_1", replace(ONE, versions=versions)), group=Group("g7", 2, 4))
    (made,) = verl_records([grouped], global_steps=6)
    assert (made.key, made.partition) == ("g7_2_0", "train")
    assert made.tags == {
        "status": "success",
        "prompt_len": 2,
        "response_len": 3,
        "seq_len": 5,
        "global_steps": 6,
        "min_global_steps": 4,
        "max_global_steps": 6,
    }
    assert made.fields["input_ids"].tolist() == [1, 2, 3, 4, 5]
    assert made.fields["loss_mask"].tolist() == made.fields["response_mask"].tolist() == [1, 0, 1]
    assert made.fields["rm_scores"].tolist() == [0, 0, 1]


@pytest.mark.row("ARL 47")
def test_a_uid_with_an_underscore_is_refused():
    with pytest.raises(InvalidArgument, match=r"rollout r_1.* has the uid 'r_1'"):
        list(verl_records([outcome("r_1", ONE)], global_steps=1))
    (made,) = verl_records([outcome("r_1", ONE)], global_steps=1, inputs_of=lambda _: {"uid": "r-1"})
    assert made.key == "r-1_0_0"
    with pytest.raises(InvalidArgument, match="has the key a_0_0, and an earlier rollout has it"):
        list(verl_records([outcome("a", ONE), outcome("a", ONE)], global_steps=1))
    with pytest.raises(InvalidArgument, match=r"1\.5 is not an int"):
        list(verl_records([outcome("a", ONE)], global_steps=1.5))


def test_records_of_no_outcome_are_refused():
    with pytest.raises(InvalidArgument):
        list(verl_records([], global_steps=1))
