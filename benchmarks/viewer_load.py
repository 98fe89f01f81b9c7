"""What an open page costs the server that it shows: rollouts/s with and without a page that follows.

python -m benchmarks.viewer_load [--alternations 5] [--seconds 10] [--in-flight 64] [--json]

A trainer runs rollouts over Attach. In every second phase a page is open: a program reads the stream of the live table,
as a browser does, and renders nothing. `follow_ratio` is the rate with a page of `view --follow SERVER`, over the mean
rate of the phases before and after it; `serve_ratio` is that with a page of `serve --view`, whose pages are made in
the server's process. `follow_cpu_ratio` and `serve_cpu_ratio` are those of the server's processor time for a rollout,
which other work on the machine changes less. The viewer of `--follow` may use both cores, which server and trainer
have, too.
"""

import os
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp

from benchmarks.burden import Ratios
from benchmarks.figures import Broken, run
from benchmarks.processes import CORES, server
from benchmarks.viewed import viewing


async def measure(alternations: int, seconds: float, in_flight: int) -> dict[str, Any]:
    """Return all figures."""
    figures: dict[str, Any] = {"benchmark": "viewer_load", "in_flight": in_flight}
    with server("attach", in_flight) as started:
        os.sched_setaffinity(0, CORES)  # inherited by the viewer
        with viewing("--follow", started.grpc) as address:
            os.sched_setaffinity(0, {CORES[-1]})
            ratios = Ratios(started, alternations, seconds, in_flight)
            figures |= await ratios.measure("follow", reader(address))
    port = _free_port()
    with server("attach", in_flight, ["--view", "--view-port", str(port)]) as started:
        ratios = Ratios(started, alternations, seconds, in_flight)
        figures |= await ratios.measure("serve", reader(f"http://127.0.0.1:{port}/"))
    return figures


def reader(address: str) -> Callable[[], Awaitable[None]]:
    """Return a function that reads the stream of the live table until it is cancelled."""

    async def read() -> None:
        updates = 0
        async with aiohttp.ClientSession() as session:
            try:
                async with session.get(f"{address}stream", timeout=aiohttp.ClientTimeout(total=None)) as stream:
                    stream.raise_for_status()
                    async for line in stream.content:
                        updates += line.startswith(b"event: rows")
            finally:
                if not updates:
                    raise Broken("the page has got no update")
        raise Broken("the stream of the page has ended")

    return read


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    return port


if __name__ == "__main__":
    run(__doc__, measure, alternations=5, seconds=10.0, in_flight=64)
