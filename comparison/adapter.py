"""What an adapter is: a module in `systems` with `open_system(place)`, an async context manager that gives `rollout`.

`rollout(case, key, limit)` runs one case in the system under test, and returns what its trainer would train on. This
module is the rest: it starts the adapter as a process of its own, in the environment of its system, and answers orders
on standard input, one JSON line each. It needs nothing but the standard library.
"""

import asyncio
import importlib
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from subprocess import Popen
from typing import Any


@dataclass(frozen=True)
class Place:
    """What a system gets: the engine, the model, the process of the agents, a folder, and free ports."""

    engine: str
    model: str
    agents: str
    agents_log: str
    folder: str
    ports: list[int]


@dataclass(frozen=True)
class Row:
    """A row of training data. `mask` is 1 where an id is trained; a logprob stands at each such id."""

    ids: list[int]
    mask: list[int]
    logprobs: list[float] | None = None
    versions: list[Any] | None = None


@dataclass(frozen=True)
class Delivered:
    """What the trainer gets for a rollout. `said` is why the system itself leaves something out, or that it failed."""

    rows: list[Row]
    said: str = ""
    notes: dict[str, Any] = field(default_factory=dict)


Rollout = Callable[[str, str, float], Awaitable[Delivered]]
"""Runs a case by name, under a key, for at most so many seconds."""
OpenSystem = Callable[[Place], AbstractAsyncContextManager[Rollout]]


@contextmanager
def process(*command: str, log: str, **env: str) -> Iterator[Popen[bytes]]:
    """Run a process of the system under test beside the adapter."""
    with Path(log).open("ab") as out:
        running = Popen(command, stdout=out, stderr=out, env={**os.environ, **env})
        try:
            yield running
        finally:
            running.terminate()
            running.wait(20)


async def listening(port: int, seconds: float = 90) -> None:
    """Wait until something listens at a port of this machine."""
    until = time.monotonic() + seconds
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            if time.monotonic() > until:
                raise
            await asyncio.sleep(0.1)
        else:
            writer.close()
            return


def merged(steps: list[dict[str, Any]]) -> list[Row]:
    """Merge steps (prompt, ids, logprobs) whose prompts extend what was before: for systems that record steps only."""
    rows: list[Row] = []
    for step in steps:
        prompt, ids, logprobs = list(step["prompt"]), list(step["ids"]), step.get("logprobs")
        before = max((row for row in rows if prompt[: len(row.ids)] == row.ids), key=lambda r: len(r.ids), default=None)
        gap = prompt[len(before.ids) :] if before else prompt
        old = before.logprobs if before else []
        both = None if old is None or logprobs is None else [*old, *[0.0] * len(gap), *logprobs]
        mask = [*(before.mask if before else []), *[0] * len(gap), *[1] * len(ids)]
        row = Row([*prompt, *ids], mask, both)
        rows = [*(other for other in rows if other is not before), row]
    return rows


async def answer(order: dict[str, Any], rollout: Rollout) -> dict[str, Any]:
    """Do what the driver says: one rollout, or many of one case at once."""
    if order["do"] == "rollout":
        try:
            got = await asyncio.wait_for(rollout(order["case"], order["key"], order["limit"]), order["limit"] + 30)
        except Exception as error:  # a system that fails is a result
            return {"error": f"{type(error).__name__}: {error}"[:400]}
        return asdict(got)
    gate, bad = asyncio.Semaphore(order["in_flight"]), []

    async def one(number: int) -> None:
        async with gate:
            try:
                got = await rollout(order["case"], f"{order['key']}-{number}", 300)
            except Exception as error:
                bad.append(f"{type(error).__name__}: {error}"[:200])
                return
            trained = sum(sum(row.mask) for row in got.rows)
            if order.get("tokens") and trained != order["tokens"]:
                bad.append(f"{trained} tokens in {len(got.rows)} rows; {got.said}"[:200])

    start = time.perf_counter()
    await asyncio.gather(*(one(number) for number in range(order["count"])))
    return {"wall": time.perf_counter() - start, "bad": len(bad), "first_bad": bad[:1]}


async def main(name: str, place: Place) -> None:
    """Open the system, and answer orders until standard input ends."""
    module = importlib.import_module(f"comparison.systems.{name}")
    loop = asyncio.get_running_loop()
    async with module.open_system(place) as rollout:
        print("READY", flush=True)
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            print("\nRESULT " + json.dumps(await answer(json.loads(line), rollout)), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Place(**json.loads(sys.argv[2]))))
