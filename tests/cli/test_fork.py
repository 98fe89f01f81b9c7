"""The commands fork and replay --all, on the journal of a server that is running."""

import json
import os
from collections import Counter
from pathlib import Path

import pyarrow.parquet as parquet
import pytest

from osmosis_grpc.protocol.types import RolloutFilter
from osmosis_grpc.records.export import load_outputs
from osmosis_grpc.server import AgentServer
from osmosis_grpc.trainer import Trainer
from tests.cli.in_process import command
from tests.processes import ROOT
from tests.server.forking import CHATS, USER, Brancher, fork_at, policy

STATE = ("--from", "state")
AGENT = "from tests.server.forking import Brancher\nclass Agent(Brancher):\n    pass\nagent_loop = Agent()\n"
CHANGED = """
from tests.server.forking import Brancher, user
class Agent(Brancher):
    async def run(self, ctx):
        messages = [*ctx.request.messages, (await ctx.chat(list(ctx.request.messages))).message, user("stop")]
        await ctx.chat(messages)
        return ctx.complete(messages, reward=1.0)
agent_loop = Agent()
"""


@pytest.fixture
async def recorded(tmp_path, monkeypatch):
    """A running server with a rollout r1 and its fork f1 from chat 2 of main. Its journal is in ./state."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(ROOT)
    (tmp_path / "today.py").write_text(AGENT)
    (tmp_path / "changed.py").write_text(CHANGED)
    async with AgentServer([Brancher()], port=0, state_dir=tmp_path / "state") as server:
        async with Trainer([server.address], policy) as trainer:
            await trainer.rollout(rollout_id="r1", messages=[USER])
            await trainer.rollout(rollout_id="f1", messages=[USER], fork=fork_at(("main", 2)))
        yield server


PATHS = os.pathsep.join([".", str(ROOT)])


def records_of(forked, *arguments):
    done = forked.run(
        "-m", "osmosis_grpc", *arguments, "--json", cwd=Path.cwd(), env=os.environ | {"PYTHONPATH": PATHS}
    )
    return done, [json.loads(line) for line in done.stdout.splitlines()]


async def test_a_fork_with_an_agent_runs_here_and_is_shown(recorded, forked):
    done, found = records_of(
        forked,
        "fork",
        "r1",
        "--at-chat",
        "2",
        "-m",
        "today:agent_loop",
        "--model",
        "mock:echo",
        "--save-dir",
        "run",
        *STATE,
    )
    assert done.returncode == 0, done.stderr
    end = found[-1]
    assert (end["status"], end["reward"], end["chats"]) == ("COMPLETED", 1.0, len(CHATS) - 2)
    assert end["forked_from"] == {"rollout_id": "r1", "attempt": 1, "sample": "main", "chat_number": 2}
    shown = await command("show", end["rollout_id"], "--from", "run")
    assert "forked from r1 at chat main 2" in " ".join(shown.stdout.split())
    assert "recorded): r1 main 2" in shown.stdout
    assert end["show"].endswith(f"show {end['rollout_id']} --from run")


async def test_a_fork_without_an_agent_runs_on_the_server(recorded):
    arguments = ("fork", "r1", "--at-chat", "1", "--sample", "helper", "--from", recorded.address)
    done = await command(*arguments, "--model", "mock:echo")
    assert done.exit_code == 0, done.output
    assert "COMPLETED (stop), reward 1, 3 live chats" in done.stdout
    rows, _ = await recorded.engine.rollouts.page("", where=RolloutFilter(forked_from="r1"))
    assert [row.fork.sample for row in rows] == ["main", "helper"]
    assert f"--from {recorded.address}" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["r1", "--at-chat", "9", "-m", "today:agent_loop"], "no reply to chat 9 of sample 'main'; its chats with a"),
        (["r9", "--at-chat", "1", "-m", "today:agent_loop"], "there is no rollout r9"),
        (["r1", "--at-chat", "1"], "-m MODULE:ATTR names agent loop 'brancher'"),
        (
            ["r1", "--at-chat", "1", "-m", "tests.deployment:Talk"],
            "the rollout ran agent loop 'brancher'; -m names talk",
        ),
        (["r1", "--at-chat", "1", "-m", "today:agent_loop", "--model", "mock:no"], "mock:no"),
    ],
)
async def test_a_fork_that_cannot_start_says_why(recorded, arguments, problem):
    done = await command("fork", *STATE, *arguments, *(["--model", "mock:echo"] if "--model" not in arguments else []))
    assert (done.exit_code, problem in done.output) == (2, True), done.output


async def test_lists_events_and_views_know_the_origin(recorded, forked):
    listed = await command("list", *STATE, "--forked-from", "r1")
    assert "f1" in listed.stdout
    assert "fork of r1 at chat main 2" in listed.stdout
    assert "no rollout matches" in (await command("list", *STATE, "--forked-from", "f1")).stdout
    printed = " ".join((await command("events", *STATE, "f1")).stdout.split())
    assert "chat main 2 recorded in the original" in printed
    sql = "SELECT r.rollout_id, forked_from, forked_sample, forked_chat, sum(forked) AS recorded"
    done, found = records_of(
        forked, "query", *STATE, f"{sql} FROM rollouts r JOIN chats USING (rollout_id) GROUP BY ALL ORDER BY 1"
    )
    assert done.returncode == 0, done.stderr
    known = [tuple(record["row"].values()) for record in found if record["event"] == "row"]
    assert known == [("f1", "r1", "main", 2, 2), ("r1", None, None, None, 0)]


async def test_exports_of_a_fork_have_its_live_replies(recorded, tmp_path):
    assert (await command("export", *STATE, "--to", "parquet", "--output", "made")).exit_code == 0
    table = parquet.read_table(tmp_path / "made" / "rollouts.parquet").to_pylist()
    rows = {row["rollout_id"]: row for row in table}
    origin = [rows["f1"][name] for name in ("forked_from", "forked_sample", "forked_chat")]
    assert origin == ["r1", "main", 2]
    assert rows["r1"]["forked_from"] is None
    segments = parquet.read_table(tmp_path / "made" / "segments.parquet").to_pylist()
    chats = [(row["sample"], chat) for row in segments if row["rollout_id"] == "f1" for chat in row["chats"]]
    assert sorted(chats) == sorted(CHATS[2:])
    assert all(sum(row["mask"]) for row in segments if row["rollout_id"] == "f1")
    assert (await command("export", *STATE, "--to", "verl", "--output", "verl.jsonl")).exit_code == 0
    trained, expected = Counter(), Counter()
    for line in load_outputs("verl.jsonl"):
        trained[line["rollout_id"]] += sum(line["output"]["response_mask"])
    for row in segments:
        expected[row["rollout_id"]] += sum(row["mask"])
    assert trained == expected


async def test_the_atif_steps_of_a_fork_have_the_tokens_of_its_live_replies(recorded):
    """The main conversation of f2 has three replies, and only the last one is live."""
    async with Trainer([recorded.address], policy) as trainer:
        fork = await trainer.rollout(rollout_id="f2", messages=[USER], fork=fork_at(("helper", 2)))
    assert (await command("export", *STATE, "--to", "atif", "--output", "made")).exit_code == 0
    made = next(json.loads(path.read_text()) for path in Path("made").iterdir() if path.name.startswith("f2"))
    assert made["extra"]["osmosis"]["forked_from"]["sample"] == "helper"
    steps = [step for step in made["steps"] if step["source"] == "agent"]
    assert [step["message"] for step in steps] == ["r1 main 1", "r1 main 2", "f2 main 4"]
    assert ["metrics" in step for step in steps] == [False, False, True]
    (segment,) = fork.samples["main"].segments
    assert steps[2]["metrics"]["completion_token_ids"] == segment.ids[segment.mask()].tolist()


async def test_replay_all_reports_the_rollouts_that_differ_and_where(recorded, forked):
    same = await command("replay", *STATE, "--all", "-m", "today:agent_loop")
    assert same.exit_code == 0, same.output
    assert "2 rollouts replayed: 2 equal, 0 different" in same.stdout
    done, found = records_of(forked, "replay", *STATE, "--all", "-m", "changed:agent_loop")
    assert done.returncode == 1, done.stderr
    rows = {row["rollout_id"]: row for row in found if row["event"] == "rollout"}
    assert {name: (row["same"], row["sample"], row["number"]) for name, row in rows.items()} == {
        "r1": (False, "main", 2),
        "f1": (False, "main", 2),
    }
    assert any("+content: stop" in line for line in rows["r1"]["difference"]["diff"])
    assert {name: found[-1][name] for name in ("rollouts", "same", "different")} == {
        "rollouts": 2,
        "same": 0,
        "different": 2,
    }


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--all"], "say where the agent loops are"),
        (["--all", "r1", "-m", "today:agent_loop"], "leave out ROLLOUT"),
        (["--all", "-m", "today:agent_loop", "--state", "failed"], "no rollout matches"),
        (["--all", "-m", "tests.deployment:Talk"], "the rollouts ran agent loop 'brancher'; -m names talk"),
        ([], "name the rollout to replay, or pass --all"),
    ],
)
async def test_replay_all_without_work_says_why(recorded, arguments, problem):
    done = await command("replay", *STATE, *arguments)
    assert (done.exit_code, problem in done.output) == (2, True), done.output


async def test_replay_reads_a_server(recorded):
    arguments = ("--from", recorded.address, "-m", "today:agent_loop")
    all_, one = await command("replay", "--all", *arguments), await command("replay", "f1", *arguments)
    assert (all_.exit_code, one.exit_code) == (0, 0), all_.output + one.output
    assert one.stdout.count("same") == len(CHATS) + 1
