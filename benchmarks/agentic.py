"""Limits that osmosis_grpc.agentic keeps: cancel, isolation, batches, sync LLM functions, and the calculator.

python -m benchmarks.agentic [--rollouts 100] [--seconds 2] [--json]

`rollouts` coding rollouts run at once, each with a sandbox of its own. Each one creates, edits and reads a file, and
takes the edit back. A sync LLM function blocks its thread for `seconds`. Fails if two rollouts share anything.
"""

import asyncio
import contextlib
import json
import time
from typing import Any

from benchmarks.figures import Broken, progress, run
from benchmarks.tool_lag import lag_during
from osmosis_grpc.agentic import AgenticRollout, AgenticRolloutConfig, ReActAgent, agent_runnable, policy_of
from osmosis_grpc.protocol.errors import ToolArgumentError
from osmosis_grpc.server import AgentServer
from osmosis_grpc.supervise import OnFailure, child, job
from osmosis_grpc.tools import tool
from osmosis_grpc.tools.calculator import calculator_tool
from osmosis_grpc.trainer import RolloutClient, Trainer

ROLLOUT = job("benchmarks.agentic", OnFailure.RAISE)
REFUSED = ("9**9**9", "factorial(10**9)", "(" * 400 + "1" + ")" * 400, "-" * 900 + "1", "pow(10, 10**10)")
BATCH, LIMIT, SECONDS = 40, 8, 0.1
"""The batch: its prompts, how many run at once, and the seconds of each."""


async def measure(rollouts: int, seconds: float) -> dict[str, Any]:
    """Measure each limit. Times are in milliseconds."""
    made: dict[str, Any] = {"coding_rollouts": rollouts}
    made |= {f"cancel_{what}_ms": await _cancel(what) for what in ("llm", "tool")}
    made["batch_ratio"] = await _batch()
    made["sync_lag_ms"] = await _sync_lag(seconds)
    made["refusal_ms"] = await _refusals()
    progress(f"agentic: {rollouts} coding rollouts run at once")
    made["coding_s"], made["coding_lag_ms"] = await _coding(rollouts)
    return made


async def _cancel(what: str) -> float:
    """Return how long it takes from a cancel over gRPC until the LLM or the tool has stopped."""
    began, stopped = asyncio.Event(), asyncio.Event()

    async def hangs() -> str:
        """Waits until it is cancelled."""
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return ""

    async def llm(messages: Any, **params: Any) -> str:
        return await hangs() if what == "llm" else "Action: hangs()"

    agent = ReActAgent()
    agent.set_tools([tool(timeout=None)(hangs)])
    async with (
        asyncio.timeout(60),
        AgentServer([agent_runnable(agent)], port=0) as server,
        Trainer([server.address], policy_of(llm)) as trainer,
        RolloutClient(server.address) as client,
    ):
        running = child(ROLLOUT, trainer.rollout(rollout_id="r", messages=[{"role": "user", "content": "Q"}]))
        await began.wait()
        begun = time.perf_counter()
        await client.cancel("r")
        await stopped.wait()
        took = time.perf_counter() - begun
        outcome = await running
    if outcome.status != "CANCELLED":
        raise Broken(f"the rollout ended as {outcome.status}")
    return round(took * 1000, 1)


async def _batch() -> float:
    """Return the time of a batch, divided by the time that its limit allows."""

    async def llm(messages: Any, **params: Any) -> str:
        await asyncio.sleep(SECONDS)
        return "Final Answer: 42"

    begun = time.perf_counter()
    await AgenticRollout(AgenticRolloutConfig(concurrent_requests=LIMIT), llm).run_batch(["Q"] * BATCH)
    return round((time.perf_counter() - begun) / (SECONDS * -(-BATCH // LIMIT)), 2)


async def _sync_lag(seconds: float) -> float:
    """Return the largest lag of the event loop while a sync LLM function blocks."""

    def llm(messages: Any, **params: Any) -> str:
        time.sleep(seconds)
        return "Final Answer: 42"

    lag, made = await lag_during(AgenticRollout(AgenticRolloutConfig(), llm).run("Q"))
    if not made.is_completed:
        raise Broken(f"the rollout ended as {made.stop_reason}")
    return round(lag.seconds * 1000, 1)


async def _refusals() -> float:
    """Return the time of the slowest refusal of the calculator."""
    calculator, slowest = calculator_tool(), 0.0
    for expression in REFUSED:
        begun = time.perf_counter()
        with contextlib.suppress(ToolArgumentError):
            raise Broken(f"the calculator returned {await calculator.run({'expression': expression})}")
        slowest = max(slowest, time.perf_counter() - begun)
    return round(slowest * 1000, 2)


async def _coding(rollouts: int) -> tuple[float, float]:
    """Run coding rollouts at once, and return their seconds and the largest lag of the event loop in milliseconds.

    Raises Broken if a rollout sees what is not its own.
    """

    async def llm(messages: Any, **params: Any) -> Any:
        name = next(message["content"] for message in messages if message["role"] == "user")
        calls = _calls(name)
        turn = sum(message["role"] == "assistant" for message in messages)
        if turn < len(calls):
            function, arguments = calls[turn]
            call = {"id": "c", "type": "function", "function": {"name": function, "arguments": json.dumps(arguments)}}
            return {"role": "assistant", "content": None, "tool_calls": [call]}
        return json.loads([message["content"] for message in messages if message["role"] == "tool"][-1])[
            "stdout"
        ].strip()

    names = [f"q{number}" for number in range(rollouts)]
    config = AgenticRolloutConfig(agent_type="coding", concurrent_requests=rollouts)
    begun = time.perf_counter()
    lag, made = await lag_during(AgenticRollout(config, llm).run_batch(names))
    took = time.perf_counter() - begun
    for name, each in zip(names, made, strict=True):
        found = each.metadata
        seen = each.get_final_response(), found.get("files_touched"), found.get("phases")
        if seen != (f"all {name}", ["all"], ["edit", "test"]) or f"+{name}" not in found["patch"]:
            raise Broken(f"rollout {name} has {seen}: {each.error}")
    if len({each.request_id for each in made}) < rollouts:
        raise Broken("two rollouts have the same id")
    return round(took, 1), round(lag.seconds * 1000, 1)


def _calls(name: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the calls of a rollout: all rollouts write to the same path, and take an edit back."""
    edit: dict[str, Any] = {"path": "all"}
    return [
        ("file_editor", edit | {"command": "create", "file_text": f"{name}\n"}),
        ("file_editor", edit | {"command": "str_replace", "old_str": name, "new_str": "changed"}),
        ("file_editor", edit | {"command": "undo_edit"}),
        ("bash_executor", {"command": "echo * $(cat *)"}),
    ]


if __name__ == "__main__":
    run(__doc__, measure, rollouts=100, seconds=2.0)
