"""The serve command as a process: what it prints, how it ends, what it refuses."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
import urllib.request
from pathlib import Path

import pytest

from osmosis_grpc.policies import ToolCallingMock
from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.trainer import RolloutClient
from tests.callback_trainer import CallbackTrainer
from tests.cli.test_extras import advised, without
from tests.observability.scrape import Page
from tests.processes import ROOT, run, server_process, serving
from tests.waiting import until

CALCULATOR = ("-m", "osmosis_grpc.testing.calculator:agent_loop")
QUESTION = [{"role": "user", "content": "What is 1 + 2?"}]
AGENTS = """
import asyncio, os, time
from osmosis_grpc.rollout import RolloutAgentLoop
print("printed while importing")
os.write(1, b"written to the file descriptor\\n")
class Noisy(RolloutAgentLoop):
    name = "noisy"
    def get_tools(self, request):
        print("printed by get_tools")
        return []
    async def run(self, ctx):
        print("printed by run")
        return ctx.complete([], reward=1.0)
def begin():
    open("begun", "w").close()
class Hanging(RolloutAgentLoop):
    name = "hanging"
    def get_tools(self, request):
        return []
    async def run(self, ctx):
        begin()
        await asyncio.sleep(3600)
class Deaf(Hanging):
    name = "deaf"
    async def run(self, ctx):
        begin()
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                pass
class Blocking(Hanging):
    name = "blocking"
    async def run(self, ctx):
        begin()
        time.sleep(3600)
