"""export(): files appear when they are complete, and have what the outcomes have."""

import json
import os
from dataclasses import replace

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from osmosis_grpc.agentic import Trajectory, dump_trajectories, load_trajectories
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import Group, SplitReason
from osmosis_grpc.records.evaluate.formats import read_parquet
from osmosis_grpc.records.export import (
    Export,
    ExportOptions,
    VerlConfig,
    export,
    load_batch,
    load_outputs,
    padded_batch,
)
from tests.made_extras import made
from tests.records.export.outcomes import case, failed, golden, outcome, segment

LENGTHS = VerlConfig(prompt_length=40, response_length=60)
BATCHES = ExportOptions(verl=LENGTHS, pad_id=9, batch_size=3)
NAMES = {
    "as long as possible": "n" * 255,
    "long in bytes": "ä" * 127,
    "a line break": "a\nb",
    "not UTF-8": os.fsdecode(b"a\xff\xfeb"),
    "turned around": "a\u202eb",
    "an option": "-rf",
    "almost above": "..x",
}


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_messages_have_a_line_for_each_sample(tmp_path):
    counts = export([*golden(), failed("f")], tmp_path / "m.jsonl", "messages")
    assert (counts.rollouts, counts.rows, counts.skipped) == (3, 2, 1)
    first, second = lines(tmp_path / "m.jsonl")
    assert [message["role"] for message in first["messages"]] == ["user", "assistant", "assistant"]
    assert first["metadata"] == {
        "rollout_id": "r1",
        "attempt": 1,
        "status": "COMPLETED",
        "reward": 1.0,
        "sample": "main",
    }
    assert second["metadata"]["reward"] == 0.0


