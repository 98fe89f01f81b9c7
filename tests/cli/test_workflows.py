"""The commands with workflows: serve, validate, test and demo, with a file and with a module."""

import json
import signal
import subprocess
import sys

import pytest

from osmosis_grpc.policies import EchoPolicy
from osmosis_grpc.trainer import RolloutClient, Trainer
from tests.processes import run, server_process, serving

ENTRY = """
from osmosis_grpc.rollout import (
    AgentWorkflow, AgentWorkflowConfig, AgentWorkflowContext, Grader, GraderConfig, get_rollout_context
)
from .words import PREFIX

class Config(AgentWorkflowConfig):
    name: str = "greeter"
    times: int = 1

class Greeter(AgentWorkflow[Config]):
    async def run(self, ctx: AgentWorkflowContext[Config]) -> None:
        for number in range(ctx.config.times):
            await get_rollout_context().chat(ctx.prompt, sample=f"{PREFIX}-{number}")

class Strictness(GraderConfig):
    name: str = "strict"
    reward: float = 1.0

class Contains(Grader[Strictness]):
    async def grade(self, ctx):
        for name, sample in ctx.samples.items():
            found = ctx.label is not None and ctx.label in str(sample.messages[-1]["content"])
            ctx.set_sample_reward(name, self.config.reward * found)

config = Config()
strictness = Strictness()
"""
ROWS = [{"user_prompt": f"Say {word}.", "ground_truth": word} for word in ("one", "two")]


@pytest.fixture
def folder(tmp_path):
    work = tmp_path / "rollouts" / "greeter"
    work.mkdir(parents=True)
    (work / "__init__.py").write_text("")
    (work / "words.py").write_text("PREFIX = 'greeting'\n")
    (work / "entry.py").write_text(ENTRY)
    (tmp_path / "run.toml").write_text(
        "[workflow.config]\ntimes = 2\n[grader.config]\nreward = 3\n[server]\nmax_concurrent_rollouts = 5\n"
    )
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return tmp_path


SPECS = ("rollouts/greeter/entry.py", "rollouts.greeter.entry", "rollouts.greeter.entry:Greeter")


@pytest.mark.slow
def test_eval_scores_a_workflow_with_its_grader(folder):
    options = ("-d", "data.jsonl", "--model", "mock:echo", "--n", "2", "--config", "run.toml", "-q")
    done = run(
        "-m", "osmosis_grpc", "eval", "-m", SPECS[0], *options, "--save-dir", "first", "-o", "out.json", cwd=folder
    )
    assert done.returncode == 0, done.stderr
    assert "reward: mean 3" in done.stdout
    assert "pass@1 1 (1 to 1), pass@2 1 " in done.stdout
    (row, _) = json.loads((folder / "out.json").read_text())["rows"]
    assert [each["scores"] for each in row["runs"]] == [{"reward": 3.0}] * 2
    (folder / "data.jsonl").write_text('{"user_prompt": "Say one.", "metadata": {"run_grader": false}}\n')
    done = run("-m", "osmosis_grpc", "eval", "-m", SPECS[0], *options, cwd=folder)
    assert (done.returncode, "0 of 2 rollouts scored" in done.stdout) == (1, True)


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.row("SDK 18", "SDK 21")
async def test_serve_hosts_a_workflow_with_the_values_of_file_variable_and_line(folder, spec):
    options = ("--config", "run.toml", "--grader-config", "reward=4", "--no-journal")
    with server_process("-m", spec, *options, cwd=folder) as (_, address):
        async with RolloutClient(address) as client, Trainer(address, EchoPolicy()) as trainer:
            assert (await client.info()).capacity.max_concurrent == 5
            outcome = await trainer.rollout(rollout_id="r1", messages=[{"role": "user", "content": "hi"}], label="h")
            assert {name: sample.reward for name, sample in outcome.samples.items()} == {
                "greeting-0": 4.0,
                "greeting-1": 4.0,
            }
            metadata = {"workflow_config": {"times": 1}}
            outcome = await trainer.rollout(
                rollout_id="r2", messages=[{"role": "user", "content": "hi"}], label="x", metadata=metadata
            )
            assert {name: sample.reward for name, sample in outcome.samples.items()} == {"greeting-0": 0.0}


@pytest.mark.slow
@pytest.mark.row("SDK 18")
def test_the_file_can_name_what_is_served(folder):
    (folder / "all.toml").write_text(f'[server]\nmodule = ["{SPECS[0]}"]\n')
    with serving("--config", "all.toml", cwd=folder) as (_, ready):
        assert ready["agent_loops"] == ["greeter"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (("-m", "rollouts/greeter/entri.py"), 2, "serve: there is no file 'rollouts/greeter/entri.py' in "),
        (
            ("-m", SPECS[0], "--workflow-config", "times=many"),
            2,
            "serve: --workflow-config: times: Input should be a va",
        ),
        (("-m", SPECS[0], "--workflow-config", "times"), 2, "serve: --workflow-config: 'times' is not KEY=VALUE"),
        (("-m", SPECS[0], "--config", "none.toml"), 2, "serve: none.toml cannot be read: No such file or directory"),
        (
            ("-m", SPECS[0], "--config", "bad.toml"),
            2,
            "serve: bad.toml: the table [workflows] is unknown; the tables are",
        ),
        (("-m", SPECS[0], "--config", "key.toml"), 2, "serve: key.toml: [server] has the unknown key prot; docs"),
        (
            ("-m", SPECS[0], "--grader", "json:loads"),
            2,
            "serve: json:loads is not a subclass of Grader: it is a function",
        ),
        (("-m", SPECS[0], "-m", SPECS[1]), 2, "serve: two agent loops are named greeter"),
        (("-m", SPECS[0], "--workflow-config", "name=" + "x" * 257), 1, "error: INVALID_AGENT_NAME "),
    ],
    ids=["no file", "type", "no value", "no toml", "table", "key", "grader", "twice", "name"],
)
@pytest.mark.row("SDK 19", "SDK 24", "SDK 28")
def test_what_serve_refuses(forked, folder, options, code, says):
    (folder / "bad.toml").write_text("[workflows]\n")
    (folder / "key.toml").write_text("[server]\nprot = 1\n")
    command = ("-m", "osmosis_grpc", "serve", *options, "--no-journal", "--no-http", "--grpc-port", "0")
    done = forked.run(*command, cwd=folder)
    assert done.stderr.startswith(says), done.stderr
    assert done.returncode == code


