"""Attacks below gRPC and calls that no gRPC library makes: others are served, memory is bounded."""

import asyncio
import os
import struct
import time
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import grpc
import pytest

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import control_pb2, services_pb2_grpc
from tests.faults.http2 import (
    ACK,
    CONTINUATION,
    DATA,
    EMPTY,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    NO_TABLE,
    PING,
    RST,
    SETTINGS,
    USUAL,
    block,
    connection,
    frame,
    outcome,
    request,
)
from tests.processes import server_process

MIB = 2**20
CALCULATOR = ("-m", "osmosis_grpc.testing.calculator:agent_loop")
TICKS = os.sysconf("SC_CLK_TCK")


@pytest.fixture(scope="module")
def served():
    with server_process(*CALCULATOR) as (process, address):
        yield process.pid, address


def memory(pid: int) -> int:
    """Bytes of a process that are in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def cpu(pid: int) -> float:
    """Seconds of CPU that a process has used."""
    rows = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(rows[11]) + int(rows[12])) / TICKS


@asynccontextmanager
async def beside(served, name: str, growth: int):
    """A normal client calls on and on meanwhile: every call is answered. Prints what the attack cost."""
    pid, address = served
    worst, calls, over = 0.0, 0, asyncio.Event()

    async def normal() -> None:
        nonlocal worst, calls
        async with grpc.aio.insecure_channel(address) as channel:
            info = services_pb2_grpc.RolloutServiceStub(channel).GetServerInfo
            while not over.is_set() or calls < 5:
                began = time.perf_counter()
                await info(control_pb2.GetServerInfoRequest(), timeout=10)
                worst, calls = max(worst, time.perf_counter() - began), calls + 1
                await asyncio.sleep(0.01)  # calls of one client, paced

    client = asyncio.create_task(normal())
    await asyncio.sleep(0.1)  # the calls have begun
    before, used, began = memory(pid), cpu(pid), time.perf_counter()
    try:
        yield address
    finally:
        took = time.perf_counter() - began
        over.set()
        await client
    grown = memory(pid) - before
    print(
        f"{name}: {took:.2f} s, server CPU {cpu(pid) - used:.2f} s, memory {before / MIB:.0f} to "
        f"{(before + grown) / MIB:.0f} MiB, normal client's worst of {calls} calls {worst * 1000:.0f} ms"
    )
    assert grown < growth * MIB, f"grew by {grown / MIB:.0f} MiB"


async def rapid_reset(address: str, times: int) -> None:
    async with connection(address) as made:
        cancel = struct.pack(">I", 8)
        head = block(USUAL)
        for first in range(1, 2 * times, 200):
            data = b"".join(
                frame(HEADERS, END_HEADERS, stream, head)
                + frame(DATA, END_STREAM, stream, EMPTY)
                + frame(RST, 0, stream, cancel)
                for stream in range(first, first + 200, 2)
            )
            if not await made.send(data):
                break
        await made.handled()


async def flood(address: str, data: bytes, times: int, first: bytes = b"") -> None:
    """The same bytes again and again, and what comes back is not read meanwhile."""
    async with connection(address) as made:
        await made.send(first)
        for _ in range(0, times, 100):
            if not await made.send(data * 100):
                break
        await made.handled()


async def continuations(address: str, times: int) -> None:
    head = frame(HEADERS, 0, 1, block(USUAL))
    await flood(address, frame(CONTINUATION, 0, 1, block([("x-more", "y" * 100)] * 100)), times, head)


async def header_drip(address: str, times: int) -> None:
    async with AsyncExitStack() as stack:
        made = [await stack.enter_async_context(connection(address)) for _ in range(20)]
        for one in made:
            await one.send(frame(HEADERS, 0, 1, block(USUAL)))
        for _ in range(times // 1000):
            for one in made:
                await one.send(frame(CONTINUATION, 0, 1, block([("x", "y")])))
            await asyncio.sleep(0.05)  # a slow sender


async def closed_windows(address: str, times: int) -> None:
    """Peers that let nothing be sent to them: INITIAL_WINDOW_SIZE 0, and calls that want answers."""
    settings = NO_TABLE + struct.pack(">HI", 4, 0)
    async with AsyncExitStack() as stack:
        for _ in range(max(1, times // 2000)):
            made = await stack.enter_async_context(connection(address, settings))
            await made.send(b"".join(request(stream) for stream in range(1, 1001, 2)))
        await asyncio.sleep(0.5)  # the attack lasts


async def idle_connections(address: str, times: int) -> None:
    host, _, port = address.rpartition(":")
    writers = [(await asyncio.open_connection(host, int(port)))[1] for _ in range(times // 20)]
    await asyncio.sleep(0.5)  # the attack lasts
    for writer in writers:
        writer.transport.abort()


PINGS, EMPTY_SETTINGS = frame(PING, 0, 0, b"12345678"), frame(SETTINGS, 0, 0, struct.pack(">HI", 3, 100))
ATTACKS = {
    "rapid reset": rapid_reset,
    "ping flood": lambda address, times: flood(address, PINGS, times),
    "SETTINGS flood": lambda address, times: flood(address, EMPTY_SETTINGS, times),
    "SETTINGS ACK flood": lambda address, times: flood(address, frame(SETTINGS, ACK, 0), times),
    "CONTINUATION flood": continuations,
    "header drip": header_drip,
    "closed windows": closed_windows,
    "idle connections": idle_connections,
}


@pytest.mark.parametrize("times", [1000, pytest.param(20_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", ATTACKS)
async def test_others_are_served_during(served, name, times):
    async with beside(served, f"{name} x {times}", 64 if times < 20_000 else 128) as address:
        await ATTACKS[name](address, times)


@pytest.mark.long
async def test_three_rapid_resets_do_not_add_up(served):
    await rapid_reset(served[1], 20_000)
    before = memory(served[0])
    for _ in range(3):
        await rapid_reset(served[1], 20_000)
    assert memory(served[0]) - before < 48 * MIB


@pytest.mark.long
async def test_a_connection_that_says_nothing_is_closed(served):
    host, _, port = served[1].rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    async with asyncio.timeout(30):
        while await reader.read(1000):
            pass
    writer.close()


UNANSWERED = "nothing"  # grpc.aio waits for the message until deadline or disconnection
TWO = EMPTY + EMPTY
ODD_CALLS = {
    "a usual one": (request(1), {"grpc-status 0"}),
    "two messages": (request(1, body=TWO), {"grpc-status 0", "grpc-status 13", "grpc-status 12"}),
    "no message": (request(1, body=b""), {"grpc-status 13", "grpc-status 12", UNANSWERED}),
    "half a message": (request(1, body=b"\0\0\0\0\x09abc"), {"grpc-status 13", UNANSWERED}),
    "a length of 4 GiB": (request(1, body=b"\0\xff\xff\xff\xff"), {"grpc-status 8"}),
    "a compressed flag without an encoding": (request(1, body=b"\1\0\0\0\1x"), {"grpc-status 13"}),
    "an unknown encoding": (
        request(1, body=b"\1\0\0\0\1x", grpc_encoding="nonesuch"),
        {"grpc-status 12", "grpc-status 13"},
    ),
    "what is no gzip": (request(1, body=b"\1\0\0\0\1x", grpc_encoding="gzip"), {"grpc-status 13"}),
    "a flag that is none": (request(1, body=b"\7\0\0\0\0"), {"grpc-status 13", "grpc-status 0"}),
    "an unknown method": (request(1, path="/osmosis.rollout.v1.RolloutService/Nothing"), {"grpc-status 12"}),
    "an unknown service": (request(1, path="/x/y"), {"grpc-status 12"}),
    "no path": (request(1, path=""), {"RST 2", "RST 1", "grpc-status 12", "grpc-status 13"}),
    "a path without a slash": (request(1, path="x"), {"grpc-status 12"}),
    "GET": (request(1, method="GET"), {"grpc-status 12", "http 405", "RST 2"}),
    "JSON": (request(1, content_type="application/json"), {"http 415", "grpc-status 0", "grpc-status 12"}),
    "no content-type": (request(1, content_type=""), {"http 415", "grpc-status 0", "grpc-status 12"}),
    "no te": (request(1, te=""), {"grpc-status 0", "grpc-status 13", "RST 2"}),
    "a timeout that is none": (request(1, grpc_timeout="soon"), {"grpc-status 0", "grpc-status 4", "grpc-status 13"}),
    # grpc answers what is done before its timer runs.
    "a timeout of zero": (request(1, grpc_timeout="0n"), {"grpc-status 0", "grpc-status 4", "RST 8", "RST 0"}),
    "an even stream": (request(2), {"GOAWAY 1", "nothing"}),
    "DATA of no stream": (frame(DATA, END_STREAM, 5, EMPTY), {"GOAWAY 1", "RST 5", "nothing"}),
    "a frame of a kind unknown": (frame(77, 0, 0, b"x" * 100) + request(1), {"grpc-status 0"}),
    "a frame above its size": (
        b"\xff\xff\xff" + frame(DATA, 0, 1)[3:] + b"x" * 1000,
        {"GOAWAY 6", "GOAWAY 1", "nothing"},
    ),
    "headers that are no HPACK": (
        frame(HEADERS, END_HEADERS, 1, b"\xff" * 100),
        {"GOAWAY 9", "GOAWAY 1", "GOAWAY 2", "RST 1", "nothing", "grpc-status 13"},
    ),
}
"""What is sent, and what may come: per gRPC's specification, where it says; UNKNOWN (2) never."""


@pytest.mark.parametrize("name", ODD_CALLS)
async def test_calls_that_no_library_makes(served, name):
    data, allowed = ODD_CALLS[name]
    async with connection(served[1]) as made:
        await made.send(data)
        got = outcome(await made.frames(0.4 if UNANSWERED in allowed else 5))
    assert got in allowed, got
    async with connection(served[1]) as made:
        await made.send(request(1))
        assert outcome(await made.frames()) == "grpc-status 0"


async def test_http_1_on_the_grpc_port(served):
    host, _, port = served[1].rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    async with asyncio.timeout(10):
        answer = await reader.read(-1)
    assert b"200" not in answer[:20]
    writer.close()
