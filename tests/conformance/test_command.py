"""`osmosis-grpc conformance`, as a user runs it: options, wrong targets, own cases, reports."""

import json
import signal
import socket
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from osmosis_grpc.network.server_security import ServerSecurity
from osmosis_grpc.server import AgentServer
from osmosis_grpc.testing.conformance import ConformanceAgent, server_session
from osmosis_grpc.trainer import RolloutClient
from tests.cli.in_process import command
from tests.ports import quiet_port
from tests.waiting import until

FEW = ("--case", "init-is-idempotent", "--case", "rollout-one-chat", "--case", "credential-is-required")


async def test_a_server_is_tested_twice(serve, tmp_path):
    server = await serve(ConformanceAgent())
    files = ("--junit", str(tmp_path / "j.xml"), "--report", str(tmp_path / "r.json"))
    for _ in range(2):
        done = await command("conformance", "--server", server.address, *FEW, *files)
        assert done.exit_code == 0, done.output
        assert "4 cases in" in done.output
        assert "3 passed, 1 skipped" in done.output
        assert "1 skipped: needs token" in done.output
    assert json.loads((tmp_path / "r.json").read_text())["counts"]["passed"] == 3
    assert ET.parse(tmp_path / "j.xml").getroot().get("tests") == "4"


async def test_no_server_and_a_server_without_the_agent(serve):
    port = quiet_port()
    done = await command("conformance", "--server", f"127.0.0.1:{port}")
    assert done.exit_code == 2
    assert f"the server 127.0.0.1:{port} refuses connections" in done.output
    server = await serve()
    done = await command("conformance", "--server", server.address)
    assert done.exit_code == 2
    assert "has no agent loop `conformance`; it has calculator" in done.output
    assert "osmosis_grpc.testing.conformance:agent" in done.output


