"""Cut conversations and dropped replies: trained on, masked or left out, as the trainer chooses, in every format."""

import json
from dataclasses import replace

import numpy as np
import pyarrow.parquet
import pytest

from osmosis_grpc.integrations._one_row import one_row
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import Tensor, VersionSpan
from osmosis_grpc.protocol.types.trainable import Selection, select
from osmosis_grpc.records.export import (
    ExportOptions,
    VerlConfig,
    agent_loop_outputs,
    export,
    padded_batch,
    verl_records,
)
from osmosis_grpc.records.export.atif import atif_trajectory
from osmosis_grpc.records.export.recorded import RecordedRollout
from osmosis_grpc.trainer import pad
from tests.records.export.outcomes import failed, outcome, sample, segment

V1 = (VersionSpan("1", 2),)
KEPT = segment([11, 12], [21, 22], [1, 1], [-0.1, -0.2], versions=V1)
LEFT = replace(segment([11, 12], [31], [1], [-0.3]), chats=(2,), dropped=True)
MIXED = outcome("r", KEPT, LEFT)
CUT = replace(MIXED, samples={"main": replace(sample(KEPT, LEFT), cut="length"), "other": sample(KEPT)})
REPLIES = {"train": [(2, 2), (2, 1)], "skip": [(2, 2)]}


@pytest.mark.parametrize("dropped", REPLIES)
def test_dropped_replies_are_trained_on_or_left_out(dropped):
    batch = pad([MIXED], dropped=dropped)
    assert batch.loss_mask.sum(axis=1).tolist() == [sampled for _, sampled in REPLIES[dropped]]
    assert [row.segment for row in batch.rows] == list(range(len(REPLIES[dropped])))
    found, _ = select(MIXED, dropped=dropped)
    assert [each.weight for each in found] == [1 / len(found)] * len(found)
    assert sum(len(s.segments) for s in MIXED.trainable_samples(dropped=dropped).values()) == len(found)
    assert len(agent_loop_outputs(MIXED, VerlConfig(dropped=dropped))) == len(found)
    assert len(list(verl_records([MIXED], VerlConfig(dropped=dropped), global_steps=1))) == len(found)


def test_dropped_replies_are_left_out_unless_the_trainer_asks_for_them():
    batch = pad([MIXED])
    assert batch == pad([MIXED], dropped="skip")
    (skipped,) = batch.skipped
    assert (skipped.rollout_id, skipped.sample, skipped.segment, skipped.chosen) == ("r", "main", 1, True)
    assert one_row(MIXED).segments_left_out == 0
    assert len(MIXED.samples["main"].segments) == 2


@pytest.mark.parametrize(("cut", "rows"), [("train", [2, 2]), ("mask", [0, 2]), ("skip", [2])])
def test_cut_conversations_are_trained_on_masked_or_left_out(cut, rows):
    batch = pad([CUT], cut=cut)
    assert batch.loss_mask.sum(axis=1).tolist() == rows
    assert (batch.logprobs[~batch.loss_mask] == 0).all()
    assert (batch.versions[~batch.loss_mask] == -1).all()
    assert [row.cut for row in batch.rows] == ["length", ""][-len(rows) :]
    assert [s.sample for s in batch.skipped if s.segment is None] == ["main"] * (cut == "skip")
    sampled = [[s.sampled for s in each.segments] for each in CUT.trainable_samples(cut=cut).values()]
    assert [count for each in sampled for count in each] == rows
    found, _ = select(CUT, cut=cut)
    assert sum(each.weight for each in found) == pytest.approx(1.0)
    config = VerlConfig(prompt_length=4, response_length=4, cut=cut)
    made = padded_batch([CUT], config, pad_id=0)
    assert made.batch["response_mask"].sum(axis=1).tolist() == rows
    rewarded = one_row(CUT, cut=cut)
    assert (rewarded.sample, sum(rewarded.response_mask)) == (["main", "other"][cut == "skip"], rows[0])
    assert (rewarded.prompt_ids, rewarded.reward) == ([11, 12], 1.0)
    assert made.batch["responses"][0, :2].tolist() == [21, 22]
    assert (made.batch["rollout_log_probs"][made.batch["response_mask"] == 0] == 0).all()


def test_an_outcome_without_a_row_by_choice_is_no_error():
    alone = replace(CUT, samples={"main": CUT.samples["main"]})
    batch = pad([alone, replace(MIXED, rollout_id="s")], cut="skip")
    assert [row.rollout_id for row in batch.rows] == ["s"]
    assert [(s.rollout_id, s.segment, s.chosen) for s in batch.skipped] == [("r", None, True), ("s", 1, True)]
    assert Selection("raise", cut="skip").of(alone) == []


