"""Stubs and token blocks work on old and new protobuf and grpcio: the wheel in environments of its own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.release.contents import faults, names

ROOT = Path(__file__).parent.parent.parent

PINNED = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)

ENVIRONMENTS = {
    "oldest": ["grpcio==1.74.0", "protobuf==6.31.1"],
    "protobuf 6.33.6": ["grpcio==1.74.0", "protobuf==6.33.6"],
    "pinned": [f"grpcio=={PINNED['grpcio']}", f"protobuf=={PINNED['protobuf']}"],
}
if os.environ.get("OSMOSIS_COMPAT") == "newest":
    ENVIRONMENTS = {"newest": ["--upgrade", "grpcio", "protobuf"]}

PROBE = """
import asyncio, sys
import google.protobuf, grpc
import numpy as np
from osmosis_grpc.policies import ToolCallingMock
from osmosis_grpc.trainer import RolloutClient
from osmosis_grpc.trainer.transports.callback.standalone_recorder import CallbackRecorder
from osmosis_grpc.protocol.types import ChatRequest, TokenBlock
from osmosis_grpc.protocol._gen.osmosis.rollout.v1.services_pb2_grpc import TrainerServiceStub
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import event_pb2, services_pb2_grpc, tokens_pb2, chat_pb2
from osmosis_grpc.protocol.wire.tokens import block_from_wire, block_to_wire
from osmosis_grpc.protocol.wire.chat import chat_bytes, reply_from_wire

block = TokenBlock.of(np.arange(4096), np.linspace(-5, 0, 4096))
wire = block_to_wire(block)
assert list(wire.ids) == list(range(4096))
again = tokens_pb2.TokenBlock.FromString(wire.SerializeToString())
assert block_from_wire(again, "x") == block

async def record(outcome, state, credential):
    pass

async def main():
    async with CallbackRecorder(ToolCallingMock(), record) as trainer:
        async with grpc.aio.insecure_channel(trainer.address) as channel:
            question = {"role": "user", "content": "What is 1 + 2?"}
            request = ChatRequest(rollout_id="r", messages=[question])
            question = chat_pb2.ChatRequest.FromString(chat_bytes(request))
            shown = (("authorization", f"Bearer {trainer.callback().credential}"),)
            reply = reply_from_wire(await TrainerServiceStub(channel).Chat(question, metadata=shown))
            assert reply.message["tool_calls"][0]["function"]["name"] == "add", reply
            assert len(reply.tokens.ids) == len(reply.tokens.logprobs) > 0
    async with RolloutClient("127.0.0.1:1"):
        pass

asyncio.run(main())
heavy = [name for name in ("fastapi", "typer", "structlog", "grpc_health") if name in sys.modules]
assert not heavy, heavy
print(grpc.__version__, google.protobuf.__version__)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)],
        check=True,
        timeout=300,
    )
    (path,) = folder.glob("*.whl")
    return path


@pytest.mark.packages
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_round_trip(name, wheel, tmp_path):
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True, timeout=120)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, str(wheel), *ENVIRONMENTS[name]], check=True, timeout=500)
    probe = subprocess.run(
        [str(python), "-W", "error", "-c", PROBE],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=120,
        check=False,
    )
    assert probe.returncode == 0, probe.stderr
    versions = probe.stdout.split()
    wanted = [pin.split("==")[1] for pin in ENVIRONMENTS[name] if "==" in pin]
    assert versions == wanted or not wanted


@pytest.mark.slow
def test_the_wheel_has_exactly_the_files_that_belong_into_it(wheel):
    """Every module, page, proto, case and asset of the repository, and no other file."""
    known = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    wanted = {name.removeprefix("gateway/") for name in known if name.startswith(("osmosis_grpc/", "gateway/"))}
    wanted |= {f"osmosis_grpc/{name}" for name in known if name.startswith(("proto/osmosis/", "conformance/"))}
    wanted |= {f"osmosis_grpc/{name}" for name in known if re.fullmatch(r"docs/[\w-]+\.md", name)}
    found = names(wheel, "wheel")
    assert {name for name in found if ".dist-info/" not in name} == wanted
    assert faults(found, "wheel") == []


@pytest.mark.packages
@pytest.mark.row("ARL 2")
def test_the_wheel_with_its_declared_libraries_runs_the_demo_and_the_react_agent(wheel, tmp_path):
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True, timeout=120)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    constraints = ["--constraint", str(ROOT / "constraints.txt")]
    subprocess.run([*pip, *constraints, f"{wheel}[server]"], check=True, timeout=500)
    demo = subprocess.run(
        [str(python.with_name("osmosis-grpc")), "demo", "--json"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=120,
        check=False,
    )
    assert demo.returncode == 0, demo.stderr
    assert demo.stdout.count('"status": "COMPLETED"') == 8
    program = Path(__file__).with_name("react_agent.py")
    agent = subprocess.run(
        [str(python), str(program)], capture_output=True, text=True, cwd=tmp_path, timeout=120, check=False
    )
    assert agent.returncode == 0, agent.stderr
    assert "agentic" in agent.stdout  # the extra of YAML


@pytest.mark.packages
def test_what_the_wheel_advises_works(wheel, tmp_path):
    """Without the extra, the command line says how to install it; the printed command does."""
    program = tmp_path / "venv" / "bin" / "osmosis-grpc"
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True, timeout=120)
    pip = [str(program.with_name("pip")), "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, str(wheel)], check=True, timeout=500)
    refused = subprocess.run([str(program), "demo"], capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == 2
    assert refused.stderr == f"the command line needs the extra 'server': pip install '{wheel}[server]'\n"
    environment = os.environ | {"PATH": f"{program.parent}:{os.environ['PATH']}"}
    environment["PIP_CONSTRAINT"] = str(ROOT / "constraints.txt")
    advice = refused.stderr.partition(": ")[2]
    subprocess.run(advice, shell=True, check=True, env=environment, capture_output=True, timeout=500)
    assert subprocess.run([str(program), "--version"], check=False, capture_output=True, timeout=60).returncode == 0


@pytest.mark.packages
def test_doctor_names_a_protobuf_that_is_too_old_and_the_command_that_mends_it(wheel, tmp_path):
    """An old protobuf cannot import the stubs, and doctor runs nevertheless."""
    program = tmp_path / "venv" / "bin" / "osmosis-grpc"
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True, timeout=120)
    pip = [str(program.with_name("pip")), "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--constraint", str(ROOT / "constraints.txt"), f"{wheel}[server]"], check=True, timeout=500)
    subprocess.run([*pip, "--no-deps", "protobuf<6"], check=True, timeout=120)
    (tmp_path / "journal.db").touch()
    command = [str(program), "doctor", "--state-dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60, check=False)
    assert done.returncode == 2
    assert "      pip install 'protobuf<8,>=6.31.1'\n" in done.stdout
    assert done.stderr.startswith("doctor: no file is examined, because the packages cannot be imported: ")
    subprocess.run([*pip, "protobuf<8,>=6.31.1"], check=True, timeout=120)
    assert subprocess.run([str(program), "doctor"], cwd=tmp_path, timeout=60, check=False).returncode == 0
