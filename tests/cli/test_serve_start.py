"""How `serve` starts, and what it says when it cannot: one line, and never a false alarm."""

import asyncio
import datetime
import json
import os
import signal
import socket
import subprocess
import sys

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from osmosis_grpc.trainer import RolloutClient
from tests.callback_trainer import CallbackTrainer
from tests.processes import run, server_process, serving

SERVE = ("-m", "osmosis_grpc.serve")
CALCULATOR = ("-m", "osmosis_grpc.testing.calculator:agent_loop")
NO_SETTINGS = {name: value for name, value in os.environ.items() if not name.startswith("OSMOSIS_")}

AGENT = """
import time
from osmosis_grpc.rollout import RolloutAgentLoop

class Agent(RolloutAgentLoop):
    name = "agent"

    def get_tools(self, request):
        return []

    async def run(self, ctx):
        time.sleep(1.5)  # blocks
        return ctx.complete([], reward=1.0)

agent = Agent()
"""


def refusal(result):
    """The one line on stderr of a serve that did not start."""
    assert (result.returncode, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("serve: ")
    return line.removeprefix("serve: ")


# The same folder twice


@pytest.mark.slow
def test_a_second_server_in_the_same_folder_is_refused_in_one_line(tmp_path):
    with server_process(*CALCULATOR, cwd=tmp_path, env=NO_SETTINGS) as (process, address):
        again = (*SERVE, *CALCULATOR, "--no-http", "--grpc-port", address.rpartition(":")[2])
        journal = refusal(run(*again, cwd=tmp_path, env=NO_SETTINGS))
        port = refusal(run(*again, "--no-journal", cwd=tmp_path, env=NO_SETTINGS))
        assert process.poll() is None
    assert journal == (
        f".osmosis/state is in use by process {process.pid}: stop it; "
        "--state-dir chooses another folder, --no-journal keeps no journal"
    )
    assert port.startswith(f"cannot listen on {address}: the port is in use; --grpc-port chooses another port")
    assert f"`osmosis-grpc ping {address}`" in port


@pytest.mark.slow
def test_a_start_that_is_refused_leaves_no_folder(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        reported = refusal(run(*SERVE, *CALCULATOR, "--no-http", "--grpc-port", port, cwd=tmp_path, env=NO_SETTINGS))
    assert "the port is in use" in reported
    assert list(tmp_path.iterdir()) == []


# A module that cannot be imported

BROKEN = {
    "syntax": ("x = 1\ndef broken(:", 2, "SyntaxError: invalid syntax"),
    "raises": ("\n\nraise KeyError('API_KEY')", 3, "KeyError: 'API_KEY'"),
    "exits": ("import sys\nsys.exit(3)", 2, "SystemExit: 3"),
    "imports what is not installed": ("import nowhere", 1, "ModuleNotFoundError: No module named 'nowhere'"),
    "raises no Exception": ("class Odd(BaseException): ...\nraise Odd('odd')", 2, "Odd: odd"),
    "has a loop without a name": (
        f"{AGENT}\nclass Half(Agent):\n    name = ''",
        17,
        "AgentNameError: Half: an agent loop must define",
    ),
    "is asked for a name that raises": ("def __getattr__(name):\n    raise ValueError(name)", 2, "ValueError: "),
}


@pytest.mark.parametrize(("source", "line", "says"), BROKEN.values(), ids=BROKEN)
def test_a_module_that_cannot_be_imported_is_one_line(forked, tmp_path, source, line, says):
    (tmp_path / "broken.py").write_text(source)
    reported = refusal(forked.run(*SERVE, "-m", "broken:agent", "--no-journal", cwd=tmp_path))
    assert reported.startswith(f"broken:agent: {says}")
    assert reported.endswith(f" at {tmp_path / 'broken.py'}:{line}")


def test_an_agent_loop_that_cannot_be_made_is_one_line(forked, tmp_path):
    (tmp_path / "broken.py").write_text(
        AGENT.replace("def get_tools", "def __init__(self, x): ...\n    def get_tools").replace("\nagent = Agent()", "")
    )
    reported = refusal(forked.run(*SERVE, "-m", "broken:Agent", "--no-journal", cwd=tmp_path))
    assert reported.startswith("broken:Agent: TypeError: ")


def test_a_missing_attribute_is_one_line_with_the_file(forked, tmp_path):
    (tmp_path / "server.py").write_text(AGENT)
    reported = refusal(forked.run(*SERVE, "-m", "server:agnet", "--no-journal", cwd=tmp_path))
    assert reported == f"server has no attribute 'agnet'; it has: Agent, agent ({tmp_path / 'server.py'})"


@pytest.mark.slow
def test_replay_says_the_same(forked, tmp_path):
    (tmp_path / "broken.py").write_text("import nowhere")
    (tmp_path / "agents.py").write_text(AGENT.replace("time.sleep(1.5)", "pass"))
    with server_process("-m", "agents:agent", "--state-dir", "state", cwd=tmp_path) as (_, address):
        assert asyncio.run(roll(address)).reward == 1.0
    done = forked.run("-m", "osmosis_grpc", "replay", "r", "-m", "broken:x", "--from", "state", cwd=tmp_path)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2
    assert line.startswith("replay: broken:x: ModuleNotFoundError: No module named 'nowhere'; ")
    assert line.endswith(f" at {tmp_path / 'broken.py'}:1")


async def roll(address):
    async with CallbackTrainer(lambda request: None) as trainer, RolloutClient(address) as client:
        question = [{"role": "user", "content": "?"}]
        await client.init(rollout_id="r", messages=question, callback=trainer.callback())
        return await asyncio.wait_for(trainer.outcome("r"), 30)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["broken at first", "broken later"])
def test_under_reload_the_server_starts_when_the_file_is_mended(tmp_path, how):
    module, broken = tmp_path / "agents.py", "def broken(:\n"
    module.write_text(broken if how == "broken at first" else AGENT)
    command = [sys.executable, *SERVE, "-m", "agents:agent", "--grpc-port", "0", "--no-http", "--json", "--reload"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        try:
            if how == "broken later":
                assert json.loads(process.stdout.readline())["event"] == "ready"
                module.write_text(broken)
            lines = []
            while not lines or "restarts when" not in lines[-1]:
                lines.append(process.stderr.readline().rstrip())
                assert lines[-1], "the supervisor ended"
            module.write_text(AGENT)
            events = [json.loads(process.stdout.readline())["event"]]
            while events[-1] != "ready":
                events.append(json.loads(process.stdout.readline())["event"])
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=30)
        finally:
            process.kill()
    said = [line for line in lines if line.startswith("serve: ")]
    assert said == [
        f"serve: agents:agent: SyntaxError: invalid syntax (agents.py, line 1) at {module}:1",
        f"serve: ended with exit code 2; restarts when a Python or TOML file below {tmp_path} changes",
    ]
    assert not [line for line in lines if "Traceback" in line]
    assert process.returncode == 0


# No false alarm at the start

SLOW = """
import sys, time

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("osmosis_gateway", "fastapi", "uvicorn"):
            time.sleep(0.1)

sys.meta_path.insert(0, Slow())
"""
"""A slow disk, for what HTTP needs."""


@pytest.mark.slow
def test_a_slow_start_is_not_a_blocked_event_loop(tmp_path):
    (tmp_path / "agents.py").write_text(SLOW + AGENT)
    (line,) = [n for n, text in enumerate((SLOW + AGENT).splitlines(), 1) if text.endswith("# blocks")]
    with serving("-m", "agents:agent", "-p", "0", cwd=tmp_path) as (process, ready):
        assert asyncio.run(roll(ready["grpc"])).reward == 1.0
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=30)
    alarms = [json.loads(text)["event"] for text in err.splitlines() if "has been blocked" in text]
    assert len(alarms) == 1, "the agent's, and none of the start"
    assert f"at {tmp_path / 'agents.py'}:{line} in run;" in alarms[0]


