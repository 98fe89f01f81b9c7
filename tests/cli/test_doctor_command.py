"""doctor checks versions, extras, the state folder and the ports of this machine."""

import asyncio
import datetime
import json
import os
import re
import socket

import pytest
import trustme

from osmosis_grpc.cli.doctor import checks
from osmosis_grpc.server import AgentServer
from osmosis_grpc.testing.calculator import CalculatorAgent


@pytest.fixture
def doctor(forked, tmp_path):
    """Runs `doctor ARGUMENTS` in an empty folder, with variables."""

    def command(*arguments, **variables):
        return forked.run("-m", "osmosis_grpc", "doctor", *arguments, cwd=tmp_path, env=os.environ | variables)

    return command


def pretend(folder, name, version):
    """Make a folder in which a distribution has another version. It goes into PYTHONPATH."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def test_a_sound_machine_without_a_journal_is_code_0(doctor, tmp_path):
    done = doctor(OSMOSIS_ROLLOUT_SERVER_STATE_DIR="./.osmosis/state")
    assert (done.returncode, done.stderr) == (0, "")
    first, *lines = done.stdout.replace("\n      ", " ").splitlines()  # a long row goes on in the next line
    assert first == "this machine"
    rows = dict(line.strip().split(": ", 1) for line in lines)
    for name in ("python", "grpcio", "protobuf"):
        assert re.fullmatch(r"\d+\.\d+\S*", rows[name])
    assert "server" in rows["extras installed"].split(", ")
    known = set(", ".join(text for name, text in rows.items() if name.startswith("extras")).split(", "))
    assert not known & {"adapters", "browser", "deploy", "dev"}
    assert rows["state folder .osmosis/state"].startswith("not there yet and can be made, ")
    assert os.listdir(tmp_path) == []


def test_a_used_port_is_said_and_is_no_problem(doctor):
    with socket.socket() as used:
        used.bind(("127.0.0.1", 0))
        used.listen()
        port = used.getsockname()[1]
        done = doctor("--json", OSMOSIS_ROLLOUT_SERVER_GRPC_PORT=str(port))
    records = {record["name"]: record for record in map(json.loads, done.stdout.splitlines())}
    assert done.returncode == 0
    assert {record["event"] for record in records.values()} == {"checked"}
    assert records[f"port {port} (gRPC)"]["found"] == "in use"


def test_the_ports_are_those_of_the_settings(doctor):
    done = doctor(
        "--json",
        OSMOSIS_ROLLOUT_SERVER_GRPC_PORT="24001",
        OSMOSIS_ROLLOUT_SERVER_WORKERS="2",
        OSMOSIS_ROLLOUT_SERVER_NO_HTTP="1",
        OSMOSIS_ROLLOUT_SERVER_METRICS_PORT="24009",
    )
    ports = [record["name"] for record in map(json.loads, done.stdout.splitlines()) if record["name"][:4] == "port"]
    assert ports == ["port 24001 (gRPC of worker 0)", "port 24002 (gRPC of worker 1)", "port 24009 (metrics)"]


async def test_a_state_folder_in_use_has_the_process_of_its_server(doctor, tmp_path):
    async with AgentServer([CalculatorAgent()], port=0, state_dir=tmp_path / "state"):
        done = await asyncio.to_thread(doctor, "--json", "--state-dir", "state")
    records = {record.get("name"): record for record in map(json.loads, done.stdout.splitlines())}
    assert records["server of the state folder"]["found"] == f"process {os.getpid()}"


@pytest.mark.parametrize(
    ("name", "version", "told"),
    [
        ("protobuf", "5.29.0", "and <8,>=6.31.1 is needed\n      pip install 'protobuf<8,>=6.31.1'\n"),
        ("protobuf", "8.0rc1", "and <8,>=6.31.1 is needed\n      pip install 'protobuf<8,>=6.31.1'\n"),
        ("typer", "0.1", "and >=0.15 is needed\n      pip install 'typer>=0.15'\n"),
    ],
)
def test_a_wrong_version_has_the_command_that_mends_it(tmp_path, monkeypatch, capsys, name, version, told):
    from osmosis_grpc.cli.doctor import examine_all

    pretend(tmp_path / "packages", name, version)
    monkeypatch.syspath_prepend(tmp_path / "packages")
    monkeypatch.chdir(tmp_path)
    assert examine_all(None, None, json=False) == 1
    assert f"  PROBLEM: {name}: {version}, {told}" in capsys.readouterr().out


def test_a_state_folder_that_cannot_be_used_is_a_problem(tmp_path):
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "state"):
        found = {check.name: check for check in checks(folder)}[f"state folder {folder}"]
        assert found.problem
        assert found.found == f"{tmp_path}/file is not a folder"


@pytest.mark.parametrize(
    ("days", "told", "problem"), [(-1, "expired on ", True), (3, "valid until ", True), (900, "valid until ", False)]
)
def test_a_certificate_that_expires_is_a_problem(doctor, tmp_path, days, told, problem):
    now = datetime.datetime.now(datetime.UTC)
    end = now + datetime.timedelta(days=days)
    dates = {"not_before": now - datetime.timedelta(days=30), "not_after": end}
    made = trustme.CA().issue_cert("localhost", **dates)
    made.cert_chain_pems[0].write_to_path(tmp_path / "server.pem")
    done = doctor(OSMOSIS_ROLLOUT_SERVER_TLS_CERT="server.pem")
    assert done.returncode == int(problem), done.stdout
    assert f"{'PROBLEM: ' if problem else ''}certificate server.pem: {told}{end:%Y-%m-%d}\n" in done.stdout


@pytest.mark.parametrize(
    "text", ["", "no certificate", "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n"]
)
def test_a_file_without_a_certificate_is_a_problem(doctor, tmp_path, text):
    (tmp_path / "server.pem").write_text(text)
    done = doctor(OSMOSIS_ROLLOUT_SERVER_TLS_CERT="server.pem")
    assert (done.returncode, done.stderr) == (1, "")
    assert "  PROBLEM: certificate server.pem: it" in done.stdout


def test_wrong_settings_are_one_line(doctor):
    done = doctor(OSMOSIS_ROLLOUT_SERVER_GRPC_PORT="many")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("doctor: OSMOSIS_ROLLOUT_SERVER_GRPC_PORT: ")
    assert done.stderr.count("\n") == 1


def test_doctor_checks_before_it_imports_protobuf(forked):
    code = """
import sys
from osmosis_grpc.cli import doctor
print([name for name in sys.modules if name == "grpc" or name.startswith("google.protobuf")])
"""
    from tests.processes import run

    assert run("-c", code).stdout == "[]\n"