def test_a_choice_does_not_hide_an_outcome_that_cannot_be_trained_on():
    with pytest.raises(InvalidArgument):
        pad([failed("f")], cut="skip")
    with pytest.raises(InvalidArgument):
        Selection("raise", cut="skip", dropped="skip").of(failed("f"))


def test_a_masked_row_keeps_the_shape_of_its_extras():
    entropy = Tensor.of(np.arange(2, dtype=np.float32))
    part = replace(KEPT, sampled_extras={"entropy": entropy})
    whole = replace(MIXED, samples={"main": replace(sample(part), cut="length")})
    assert pad([whole], cut="mask", extras=["entropy"]).extras["entropy"].tolist() == [[0.0] * 4]
    assert pad([whole], extras=["entropy"]).extras["entropy"].tolist() == [[0.0, 0.0, 0.0, 1.0]]


@pytest.mark.parametrize("name", ["cut", "dropped"])
def test_a_choice_that_does_not_exist_is_refused_by_name(name):
    for call in (lambda **choice: pad([MIXED], **choice), VerlConfig, Selection, MIXED.trainable_samples):
        with pytest.raises(InvalidArgument) as refused:
            call(**{name: "drop"})
        assert refused.value.violations[0][0] == name


@pytest.mark.parametrize(("cut", "dropped"), [("train", "skip"), ("mask", "train"), ("skip", "train")])
def test_parquet_has_the_marks_and_the_choice(tmp_path, cut, dropped):
    options = ExportOptions(verl=VerlConfig(cut=cut, dropped=dropped))
    counts = export([CUT], tmp_path / "p", "parquet", options)
    rows = pyarrow.parquet.read_table(tmp_path / "p" / "segments.parquet").to_pylist()
    assert counts.rows == len(rows)
    main = [row for row in rows if row["sample"] == "main"]
    assert [(row["cut"], row["dropped"]) for row in main] == {
        ("train", "skip"): [("length", False)],
        ("mask", "train"): [("length", False), ("length", True)],
        ("skip", "train"): [],
    }[cut, dropped]
    assert [sum(row["mask"]) for row in main] == {"train": [2], "mask": [0, 0], "skip": []}[cut]
    assert all(row["prompt_tokens"] == 2 for row in rows)
    (whole,) = pyarrow.parquet.read_table(tmp_path / "p" / "rollouts.parquet").to_pylist()
    assert (whole["cut"], whole["segments"]) == ("length", len(rows))


def test_lines_of_messages_and_trajectories_say_what_was_cut_and_dropped(tmp_path):
    export([CUT], tmp_path / "m.jsonl", "messages")
    metadata = [json.loads(line)["metadata"] for line in (tmp_path / "m.jsonl").read_text().splitlines()]
    assert [each.get("cut") for each in metadata] == ["length", None]
    main = replace(CUT.samples["main"], messages=CUT.samples["main"].messages[:2])
    made = atif_trajectory(RecordedRollout(outcome=replace(CUT, samples={"main": main})))
    about = made["extra"]["osmosis"]
    assert about["cut"] == "length"
    assert [reply["chat_number"] for reply in about["dropped_replies"]] == [2]
    assert "unmatched_replies" not in about
    assert made["steps"][1]["metrics"]["completion_token_ids"] == [21, 22]


def test_a_sample_with_train_false_has_no_row_anywhere(tmp_path):
    whole = replace(MIXED, samples={"main": sample(KEPT), "judge": sample(KEPT, train=False)})
    names = {row.sample for row in pad([whole]).rows}
    names |= {
        row.sample for row in padded_batch([whole], VerlConfig(prompt_length=4, response_length=4), pad_id=0).rows
    }
    names |= {one_row(whole).sample, *whole.trainable_samples(cut="mask", dropped="train")}
    export([whole], tmp_path / "p", "parquet")
    names |= set(pyarrow.parquet.read_table(tmp_path / "p" / "segments.parquet")["sample"].to_pylist())
    assert names == {"main"}
    assert len(agent_loop_outputs(whole)) == 1


def test_a_rollout_whose_only_sample_is_not_to_be_trained_on_ends_no_loop():
    unwanted = replace(MIXED, rollout_id="u", samples={"main": replace(sample(KEPT), train=False)})
    batch = pad([outcome("r", KEPT), unwanted])
    assert [row.rollout_id for row in batch.rows] == ["r"]
    assert [(each.rollout_id, each.chosen) for each in batch.skipped] == [("u", True)]
    assert Selection().of(unwanted) == []
