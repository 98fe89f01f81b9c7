"""nginx, HAProxy and Envoy with the configurations of deploy/proxies, in front of an address of a test.

A test changes the addresses, leaves TLS out, and shortens the idle limit of 60 s. Everything else is as in the files.
"""

import asyncio
import contextlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import yaml

from tests.ports import quiet_port
from tests.processes import ROOT
from tests.waiting import until

FOLDER = ROOT / "deploy" / "proxies"
IDLE_LIMIT = 60
"""Seconds in the files."""


def program(name: str) -> str:
    """The path of a proxy. The test is skipped if it is not installed."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"needs {name}")
    return found


def _nginx(folder: Path, listen: str, target: str, seconds: float) -> list[str]:
    text = (FOLDER / "nginx.conf").read_text()
    text = re.sub(r"ssl_certificate(_key)? .*;", "", text).replace(" ssl http2", " http2")
    text = text.replace("/run/nginx.pid", f"{folder}/pid").replace(
        "grpc_read", f"{_nginx_folders(folder)} grpc_read", 1
    )
    text = re.sub(rf"(\w+_timeout) {IDLE_LIMIT}s;", rf"\1 {seconds:g}s;", text)
    text = _addresses(text, listen, target)
    (folder / "nginx.conf").write_text(text)
    return ["-c", str(folder / "nginx.conf"), "-e", "/dev/stderr", "-g", "daemon off;"]


def _nginx_folders(folder: Path) -> str:
    names = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    return " ".join(f"{name}_temp_path {folder}/{name};" for name in names)


def _haproxy(folder: Path, listen: str, target: str, seconds: float) -> list[str]:
    text = (FOLDER / "haproxy.cfg").read_text()
    text = re.sub(r"ssl crt \S+ alpn h2", "proto h2", text).replace("maxconn 8192", "maxconn 100")
    text = re.sub(rf"timeout (client|server) {IDLE_LIMIT}s", rf"timeout \1 {int(seconds * 1000)}ms", text)
    (folder / "haproxy.cfg").write_text(_addresses(text, listen, target))
    return ["-db", "-f", str(folder / "haproxy.cfg")]


def _envoy(folder: Path, listen: str, target: str, seconds: float) -> list[str]:
    text = (
        (FOLDER / "envoy.yaml")
        .read_text()
        .replace(f"stream_idle_timeout: {IDLE_LIMIT}s", f"stream_idle_timeout: {seconds:g}s")
    )
    found = yaml.safe_load(text)
    resources = found["static_resources"]
    for listener in resources["listeners"]:
        for chain in listener["filter_chains"]:
            del chain["transport_socket"], chain["transport_socket_connect_timeout"]
        at = listener["address"]["socket_address"]
        at["address"], at["port_value"] = "127.0.0.1", quiet_port()
    host, _, port = listen.rpartition(":")
    at = resources["listeners"][0]["address"]["socket_address"]
    at["address"], at["port_value"] = host, int(port)
    host, _, port = target.rpartition(":")
    endpoint = resources["clusters"][0]["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]
    endpoint["address"]["socket_address"] = {"address": host, "port_value": int(port)}
    (folder / "envoy.yaml").write_text(yaml.safe_dump(found))
    return ["-c", str(folder / "envoy.yaml"), "--disable-hot-restart", "--concurrency", "1", "--log-level", "warning"]


def _addresses(text: str, listen: str, target: str) -> str:
    text = text.replace("10.0.0.1:50051", target).replace("0.0.0.0:50051", listen)
    return text.replace("10.0.0.9:60051", "127.0.0.1:9").replace("0.0.0.0:60051", f"127.0.0.1:{quiet_port()}")


PROXIES = {"nginx": _nginx, "haproxy": _haproxy, "envoy": _envoy}
"""For each proxy, a function that writes its configuration and returns its arguments."""


class RealProxy:
    """A proxy in front of HOST:PORT that ends calls without a byte for `seconds`. Used with `async with`."""

    cut_when_idle = 0
    """Not counted."""

    def __init__(self, name: str, target: str, seconds: float) -> None:
        self.program = program(name)
        self.name = name
        self.address = f"127.0.0.1:{quiet_port()}"
        self.folder = Path(tempfile.mkdtemp(prefix=f"{name}-"))
        self.arguments = PROXIES[name](self.folder, self.address, target, seconds)

    async def __aenter__(self) -> "RealProxy":
        with (self.folder / "log").open("w") as log:
            command = [self.program, *self.arguments]
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)
        host, _, port = self.address.rpartition(":")

        def listens() -> bool:
            assert self.process.poll() is None, (self.folder / "log").read_text()
            with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1):
                return True
            return False

        await until(listens)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.process.terminate()
        await asyncio.to_thread(self.process.wait, 20)
        shutil.rmtree(self.folder, ignore_errors=True)