def test_padded_batches_are_read_back_equal(tmp_path):
    outcomes, config, pad_id = case(0)
    config = replace(config, extras=("routed_experts",))
    options = ExportOptions(verl=config, pad_id=pad_id, batch_size=3)
    counts = export(outcomes, tmp_path / "b", "verl-batch", options)
    whole = padded_batch(outcomes, config, pad_id=pad_id)
    files = [load_batch(path) for path in sorted((tmp_path / "b").glob("*.npz"))]
    assert [len(file) for file in files] == [3] * (counts.rows // 3) + [counts.rows % 3] * bool(counts.rows % 3)
    assert counts.rows == len(whole)
    for name, values in whole.batch.items():
        np.testing.assert_array_equal(np.concatenate([file.batch[name] for file in files]), values)
    for name, values in whole.non_tensor_batch.items():
        joined = np.concatenate([file.non_tensor_batch[name] for file in files])
        assert (joined.dtype, joined.tolist()) == (values.dtype, values.tolist())
    assert sum((file.rows for file in files), ()) == whole.rows
    assert files[0].meta_info["reward_extra_keys"] == whole.meta_info["reward_extra_keys"]


def test_outputs_are_read_back_equal(tmp_path):
    outcomes, config, _ = case(4)
    export(outcomes, tmp_path / "o.jsonl", "verl", ExportOptions(verl=config))
    found = list(load_outputs(tmp_path / "o.jsonl"))
    experts = [line["output"].pop("routed_experts") for line in found]
    wanted = padded_batch(outcomes, config, pad_id=1)
    assert all(each.dtype == np.int16 for each in experts)
    for line, row, mask in zip(found, wanted.rows, wanted.batch["attention_mask"], strict=True):
        output = line["output"]
        assert (line["rollout_id"], line["segment"]) == (row.rollout_id, row.segment)
        assert len(output["prompt_ids"]) + len(output["response_ids"]) == mask.sum()
    assert sum(line["weight"] for line in found) == pytest.approx(len(outcomes))


def test_records_of_the_v1_trainer_are_lines(tmp_path):
    grouped = replace(golden()[0], group=Group("g", 3, 4))
    export([grouped], tmp_path / "r.jsonl", "verl-records", ExportOptions(global_steps=5))
    (line,) = lines(tmp_path / "r.jsonl")
    assert line["key"] == "g_3_0"
    assert line["tags"]["min_global_steps"] == 5
    assert line["fields"]["input_ids"] == [11, 12, 13, 21, 22, 31, 32, 23, 24]


def test_parquet_has_rows_for_rollouts_and_for_segments(tmp_path):
    one = segment([1, 2], [3, 4, 5], [1, 0, 1], [-1, 0, -2])
    extras = {"token_extras": made(["routed_experts"], one.ids), "sampled_extras": made(["sampling_mask"], [3, 5])}
    outcomes = [outcome("a", replace(one, **extras), replace(one, split=SplitReason.BRANCH)), failed("f")]
    with pytest.raises(InvalidArgument, match="rollout f is not trained on: it ended FAILED: no tool"):
        export(outcomes, tmp_path / "p", "parquet")
    assert list(tmp_path.iterdir()) == []
    counts = export(outcomes, tmp_path / "p", "parquet", ExportOptions(verl=VerlConfig(untrainable="skip")))
    assert (counts.rollouts, counts.rows, counts.skipped) == (2, 2, 1)
    good, bad = pyarrow.parquet.read_table(tmp_path / "p" / "rollouts.parquet").to_pylist()
    assert (good["trainable"], good["segments"], good["sampled_tokens"], good["reward"]) == (True, 2, 4, 1.0)
    assert (bad["trainable"], bad["reward"], bad["failure_message"]) == (False, None, "no tool")
    assert bad["not_trainable_reason"] == "it ended FAILED: no tool"
    first, second = pyarrow.parquet.read_table(tmp_path / "p" / "segments.parquet").to_pylist()
    assert (first["ids"], first["mask"]) == ([1, 2, 3, 4, 5], [False, False, True, False, True])
    assert first["logprobs"] == [0, 0, -1, 0, -2]
    assert (first["prompt_tokens"], first["weight"], second["segment"], second["extras"]) == (2, 0.5, 1, [])
    assert (first["split"], second["split"]) == (None, "branch")
    experts, masks = first["extras"]
    assert (experts["name"], experts["rows"], experts["offsets"]) == ("routed_experts", "tokens", None)
    values = np.frombuffer(experts["data"], experts["dtype"]).reshape(experts["shape"])
    np.testing.assert_array_equal(values, extras["token_extras"]["routed_experts"].numpy())
    assert (masks["rows"], masks["offsets"]) == ("sampled", extras["sampled_extras"]["sampling_mask"].offsets.tolist())


def test_row_groups_are_bounded(tmp_path):
    one = segment([1], [2], [1], [-1])
    export((outcome(f"r{n}", one) for n in range(1100)), tmp_path / "p", "parquet")
    for name in ("rollouts", "segments"):
        file = pyarrow.parquet.ParquetFile(tmp_path / "p" / f"{name}.parquet")
        assert [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)] == [1000, 100]


def test_atif_has_a_file_for_each_rollout_or_a_line(tmp_path):
    odd = [replace(golden()[0], rollout_id=name) for name in ("../up", "..", "a/b", "x" * 256)]
    export(odd, tmp_path / "t", "atif")
    found = {path.name: json.loads(path.read_text()) for path in (tmp_path / "t").iterdir()}
    assert found.pop("export.json") == {"format": "atif", "rollouts": 4, "skipped": 0}
    assert {each["session_id"] for each in found.values()} == {each.rollout_id for each in odd}
    assert list(tmp_path.iterdir()) == [tmp_path / "t"]
    export(odd, tmp_path / "t.jsonl", "atif")
    assert [line["session_id"] for line in lines(tmp_path / "t.jsonl")] == [each.rollout_id for each in odd]


