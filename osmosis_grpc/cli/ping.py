"""The ping command: prints whether a server is ready, its version and limits, the round-trip time and its clock."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from osmosis_grpc.cli.ctl import protocol_range
from osmosis_grpc.cli.options import SourceOptions
from osmosis_grpc.cli.screen import Line, Screen
from osmosis_grpc.cli.source import chosen_server, run_reading
from osmosis_grpc.network.client_calls import error_of
from osmosis_grpc.protocol.types.server_info import ServerInfo
from osmosis_grpc.protocol.wire.control import PROTOCOL
from osmosis_grpc.records.reading.record_values import plain
from osmosis_grpc.records.reading.server_source import ChosenServer
from osmosis_grpc.records.reading.source_port import SourceError
from osmosis_grpc.serve.json_output import Records, usage_error
from osmosis_grpc.trainer.rollout_client import RolloutClient

CALLS = 5
"""The number of calls. The fastest one gives the round-trip time."""
MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Pinged:
    """The answers of a server."""

    target: str
    health: str
    """The status of the server's health service, or "" if it has none."""
    info: ServerInfo
    round_trip: float
    """In seconds."""
    clock_skew: float | None
    """How many seconds the server's clock is ahead; None if the server does not report its time."""

    @property
    def problem(self) -> str:
        """Why a trainer cannot use the server now, or "" if it can."""
        if self.info.protocol_min > PROTOCOL[1] or self.info.protocol_max < PROTOCOL[0]:
            return f"it speaks protocol {protocol_range(self.info)}, and this version {PROTOCOL[0]} to {PROTOCOL[1]}"
        if self.info.draining:
            return "it drains: it finishes its rollouts and accepts no new ones"
        return "" if self.health in ("", "SERVING") else f"its health is {self.health}"


def run_ping(target: str | None, timeout: float, options: SourceOptions, *, json: bool) -> int:
    """Ask a server, print its answers, and return the exit code."""
    if target is not None and options.server not in (None, target):
        usage_error("ping", "HOST:PORT and --server exclude each other; name one of them")
    server = chosen_server("ping", replace(options, server=target or options.server))

    async def ask(out: Records) -> int:
        found = await _ping(server, timeout)
        info = found.info
        out.write(
            "ping",
            server=found.target,
            ready=not found.problem,
            problem=found.problem or None,
            health=found.health or None,
            round_trip=found.round_trip,
            clock_skew=found.clock_skew,
            **plain(info, without=frozenset({"agent_loops"})),
            agent_loops=[loop.name for loop in info.agent_loops],
        )
        screen = Screen.of(out)
        for line in _lines(found):
            screen.say(line)
        return int(bool(found.problem))

    return run_reading("ping", ask, json=json)


async def _ping(server: ChosenServer, timeout: float) -> Pinged:
    try:
        async with asyncio.timeout(timeout * (CALLS + 1)), server.client() as client, server.channel() as channel:
            with server.explained():
                health = await _health(channel, timeout)
                asked = [await _asked(client, timeout) for _ in range(CALLS)]
    except TimeoutError:
        raise SourceError(f"{server} did not answer within {timeout:g} s") from None
    round_trip, skew, info = min(asked, key=lambda each: each[0])
    return Pinged(server.target, health, info, round_trip, skew)


async def _asked(client: RolloutClient, timeout: float) -> tuple[float, float | None, ServerInfo]:
    """Return the round-trip time of a call, the skew of the server's clock, and the answer."""
    clock, begin = time.time(), time.perf_counter()
    async with asyncio.timeout(timeout):
        info = await client.info()
    took = time.perf_counter() - begin
    return took, None if info.current_time is None else info.current_time - (clock + took / 2), info


async def _health(channel: grpc.aio.Channel, timeout: float) -> str:
    """Return the server's health status, or "" if it has no health service. Raises CallError."""
    try:
        answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=timeout)
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            return ""
        raise error_of(error) from None
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


def _lines(found: Pinged) -> Iterator[Line]:
    info, limits, load = found.info, found.info.limits, found.info.capacity
    state = f"is not ready: {found.problem}" if found.problem else "is ready"
    yield Line.of(f"{found.target} {state}", "bad" if found.problem else "good")
    agents = "no limit for agents" if limits.agent_timeout is None else f"agents of {limits.agent_timeout:g} s"
    rows = {
        "health": found.health or "unknown: it has no health service",
        "version": f"{info.version}, protocol {protocol_range(info)}",
        "agents": ", ".join(loop.name for loop in info.agent_loops) or "none",
        "load": f"{load.running} of {load.max_concurrent} rollouts run, {load.queued} of {load.max_queued} wait",
        "limits": f"messages of {limits.max_message_bytes / MIB:.4g} MiB, {agents}",
        "round trip": f"{found.round_trip * 1000:.1f} ms",
        "clock": _clock(found),
    }
    for name, text in rows.items():
        yield Line.of(f"{name:<10}  {text}", indent=2)


def _clock(found: Pinged) -> str:
    if found.clock_skew is None:
        return "unknown"
    if abs(found.clock_skew) <= found.round_trip / 2 + 0.001:
        return "the same as here"
    return f"{abs(found.clock_skew):.3f} s {'ahead of' if found.clock_skew > 0 else 'behind'} the clock here"
