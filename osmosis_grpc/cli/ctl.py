"""The ctl commands: cancel rollouts of a running server, drain it, and print its configuration."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import fields
from typing import Any

from osmosis_grpc.cli.command_options import CancelOptions
from osmosis_grpc.cli.options import SourceOptions
from osmosis_grpc.cli.screen import Line, Screen, wrapped
from osmosis_grpc.cli.source import chosen_server, run_reading
from osmosis_grpc.protocol.types import CancelResult
from osmosis_grpc.protocol.types.server_info import DrainResult, ServerInfo
from osmosis_grpc.records.reading.record_values import plain
from osmosis_grpc.serve.json_output import Records, say_error, usage_error
from osmosis_grpc.trainer.rollout_client import RolloutClient

POLL = 0.25
"""During a drain, the server is asked every so many seconds how much work is left."""
MIB = 1024 * 1024

Asked = Callable[[RolloutClient, Records], Awaitable[int]]


def run_cancel(given: CancelOptions, options: SourceOptions, *, json: bool) -> int:
    """Cancel rollouts, and return the exit code."""
    chosen = [bool(given.rollouts), bool(given.group), bool(given.prefix), given.everything]
    if sum(chosen) != 1 or "" in given.rollouts:
        usage_error(
            "ctl cancel", "name rollouts, a group with --group, the beginning of ids with --prefix, or all with --all"
        )
    if given.attempt and not given.rollouts:
        usage_error("ctl cancel", "--attempt goes with a rollout")

    async def cancel(client: RolloutClient, out: Records) -> int:
        found: list[CancelResult] = []
        for rollout_id in given.rollouts:
            found += await client.cancel(rollout_id, attempt=given.attempt or 0, reason=given.reason)
        if not given.rollouts:
            found += await client.cancel(
                group_id=given.group, prefix=given.prefix, everything=given.everything, reason=given.reason
            )
        screen = Screen.of(out)
        for each in found:
            out.write("cancel", **plain(each))
            screen.say(_effect(each))
        if not found:
            screen.say("no rollout is unfinished")
        return int(any(each.disposition == "UNKNOWN" for each in found))

    return _run("cancel", options, cancel, json=json)


def _effect(result: CancelResult) -> str:
    name = result.rollout_id + (f" (attempt {result.attempt})" if result.attempt > 1 else "")
    if result.cancelled:
        return f"{name}: cancelled"
    if result.disposition == "UNKNOWN":
        return f"{name}: the server does not know it; if it comes within 10 minutes, it ends at once"
    return f"{name}: nothing changed, it had ended {result.state.value if result.state else ''}".rstrip()


def run_drain(timeout: float | None, options: SourceOptions, *, undo: bool, json: bool) -> int:
    """Start a drain and wait until no work is left, or end a drain. Return the exit code."""

    async def drain(client: RolloutClient, out: Records) -> int:
        left = await client.drain(cancel=undo)
        if undo:
            out.write("serving", **plain(left))
            out.say("the server accepts new rollouts again")
            return 0
        end = None if timeout is None else time.monotonic() + timeout
        shown: DrainResult | None = None
        while True:
            if left != shown:
                shown = left
                out.write("draining", **plain(left))
                out.say(
                    f"draining: {left.running} running, {left.queued} queued, "
                    f"{left.undelivered} ended without a receipt of the trainer"
                )
            if not (left.running or left.queued or left.undelivered):
                break
            if end is not None and time.monotonic() >= end:
                say_error("ctl drain: work is left; the drain goes on, and --undo ends it")
                return 1
            await asyncio.sleep(POLL)
            load = (await client.info()).capacity
            left = DrainResult(running=load.running, queued=load.queued, undelivered=load.undelivered)
        out.write("drained")
        out.say("drained: the server has no work and accepts none; stop it, or --undo ends the drain")
        return 0

    return _run("drain", options, drain, json=json)


def run_config(options: SourceOptions, *, json: bool) -> int:
    """Print the configuration of a running server, and return the exit code."""

    async def config(client: RolloutClient, out: Records) -> int:
        info = await client.info()
        out.write("config", server=client.target, **plain(info))
        screen = Screen.of(out)
        for line in _configuration(client.target, info, screen.width):
            screen.say(line)
        return 0

    return _run("config", options, config, json=json)


def _configuration(target: str, info: ServerInfo, width: int) -> Iterator[Line]:
    started = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(info.start_time))
    yield Line.of(f"server {target}, version {info.version}, protocol {protocol_range(info)}", "head")
    yield Line.of(f"{'draining' if info.draining else 'accepts rollouts'}, started {started}", indent=2)
    yield Line.of(f"process {info.process_id}, journal {info.journal_id}", indent=2)
    if info.workers:
        ports = ", ".join(str(worker.port) for worker in info.workers)
        yield Line.of(f"{len(info.workers)} processes, with the ports {ports}", indent=2)
    loops = []
    for loop in info.agent_loops:
        tools = ", ".join(tool["function"]["name"] for tool in loop.tools)
        version = f" version {loop.version}" if loop.version else ""
        loops.append(f"{loop.name}{version}, {f'tools: {tools}' if tools else 'without tools'}")
    groups = {
        "agent loops": loops,
        "features": [", ".join(info.features) or "none"],
        "load": _rows(info.capacity),
        "limits": _rows(info.limits),
    }
    for heading, rows in groups.items():
        yield Line.of(heading, "head")
        for row in rows:
            yield from (Line.of(piece, indent=2) for piece in wrapped(row, width - 2))


def protocol_range(info: ServerInfo) -> str:
    """Return the range of protocol versions that a server supports."""
    low, high = info.protocol_min, info.protocol_max
    return str(low) if low == high else f"{low} to {high}"


def _rows(values: Any) -> list[str]:
    names = [field.name for field in fields(values)]
    widest = max(map(len, names))
    return [f"{name.ljust(widest)}  {_value(name, getattr(values, name))}" for name in names]


def _value(name: str, value: Any) -> str:
    if value is None:
        return "none"
    if name.endswith("_bytes") and value >= MIB:
        return f"{value:.0f} ({value / MIB:.4g} MiB)"
    return f"{value:g} s" if isinstance(value, float) else str(value)


def _run(name: str, options: SourceOptions, ask: Asked, *, json: bool) -> int:
    """Call the server that the options name. Return the exit code, which is 2 if a call fails."""

    async def asked(out: Records) -> int:
        server = chosen_server(f"ctl {name}", options)
        async with server.client() as client:
            with server.explained():
                return await ask(client, out)

    return run_reading(f"ctl {name}", asked, json=json)
