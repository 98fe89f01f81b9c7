"""The sources of a trainer's servers: what counts as one, what a file and a name in DNS bring, and what is wrong."""

import asyncio
import logging

import pytest

from osmosis_grpc.network.credentials import Credentials
from osmosis_grpc.network.network import GRPC, GrpcNetwork
from osmosis_grpc.protocol.errors import Unavailable
from osmosis_grpc.supervise import SYSTEM
from osmosis_grpc.trainer import Trainer, TrainerConfig, target_sources
from osmosis_grpc.trainer.target_sources import Target, WrongList, sources_of
from tests.trainer.conftest import reply
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("quick_sources")


@pytest.fixture
def quick_sources(monkeypatch):
    """Looks at files and names many times a second."""
    for name in ("FILE_PERIOD", "FUNCTION_PERIOD", "SHORTEST_PERIOD", "SETTLED"):
        monkeypatch.setattr(target_sources, name, 0.02)


class Resolver(GrpcNetwork):
    """The network of this machine, with names of the test."""

    def __init__(self, **names):
        self.names = names
        self.asked = 0

    async def resolve(self, name):
        self.asked += 1
        if name not in self.names:
            raise OSError("Name or service not known")
        return self.names[name]


def sources(servers, network=GRPC, credentials=None):
    return sources_of(servers, credentials or Credentials(), network=network, system=SYSTEM, resolve_every=0.05)


async def listed(source):
    await source.first_look()
    return source.targets


@pytest.mark.parametrize(
    "wrong",
    [
        "127.0.0.1",
        "agents",
        ":50051",
        "127.0.0.1:",
        "127.0.0.1:0",
        "127.0.0.1:port",
        "127.0.0.1:70000",
        "http://127.0.0.1:50051",
        "dns:///agents",
        "dns:agents:50051",
        "dns://8.8.8.8/agents:50051",
        "ray://agents",
    ],
)
def test_a_wrong_target_is_named(wrong):
    with pytest.raises(ValueError, match="is not HOST:PORT, dns:///NAME:PORT or the path of a file") as error:
        Trainer([wrong], reply)
    assert repr(wrong) in str(error.value)


def test_a_file_that_does_not_exist_needs_a_path():
    with pytest.raises(ValueError, match=r"a file that does not exist yet is \./servers\.txt"):
        Trainer("servers.txt", reply)


async def test_equal_targets_are_one_server():
    (source,) = sources(["a:1", "b:2", "a:1"])
    assert await listed(source) == [Target("a:1"), Target("b:2")]


@pytest.mark.parametrize("form", ["path", "text", "url", "bare"])
async def test_a_file_has_a_target_on_each_line(tmp_path, monkeypatch, form):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "servers"
    path.write_text("# the\u2028servers\n10.0.0.1:50051\n\n  agents.example:50052  # the second\n[::1]:50053\n")
    (source,) = sources({"path": path, "text": "./servers", "url": f"file://{path}", "bare": "servers"}[form])
    assert await listed(source) == [Target("10.0.0.1:50051"), Target("agents.example:50052"), Target("[::1]:50053")]


async def test_a_file_that_is_wrong_at_the_start_is_an_error_with_the_line(tmp_path):
    path = tmp_path / "servers"
    path.write_text("127.0.0.1:50051\n127.0.0.1\n")
    with pytest.raises(WrongList, match=r"servers, line 2: '127\.0\.0\.1' is not HOST:PORT"):
        async with Trainer(path, reply):
            pass


async def test_a_token_that_would_travel_in_plain_text_is_an_error_with_the_line(tmp_path):
    path = tmp_path / "servers"
    path.write_text("10.0.0.1:50051\n")
    with pytest.raises(WrongList, match=r"line 1: 10\.0\.0\.1:50051 is not loopback"):
        async with Trainer(path, reply, credentials=Credentials(token="a-token-of-some-length")):
            pass
    with pytest.raises(ValueError, match="agents:50051 is not loopback"):
        Trainer("dns:///agents:50051", reply, credentials=Credentials(token="a-token-of-some-length"))


@pytest.mark.parametrize(
    ("text", "logged"),
    [
        ("10.0.0.1:50051\nnonsense\n", "line 2: 'nonsense' is not HOST:PORT"),
        (None, "servers cannot be read: No such file or directory; its last list of 1 servers counts"),
        (b"\xff\xfe", "it is not UTF-8 text"),
    ],
)
async def test_a_file_that_becomes_wrong_keeps_its_last_list_and_is_logged_once(tmp_path, caplog, text, logged):
    path = tmp_path / "servers"
    path.write_text("10.0.0.1:50051\n")
    (source,) = sources(path)
    await source.first_look()
    if text is None:
        path.unlink()
    else:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    changes = []
    with caplog.at_level(logging.INFO):
        watching = asyncio.create_task(source.watch(lambda: changes.append(source.targets)))
        await until(lambda: logged in caplog.text)
        for _ in range(3):
            assert not await source.look()
        assert caplog.text.count(logged) == 1
        assert source.targets == [Target("10.0.0.1:50051")]
        path.write_text("10.0.0.2:50051\n")
        await until(lambda: changes)
    watching.cancel()
    assert source.targets == [Target("10.0.0.2:50051")]
    assert not source.problem