@pytest.mark.slow
def test_five_starts_without_an_alarm(tmp_path):
    for _ in range(5):
        with serving(*CALCULATOR, "-p", "0", cwd=tmp_path) as (process, _):
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=30)
        assert "has been blocked" not in err


# Only our line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("host", "port", "reason"),
    [
        ("127.0.0.1", None, "the port is in use"),
        ("localhost", None, "the port is in use"),
        ("192.0.2.1", 0, "this is not an address of this machine"),
        ("nowhere.invalid", 0, ""),
    ],
)
def test_an_address_that_cannot_be_bound_is_one_line(tmp_path, host, port, reason):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1] if port is None else port
        with socket.socket(socket.AF_INET6) as other:
            if host == "localhost" and socket.has_ipv6:
                other.bind(("::1", port))
                other.listen()
            arguments = ("--host", host, "--grpc-port", str(port), "--no-http", "--no-journal", "--insecure")
            reported = refusal(run(*SERVE, *CALCULATOR, *arguments, cwd=tmp_path))
    assert reported.startswith(f"cannot listen on {host}:{port}: {reason}")
    assert "; --grpc-port chooses another port" in reported


def certificate(folder, name, curve):
    key = ec.generate_private_key(curve)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    dates = datetime.datetime(2020, 1, 1), datetime.datetime(2100, 1, 1)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(dates[0])
        .not_valid_after(dates[1])
        .sign(key, hashes.SHA256())
    )
    (folder / f"{name}.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / f"{name}.key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cert", "key", "says"),
    [
        ("good.pem", "other.key", "good.pem and other.key are not a certificate and its key"),
        ("good.pem", "good.pem", "good.pem and good.pem are not a certificate and its key"),
        ("good.pem", "none.key", "none.key cannot be read"),
        ("odd.pem", "odd.key", "odd.pem has a key of a kind that gRPC does not accept; it accepts RSA, P-256"),
    ],
)
def test_a_wrong_tls_key_is_one_line(tmp_path, cert, key, says):
    certificate(tmp_path, "good", ec.SECP256R1())
    certificate(tmp_path, "other", ec.SECP256R1())
    certificate(tmp_path, "odd", ec.SECP256K1())
    arguments = ("--tls-cert", cert, "--tls-key", key, "--grpc-port", "0", "--no-http", "--no-journal")
    reported = refusal(run(*SERVE, *CALCULATOR, *arguments, cwd=tmp_path))
    assert reported.startswith(f"--tls-cert, --tls-key, --tls-client-ca: {says}")


@pytest.mark.parametrize(
    "curve",
    [
        ec.SECP256R1(),
        pytest.param(ec.SECP384R1(), marks=pytest.mark.slow),
        pytest.param(ec.SECP521R1(), marks=pytest.mark.slow),
    ],
    ids=lambda curve: curve.name,
)
def test_keys_that_grpc_accepts_are_accepted(tmp_path, curve):
    certificate(tmp_path, "good", curve)
    (tmp_path / "good.pem").write_bytes(b"\xef\xbb\xbf" + (tmp_path / "good.pem").read_bytes())  # an editor's mark
    arguments = ("--tls-cert", "good.pem", "--tls-key", "good.key", "--no-journal")
    with server_process(*CALCULATOR, *arguments, cwd=tmp_path) as (process, address):
        assert address
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=30)
    assert "add_port" not in err


async def test_a_trainers_port_in_use_is_one_line(capfd):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}: the port is in use"):
            async with CallbackTrainer(lambda request: None, port=port):
                pass
    assert capfd.readouterr().err == ""
