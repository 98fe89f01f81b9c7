"""Agent Lightning 1.0: its server with the proxy; the calls of its trainer (enqueue, end, events as triplets).

Its controller, which starts agents, is replaced by the process of the agents. Its rows are made in code that needs verl
and torch with a GPU build; `merged` does what that code does: it joins steps whose prompts go on with what was before.
"""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from comparison.adapter import Delivered, Place, Rollout, listening, merged, process
from comparison.agents import Agents


@asynccontextmanager
async def open_system(place: Place) -> AsyncIterator[Rollout]:
    """Start the server, and tell it where the engine is."""
    port = place.ports[0]
    command = (sys.executable, "-m", "agentlightning.server", f"port={port}", "host=127.0.0.1")
    name = "default_proxy.model_name=mock"
    with process(*command, name, f"hydra.run.dir={place.folder}/hydra", log=f"{place.folder}/server.log"):
        await listening(port)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=200)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}/api", timeout=60, limits=limits) as api:
            agents = Agents(place.agents)
            await _done(api.post("/models", json=[{"model": "mock", "endpoint": place.engine, "version": 1}]))

            async def rollout(case: str, key: str, limit: float) -> Delivered:
                await _done(api.post("/rollouts", json=[{"input": {"case": case}, "rollout_id": key}]))
                state: dict[str, Any] = {"status": {"state": "running", "last_attempt_id": "0"}}
                await _done(api.patch(f"/rollouts/{key}", json=state))
                url = f"http://127.0.0.1:{port}/proxy/rollout/{key}/attempt/0/mode/train/openai/v1"
                answer = await agents.run_for(limit, case=case, key=key, base_url=url)
                reward = {"event_type": "reward", "data": {"value": 1.0}}
                await _done(api.post(f"/rollouts/{key}/attempt/0/events", json=reward))
                state = {"status": {"state": "succeeded" if answer["ok"] else "failed"}}
                await _done(api.patch(f"/rollouts/{key}", json=state))
                # Its rollout manager asks twice: for the events as they are, and as triplets.
                await _done(api.get(f"/rollouts/{key}/events", params={"include_routed_experts": False}))
                events = (await _done(api.get(f"/rollouts/{key}/events", params={"format": "triplet"}))).json()
                return Delivered(merged(_steps(events)), "" if answer["ok"] else "agent: " + answer["error"])

            yield rollout


async def _done(call: Any) -> httpx.Response:
    answer: httpx.Response = await call
    return answer.raise_for_status()


def _steps(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the steps that its rollout manager keeps."""
    out = []
    for event in events:
        data = event["data"]
        failed = data.get("status") == "error" or int(data.get("http_status") or 200) >= 400
        if event["event_type"] != "model_request" or failed or not data.get("response_token_ids"):
            continue
        logprobs = data.get("response_log_probs")
        out.append({"prompt": data["prompt_token_ids"], "ids": data["response_token_ids"], "logprobs": logprobs})
    return out
