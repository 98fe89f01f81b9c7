"""Sandboxes in containers of a real Docker daemon."""

import asyncio
import signal
import subprocess
import sys

import pytest

from osmosis_grpc.tools.docker import DockerConfig, DockerMachine
from osmosis_grpc.tools.sandbox import Protection, SandboxError, SandboxLost, SandboxRefused
from tests.waiting import until

pytestmark = pytest.mark.docker
LEFT = """
import asyncio, sys
from osmosis_grpc.tools.docker import DockerConfig, DockerMachine

async def main():
    config = DockerConfig(server_id="killed", image=sys.argv[2], url=sys.argv[1])
    async with DockerMachine(config) as machine, machine.sandbox() as box:
        await box.run("sleep 60 & echo begun > begun")
        print(box.name, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def containers(daemon, label):
    command = ["docker", "-H", daemon, "ps", "-aq", "--filter", f"label=osmosis-grpc.server={label}"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


async def test_programs_have_no_network_no_privileges_and_a_system_that_they_cannot_change(box):
    assert set(box.isolation.protections) == set(Protection)
    code = "import socket; socket.create_connection(('192.0.2.1', 80), 3)"
    refused = await box.run([box.python, "-c", code])
    assert refused.exit_code == 1
    assert b"Network is unreachable" in refused.stderr
    for command in ("touch /etc/x", "mount -t tmpfs none /mnt", "chown 0 .", "mknod /tmp/d b 8 0"):
        assert (await box.run(command)).exit_code != 0, command


async def test_the_limits_hold(machine):
    async with machine(memory=64 * 2**20, disk=8 * 2**20, processes=40) as made, made.sandbox() as box:
        assert (await box.run([box.python, "-c", "bytearray(200 * 2**20)"])).exit_code == 137
        assert (await box.run("head -c 20000000 /dev/zero > big")).exit_code != 0
        await box.run("rm -f big")
        assert (await box.run("for i in $(seq 100); do sleep 5 & done; wait", seconds=3)).exit_code != 0
        assert (await box.run("echo still there")).stdout == b"still there\n"


async def test_with_a_network_it_is_said_and_can_be_refused(machine):
    async with machine(network="bridge") as made:
        with pytest.raises(SandboxRefused, match="network"):
            async with made.sandbox(require=["network"]):
                pass
        async with made.sandbox() as box:
            assert Protection.NETWORK not in box.isolation.protections


async def test_nothing_is_left_after_the_end_and_after_a_killed_server(daemon, machine, box):
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", LEFT, daemon, "osmosis-test-base", stdout=asyncio.subprocess.PIPE
    )
    await process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    await process.wait()
    await until(lambda: containers(daemon, "killed") == [], timeout=10)
    async with machine(server_id="ended") as made:
        async with made.sandbox():
            assert len(containers(daemon, "ended")) == 1
        await until(lambda: containers(daemon, "ended") == [])
    assert len(containers(daemon, "server-1")) == 1, "that of another server stays"


async def test_a_container_that_is_killed_is_lost(daemon, box):
    running = asyncio.create_task(box.run("touch begun; sleep 60", seconds=60))
    while not await box.list_files():
        await asyncio.sleep(0.01)  # between two looks
    subprocess.run(["docker", "-H", daemon, "kill", box.name], check=True, capture_output=True)
    ended = (await asyncio.gather(running, return_exceptions=True))[0]
    assert isinstance(ended, SandboxLost) or ended.exit_code == 137
    with pytest.raises(SandboxLost):
        await box.run("true")


async def test_many_boxes_at_once(machine):
    async with machine() as made:

        async def one(number):
            async with made.sandbox(f"r{number}") as box:
                await box.write_file("name", str(number).encode())
                return (await box.run("cat name", seconds=120)).stdout

        found = await asyncio.gather(*(one(number) for number in range(16)))
    assert found == [str(number).encode() for number in range(16)]


async def test_a_machine_that_cannot_be_used_is_named(machine, tmp_path):
    with pytest.raises(SandboxError):
        async with DockerMachine(DockerConfig(server_id="s", image="i", url=f"unix://{tmp_path}/none.sock")):
            pass
    async with machine(image="no-such-image") as made:
        with pytest.raises(SandboxLost, match="no-such-image"):
            async with made.sandbox():
                pass


@pytest.mark.parametrize(
    "fields",
    [
        {"server_id": "a b"},
        {"image": ""},
        {"folder": "/tmp"},
        {"user": 0},
        {"folder": ""},
        {"reach": ["8080"]},
        {"hosts": ["http://a/"]},
        {"memory": 0},
        {"cpus": 0},
    ],
)
def test_a_bad_field_is_named(fields):
    with pytest.raises(ValueError, match=next(iter(fields))):
        DockerConfig(**{"server_id": "s", "image": "i"} | fields)
