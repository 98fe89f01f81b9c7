"""The documents describe what is: their commands run, their code runs, their links lead somewhere."""

import ast
import asyncio
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from osmosis_grpc.policies import ScriptedPolicy, ToolCallingMock
from osmosis_grpc.server import AgentServer
from osmosis_grpc.testing import run_rollout
from osmosis_grpc.testing.calculator import CalculatorAgent
from osmosis_grpc.trainer import RolloutClient, RolloutRequest, TrainerServer, attach
from tests.processes import ROOT, run, server_process

README = (ROOT / "README.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.S)


def test_the_readme_starts_with_two_commands():
    first = blocks("bash")[0].split("\n")
    assert first[:2] == ["make demo", "make test"]
    assert README.index("make demo") < 200
    targets = re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.M)
    assert {"venv", "demo", "test", "check", "generate", "compat-newest"} <= set(targets)


async def test_the_agent_of_the_readme_runs():
    names = {}
    exec(blocks("python")[0], names)
    question = [{"role": "user", "content": "hi"}]
    completion = await run_rollout(names["agent_loop"], ScriptedPolicy(["hello you"]), question)
    assert completion.reward == 1.0


def test_the_commands_of_the_readme_run(tmp_path):
    (tmp_path / "server.py").write_text(blocks("python")[0])
    validate, serve = blocks("bash")[1].strip().split("\n")
    program, *arguments = validate.split()
    assert program == "osmosis-grpc"
    result = run("-m", "osmosis_grpc", *arguments, cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    program, command, *arguments = serve.split()
    assert (program, command) == ("osmosis-grpc", "serve")
    with server_process(*arguments, cwd=tmp_path) as (_, address):
        assert address


@pytest.mark.slow
def test_the_curl_of_the_readme_works():
    """The block as it is, on free ports."""
    block = next(block for block in blocks("bash") if "curl" in block)
    lines = [line for line in block.split("\n") if "activate" not in line]
    grpc, http, trainer = (str(port) for port in free_ports(3))
    text = "\n".join(lines).replace(":9000", f":{http}").replace("8100", trainer)
    text = text.replace("serve -m", f"serve --grpc-port {grpc} -p {http} -m")
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-m", "-e", "-c", text], capture_output=True, text=True, cwd=ROOT, env=environment, timeout=50,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert '"rollout_id":"r1","tools":[' in done.stdout
    result = json.loads(done.stdout[done.stdout.rindex('{"rollout_id"') :].split("\n")[0])
    assert result["status"] == "COMPLETED"
    assert [message["role"] for message in result["final_messages"]] == ["user", "assistant", "tool", "assistant"]
    assert result["final_messages"][2]["content"] == "8"


def free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


QUESTION = [{"role": "user", "content": "What is (2 + 3) * (4 + 5)?"}]


async def run_block(number, **names):
    """A Python block of the README against a real server; its names afterwards."""
    source = blocks("python")[number].replace('"127.0.0.1:50051"', "target")
    async with AgentServer([CalculatorAgent()], port=0) as server:
        names |= {"policy": ToolCallingMock(), "target": server.address, "messages": QUESTION}
        code = compile(source, "README.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        await asyncio.wait_for(eval(code, names), 30)
    return names


async def test_the_trainer_of_the_readme_trains():
    trained = []
    names = await run_block(1, train_on=lambda *what: trained.append(what))
    assert len(trained) == 4 * 8
    for ids, mask, logprobs, reward in trained:
        assert len(ids) == len(mask)
        assert mask.sum() == len(logprobs)
        assert reward == 1.0
    last = names["completion"]
    assert last.rollout_id == f"{last.group.id}-{last.group.index}"
    assert (last.group.size, last.group.id[:6]) == (8, "step1-")


async def test_the_trainer_with_callbacks_of_the_readme_gets_its_completion():
    names = await run_block(4, TrainerServer=TrainerServer, RolloutClient=RolloutClient)
    assert names["completion"].reward == 1.0


async def test_the_trainer_with_a_ledger_of_the_readme_applies_everything_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    applied = {}

    def apply(completion):
        assert completion.reward == 1.0
        assert applied.setdefault(completion.rollout_id, completion) is completion

    requests = [RolloutRequest(rollout_id=f"r{n}", messages=QUESTION, label="45") for n in range(3)]
    for _ in range(2):
        await run_block(3, attach=attach, requests=requests, applied=applied, apply=apply)
    assert sorted(applied) == ["r0", "r1", "r2"]


@pytest.mark.slow
async def test_the_server_of_the_readme_dials_out(tmp_path):
    (tmp_path / "server.py").write_text(blocks("python")[0])
    program, command, *arguments = next(block for block in blocks("bash") if "--connect" in block).split()
    assert (program, command) == ("osmosis-grpc", "serve")
    listen_on = arguments.pop()
    call = re.search(r"`(attach\(.*?\))`", README)[1]
    assert f'"{listen_on}"' in call
    names = {"attach": attach, "policy": ScriptedPolicy(["hello you"])}
    async with eval(call.replace(listen_on, "127.0.0.1:0"), names) as trainer:
        with server_process(*arguments, trainer.address, cwd=tmp_path):
            completion = await asyncio.wait_for(trainer.rollout(rollout_id="r1", messages=QUESTION), 30)
    assert completion.reward == 1.0


@pytest.mark.slow
async def test_the_replay_of_the_readme_replays(tmp_path):
    (tmp_path / "server.py").write_text(blocks("python")[0])
    program, *arguments = next(block for block in blocks("bash") if "replay" in block).split()
    assert (program, arguments[:2]) == ("osmosis-grpc", ["replay", "r1"])
    environment = {name: value for name, value in os.environ.items() if name != "OSMOSIS_ROLLOUT_SERVER_STATE_DIR"}
    with server_process("-m", "server:agent_loop", cwd=tmp_path, env=environment) as (_, address):
        async with attach([address], ScriptedPolicy(["hello you"])) as trainer:
            await asyncio.wait_for(trainer.rollout(rollout_id="r1", messages=QUESTION), 30)
        command = ("-m", "osmosis_grpc", *arguments)
        done = await asyncio.to_thread(run, *command, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("result same: COMPLETED (stop), reward 1, 2 messages, ")


async def test_the_policy_of_the_readme_answers():
    names = {"sample_from": lambda messages, tools, params: ([1, 2], [3], [-0.5], "hello you")}
    exec(blocks("python")[2], names)
    agent = {}
    exec(blocks("python")[0], agent)
    completion = await run_rollout(agent["agent_loop"], names["policy"], [{"role": "user", "content": "hi"}])
    assert completion.reward == 1.0
    (segment,) = completion.samples["main"].segments
    assert segment.ids.tolist() == [1, 2, 3]


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "docs/architecture.md", "docs/compatibility.md"])
def test_links_lead_somewhere(name):
    path = ROOT / name
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
        assert (path.parent / target).exists(), target


def test_the_picture_shows_the_rooms_there_are():
    text = (ROOT / "docs" / "architecture.md").read_text()
    picture = re.search(r"```\n(rollout .*?)```", text, re.S)[1]
    names = set(re.findall(r"^([a-z_| ]+?)(?:  |$)", picture, re.M))
    shown = {name for row in names for name in re.split(r"[ |]+", row) if name}
    package = ROOT / "osmosis_grpc"
    rooms = {p.stem for p in package.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert shown == rooms - {"__init__", "__main__"}
    layers = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]["layers"]
    floors = [[name.strip() for name in row.split("|")] for row in layers]
    assert {name for row in floors for name in row if not name.startswith("(")} - {"__main__"} == shown
    for path in re.findall(r"\| `([a-z_/]+\.py)`", text):
        assert (package / path).exists() or (ROOT / path).exists(), path