@pytest.mark.parametrize("to", ["messages", "parquet"])
def test_an_output_is_replaced_only_on_request(tmp_path, to):
    export(golden(), tmp_path / "out", to)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InvalidArgument, match="out exists; name another"):
        export(golden(), tmp_path / "out", to)
    export(golden(), tmp_path / "out", to, overwrite=True)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_that_no_export_wrote_is_not_replaced(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").touch()
    with pytest.raises(InvalidArgument, match="a folder that no export wrote"):
        export(golden(), tmp_path / "mine", "parquet", overwrite=True)
    with pytest.raises(InvalidArgument, match="mine is a folder; name another file"):
        export(golden(), tmp_path / "mine", "messages", overwrite=True)
    (tmp_path / "empty").mkdir()
    export(golden(), tmp_path / "empty", "parquet")


def test_an_export_that_fails_leaves_nothing(tmp_path):
    for to, options in (("parquet", None), ("verl", None), ("verl-batch", BATCHES)):
        with pytest.raises(InvalidArgument, match="rollout f is not trained on"):
            export([*golden(), failed("f")], tmp_path / "out", to, options)
        assert list(tmp_path.iterdir()) == []
    with Export(tmp_path / "out", "verl") as made:
        made.add(golden()[0])
        assert not (tmp_path / "out").exists()
    assert len(lines(tmp_path / "out")) == 1


@pytest.mark.parametrize(
    ("to", "options", "problem"),
    [
        ("xml", None, "to: 'xml' is not one of messages, atif, parquet, verl, verl-batch, verl-records"),
        ("verl-records", None, "global_steps: the records of verl's V1 trainer need it"),
        ("verl-batch", ExportOptions(verl=LENGTHS), "pad_id: a padded batch needs it"),
        ("verl-batch", ExportOptions(pad_id=1), "prompt_length: a padded batch needs it"),
        ("verl-batch", replace(BATCHES, batch_size=0), "batch_size: 0 is less than 1"),
    ],
)
def test_wrong_options_are_named(tmp_path, to, options, problem):
    with pytest.raises(InvalidArgument, match=problem):
        export(golden(), tmp_path / "out", to, options)
    assert list(tmp_path.iterdir()) == []


def test_other_files_are_no_batches(tmp_path):
    (tmp_path / "x.npz").write_text("no")
    with pytest.raises(InvalidArgument, match=r"x\.npz is not a padded batch of export"):
        load_batch(tmp_path / "x.npz")
    np.savez(tmp_path / "y.npz", about=np.zeros(1))
    with pytest.raises(InvalidArgument, match=r"y\.npz is not a padded batch of export"):
        load_batch(tmp_path / "y.npz")
    (tmp_path / "z.jsonl").write_text("{}\n")
    with pytest.raises(InvalidArgument, match=r"z\.jsonl:1 is not a line of export"):
        list(load_outputs(tmp_path / "z.jsonl"))


@pytest.mark.parametrize("to", ["messages", "atif", "parquet", "verl"])
@pytest.mark.parametrize("name", NAMES)
def test_an_export_has_any_name_and_leaves_nothing_beside(tmp_path, name, to):
    target = tmp_path / NAMES[name]
    counts = export(golden(), target, to)
    assert counts.rows > 0
    assert os.listdir(tmp_path) == [NAMES[name]]
    assert target.stat().st_size > 0


def test_a_link_to_a_folder_is_replaced_and_the_folder_stays(tmp_path):
    export(golden(), tmp_path / "old", "atif")
    before = sorted(os.listdir(tmp_path / "old"))
    (tmp_path / "link").symlink_to("old")
    with Export(tmp_path / "link", "atif", overwrite=True) as again:
        for outcome in golden():
            again.add(outcome)
    assert sorted(os.listdir(tmp_path)) == ["link", "old"]
    assert not (tmp_path / "link").is_symlink()
    assert sorted(os.listdir(tmp_path / "old")) == before


@pytest.mark.parametrize("name", NAMES)
def test_a_dataset_is_read_under_any_name(tmp_path, name):
    path = tmp_path / NAMES[name]
    pyarrow.parquet.write_table(pyarrow.table({"a": [1, 2]}), tmp_path / "plain")
    (tmp_path / "plain").rename(path)
    assert [raw.value for raw in read_parquet(path)] == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize("name", NAMES)
def test_trajectories_are_saved_under_any_name(tmp_path, name):
    path = tmp_path / NAMES[name]
    dump_trajectories([Trajectory(request_id="r")], path)
    assert [made.request_id for made in load_trajectories(path)] == ["r"]
    assert os.listdir(tmp_path) == [NAMES[name]]
