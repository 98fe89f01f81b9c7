"""Where a caller's strings may lead: addresses, ids and file names, code."""

import ast
import asyncio
import os
import socket
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from osmosis_grpc.policies import ToolCallingMock
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import message_pb2, rollout_pb2, services_pb2_grpc
from osmosis_grpc.server import AgentServer
from osmosis_grpc.testing.calculator import agent_loop
from osmosis_grpc.trainer import RolloutClient, Trainer
from tests.callback_trainer import CallbackTrainer
from tests.processes import ROOT, server_process
from tests.server.test_bad_input import refused, violations

CALCULATOR = ("-m", "osmosis_grpc.testing.calculator:agent_loop")
USER = message_pb2.Message(role="user", text="What is 1 + 2?")
QUESTION = [{"role": "user", "content": "What is 1 + 2?"}]
TARGETS = [
    # never, for any caller
    "169.254.169.254:{port}",
    "169.254.0.1:{port}",
    "[fe80::1]:{port}",
    "[fd00:ec2::254]:{port}",
    "100.100.100.200:80",
    "[::ffff:169.254.169.254]:{port}",
    "[::ffff:a9fe:a9fe]:{port}",
    "0.0.0.0:{port}",
    "[::]:{port}",
    "[::0]:{port}",
    "[::ffff:0.0.0.0]:{port}",
    "224.0.0.1:{port}",
    "[ff02::1]:{port}",
    "255.255.255.255:{port}",
    "240.0.0.1:{port}",
    "168.63.129.16:80",
    "192.0.0.192:80",
    "[64:ff9b::a9fe:a9fe]:{port}",
    "[2002:a9fe:a9fe::]:{port}",
    # not on this machine, and without authentication
    "10.0.0.1:{port}",
    "172.16.0.1:{port}",
    "192.168.1.1:{port}",
    "100.64.0.1:{port}",
    "8.8.8.8:{port}",
    "[fd00::1]:{port}",
    "[2001:4860:4860::8888]:{port}",
    "[64:ff9b::7f00:1]:{port}",
    "[2002:7f00:1::]:{port}",
    # addresses that only some can read
    "127.1:{port}",
    "127.0.1:{port}",
    "2130706433:{port}",
    "0x7f000001:{port}",
    "0x7f.1:{port}",
    "0177.0.0.1:{port}",
    "017700000001:{port}",
    "0:{port}",
    "127.0.0.1.:{port}",
    "127.0.0.01:{port}",
    "::1:{port}",
    # gRPC's own schemes
    "unix:{path}",
    "unix://{path}",
    "unix-abstract:canary",
    "vsock:1:{port}",
    "dns:localhost:{port}",
    "dns:///localhost:{port}",
    "dns://127.0.0.1:{dns}/internal.example:{port}",
    "xds:///canary",
    "google-c2p:///x",
    "ipv4:127.0.0.1:{port}",
    "ipv4:127.0.0.1:{port},10.0.0.1:80",
    "ipv6:[::1]:{port}",
    "passthrough:///127.0.0.1:{port}",
    "127.0.0.1:{port},127.0.0.1:{port}",
    # URLs, and who besides where
    "http://127.0.0.1:{port}",
    "https://127.0.0.1:{port}",
    "grpc://127.0.0.1:{port}",
    "file:///etc/passwd",
    "user@127.0.0.1:{port}",
    "user:pass@127.0.0.1:{port}",
    "127.0.0.1:{port}/path",
    "127.0.0.1:{port}?x",
    "//127.0.0.1:{port}",
    "127.0.0.1:{port}#x",
    "127.0.0.1:{port}@169.254.169.254:80",
    # characters, and too little
    " 127.0.0.1:{port}",
    "127.0.0.1:{port} ",
    "127.0.0.1:{port}\n",
    "127.0.0.1\0:{port}",
    "127.0.0.1%00:{port}",
    "löcalhost:{port}",
    "127.0.0.1\u3002:{port}",
    "①②⑦.0.0.1:{port}",
    "localhost\u200b:{port}",
    "localhost",
    "127.0.0.1",
    ":{port}",
    "127.0.0.1:",
    "127.0.0.1:0",
    "127.0.0.1:65536",
    "127.0.0.1:-1",
    "127.0.0.1:+{port}",
    "*:{port}",
    "-a:{port}",
    "a" * 300 + ":{port}",
]