@pytest.mark.slow
@pytest.mark.row("SDK 29")
def test_serve_reports_all_problems_of_a_workflow_at_once(folder):
    (folder / "wrong.py").write_text(
        "from osmosis_grpc.rollout import AgentWorkflow, Grader\n"
        "class Wrong(AgentWorkflow):\n    def run(self, ctx): ...\n"
        "class Sync(Grader):\n    def grade(self, ctx): ...\n"
    )
    done = run("-m", "osmosis_grpc", "serve", "-m", "wrong.py", "--no-journal", cwd=folder)
    first, second, last = done.stderr.splitlines()
    assert first.startswith("error: WORKFLOW_RUN_NOT_ASYNC ")
    assert "wrong.py:3: run of Wrong is not async" in first
    assert second.startswith("error: GRADER_GRADE_NOT_ASYNC ")
    assert (last, done.returncode) == ("serve: not started; --no-validate starts anyway", 1)


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS)
def test_validate_checks_and_runs_a_workflow(folder, spec):
    done = run("-m", "osmosis_grpc", "validate", "-m", spec, "--run", "--config", "run.toml", "--json", cwd=folder)
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert [record["event"] for record in records] == ["run", "validated"], done.stdout
    assert (records[0]["agent"], records[0]["status"]) == ("greeter", "COMPLETED")
    assert list(records[0]["samples"]) == ["greeting-0", "greeting-1"]
    assert (records[1]["valid"], done.returncode) == (True, 0)


@pytest.mark.slow
def test_validate_finds_what_is_wrong_with_a_workflow(folder):
    (folder / "wrong.py").write_text(
        "from osmosis_grpc.rollout import AgentWorkflow, Grader, get_rollout_context\n"
        "class Asks(AgentWorkflow):\n    async def run(self, ctx):\n"
        "        await get_rollout_context().chat(ctx.prompt)\n"
        "class Wrong(Grader):\n    async def grade(self, ctx):\n        ctx.set_sample_reward('other', 1.0)\n"
    )
    (folder / "silent.py").write_text(
        "from osmosis_grpc.rollout import AgentWorkflow\n"
        "class Silent(AgentWorkflow):\n    async def run(self, ctx):\n        pass\n"
    )
    done = run("-m", "osmosis_grpc", "validate", "--run", "-m", "wrong.py", "-m", "silent.py", "--json", cwd=folder)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    codes = [(row["code"], row["severity"], row["line"]) for row in found if row["event"] == "finding"]
    assert codes == [("GRADER_FAILED", "error", 7), ("MISSING_GRADER", "warning", 2), ("NO_CHAT", "error", 3)]
    assert done.returncode == 1


@pytest.mark.slow
def test_test_runs_a_workflow_over_a_dataset(folder):
    options = ("-d", "data.jsonl", "--model", "mock:echo", "--workflow-config", "times=1", "--json")
    done = run("-m", "osmosis_grpc", "test", "-m", SPECS[0], *options, cwd=folder)
    assert done.returncode == 0, done.stderr
    rewards = [json.loads(line).get("reward") for line in done.stdout.splitlines() if '"row_index"' in line]
    assert rewards == [1.0, 1.0]


@pytest.mark.slow
def test_demo_runs_a_workflow(folder):
    done = run("-m", "osmosis_grpc", "demo", "-m", SPECS[0], "--config", "run.toml", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert [list(record["samples"]) for record in records] == [["greeting-0", "greeting-1"]] * 8


@pytest.mark.slow
@pytest.mark.row("SDK 25")
def test_several_entry_points_of_equal_names_are_hosted_at_once(folder):
    other = folder / "rollouts" / "other"
    other.mkdir()
    (other / "words.py").write_text("PREFIX = 'other'\n")
    (other / "entry.py").write_text(ENTRY.replace('"greeter"', '"other"'))
    with serving("-m", SPECS[0], "-m", "rollouts/other/entry.py", "--no-journal", cwd=folder) as (_, ready):
        assert ready["agent_loops"] == ["greeter", "other"]


@pytest.mark.slow
@pytest.mark.parametrize("changed", ["rollouts/greeter/entry.py", "run.toml"])
@pytest.mark.row("SDK 25")
def test_reload_sees_new_code_and_new_values(folder, changed):
    command = [sys.executable, "-m", "osmosis_grpc.serve", "-m", SPECS[0], "--config", "run.toml"]
    command += ["--grpc-port", "0", "--no-http", "--no-journal", "--json", "--reload"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=folder) as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        assert first["agent_loops"] == ["greeter"]
        path = folder / changed
        text = path.read_text().replace('"greeter"', '"after"').replace("times = 2", 'name = "after"')
        path.write_text(text)
        seen = first
        while seen.get("agent_loops") != ["after"]:
            seen = json.loads(process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    assert process.returncode == 0
