"""What a container without a network reaches: an address of the server, allowed hosts, and nothing else."""

import asyncio
import contextlib
import os
import shutil
from dataclasses import replace

import pytest

from osmosis_grpc import supervise
from osmosis_grpc.endpoints.program_places import place_of
from osmosis_grpc.protocol.types import RolloutRequest
from osmosis_grpc.tools.process import Limits
from osmosis_grpc.tools.sandbox import Protection, SandboxError

pytestmark = pytest.mark.docker

FETCH = """
import sys, urllib.request, urllib.error
try:
    print(urllib.request.urlopen(sys.argv[1], timeout=20).read().decode(), end="")
except urllib.error.HTTPError as error:
    print(error.code, end="")
except OSError as error:
    print(type(error).__name__, end="")
"""


@contextlib.asynccontextmanager
async def answering(host, port=0):
    """Serve HTTP on an address, and answer with the first line and the Host of each request."""

    async def one(reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        named = next((line for line in head if line.lower().startswith("host:")), "")
        body = f"{head[0]}|{named}".encode()
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(one, host, port) as server:
        yield server.sockets[0].getsockname()[1]


async def fetched(box, url):
    return (await box.run([box.python, "-c", FETCH, url], seconds=60)).stdout.decode()


async def test_an_address_of_the_server_is_reached_on_the_same_port_and_no_other(machine):
    async with contextlib.AsyncExitStack() as stack:
        port, other = [await stack.enter_async_context(answering(host)) for host in ("127.0.0.1", "0.0.0.0")]
        made = await stack.enter_async_context(machine(reach=[f"127.0.0.1:{port}"]))
        box = await stack.enter_async_context(made.sandbox())
        assert (await fetched(box, f"http://127.0.0.1:{port}/a")).startswith("GET /a HTTP/1.1|")
        assert await fetched(box, f"http://127.0.0.1:{other}/a") == "URLError"
        interfaces = (await box.run("cat /proc/net/dev | tail -n +3 | cut -d: -f1")).stdout.split()
        assert interfaces == [b"lo"]
        assert Protection.NETWORK not in box.isolation.protections


async def test_machines_of_one_name_leave_each_others_boxes_alone(machine):
    async with answering("127.0.0.1") as port, machine(reach=[f"127.0.0.1:{port}"]) as first, first.sandbox() as box:
        async with machine(reach=[f"127.0.0.1:{port}"]) as second, second.sandbox() as other:
            await second.clean_up()
            assert (await fetched(other, f"http://127.0.0.1:{port}/a")).startswith("GET /a")
        assert (await fetched(box, f"http://127.0.0.1:{port}/b")).startswith("GET /b")


async def test_many_connections_and_large_bodies_pass_at_once(machine):
    received = []

    async def one(reader, writer):
        size = int((await reader.readline()).decode())
        received.append(len(await reader.readexactly(size)))
        writer.write(b"y" * size)
        writer.write_eof()
        await writer.drain()
        writer.close()

    code = """
import socket, sys, threading
def one():
    with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as s:
        s.sendall(b"300000\\n" + b"x" * 300000)
        read = 0
        while data := s.recv(65536):
            read += len(data)
        print(read)
threads = [threading.Thread(target=one) for _ in range(24)]
[t.start() for t in threads]; [t.join() for t in threads]
"""
    async with await asyncio.start_server(one, "127.0.0.1") as server:
        port = server.sockets[0].getsockname()[1]
        async with machine(reach=[f"127.0.0.1:{port}"]) as made, made.sandbox() as box:
            ended = await box.run([box.python, "-c", code, str(port)], seconds=60)
    assert ended.stdout.split() == [b"300000"] * 24
    assert received == [300000] * 24


@pytest.mark.parametrize("language", ["python3", "node"])
async def test_each_language_of_an_image_passes_connections_on(machine, language):
    """Perl is hidden by a folder over it, and so is Python for node."""
    found = shutil.which(language)
    if not found:
        pytest.skip(f"there is no {language} on this machine")
    empty = {"/usr/bin/perl": "/dev/null"}
    if language == "node":
        if os.path.realpath(found) != found:
            pytest.skip("node needs the libraries of this machine")
        empty |= {"/usr/bin/python3": "/dev/null", "/usr/bin/node": found}
    async with answering("127.0.0.1") as port, machine(reach=[f"127.0.0.1:{port}"], mounts=empty) as made:
        try:
            async with made.sandbox() as box:
                code = f"exec 3<>/dev/tcp/127.0.0.1/{port}; printf 'GET /b HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3"
                ended = await box.run(["bash", "-c", code], seconds=60)
                assert b"GET /b HTTP/1.0" in ended.stdout
        except SandboxError:
            if language != "node":
                raise
            pytest.skip("node does not run in the image")


async def test_an_image_without_a_language_says_so(machine):
    hidden = {"/usr/bin/perl": "/dev/null", "/usr/bin/python3": "/dev/null"}
    async with machine(reach=["127.0.0.1:9"], mounts=hidden) as made:
        with pytest.raises(SandboxError):
            async with made.sandbox():
                pass


async def test_allowed_hosts_are_reached_by_the_proxy_and_others_are_refused(machine):
    hosts = ["localhost", "*.test"]
    async with answering("127.0.0.1", 80), machine(hosts=hosts) as made, made.sandbox() as box:
        bypass = {"NO_PROXY": "", "no_proxy": ""}

        async def through(url):
            ended = await box.run([box.python, "-c", FETCH, url], seconds=60, environment=bypass)
            return ended.stdout.decode()

        assert await through("http://localhost/page?x=1#part") == "GET /page?x=1 HTTP/1.1|Host: localhost"
        assert await through("http://example.com/") == "403"
        assert await through("http://localhost:8080/") == "403"
        assert await through("http://127.0.0.1/") == "403"
        assert await through("http://not-there.test/") == "502"
        assert await through("https://example.com/") == "URLError"  # the tunnel is refused


async def test_a_task_has_its_own_image_and_can_change_it(machine, tmp_path):
    (tmp_path / "image").mkdir()
    (tmp_path / "image" / "Dockerfile").write_text(
        "FROM osmosis-test-base\nWORKDIR /app\nCOPY a.txt /app/\nRUN chmod 755 /app\n"
    )
    (tmp_path / "image" / "a.txt").write_text("of the image\n")
    async with machine() as made:
        image = await made.build(tmp_path / "image")
        assert await made.build(tmp_path / "image") == image
        config = replace(made.config, image=image, writable=True, user=0, folder="")
        async with made.sandbox(config=config) as box:
            assert box.folder == "/app"
            assert Protection.USER not in box.isolation.protections
            assert await box.read_file("a.txt") == b"of the image\n"
            await box.run("echo changed > a.txt; touch /etc/new; useradd someone && chown someone a.txt", seconds=30)
            (tmp_path / "tests" / "b").mkdir(parents=True)
            (tmp_path / "tests" / "b" / "run.sh").write_text("cat /etc/new /app/a.txt")
            await box.upload(tmp_path / "tests", "/tests")
            assert (await box.run("sh /tests/b/run.sh")).stdout == b"changed\n"
            await box.run("ln -s /etc/passwd /app/link; mkfifo /app/fifo")
            await box.download("/app", tmp_path / "got")
            assert [path.name for path in (tmp_path / "got").iterdir()] == ["a.txt"]
            assert (tmp_path / "got" / "a.txt").read_text() == "changed\n"
            assert (await box.run("mount -t tmpfs none /mnt")).exit_code != 0
        (tmp_path / "image" / "Dockerfile").write_text("FROM osmosis-test-base\nRUN echo broken; exit 3\n")
        with pytest.raises(SandboxError):
            await made.build(tmp_path / "image")


async def test_warm_containers_are_ready_and_none_is_used_twice(machine):
    async with machine(warm=2) as made:
        names = []
        for _ in range(4):
            async with made.sandbox("rollout-1") as box:
                names.append(box.name)
                assert await box.list_files() == []
                await box.write_file("a", b"x")
        assert len(set(names)) == 4


async def forward(made, fail):
    """The connection ends, and the next one works."""
    async with made.sandbox() as box:
        fail()
        url = f"http://{made.config.reach[0]}/"
        assert not (await fetched(box, url)).startswith("GET")
        assert (await fetched(box, url)).startswith("GET")


async def run(made, fail):
    """The error reaches the caller, and the next program runs."""
    async with place_of(made, RolloutRequest(rollout_id="r1", messages=[])) as place:

        async def ended():
            more = {"environment": {}, "stdin": b"", "limits": Limits(), "secrets": (), "give_up": None}
            return await place.run(["echo", "next"], **more)

        fail()
        with pytest.raises(OSError, match="injected"):
            await ended()
        assert (await ended()).output == "next"


SCENARIOS = {"tools.docker_forward": forward, "tools.docker_pass_on": forward, "gateway.program_in_box": run}


@pytest.mark.parametrize("name", SCENARIOS)
async def test_a_job_that_raises_ends_one_connection_or_one_program(name, machine):
    async with answering("127.0.0.1") as port, machine(reach=[f"127.0.0.1:{port}"]) as made:
        await SCENARIOS[name](made, lambda: supervise.inject(name, OSError(f"injected into {name}")))