async def test_a_server_that_hangs(monkeypatch):
    monkeypatch.setattr(server_session, "REACH", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as listener:  # connections come, and nobody answers
        port = listener.getsockname()[1]
        done = await command("conformance", "--server", f"127.0.0.1:{port}")
    assert done.exit_code == 2
    assert "GetServerInfo" in done.output


async def test_wrong_options(serve, tmp_path):
    server = await serve(ConformanceAgent())
    (tmp_path / "known").write_text("init-is-idempotent\n")
    for arguments, says in (
        ((), "name what to test"),
        (("--server", server.address, "--trainer", "x"), "cannot be used together"),
        (("--server", server.address, "--case", "nobody"), "there is no case nobody"),
        (("--server", server.address, "--known-failures", str(tmp_path / "known")), "has no reason"),
        (
            ("--server", server.address, "--over", "accept", "--case", "unavailable-is-asked-again@attach"),
            "no case runs",
        ),
        (("--trainer", "no-such-program-here"), "there is no program 'no-such-program-here'"),
        (("--trainer", "'python"), "No closing quotation"),
        (("--server", server.address, "--junit", str(tmp_path / "no" / "j.xml")), "in a folder that does not exist"),
        (("--server", server.address, "--report", str(tmp_path)), "is a folder"),
        (("--server", server.address, "--cases", str(tmp_path / "no")), "there is no file"),
        (("--server", server.address, "--admin-token-file", str(tmp_path / "no")), "--admin-token-file: "),
        (("--server", server.address, "--accept", server.address), "the port is in use"),
        (("--server", server.address, "--accept", "50061"), "'50061': it is not HOST:PORT"),
    ):
        done = await command("conformance", *arguments)
        assert done.exit_code == 2, done.output
        assert says in done.output


async def test_the_list():
    done = await command("conformance", "--list")
    assert done.exit_code == 0
    assert "init-is-idempotent" in done.output
    done = await command("conformance", "--list", "--trainer", "x")
    assert "chat-is-sampled-once" in done.output


CASES = """
- case: mine
  attacks: a server that greets
  kind: calls
  shows: {GetServerInfoResponse.version: ["The version"]}
  calls: [{GetServerInfo: {}, expect: {response: {version: hello}}}]
"""


async def test_cases_of_ones_own_and_known_failures(serve, tmp_path):
    server = await serve(ConformanceAgent())
    (tmp_path / "server").mkdir()
    (tmp_path / "server" / "mine.yaml").write_text(CASES)
    mine = ("conformance", "--server", server.address, "--cases", str(tmp_path))
    done = await command(*mine)
    assert done.exit_code == 1
    for part in ("mine@call: failed", "a server that greets", "“The version”", 'expected "hello"', "-> GetServerInfo"):
        assert part in done.output
    (tmp_path / "known").write_text("mine # it does not greet yet\n")
    done = await command(*mine, "--known-failures", str(tmp_path / "known"))
    assert done.exit_code == 0
    assert "1 known failure" in done.output
    (tmp_path / "server" / "mine.yaml").write_text(CASES.replace("calls:", "cals:"))
    done = await command(*mine)
    assert done.exit_code == 2
    assert "mine.yaml: mine: a case of the kind calls has no key cals" in done.output
    (tmp_path / "server" / "mine.yaml").write_text(CASES.replace("version: hello", "draining: false"))
    done = await command(*mine, "--known-failures", str(tmp_path / "known"))
    assert done.exit_code == 1
    assert "take mine@call out of the file of known failures" in done.output


async def test_a_case_that_does_not_fit_the_protocol_is_named(serve, tmp_path):
    server = await serve(ConformanceAgent())
    (tmp_path / "server").mkdir()
    for steps, says in (
        ("[{start: {scrpt: []}}]", 'mine.yaml: mine: step 1 (start): TrainerFrame: Message type "osmosis.rollout'),
        ("[{start: {}}, {chat: {numer: 1}}]", "mine.yaml: mine: step 2 (chat): ChatRequest has no field numer; it has"),
        ("[{start: {script: [{cht: a}]}}]", "mine.yaml: mine: step 1 (start): script: step 1 has none of"),
        ("[{start: {}, wait: soon}]", "mine.yaml: mine: step 1 (start): wait: 'soon' is not a number of seconds"),
        ("[{start: {}}, {end: OKAY}]", "mine.yaml: mine: step 2 (end): OKAY is not the name of a status"),
    ):
        (tmp_path / "server" / "mine.yaml").write_text(f"- {{case: mine, attacks: x, kind: frames, steps: {steps}}}\n")
        done = await command("conformance", "--server", server.address, "--cases", str(tmp_path))
        assert done.exit_code == 2
        assert says in done.output.replace("\n", " ")


async def test_the_token_of_a_server_is_asked_for():
    security = ServerSecurity(tokens=["one=a-token-of-this-test"])
    async with AgentServer([ConformanceAgent()], port=0, security=security) as server:
        done = await command("conformance", "--server", server.address)
    assert done.exit_code == 2
    assert "UNAUTHENTICATED" in done.output
    assert "--token-file has the token" in done.output


@pytest.mark.conformance
async def test_an_interrupted_run_leaves_no_trainer(tmp_path):
    """Ctrl-C ends the suite, which ends the trainer that it has started."""
    (tmp_path / "trainer.py").write_text(
        "import os, pathlib, time\npathlib.Path('pid').write_text(f'{os.getpid()} ')\ntime.sleep(600)\n"
    )
    pid = tmp_path / "pid"
    trainer = ("--trainer", f"{sys.executable} trainer.py", "--case", "rollout-one-chat@attach")
    arguments = (sys.executable, "-m", "osmosis_grpc", "conformance", *trainer)
    with subprocess.Popen(
        arguments, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as suite:
        await until(lambda: pid.exists() and " " in pid.read_text(), "the trainer has started")
        suite.send_signal(signal.SIGINT)
        output, _ = suite.communicate(timeout=40)
    assert suite.returncode == 130
    assert "Traceback" not in output
    assert not Path("/proc", pid.read_text().strip()).exists()


@pytest.mark.conformance
async def test_a_trainer_that_does_not_start_ends_the_run_with_one_message(tmp_path):
    (tmp_path / "trainer.py").write_text("raise SystemExit('no weights')")
    for trainer, says in (
        (f"{sys.executable} {tmp_path / 'trainer.py'}", "its stderr ends with:\nno weights"),
        ("/bin/false", "it wrote nothing to stderr"),
    ):
        done = await command("conformance", "--trainer", trainer, *FEW[2:4], "--case", "unknown-frame")
        assert done.exit_code == 2
        assert "does not start: it ended at once with exit code 1; " + says in done.output
        assert done.output.count("exit code 1") == 1


@pytest.mark.conformance
async def test_a_trainer_that_crashes_in_one_mode_fails_its_cases(tmp_path):
    (tmp_path / "trainer.py").write_text(
        "import sys\nif 'accept' in sys.argv: raise SystemExit('no listener')\n"
        "from osmosis_grpc.testing.conformance.trainer import main\nsys.exit(main())"
    )
    done = await command("conformance", "--trainer", f"{sys.executable} {tmp_path / 'trainer.py'}", *FEW[2:4])
    assert done.exit_code == 1
    assert "2 passed, 1 failed" in done.output
    assert done.output.count("its stderr ends with:\n  no listener") == 1


@pytest.mark.conformance
async def test_a_trainer_without_the_mode_is_skipped(tmp_path):
    (tmp_path / "trainer.py").write_text("raise SystemExit(3)")
    done = await command(
        "conformance", "--trainer", f"{sys.executable} {tmp_path / 'trainer.py'}", "--case", "rollout-one-chat"
    )
    assert done.exit_code == 0
    assert "1 skipped: the trainer lacks the mode accept" in done.output


async def test_without_yaml_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    done = await command("conformance", "--list")
    assert done.exit_code == 2
    assert "needs the extra 'conformance'" in done.output


async def test_the_suite_leaves_no_rollout_behind(serve):
    server = await serve(ConformanceAgent())
    done = await command("conformance", "--server", server.address, "--case", "cancel-a-group", "--case", "chat-window")
    assert done.exit_code == 0, done.output
    async with RolloutClient(server.address) as client:
        states = {rollout.state async for rollout in client.rollouts()}
    assert states <= {"COMPLETED", "CANCELLED"}