class Canary:
    """Listens where no call may arrive: TCP, a unix socket, UDP for DNS. `seen` has the callers."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def begin(self, path: Path) -> "Canary":
        async def came(reader: Any, writer: Any) -> None:
            self.seen.append("a connection")
            writer.close()

        class Asked(asyncio.DatagramProtocol):
            def datagram_received(_, data: bytes, address: Any) -> None:
                self.seen.append("a DNS query")

        self.tcp = await asyncio.start_server(came, "127.0.0.1", 0)
        self.port = self.tcp.sockets[0].getsockname()[1]
        self.unix = await asyncio.start_unix_server(came, path)
        self.abstract = await asyncio.start_unix_server(came, "\0canary")
        loop = asyncio.get_running_loop()
        self.udp, _ = await loop.create_datagram_endpoint(Asked, ("127.0.0.1", 0))
        self.dns = self.udp.get_extra_info("sockname")[1]
        return self

    def end(self) -> None:
        for server in (self.tcp, self.unix, self.abstract):
            server.close()
        self.udp.close()


@pytest.fixture
async def canary(tmp_path):
    built = await Canary().begin(tmp_path / "canary.sock")
    yield built
    built.end()


def init(target: str, rollout_id: str = "r", credential: str = "") -> rollout_pb2.InitRequest:
    made = rollout_pb2.InitRequest(rollout_id=rollout_id, spec=rollout_pb2.RolloutSpec(messages=[USER]))
    made.callback.target = target
    made.callback.credential = credential
    return made


async def test_where_a_callback_may_not_lead(canary, tmp_path):
    """Refused by name, without a lookup and without a connection."""
    assert len(TARGETS) > 60
    async with AgentServer([agent_loop], port=0) as server, grpc.aio.insecure_channel(server.address) as channel:
        stub = services_pb2_grpc.RolloutServiceStub(channel)
        for target in TARGETS:
            filled = target.format(port=canary.port, path=tmp_path / "canary.sock", dns=canary.dns)
            error = await refused(stub.Init(init(filled)))
            assert (error.code(), violations(error)) == (grpc.StatusCode.INVALID_ARGUMENT, ["callback.target"]), filled
        assert not (await server.engine.rollouts.page(""))[0]
        await asyncio.sleep(0.05)  # time for what must not come
    assert not canary.seen


async def test_a_name_is_looked_up_once(canary, monkeypatch):
    """What a second answer would say is never asked for."""
    loop, asked = asyncio.get_running_loop(), []
    plain = loop.getaddrinfo

    async def getaddrinfo(host: Any, port: Any, **more: Any) -> Any:
        if host != "rebound.example":
            return await plain(host, port, **more)
        asked.append(host)
        address = "127.0.0.1" if len(asked) == 1 else "169.254.169.254"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
    async with (
        AgentServer([agent_loop], port=0) as server,
        CallbackTrainer(ToolCallingMock()) as trainer,
        grpc.aio.insecure_channel(server.address) as channel,
    ):
        stub = services_pb2_grpc.RolloutServiceStub(channel)
        await stub.Init(init(f"rebound.example:{trainer.port}", credential=trainer.callback().credential))
        assert (await trainer.outcome("r", 10)).status == "COMPLETED"
        assert asked == ["rebound.example"]
        error = await refused(stub.Init(init(f"rebound.example:{canary.port}", "second")))
        assert violations(error) == ["callback.target"]
    assert not canary.seen


@pytest.mark.slow
async def test_proxies_of_the_environment_see_nothing(canary, monkeypatch):
    """gRPC both ways, in a real process; over HTTP: tests/gateway/test_server_url.py."""
    url = f"http://127.0.0.1:{canary.port}"
    names = ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy")
    proxies = {name: url for given in names for name in (given, given.upper())} | {"no_proxy": "", "no_grpc_proxy": ""}
    for name, value in proxies.items():
        monkeypatch.setenv(name, value)
    with server_process(*CALCULATOR, env=os.environ | proxies) as (_, address):
        async with CallbackTrainer(ToolCallingMock()) as trainer, RolloutClient(address) as client:
            await client.init(rollout_id="r", messages=QUESTION, callback=trainer.callback())
            assert (await trainer.outcome("r", 20)).status == "COMPLETED"
        async with Trainer(address, ToolCallingMock()) as attached:
            assert (await attached.rollout(rollout_id="a", messages=QUESTION)).status == "COMPLETED"
    assert not canary.seen


REFUSED_IDS = [
    "",
    " ",
    "\t",
    ".",
    "..",
    "../../etc/passwd",
    "/etc/passwd",
    "a/b",
    "a\\b",
    "..\\x",
    "a\0b",
    "a\nb",
    "\n[INFO] forged",
    "a\r\n[ERROR] forged",
    "a\x1b[2Jb",
    "a\x7fb",
    "a\x85b",
    "a\u2028b",
    "a\u2029b",
    "x" * 257,
    "x" * 5000,
]
ACCEPTED_IDS = [
    "a",
    "x" * 256,
    "%2e%2e",
    "%2e%2e%2fetc%2fpasswd",
    "..%2f",
    "...",
    "C:x",
    "CON",
    "nul",
    "~",
    "~root",
    "$HOME",
    "`id`",
    "$(id)",
    ";rm -rf x",
    "-rf",
    "--help",
    "*",
    "a b",
    " a",
    "a:b",
    "|x",
    "\ufb01le",
    "file",
    "\uff23\uff2f\uff2e",
    "\u202egpj.exe",
    "\ufeffa",
    "a\u200b",
    "😀" * 64,
    "é",
    "e\u0301",
    "[INFO] forged",
    "<script>",
    '"',
    "'",
    "{}",
]


@asynccontextmanager
async def channel_to(address: str):
    async with grpc.aio.insecure_channel(address) as channel:
        yield services_pb2_grpc.RolloutServiceStub(channel)


async def test_ids_are_one_path_segment_and_no_file_is_named_by_them(tmp_path):
    """With --log, in a folder of its own. Two ids have two files; no line of the log begins with an id's text."""
    work = tmp_path / "work"
    work.mkdir()
    with server_process(
        *CALCULATOR,
        "--log",
        str(work / "log"),
        cwd=work,
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "gateway"), os.environ.get("PYTHONPATH", "")])},
    ) as (process, address):
        async with channel_to(address) as stub, CallbackTrainer(ToolCallingMock()) as trainer:
            for bad in REFUSED_IDS:
                error = await refused(stub.Init(init(trainer.address, bad)))
                assert (error.code(), violations(error)) == (grpc.StatusCode.INVALID_ARGUMENT, ["rollout_id"]), bad
            for good in ACCEPTED_IDS:
                await stub.Init(init(trainer.address, good, trainer.callback().credential))
            for good in ACCEPTED_IDS:
                assert (await trainer.outcome(good, 20)).rollout_id == good
        process.terminate()
        logged = process.stderr.read()
    found = [path for path in work.rglob("*") if path.is_file()]
    assert all(path.parent.parent.parent == work / "log" for path in found), "outside of the log's folder"
    assert len(found) == len(ACCEPTED_IDS)
    assert all(path.name.isascii() and len(path.name) < 100 and path.name[0] != "." for path in found)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["work"]
    assert not [line for line in logged.splitlines() if line.startswith(("[INFO] forged", "[ERROR] forged"))]


