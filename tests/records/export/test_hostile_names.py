"""Exports to files and folders with names that only a file system accepts."""

import os

import pyarrow
import pyarrow.parquet
import pytest

from osmosis_grpc.agentic import Trajectory, dump_trajectories, load_trajectories
from osmosis_grpc.records.evaluate.formats import read_parquet
from osmosis_grpc.records.export import Export, export
from tests.records.export.outcomes import golden

NAMES = {
    "as long as possible": "n" * 255,
    "long in bytes": "ä" * 127,
    "a line break": "a\nb",
    "not UTF-8": os.fsdecode(b"a\xff\xfeb"),
    "turned around": "a\u202eb",
    "an option": "-rf",
    "almost above": "..x",
}


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
