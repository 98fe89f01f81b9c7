"""TRL's async GRPO with an OpenEnv harness: OpenEnv captures the calls of a program, TRL makes rows of its trace.

Its worker, which draws tasks and starts sessions, is replaced by the process of the agents. It forks a row wherever a
prompt does not go on with what was sampled: the threshold is 0, as its `lossless_capture` sets it.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import uvicorn
from openenv.core.harness.capture.contract import to_training_trace
from openenv.core.harness.capture.export import export_session
from openenv.core.harness.capture.server import create_app
from trl.experimental.async_grpo.async_rollout_worker import _chain_to_sequences
from trl.experimental.async_grpo.openenv_harness import _turns_from_training_trace

from comparison.adapter import Delivered, Place, Rollout, Row, listening
from comparison.agents import Agents

LEVEL = "tokens"


@asynccontextmanager
async def open_system(place: Place) -> AsyncIterator[Rollout]:
    """Start the capture server before the engine."""
    port = place.ports[0]
    app = create_app(llm_url=place.engine, model="mock", capture_level=LEVEL)
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning"))
    running = asyncio.create_task(server.serve())
    await listening(port)
    agents, url = Agents(place.agents), f"http://127.0.0.1:{port}"
    async with httpx.AsyncClient(base_url=url, timeout=60) as api:

        async def rollout(case: str, key: str, limit: float) -> Delivered:
            session = (await api.post("/sessions", json={"purpose": "train"})).raise_for_status().json()["session_id"]
            answer = await agents.run_for(limit, case=case, key=key, base_url=f"{url}/v1", api_key=session)
            said = [] if answer["ok"] else ["agent: " + answer["error"]]
            captured = app.state.registry.get(session)
            try:
                document = export_session(captured, include_messages=True, capture_level=LEVEL)
                turns = _turns_from_training_trace(to_training_trace(captured.graph, document))
                sequences, _ = _chain_to_sequences(turns, key, 0)
            except (ValueError, TypeError, KeyError) as error:  # its worker makes a CaptureContractError of these
                return Delivered([], "; ".join([*said, f"capture: {error}"])[:400])
            finally:
                await api.delete(f"/sessions/{session}")
            said += [f"roles: {roles}"] if (roles := _left_out(document)) else []
            rows = [Row(one.input_ids, one.completion_mask, one.old_log_probs) for one in sequences]
            return Delivered(rows, "; ".join(said))

        yield rollout
    server.should_exit = True
    await running


def _left_out(document: dict[str, Any]) -> dict[str, int]:
    """Return the calls that the capture does not count as the agent's: it names them in its document."""
    kept = {node for row in document["sequences"] if row["role"] == "agent" for node in row["node_ids"]}
    discarded = sum(turn["discarded"] for turn in document["turns"])
    others = sum(turn["node_id"] not in kept and not turn["discarded"] for turn in document["turns"])
    return {name: count for name, count in (("auxiliary", others), ("discarded", discarded)) if count}
