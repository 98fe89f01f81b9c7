"""The cost of grpc.aio's unary calls alone: the calls of a rollout with callbacks, without any work.

python -m benchmarks.bare_calls [--rollouts 800] [--turns 8] [--in-flight 64] [--json]

For every rollout this process calls Init. The other process then makes `turns` calls with a chat's bytes, and one with
an outcome's. Nothing is parsed or stored, so no implementation of rollouts with callbacks can be faster.
"""

import argparse
import asyncio
import gc
import itertools
import json
import signal
from collections.abc import Callable
from typing import Any

import grpc

from benchmarks.figures import Parser, measured, show
from benchmarks.flight import in_flight as run_all
from benchmarks.flight import new_names
from benchmarks.measure import Watch
from benchmarks.processes import Server, ready_record, running, take_core
from osmosis_grpc.network.channel_options import client_options, server_options

QUESTION, REPLY, REPORT = b"q" * 2_000, b"r" * 6_500, b"c" * 24_000
"""About as large as a chat, its reply and an outcome, for 8 turns of 256 tokens with full histories and prompts."""


Method = grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]


async def serving(**methods: Callable[[bytes, Any], Any]) -> tuple[grpc.aio.Server, int]:
    """Start a server of unary methods on a free port. The methods take and return bytes."""
    server = grpc.aio.server(options=server_options())
    handlers: dict[str, Any] = {name: grpc.unary_unary_rpc_method_handler(method) for name, method in methods.items()}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bare", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, port


async def agent_side() -> None:
    """Run the process that receives Init and makes the callbacks."""
    channels: dict[bytes, grpc.aio.Channel] = {}
    running: set[asyncio.Task[None]] = set()

    async def rollout(name: bytes, channel: grpc.aio.Channel, turns: int) -> None:
        chat: Method = channel.unary_unary("/bare/chat")
        complete: Method = channel.unary_unary("/bare/complete")
        for _ in range(turns):
            await chat(QUESTION, timeout=60)
        await complete(name + b" " + REPORT, timeout=60)

    async def init(request: bytes, context: Any) -> bytes:
        name, target, turns = request.split()
        if target not in channels:
            channels[target] = grpc.aio.insecure_channel(target.decode(), options=client_options())
        task = asyncio.create_task(rollout(name, channels[target], int(turns)))
        running.add(task)
        task.add_done_callback(running.discard)
        return b""

    server, port = await serving(init=init)
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    print(json.dumps({"grpc": f"127.0.0.1:{port}"}), flush=True)
    await stopping.wait()
    for channel in channels.values():
        await channel.close()
    await server.stop(0)


async def trainer_side(server: Server, rollouts: int, turns: int, in_flight: int) -> dict[str, Any]:
    """Call Init for each rollout, answer the calls, and return the figures."""
    ended: dict[bytes, asyncio.Event] = {}

    async def chat(request: bytes, context: Any) -> bytes:
        return REPLY

    async def complete(request: bytes, context: Any) -> bytes:
        ended[request[: request.index(b" ")]].set()
        return b""

    own, port = await serving(chat=chat, complete=complete)
    async with grpc.aio.insecure_channel(server.grpc, options=client_options()) as channel:
        init: Method = channel.unary_unary("/bare/init")

        async def rollout(name: str) -> None:
            ended[name.encode()] = over = asyncio.Event()
            await init(f"{name} 127.0.0.1:{port} {turns}".encode(), timeout=60)
            await over.wait()

        watch = Watch(server, (in_flight, in_flight + rollouts))
        await run_all(itertools.islice(new_names(), rollouts + 2 * in_flight), in_flight, rollout, watch)
    await own.stop(0)
    seconds, server_cpu, trainer_cpu = watch.differences
    return {
        "benchmark": "bare_calls",
        "rollouts": rollouts,
        "turns": turns,
        "in_flight": in_flight,
        "rollouts_per_s": round(rollouts / seconds, 1),
        "calls_per_s": round(rollouts * (turns + 2) / seconds, 1),
        "server_cpu_ms_per_rollout": round(server_cpu * 1000 / rollouts, 3),
        "trainer_cpu_ms_per_rollout": round(trainer_cpu * 1000 / rollouts, 3),
    }


async def measure(rollouts: int, turns: int, in_flight: int) -> dict[str, Any]:
    """Measure with both sides. Each side has its own core."""
    with running(["-m", "benchmarks.bare_calls", "--serve"], core=0) as process:
        take_core(1)
        return await trainer_side(Server(process.pid, ready_record(process)["grpc"], ""), rollouts, turns, in_flight)


def main() -> None:
    parser = Parser(__doc__)
    parser.amounts(rollouts=800, turns=8, in_flight=64)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        asyncio.run(agent_side())
    else:
        show(measured(measure(given.rollouts, given.turns, given.in_flight)), given.json)


if __name__ == "__main__":
    main()
