"""Programs that try to leave a container without a network, or take what belongs to the others."""

import asyncio
import contextlib
import secrets
from dataclasses import replace

import pytest

from osmosis_grpc.tools.sandbox import SandboxLost
from tests.tools.sandbox.canary import TEXT, Canary
from tests.tools.sandbox.left_over import processes_with
from tests.tools.sandbox.test_bypass import BYPASSES, filled
from tests.waiting import until

pytestmark = [pytest.mark.docker, pytest.mark.slow]

OWN_LIMITS = {"higher limits"}
"""A container has limits of its own, which the limits of a process do not change."""
END_THEIR_BOX = {"signals", "fork bomb"}
"""Programs may end their own box."""

CONNECTS = """
import socket, sys
for address in sys.argv[1:]:
    host, _, port = address.rpartition(":")
    try: socket.create_connection((host, int(port)), 1); print("TEXT")
    except OSError as error: print(error)
"""
UNIX = """
import socket, sys
for path in sys.argv[1:]:
    try: socket.socket(1).connect(path); print("TEXT")
    except OSError as error: print(error)
"""
RAW = """
import socket
for family, kind, protocol in ((2, 3, 1), (2, 3, 255), (17, 3, 768), (10, 3, 58)):
    try: socket.socket(family, kind, protocol); print("TEXT")
    except OSError as error: print(error)
"""
TRACE = "import ctypes; print('TEXT' if ctypes.CDLL(None).ptrace(16, PID, 0, 0) == 0 else 0)"

OF_CONTAINERS = {
    "docker socket": f"{{python}} -c '{UNIX}' /var/run/docker.sock /run/docker.sock DAEMON",
    "first process": "cat /proc/1/environ /proc/1/root/FOLDER/secret; ls /proc/1/root/FOLDER && echo TEXT; kill -9 1",
    "devices of the machine": (
        "mknod /tmp/d b 8 0 && echo TEXT; mknod d c 1 1 && echo TEXT; "
        "for d in /dev/sd* /dev/vd* /dev/nvme* /dev/kmsg /dev/mem /dev/kvm /dev/fuse; do [ ! -e $d ] || echo TEXT; done"
    ),
    "mount": (
        "mount -t tmpfs none /mnt && echo TEXT; mount --bind /proc/1/root /mnt && echo TEXT; "
        "mount -o remount,rw / && echo TEXT; umount /proc/kcore && echo TEXT"
    ),
    "cgroups": (
        "mkdir /sys/fs/cgroup/canary /sys/fs/cgroup/*/canary && echo TEXT; for f in $(find /sys/fs/cgroup "
        "-name '*.max' -o -name '*limit*' -o -name release_agent -o -name cgroup.procs); do "
        "(echo 999 >$f) 2>/dev/null && echo TEXT; done"
    ),
    "settings of the kernel": (
        "for f in /proc/sysrq-trigger /proc/sys/kernel/core_pattern /proc/sys/vm/overcommit_memory; do "
        "(echo x >$f) 2>/dev/null && echo TEXT; done"
    ),
    "raw sockets": f"{{python}} -c '{RAW}'",
    "trace": f'{{python}} -c "{TRACE}"',
    "privileges": (
        "grep -q 'CapEff:.0000000000000000' /proc/self/status || echo TEXT; "
        "grep -q 'NoNewPrivs:.1' /proc/self/status || echo TEXT; "
        "su -c 'echo TEXT' root </dev/null; for p in $(find / -xdev -perm -4000 -type f); do "
        'cp $p p; chmod 4755 p; ./p /mnt </dev/null; done; [ "$(id -u)" != 0 ] || echo TEXT'
    ),
    "metadata of the cloud": f"{{python}} -c '{CONNECTS}' 169.254.169.254:80 100.100.100.200:80",
    "loopback of the machine": f"{{python}} -c '{CONNECTS}' 127.0.0.1:PORT localhost:PORT 172.17.0.1:PORT 0.0.0.0:PORT",
    "first process's namespaces": "nsenter -t 1 -a sh -c 'ls FOLDER' && echo TEXT; chroot /proc/1/root && echo TEXT",
}