DANGEROUS = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "xmlrpc", "jsonpickle"}
CALLS = {"eval", "exec", "compile", "__import__"}
YAML = {"safe_load", "safe_dump", "SafeLoader", "YAMLError"}
"""The names of the module yaml that make no objects of classes."""
DOCUMENTED = {"osmosis_grpc/protocol/types/fast_init.py": {"exec"}}
"""protocol/types/fast_init.py writes the constructors of its values from their fields' names."""


def used(tree, module):
    """The attributes of a module, or of a function's result that has its name, which a file uses."""
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value).strip("_()") == module
    }


@pytest.mark.slow
def test_nothing_that_comes_in_is_run_or_unpickled():
    """No module that makes objects of bytes, no text run as code."""
    for folder in ("osmosis_grpc", "gateway/osmosis_gateway"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            name, tree = str(path.relative_to(ROOT)), ast.parse(path.read_text())
            imported = {
                module.split(".")[0]
                for node in ast.walk(tree)
                if isinstance(node, ast.Import | ast.ImportFrom)
                for module in (
                    [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
                )
            }
            called = {
                node.func.id
                for node in ast.walk(tree)
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS
            }
            assert not imported & DANGEROUS, (name, imported & DANGEROUS)
            if "yaml" in imported:
                assert used(tree, "yaml") <= YAML, (name, used(tree, "yaml"))
            assert called <= DOCUMENTED.get(name, set()), (name, called)


async def test_an_agent_loop_is_one_that_the_operator_named():
    """The name in a request is looked up and never imported."""
    async with AgentServer([agent_loop], port=0) as server, channel_to(server.address) as stub:
        for name in ("os:system", "osmosis_grpc.testing.calculator:agent_loop", "tests.faults", "../x", "__import__"):
            made = init("127.0.0.1:1")
            made.spec.agent_loop = name
            assert (await refused(stub.Init(made))).code() is grpc.StatusCode.NOT_FOUND