agents = [Noisy(), Hanging(), Deaf(), Blocking]
nameless = Noisy()
nameless.name = ""
"""
SERVE = ("-m", "osmosis_grpc.serve", *CALCULATOR, "--grpc-port", "0", "--no-http")
VARIABLE = "OSMOSIS_ROLLOUT_SERVER_METRICS_PORT"
CANARY = "canary-of-a-server-token"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "agents.py").write_text(AGENTS)
    return tmp_path


async def roll(address, **request):
    async with CallbackTrainer(ToolCallingMock()) as trainer, RolloutClient(address) as client:
        await client.init(rollout_id="r", messages=QUESTION, callback=trainer.callback(), **request)
        return await asyncio.wait_for(trainer.outcome("r"), 20)


def test_help_answers_without_heavy_imports():
    """tests/cli/test_help.py shows it for `osmosis-grpc`."""
    result = run("-X", "importtime", "-m", "osmosis_grpc.serve", "--help")
    assert result.returncode == 0
    imported = set(re.findall(r"\|\s+([\w.]+)\s*$", result.stderr, re.M))
    assert "typer" in imported
    assert not {name for name in imported if name.split(".")[0] in ("grpc", "fastapi", "numpy", "litellm")}


@pytest.mark.parametrize("command", [("osmosis_grpc.serve",), ("osmosis_grpc", "serve")])
def test_both_commands_are_one(forked, command):
    def options(text):
        return set(re.findall(r"--[a-z][a-z-]+", text))

    reference = options(
        forked.run("-m", "osmosis_grpc.serve", "--help-all", env=os.environ | {"COLUMNS": "200"}).stdout
    )
    assert options(forked.run("-m", *command, "--help-all", env=os.environ | {"COLUMNS": "200"}).stdout) == reference
    assert reference >= {
        "--host",
        "--api-key",
        "--no-reflection",
        "--grpc-port",
        "--max-concurrent",
        "--record-ttl",
        "--allow-target",
        "--no-validate",
        "--log",
        "--log-level",
        "--reload",
        "--json",
        "--drain-timeout",
    }


def test_stdout_carries_records_only(folder):
    with server_process("-m", "agents:agents", cwd=folder) as (process, address):
        assert asyncio.run(roll(address, agent_loop="noisy")).reward == 1.0
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=20)
    assert process.returncode == 0
    assert [json.loads(line)["event"] for line in out.splitlines()] == ["draining", "stopped"]
    for text in ("printed while importing", "written to the file descriptor", "printed by get_tools", "printed by run"):
        assert text in err


def test_the_ready_record_is_true(folder):
    command = ("-m", "osmosis_grpc.serve", "-m", "agents:agents", *CALCULATOR)
    with server_process(*command[2:], cwd=folder) as (process, address):
        host, port = address.rsplit(":", 1)
        assert host == "127.0.0.1"
        assert int(port) > 0
        assert asyncio.run(roll(address, agent_loop="calculator")).status is OutcomeStatus.COMPLETED
        assert process.poll() is None


@pytest.mark.slow
@pytest.mark.parametrize("token", ["", "secret-of-the-caller"])
def test_the_line_of_the_banner_runs_as_it_is(token, tmp_path):
    (tmp_path / "tokens").write_text(token)
    security = ("--token-file", str(tmp_path / "tokens")) if token else ()
    command = [sys.executable, "-u", "-m", "osmosis_grpc.serve", *CALCULATOR, "--grpc-port", "0", "-p", "0", *security]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=tmp_path
    ) as process:
        lines = [process.stdout.readline() for _ in range(4)]
        label, _, line = lines[2].strip().partition(" ")
        environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        answer = subprocess.run(
            ["bash", "-c", line], capture_output=True, text=True, timeout=30, check=False, env=environment
        )
        process.terminate()
    assert "serving calculator" in lines[0]
    assert (label, line.split()[:2]) == ("try", ["osmosis-grpc", "ping"])
    assert lines[3].split()[0] == "HTTP"
    assert answer.returncode == 0, answer.stderr
    assert "calculator" in answer.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ((*CALCULATOR, "--host", "0.0.0.0"), 2, "needs a token or TLS"),
        ((*CALCULATOR, "--host", "192.168.0.1"), 2, "needs a token or TLS"),
        ((*CALCULATOR, "--allow-target", "10.0.0.0/99"), 2, "--allow-target"),
        ((*CALCULATOR, "--max-concurrent", "0"), 2, "--max-concurrent"),
        ((*CALCULATOR, "--no-journal", "--state-dir", "x"), 2, "--no-journal does not go with --state-dir"),
        (("-m", "nowhere:agent"), 2, "there is no module 'nowhere'"),
        (("-m", "osmosis_grpc.testing.calculator"), 2, "is not MODULE:ATTRIBUTE"),
        (("-m", "osmosis_grpc.testing.calculator:nope"), 2, "agent_loop"),
        (("-m", "osmosis_grpc.testing.calculator:TOOLS"), 2, "not a RolloutAgentLoop"),
        ((*CALCULATOR, *CALCULATOR), 2, "two agent loops are named calculator"),
        ((), 2, "--module"),
    ],
)
def test_what_is_refused(forked, arguments, code, text):
    result = forked.run("-m", "osmosis_grpc.serve", *arguments, env=os.environ | {"COLUMNS": "200"})
    assert result.returncode == code
    assert text in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_an_agent_that_is_not_valid_is_not_served(folder):
    result = run("-m", "osmosis_grpc.serve", "-m", "agents:nameless", cwd=folder)
    assert result.returncode == 1
    assert "INVALID_AGENT_NAME" in result.stderr
    assert "agents.py" in result.stderr


@pytest.mark.slow
def test_a_bad_setting_is_named():
    env = os.environ | {"OSMOSIS_ROLLOUT_SERVER_MAX_CONCURRENT_ROLLOUTS": "0"}
    result = run("-m", "osmosis_grpc.serve", *CALCULATOR, env=env)
    assert result.returncode == 2
    assert "OSMOSIS_ROLLOUT_SERVER_MAX_CONCURRENT_ROLLOUTS" in result.stderr


@pytest.mark.slow
def test_a_port_in_use_is_said():
    with server_process(*CALCULATOR) as (_, address):
        result = run("-m", "osmosis_grpc.serve", *CALCULATOR, "--grpc-port", address.rsplit(":", 1)[1])
    assert result.returncode == 2
    assert "in use" in result.stderr


@pytest.mark.slow
def test_log_folder(folder):
    with server_process(*CALCULATOR, "--log", str(folder / "logs")) as (_, address):
        asyncio.run(roll(address))
    (path,) = (folder / "logs").glob("*/events/*.jsonl")
    assert json.loads(path.read_text().splitlines()[0])["event"] == "accepted"


async def _drained(folder, agent_loop, *arguments):
    """A rollout runs; SIGTERM; its outcome and the exit code."""
    with server_process("-m", "agents:agents", *arguments, cwd=folder) as (process, address):
        async with CallbackTrainer(ToolCallingMock()) as trainer, RolloutClient(address) as client:
            await client.init(rollout_id="r", agent_loop=agent_loop, callback=trainer.callback())
            await until((folder / "begun").exists)
            process.send_signal(signal.SIGTERM)
            code = await asyncio.to_thread(process.wait, 30)
            try:
                return await asyncio.wait_for(trainer.outcome("r"), 2), code
            except TimeoutError:
                return None, code


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agent_loop", "code", "status"),
    [("hanging", 0, OutcomeStatus.FAILED), ("deaf", 0, OutcomeStatus.FAILED), ("blocking", 1, None)],
)
async def test_sigterm_ends_the_process_whatever_the_agent_does(folder, agent_loop, code, status):
    outcome, exit_code = await _drained(folder, agent_loop, "--drain-timeout", "0.5", "--no-validate")
    assert exit_code == code
    assert (outcome.status if outcome else None) is status
    if outcome:
        assert (outcome.failure.boundary, outcome.failure.retryable) == ("server", True)


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGHUP])
async def test_a_second_signal_stops_at_once(folder, first):
    with server_process("-m", "agents:agents", "--drain-timeout", "600", cwd=folder) as (process, address):
        async with CallbackTrainer(ToolCallingMock()) as trainer, RolloutClient(address) as client:
            await client.init(rollout_id="r", agent_loop="hanging", callback=trainer.callback())
        process.send_signal(first)
        assert json.loads(process.stdout.readline())["event"] == "draining"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM
        *_, last = process.stderr.read().splitlines()
        assert json.loads(last)["event"] == "stopped at once: 1 did not end, 0 ended without a receipt of the trainer"


@pytest.mark.slow
def test_reload(tmp_path):
    source = textwrap.dedent("""
        from osmosis_grpc.rollout import RolloutAgentLoop
        class A(RolloutAgentLoop):
            name = "NAME"
            def get_tools(self, request): return []
            async def run(self, ctx): return ctx.complete([])
        agent = A()
    """)
    (tmp_path / "changing.py").write_text(source.replace("NAME", "before"))
    import subprocess
    import sys

    command = [
        sys.executable,
        "-m",
        "osmosis_grpc.serve",
        "-m",
        "changing:agent",
        "--grpc-port",
        "0",
        "--json",
        "--reload",
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=tmp_path
    ) as process:
        first = json.loads(process.stdout.readline())
        time.sleep(0.5)  # time for what must not come
        (tmp_path / "changing.py").write_text(source.replace("NAME", "after"))
        seen = [first]
        while seen[-1]["event"] != "ready" or seen[-1] is first:
            seen.append(json.loads(process.stdout.readline()))
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    assert (first["agent_loops"], seen[-1]["agent_loops"]) == (["before"], ["after"])
    assert process.returncode == 0


def fetch(address):
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
        assert answer.status == 200
        return Page(answer.read().decode())


@pytest.mark.slow
@pytest.mark.parametrize("how", ["option", "variable"])
def test_port_0_picks_a_free_port_and_says_which(how):
    arguments, environment = (["--metrics-port", "0"], {}) if how == "option" else ([], {VARIABLE: "0"})
    environment |= {"OSMOSIS_ROLLOUT_SERVER_TOKEN": CANARY}
    with serving(*CALCULATOR, *arguments, env=os.environ | environment) as (process, ready):
        host, _, port = ready["metrics"].rpartition(":")
        assert (host, port != "0") == ("127.0.0.1", True)
        page = fetch(ready["metrics"])
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=30)
    assert process.returncode == 0
    assert page.labels("osmosis_rollouts_in_flight", "agent") == {"calculator"}
    assert ready["metrics"] in log, "the log names the port"
    assert CANARY not in page.text


@pytest.mark.slow
def test_there_is_no_such_port_by_default():
    with serving(*CALCULATOR) as (_, ready):
        assert "metrics" not in ready


@pytest.mark.slow
def test_a_port_in_use_is_one_line():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = run(*SERVE, "--metrics-port", port)
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("serve: ")]
    assert done.returncode == 2
    assert line.startswith(f"serve: cannot listen on 127.0.0.1:{port}: ")
    assert line.endswith("; --metrics-port chooses another port")


@pytest.mark.slow
def test_a_missing_library_is_one_line_where_metrics_are_asked_for(tmp_path):
    environment = without(tmp_path, "prometheus_client")
    done = run(*SERVE, "--metrics-port", "0", env=environment)
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("serve: ")]
    assert done.returncode == 2
    assert line.startswith("serve: --metrics-port: metrics needs the extra 'server': pip install ")
    assert advised(line) == ["pip", "install", "-e", f"{ROOT}[server]"]
    with serving(*CALCULATOR, env=environment) as (process, ready):
        assert "metrics" not in ready
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    assert process.returncode == 0