async def test_a_file_that_is_half_written_is_not_used(tmp_path, monkeypatch):
    monkeypatch.setattr(target_sources, "SETTLED", 0.2)
    path = tmp_path / "servers"
    path.write_text("10.0.0.1:5")
    (source,) = sources(path)
    looking = asyncio.create_task(listed(source))
    await asyncio.sleep(0.05)  # the first read comes before the rest of the line
    path.write_text("10.0.0.1:50051\n10.0.0.2:50051\n")
    assert await looking == [Target("10.0.0.1:50051"), Target("10.0.0.2:50051")]


async def test_an_empty_file_names_no_server(tmp_path, caplog):
    path = tmp_path / "servers"
    path.write_text("# none yet\n")
    async with Trainer(path, reply, config=TrainerConfig(lost_after=0.2)) as trainer:
        with pytest.raises(Unavailable, match=r"no agent server was there for 0\.2 s \(.*servers names no server\)"):
            await trainer.rollout(rollout_id="r", messages=[{"role": "user", "content": "hello"}])
    assert "servers names no server; rollouts wait for one" in caplog.text


async def test_a_name_has_a_server_for_each_ipv4_address():
    network = Resolver(agents=["10.0.0.2", "10.0.0.1", "fd00::1"], six=["fd00::2", "fd00::1"])
    agents, six = sources(["dns:///agents:50051", "dns:///six:50052"], network)
    assert await listed(agents) == [Target("10.0.0.1:50051", "agents"), Target("10.0.0.2:50051", "agents")]
    assert await listed(six) == [Target("[fd00::1]:50052", "six"), Target("[fd00::2]:50052", "six")]


async def test_localhost_is_resolved_by_this_machine():
    (source,) = sources("dns:///localhost:50051")
    assert Target("127.0.0.1:50051", "localhost") in await listed(source)


async def test_a_name_without_a_record_is_asked_for_again():
    network = Resolver()
    (source,) = sources("dns:///agents:50051", network)
    assert await listed(source) is None
    assert source.problem == "dns:///agents:50051 does not resolve: Name or service not known"
    changes = []
    watching = asyncio.create_task(source.watch(lambda: changes.append(source.targets)))
    network.names["agents"] = ["10.0.0.1"]
    await until(lambda: changes == [[Target("10.0.0.1:50051", "agents")]])
    del network.names["agents"]
    asked = network.asked
    await until(lambda: network.asked > asked + 2)
    assert source.targets == [Target("10.0.0.1:50051", "agents")]
    watching.cancel()


async def test_a_real_name_without_a_record_is_named_in_the_error():
    config = TrainerConfig(lost_after=0.5)
    async with Trainer("dns:///no-such-host.invalid:50051", reply, config=config) as trainer:
        with pytest.raises(Unavailable, match=r"dns:///no-such-host\.invalid:50051 does not resolve: "):
            await trainer.wait_for_server()


async def test_a_broken_connection_resolves_the_name_at_once():
    network = Resolver(agents=["10.0.0.1"])
    (source,) = sources_of("dns:///agents:1", Credentials(), network=network, system=SYSTEM, resolve_every=1000)
    await source.first_look()
    watching = asyncio.create_task(source.watch(lambda: None))
    source.hurry()
    await until(lambda: network.asked == 2)
    watching.cancel()


async def test_a_function_may_fail_for_a_while():
    answers = [["10.0.0.1:1"], RuntimeError("the cluster is away"), ["10.0.0.2:1"]]

    async def find():
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    (source,) = sources(find)
    assert await listed(source) == [Target("10.0.0.1:1")]
    assert not await source.look()
    assert source.problem == "find() has no list: RuntimeError: the cluster is away"
    assert await source.look()
    assert source.targets == [Target("10.0.0.2:1")]


async def test_too_many_servers_are_refused(tmp_path):
    path = tmp_path / "servers"
    path.write_text("".join(f"10.0.{n // 256}.{n % 256}:50051\n" for n in range(target_sources.MAX_TARGETS + 1)))
    with pytest.raises(WrongList, match="names 4097 servers; at most 4096"):
        await sources(path)[0].first_look()
