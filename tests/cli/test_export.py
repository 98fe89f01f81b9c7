"""The export command: from a folder that a server uses and from the server, and what it refuses."""

import json
import shutil
import sqlite3
from contextlib import closing

import pyarrow.parquet
import pytest

from osmosis_grpc.records.export import load_batch, load_outputs
from tests.cli.in_process import command
from tests.records.export.atif_schema import check

BOTH = pytest.mark.parametrize("kind", ["server", "state_dir"])


async def done(looked_at, kind, *arguments):
    made = await command("export", *arguments, *looked_at.options(kind))
    assert made.exit_code == 0, made.output
    return made


@BOTH
async def test_messages(looked_at, tmp_path, kind):
    path = tmp_path / "m.jsonl"
    made = await done(looked_at, kind, "--to", "messages", "-o", str(path))
    assert "3 rollouts read, 4 lines written, 1 without an outcome left out: " in made.output
    found = [json.loads(line) for line in path.read_text().splitlines()]
    good, critic, bad, evil = found
    assert good["tools"][0]["function"]["name"] == "weather"
    assert good["metadata"]["label"] == "sunny"
    assert (critic["metadata"]["sample"], critic["metadata"]["reward"]) == ("critic", 0.5)
    assert critic["metadata"]["train"] is False
    assert bad["metadata"]["failure"]["reason"] == "AGENT_EXCEPTION"
    assert "\x1b[2J" in evil["messages"][2]["content"]


@BOTH
async def test_atif(looked_at, tmp_path, kind):
    await done(looked_at, kind, "--to", "atif", "-o", str(tmp_path / "t"))
    found = {path.stem: json.loads(path.read_text()) for path in (tmp_path / "t").glob("*.json")}
    assert found.pop("export") == {"format": "atif", "rollouts": 3, "skipped": 0}
    assert found.keys() == {"good", "bad", "evil"}
    for trajectory in found.values():
        check(trajectory)
    assert found["good"]["agent"]["name"] == "traveller"
    assert found["good"]["agent"]["tool_definitions"]
    assert found["good"]["subagent_trajectories"][0]["extra"]["osmosis"]["sample"] == "critic"
    assert found["bad"]["extra"]["osmosis"]["failure"]["boundary"] == "agent"


@BOTH
async def test_an_untrainable_rollout_is_refused_or_skipped(looked_at, tmp_path, kind):
    refused = await command("export", "--to", "verl", "-o", str(tmp_path / "v"), *looked_at.options(kind))
    assert refused.exit_code == 1
    text = " ".join(refused.output.split())
    assert text.startswith("export: rollout bad is not trained on: it ended FAILED: ")
    assert text.endswith("Leave it out, or use --skip-untrainable. Nothing was written")
    assert list(tmp_path.iterdir()) == []
    verl = ["--to", "verl", "-o", str(tmp_path / "v"), "--skip-untrainable"]
    refused = await command("export", *verl, *looked_at.options(kind))
    assert "use --no-reward-components" in " ".join(refused.output.split())
    made = await done(looked_at, kind, *verl, "--no-reward-components")
    assert "3 rollouts read, 2 segments written, 2 skipped, 1 without an outcome left out" in made.output
    assert {line["rollout_id"] for line in load_outputs(tmp_path / "v")} == {"good", "evil"}


async def test_parquet_and_padded_batches(looked_at, tmp_path):
    completed = ["--state", "completed"]
    await done(looked_at, "state_dir", "--to", "parquet", "-o", str(tmp_path / "p"), *completed)
    rows = pyarrow.parquet.read_table(tmp_path / "p" / "rollouts.parquet").to_pylist()
    assert [(row["rollout_id"], row["label"]) for row in rows] == [("good", "sunny"), ("evil", "sunny")]
    lengths = ["--prompt-length", "2000", "--response-length", "2000", "--pad-id", "7", "--no-reward-components"]
    await done(looked_at, "state_dir", "--to", "verl-batch", "-o", str(tmp_path / "b"), *completed, *lengths)
    batch = load_batch(tmp_path / "b" / "batch-00000.npz")
    assert {row.rollout_id for row in batch.rows} == {"good", "evil"}
    segments = pyarrow.parquet.read_table(tmp_path / "p" / "segments.parquet").to_pylist()
    tokens = batch.batch["attention_mask"].sum(axis=1).tolist()
    assert [len(row["ids"]) for row in segments] == tokens


