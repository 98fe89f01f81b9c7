"""How each job of a server with several workers is made to run, and what its failure does."""

import asyncio
import socket
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from osmosis_grpc.protocol.errors import Internal
from osmosis_grpc.serve.workers.place import Connection, Place
from osmosis_grpc.serve.workers.worker import Worker
from tests.deployment import Talk
from tests.processes import run
from tests.server.workers.cluster import workers


def place(**changes):
    """A place, and the supervisor's end of its connection."""
    ours, theirs = socket.socketpair()
    fields = {
        "index": 0,
        "ports": {0: 1},
        "accepting": 1,
        "secret": "",
        "sockets": Path(),
        "lock": -1,
        "draining": False,
        "connection": Connection(theirs.detach()),
    }
    return Place(**fields | changes), ours


async def forward(h, fail):
    """The caller gets 500, and the next request is answered."""
    async with workers([Talk()], 2, http=True) as cluster, httpx.AsyncClient(base_url=cluster.http) as http:
        fail()
        assert (await http.get("/health")).status_code == 500
        assert (await http.get("/health")).status_code == 200


async def read_events(h, fail):
    async with workers([Talk()], 2) as cluster, cluster.client(1) as client:
        fail()
        with pytest.raises(Internal):
            await anext(client.all_events())
        assert cluster.servers[1].supervisor.failure is None
        assert (await anext(client.all_events()))[1] is None


async def listen(h, fail):
    mine, ours = place()
    heard = []
    fail()
    mine.listen(heard.append)
    ours.sendall(b'{"restart": true}\n')
    await h.until(lambda: heard == [{"restart": True}])
    ours.close()
    await h.until(lambda: heard[-1] is None)


async def leave(h, fail):
    mine, ours = place(accepting=0)
    worker = Worker(mine, SimpleNamespace(drain_timeout=1.0), None)
    fail()
    with ours:
        await worker.begin(h.server)
        await h.until(lambda: h.supervisor.failure)
    mine.connection.close()


async def of_supervisor(h, fail, name):
    """The server ends with exit code 1, in a process of its own. The thread asks it to restart its workers."""
    source = (
        "import os, runpy, signal, sys, threading, time\n"
        "import osmosis_grpc.serve.workers.supervisor\nfrom osmosis_grpc import supervise\n"
        f"supervise.inject({name!r}, OSError('injected'))\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "def ask():\n    while True:\n        time.sleep(0.2)\n        os.kill(os.getpid(), signal.SIGHUP)\n"
        "threading.Thread(target=ask, daemon=True).start()\n"
        "sys.argv[1:] = ['-m', 'osmosis_grpc.testing.calculator:agent_loop', '--workers', '2', '--grpc-port', '0', "
        "'--no-http', '--no-journal', '--json']\n"
        "runpy.run_module('osmosis_grpc.serve', run_name='__main__')\n"
    )
    result = await asyncio.to_thread(run, "-c", source)
    assert result.returncode == 1, result.stderr
    assert "injected" in result.stderr


SUPERVISOR = ("serve.keep_worker", "serve.read_worker", "serve.restart_workers", "serve.wait_for_worker")
SCENARIOS = {
    "gateway.forward_to_worker": forward,
    "server.read_worker_events": read_events,
    "serve.listen_to_supervisor": listen,
    "serve.leave": leave,
    **{name: lambda h, fail, name=name: of_supervisor(h, fail, name) for name in SUPERVISOR},
}
"""By job: makes it run after fail(), and checks what its failure does."""
