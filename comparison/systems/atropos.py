"""Atropos: its OpenAI proxy over ManagedServer, and the nodes that its environments hand to a trainer.

Its engine is of the type sglang, whose native /generate gives ids and logprobs: for vLLM it has a server of its own.
"""

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from comparison.adapter import Delivered, Place, Rollout, Row, listening, process
from comparison.agents import Agents

PROXY = "atroposlib.envs.server_handling.managed_server_proxy"


@asynccontextmanager
async def open_system(place: Place) -> AsyncIterator[Rollout]:
    """Start the proxy before the engine."""
    port, config = place.ports[0], Path(place.folder) / "servers.json"
    engine = {"base_url": place.engine, "server_type": "sglang", "api_key": "x"}
    config.write_text(json.dumps({"model_name": "mock", "tokenizer_name": place.model, "servers": [engine]}))
    command = (sys.executable, "-m", PROXY, "--config", str(config), "--host", "127.0.0.1", "--port", str(port))
    with process(*command, log=f"{place.folder}/proxy.log"):
        await listening(port)
        url = f"http://127.0.0.1:{port}"
        agents = Agents(place.agents)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=200)
        async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as api:

            async def rollout(case: str, key: str, limit: float) -> Delivered:
                session = (await api.post("/sessions/create", json={"tool_parser": "hermes"})).json()["uuid"]
                answer = await agents.run_for(limit, case=case, key=key, base_url=f"{url}/{session}/v1")
                nodes = (await api.get(f"/{session}/nodes")).raise_for_status().json()["nodes"]
                await api.delete(f"/{session}")
                return Delivered([_row(node) for node in nodes], "" if answer["ok"] else "agent: " + answer["error"])

            yield rollout


def _row(node: dict[str, Any]) -> Row:
    """Return a node as a row: what is not trained has -100 as its label, and 1.0 as its logprob."""
    mask = [int(label != -100) for label in node["masked_tokens"]]
    logprobs = [logprob if trained else 0.0 for logprob, trained in zip(node["logprobs"], mask, strict=False)]
    return Row(node["tokens"], mask, logprobs)
