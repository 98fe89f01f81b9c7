"""NeMo Gym: its vLLM model server with training-token capture, and its own code that rebuilds the trajectory.

It delivers one chain of calls for a rollout: the one that ends with the verified response. What it masks or leaves out
is in its own metrics, and `said` quotes them.
"""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from nemo_gym.token_id_capture import trajectories_for_rollout

from comparison.adapter import Delivered, Place, Rollout, Row, listening, merged, process
from comparison.agents import Agents

SERVER = "comparison.systems.nemo_gym_server"
QUIET = (
    "n_calls",
    "roots",
    "chains",
    "generated_tokens_captured",
    "generated_tokens_delivered",
    "terminal_attribution",
)


@asynccontextmanager
async def open_system(place: Place, *options: str) -> AsyncIterator[Rollout]:
    """Start the model server before the engine."""
    port, captured = place.ports[0], Path(place.folder) / "captured"
    captured.mkdir()
    command = (sys.executable, "-m", SERVER, str(port), str(captured), place.engine, *options)
    with process(*command, log=f"{place.folder}/server.log"):
        await listening(port)
        agents = Agents(place.agents)

        async def rollout(case: str, key: str, limit: float) -> Delivered:
            url = f"http://127.0.0.1:{port}/ng-rollout/{key}/training-token-capture/v1"
            answer = await agents.run_for(limit, case=case, key=key, base_url=url)
            verified = _response(answer.get("final"))
            built = trajectories_for_rollout(key, [captured], model="mock", verified_response=verified) or {}
            said = [] if answer["ok"] else ["agent: " + answer["error"]]
            metrics = built.get("metrics") or {}
            if built.get("mask_sample"):
                said += [f"mask_sample: {built.get('error') or _reasons(metrics)}"]
            elif metrics.get("delivered_fraction", 1.0) < 1:
                said += [f"metrics: {_reasons(metrics)}"]
            return Delivered([] if built.get("mask_sample") else _rows(built), "; ".join(said)[:400])

        yield rollout


def _response(final: str | None) -> dict[str, Any] | None:
    """Return the response that a verifier scored: the last reply that the agent got."""
    text = {"type": "output_text", "text": final, "annotations": []}
    item = {"type": "message", "role": "assistant", "id": "m", "status": "completed", "content": [text]}
    return {"id": "resp", "object": "response", "output": [item]} if final else None


def _reasons(metrics: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in metrics.items() if value and name not in QUIET}


def _rows(built: dict[str, Any]) -> list[Row]:
    output = (built.get("rebuilt_response") or {}).get("output") or []
    calls = [item for item in output if item.get("prompt_token_ids") is not None]
    names = {"prompt": "prompt_token_ids", "ids": "generation_token_ids", "logprobs": "generation_log_probs"}
    return merged([{ours: item[theirs] for ours, theirs in names.items()} for item in calls])
