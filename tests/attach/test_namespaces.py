"""Trainer and agent server in two network namespaces, of which only one can dial the other.

Rules of the kernel's routing forbid a side every packet that is no answer from its one open
port: it can be dialled, and can dial nobody. That it cannot is tried first.
"""

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pytest

from tests.processes import ROOT

pytestmark = pytest.mark.slow

PORT = 7431
TRAINER, SERVER = "10.213.77.1", "10.213.77.2"
CALCULATOR = ("-m", "osmosis_grpc.testing.calculator:agent_loop", "--no-http", "--json", "--log-level", "warning")
DIAL = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 5).close()"


@dataclass(frozen=True)
class Side:
    """A network namespace with one address, on which one port is open."""

    namespace: str
    address: str

    def command(self, *arguments: str) -> list[str]:
        return ["ip", "netns", "exec", self.namespace, sys.executable, *arguments]

    def can_dial(self, other: "Side") -> subprocess.CompletedProcess:
        return subprocess.run(
            self.command("-c", DIAL, other.address, str(PORT)), capture_output=True, text=True, check=False, timeout=20
        )

    def cannot_dial(self, other: "Side") -> None:
        """From now on it only answers from its open port."""
        ip(
            "-n",
            self.namespace,
            "rule",
            "add",
            "pref",
            "10",
            "ipproto",
            "tcp",
            "sport",
            str(PORT),
            "to",
            other.address,
            "lookup",
            "main",
        )
        ip("-n", self.namespace, "rule", "add", "pref", "20", "to", other.address, "prohibit")

    @contextmanager
    def runs(self, *arguments: str) -> Iterator[subprocess.Popen]:
        """A Python program there, once it has written its first line."""
        process = subprocess.Popen(self.command(*arguments), stdout=subprocess.PIPE, text=True, cwd=ROOT)
        with process:
            try:
                assert process.stdout.readline(), arguments
                yield process
            finally:
                process.kill()

    def open_port(self, to: str) -> object:
        """A forwarder from its address to a loopback port."""
        return self.runs("-m", "tests.attach.forwarder", f"{self.address}:{PORT}", to)


def ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


@pytest.fixture
def sides() -> Iterator[tuple[Side, Side]]:
    """The trainer's namespace and the server's, joined by a cable."""
    if shutil.which("ip") is None:
        pytest.skip("network namespaces need the ip command: install iproute2")
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    name = uuid.uuid4().hex[:8]
    trainer, server = Side(f"trainer-{name}", TRAINER), Side(f"server-{name}", SERVER)
    with ExitStack() as stack:
        for side in (trainer, server):
            try:
                ip("netns", "add", side.namespace)
            except OSError as error:
                pytest.skip(f"network namespaces are not allowed here: {error}")
            stack.callback(ip, "netns", "del", side.namespace)
        try:
            ip(
                "-n",
                trainer.namespace,
                "link",
                "add",
                "veth0",
                "type",
                "veth",
                "peer",
                "veth0",
                "netns",
                server.namespace,
            )
        except OSError as error:
            pytest.skip(f"no veth pair can be made here: {error}")
        for side in (trainer, server):
            ip("-n", side.namespace, "addr", "add", f"{side.address}/30", "dev", "veth0")
            for device in ("lo", "veth0"):
                ip("-n", side.namespace, "link", "set", device, "up")
        yield trainer, server


def outcomes(trainer: subprocess.Popen) -> list[dict]:
    lines = [json.loads(line) for line in trainer.stdout]
    assert trainer.wait(20) == 0
    return lines


def check_demo(lines: list[dict]) -> None:
    assert {line["rollout_id"] for line in lines} == {f"demo-{n}" for n in range(8)}
    assert {line["status"] for line in lines} == {"COMPLETED"}
    assert sorted(line["reward"] for line in lines) == [0.0] + [1.0] * 7  # the mock rounds


def check_ways(may: Side, may_not: Side) -> None:
    """One side can dial the other's open port, and not the other way round."""
    tried = may.can_dial(may_not)
    assert tried.returncode == 0, tried.stderr
    tried = may_not.can_dial(may)
    assert tried.returncode != 0
    assert "Permission denied" in tried.stderr


def test_a_server_that_cannot_be_dialled_dials_out(sides):
    trainer, server = sides
    with trainer.open_port("127.0.0.1:7001"), server.open_port("127.0.0.1:50051"):
        assert trainer.can_dial(server).returncode == 0, "open before it is forbidden"
        trainer.cannot_dial(server)
        check_ways(server, trainer)
        with (
            trainer.runs("-m", "tests.attach.demo_trainer", "listen", "127.0.0.1:7001") as training,
            server.runs("-m", "osmosis_grpc.serve", *CALCULATOR, "--connect", f"{TRAINER}:{PORT}"),
        ):
            check_demo(outcomes(training))


def test_a_trainer_that_cannot_be_dialled_attaches(sides):
    trainer, server = sides
    with trainer.open_port("127.0.0.1:7001"), server.open_port("127.0.0.1:50051"):
        assert server.can_dial(trainer).returncode == 0, "open before it is forbidden"
        server.cannot_dial(trainer)
        check_ways(trainer, server)
        with (
            server.runs("-m", "osmosis_grpc.serve", *CALCULATOR),
            trainer.runs("-m", "tests.attach.demo_trainer", "dial", f"{SERVER}:{PORT}") as training,
        ):
            check_demo(outcomes(training))