@pytest.fixture(scope="module")
def canary():
    with Canary() as made:
        yield made


@pytest.mark.parametrize("name", [name for name in BYPASSES if name not in OWN_LIMITS] + [*OF_CONTAINERS])
async def test_a_bypass_has_no_effect_outside_of_a_box(machine, daemon, name, canary, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", TEXT)
    number = 1_000_000 + secrets.randbelow(1_000_000)
    given = OF_CONTAINERS[name] if name in OF_CONTAINERS else BYPASSES[name][0]
    command = filled(given, canary, number).replace("DAEMON", daemon.removeprefix("unix://"))
    before = canary.state()
    async with machine(memory=256 * 2**20, disk=64 * 2**20, processes=60) as made, made.sandbox() as box:
        try:
            ended = await box.run(["bash", "-c", command.replace("{python}", box.python)], seconds=2.0)
            assert TEXT.encode() not in ended.stdout + ended.stderr
            await box.run("chmod -R u+rwX . ; rm -rf ./*")
            assert (await box.run("echo works")).stdout == b"works\n"
        except SandboxLost:
            assert name in END_THEIR_BOX
    assert canary.state() == before
    await until(lambda: processes_with(str(number)) == [])


FLOOD = """
import socket, sys, time
path, count = sys.argv[1], int(sys.argv[2])
kept = []
for _ in range(count):
    one = socket.socket(1)
    try: one.connect(path)
    except OSError: pass
    kept.append(one)
open("flooded", "w").close()
time.sleep(600)
"""
FETCH = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=20).read().decode())"


async def answer(reader, writer):
    """Answer one request with "x". A connection without a request stays open."""
    try:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\nx")
        await writer.drain()
    except (OSError, EOFError):
        pass
    writer.close()


async def test_a_box_reaches_its_own_sockets_only_and_changes_none(machine):
    async with contextlib.AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(await asyncio.start_server(answer, "127.0.0.1", 0)) for _ in "ab"]
        own, other = [server.sockets[0].getsockname()[1] for server in servers]
        made = await stack.enter_async_context(machine(reach=[f"127.0.0.1:{own}"]))
        box = await stack.enter_async_context(made.sandbox())
        others = replace(made.config, reach=[f"127.0.0.1:{other}"])
        second = await stack.enter_async_context(made.sandbox(config=others))
        connect, paths = UNIX.replace("TEXT", TEXT), [f"/run/osmosis/{port}" for port in (own, other)]
        reached = (await box.run([box.python, "-c", connect, *paths])).stdout.decode().splitlines()
        assert [line == TEXT for line in reached] == [True, False]
        for attack in ("ls /run/osmosis", f"rm -f {paths[0]}", "touch /run/osmosis/x", f"mv {paths[0]} /tmp/x"):
            assert (await box.run(attack)).exit_code != 0
        for each, port in ((box, own), (second, other)):
            url = f"http://127.0.0.1:{port}/"
            assert (await each.run([each.python, "-c", FETCH, url], seconds=60)).stdout == b"x\n"


async def test_a_flood_of_connections_of_a_box_leaves_the_others_their_share(machine):
    async with await asyncio.start_server(answer, "127.0.0.1", 0, backlog=2048) as server:
        port = server.sockets[0].getsockname()[1]
        async with machine(reach=[f"127.0.0.1:{port}"]) as made, made.sandbox() as box, made.sandbox() as other:
            flood = [box.python, "-c", FLOOD, f"/run/osmosis/{port}", "2000"]
            flooding = asyncio.create_task(box.run(flood, seconds=600))

            async def flooded():
                return [info for info in await box.list_files() if info.path == "flooded"]

            await until(flooded, timeout=40)
            fetch = [other.python, "-c", FETCH, f"http://127.0.0.1:{port}/"]
            assert (await other.run(fetch, seconds=60)).stdout == b"x\n"
            flooding.cancel()
            await asyncio.wait({flooding})
