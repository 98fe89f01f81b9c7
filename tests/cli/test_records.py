"""With --json, stdout has only records, also if the agent prints; every command says its exit codes."""

import json

import pytest
from typer.main import get_command

from osmosis_grpc.cli.commands import app
from tests.processes import run, server_process

AGENT = '''
import os
import sys
from osmosis_grpc.rollout import RolloutAgentLoop, tool

def noise(what):
    print("printed by", what)
    os.write(1, b"written to the file descriptor\\n")

noise("the import")

@tool
async def add(a: float, b: float) -> float:
    """Adds two numbers."""
    noise("the tool")
    return a + b

class Noisy(RolloutAgentLoop):
    name = "noisy"
    tools = (add,)

    async def run(self, ctx):
        noise("run")
        return ctx.complete(await ctx.tool_loop(ctx.request.messages), reward=1.0)

agent_loop = Noisy()

def score(solution_str, ground_truth, extra_info=None):
    noise("the score")
    return 1.0
'''
AGENT_LOOP = ("-m", "agent:agent_loop")
RUN = (*AGENT_LOOP, "-d", "data.jsonl", "--model", "mock:tools")
COMMANDS = {
    "init": (["project"], {"made"}),
    "migrate": (["agent.py", "--check"], {"end"}),
    "validate": ([*AGENT_LOOP, "--run"], {"run", "validated"}),
    "test": ([*RUN, "--save-dir", "c"], {"started", "row", "summary"}),
    "eval": ([*RUN, "--save-dir", "e", "--eval-fn", "agent:score"], {"started", "row", "summary"}),
    "compare": (["a", "b"], {"runs", "comparison"}),
    "rescore": (["--from", "a", "--eval-fn", "agent:score"], {"rollout", "summary"}),
    "list": (["--from", "a"], {"rollout", "listed"}),
    "show": (["ID", "--from", "a"], {"rollout", "turn"}),
    "events": (["ID", "--from", "a"], {"accepted", "ended"}),
    "query": (["SELECT rollout_id FROM rollouts", "--from", "a"], {"row"}),
    "export": (["--to", "messages", "--from", "a"], {"exported"}),
    "docs": (["AGENT_EXCEPTION"], {"page"}),
    "replay": (["ID", *AGENT_LOOP, "--from", "a"], {"replayed"}),
    "doctor": (["--state-dir", "a"], {"checked", "examined"}),
    "backup": (["copied", "--state-dir", "a"], {"copied"}),
}
"""Commands that need no server: their arguments, and kinds of their records. ID stands for a rollout's id."""
WITH_SERVER = {"ping": [], "call": ["GetServerInfo"], "ctl config": [], "ctl cancel": ["r"], "ctl drain": ["--undo"]}
ELSEWHERE = {
    "serve": "tests/cli/test_serve.py",
    "demo": "tests/cli/test_demo.py",
    "fork": "tests/cli/test_fork.py",
    "view": "tests/cli/test_view.py",
    "conformance": "tests/conformance/test_command.py",
}
"""Commands whose records other tests read, and where."""


@pytest.fixture(scope="module")
def folder(forked, tmp_path_factory):
    """A folder with an agent that prints, and with the runs a and b."""
    folder = tmp_path_factory.mktemp("records")
    (folder / "agent.py").write_text(AGENT)
    (folder / "data.jsonl").write_text('{"user_prompt": "What is 1 + 2?", "ground_truth": "3"}\n')
    for name in "ab":
        done = forked.run("-m", "osmosis_grpc", "test", *RUN, "--save-dir", name, "-q", cwd=folder)
        assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def rollout_id(forked, folder):
    done = forked.run("-m", "osmosis_grpc", "list", "--from", "a", "--json", cwd=folder)
    return json.loads(done.stdout.splitlines()[0])["rollout_id"]


def records(done):
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert found, done.stderr
    assert all(isinstance(record, dict) and isinstance(record["event"], str) for record in found)
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_stdout_has_only_records(forked, folder, rollout_id, name):
    arguments, kinds = COMMANDS[name]
    given = [rollout_id if word == "ID" else word for word in arguments]
    done = forked.run("-m", "osmosis_grpc", name, *given, "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert {record["event"] for record in records(done)} >= kinds
    if "agent:agent_loop" in arguments:
        for text in ("printed by the import", "printed by run", "written to the file descriptor"):
            assert text in done.stderr


@pytest.mark.slow
def test_stdout_has_only_records_of_a_server(folder):
    serve = ("-m", "agent:agent_loop", "--state-dir", "served")
    with server_process(*serve, cwd=folder) as (_, address):
        request = json.dumps(
            {
                "rolloutId": "r",
                "spec": {"messages": [{"role": "user", "text": "What is 1 + 2?"}]},
                "callback": {"target": "127.0.0.1:9", "credential": "none"},
            }
        )
        started = run("-m", "osmosis_grpc", "call", "Init", "--data", request, "--json", "--server", address)
        assert [record["event"] for record in records(started)] == ["reply"]
        for name, arguments in WITH_SERVER.items():
            where = (address,) if name == "ping" else ("--server", address)
            done = run("-m", "osmosis_grpc", *name.split(), *arguments, *where, "--json", cwd=folder)
            assert (done.returncode, done.stderr) == (0, ""), name
            records(done)


def leaves(command, name=""):
    """The commands that do something, by name."""
    if not hasattr(command, "commands"):
        return {name: command}
    return {
        leaf: found
        for part, each in command.commands.items()
        for leaf, found in leaves(each, f"{name} {part}".strip()).items()
    }


def test_every_command_has_records_and_says_its_exit_codes():
    known = leaves(get_command(app))
    assert set(known) == {*COMMANDS, *WITH_SERVER, *ELSEWHERE}
    for name, command in known.items():
        assert any("--json" in parameter.opts for parameter in command.params), name
        assert "Exit codes: 0 " in " ".join(command.help.split()), name