async def test_the_filters_and_stdout(looked_at):
    made = await done(looked_at, "state_dir", "--to", "messages", "-o", "-", "--min-reward", "0.5", "--limit", "1")
    (line,) = {json.loads(line)["metadata"]["rollout_id"] for line in made.stdout.splitlines()}
    assert line == "good"
    assert "1 rollout read" in made.stderr


async def test_a_damaged_rollout_is_named_or_left_out(looked_at, tmp_path):
    shutil.copytree(looked_at.folder / "state", tmp_path / "state")
    with closing(sqlite3.connect(tmp_path / "state" / "journal.db")) as journal, journal:
        (sequence,) = journal.execute("SELECT sequence FROM rollouts WHERE rollout_id = 'bad'").fetchone()
        journal.execute("UPDATE events SET body = ? WHERE sequence = ? AND number = 2", (b"?", sequence))
    export = ["export", "--to", "messages", "-o", str(tmp_path / "m"), "--from", str(tmp_path / "state")]
    made = await command(*export)
    assert made.exit_code == 2
    assert "export: rollout bad is damaged: event 2" in made.output
    assert "--skip-untrainable leaves it out" in made.output
    made = await command(*export, "--skip-untrainable")
    assert made.exit_code == 0
    names = {json.loads(line)["metadata"]["rollout_id"] for line in (tmp_path / "m").read_text().splitlines()}
    assert names == {"good", "evil"}


def test_the_record(looked_at, tmp_path, forked):
    """Records need a process."""
    options = ["--to", "messages", "-o", str(tmp_path / "m"), "--json", *looked_at.options("state_dir")]
    made = forked.run("-m", "osmosis_grpc", "export", *options, cwd=tmp_path)
    assert json.loads(made.stdout) == {
        "event": "exported",
        "format": "messages",
        "output": str(tmp_path / "m"),
        "rollouts": 3,
        "rows": 4,
        "skipped": 0,
        "truncated": 0,
        "without_outcome": 1,
    }


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--to", "xml"], "--to: 'xml' is not a format; the formats are messages, atif, parquet, verl"),
        (["--to", "verl", "--too-long", "cut"], "--too-long: 'cut' is not one of raise, truncate, skip"),
        (["--to", "verl", "--cut", "drop"], "--cut: 'drop' is not one of train, mask, skip"),
        (["--to", "parquet", "--dropped", "mask"], "--dropped: 'mask' is not one of train, skip"),
        (["--to", "verl-batch"], "--pad-id: a padded batch needs it"),
        (["--to", "verl-batch", "--pad-id", "1"], "--prompt-length: a padded batch needs it"),
        (["--to", "verl-records"], "--global-steps: the records of verl's V1 trainer need it"),
        (["--to", "parquet", "-o", "-"], "--output: parquet is a folder, so it cannot be written to stdout"),
        (["--to", "messages", "-o", "-", "--json"], "--json writes records to stdout, and so does --output -"),
        (["--to", "messages", "--group", "none"], "no rollout matches in the state folder"),
        (
            ["--to", "messages", "-o", "taken"],
            "--output: taken exists; name another file, or allow to replace it with --overwrite",
        ),
    ],
)
async def test_wrong_options(looked_at, tmp_path, monkeypatch, arguments, problem):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").touch()
    made = await command("export", *arguments, *looked_at.options("state_dir"))
    assert made.exit_code == 2
    assert problem in " ".join(made.output.split())
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


async def test_a_folder_without_a_journal(tmp_path):
    made = await command("export", "--to", "messages", "-o", str(tmp_path / "m"), "--from", str(tmp_path))
    assert made.exit_code == 2
    assert "there is no journal" in made.output
