"""rLLM's model gateway from the package index: a session URL for the agent, its traces for the trainer.

Its rows are made in the framework, which is on no index; `merged` does the same: it joins steps whose prompts go on.
"""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from rllm_model_gateway.client import AsyncGatewayClient

from comparison.adapter import Delivered, Place, Rollout, Row, listening, merged, process
from comparison.agents import Agents


@asynccontextmanager
async def open_system(place: Place) -> AsyncIterator[Rollout]:
    """Start the gateway before the engine."""
    port = place.ports[0]
    config = Path(place.folder) / "gateway.yaml"
    config.write_text("sync_traces: true\n")  # its flush() waits for nothing
    command = [sys.executable, "-m", "rllm_model_gateway", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--config", str(config)]
    command += ["--worker", place.engine, "--db-path", f"{place.folder}/traces.db", "--log-level", "warning"]
    with process(*command, log=f"{place.folder}/gateway.log"):
        await listening(port)
        agents = Agents(place.agents)
        async with AsyncGatewayClient(f"http://127.0.0.1:{port}") as gateway:

            async def rollout(case: str, key: str, limit: float) -> Delivered:
                await gateway.create_session(session_id=key)
                answer = await agents.run_for(limit, case=case, key=key, base_url=gateway.get_session_url(key))
                await gateway.flush()
                traces = await gateway.get_session_traces(key)
                said = "" if answer["ok"] else "agent: " + answer["error"]
                return Delivered(_rows(traces), said)

            yield rollout


def _rows(traces: list) -> list[Row]:  # type: ignore[type-arg]
    steps = [
        {"prompt": trace.prompt_token_ids, "ids": trace.completion_token_ids, "logprobs": trace.logprobs}
        for trace in traces
        if trace.prompt_token_ids and trace.completion_token_ids
    ]
    return merged(steps)
