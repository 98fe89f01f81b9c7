"""The SDK's request flow: FastAPI, pydantic in and out, one httpx client per rollout, full history per chat."""

import asyncio
import importlib.util
import socket
import sys
import time
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from benchmarks.script import result
from tests.legacy.old_contract import (
    CompletionsRequest,
    InitResponse,
    Message,
    RolloutMetrics,
    RolloutRequest,
    RolloutResponse,
)

if importlib.util.find_spec("sniffio") is None:
    # httpcore tries to import sniffio at every lock. Without this line, the search on disk takes a quarter of the time.
    sys.modules["sniffio"] = None  # type: ignore[assignment]


class Choice(BaseModel):
    """One reply of a list of one."""

    index: int = 0
    message: Message
    finish_reason: str = "stop"


class Usage(BaseModel):
    """Token counts."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0


class ChatAnswer(BaseModel):
    """A reply."""

    id: str = ""
    object: str = "chat.completion"
    created: int = 0
    model: str = "default"
    choices: list[Choice]
    usage: Usage | None = None
    token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    prompt_token_ids: list[int] | None = None


class Client:
    """Makes the calls of one rollout and records its tokens."""

    def __init__(self, init: RolloutRequest) -> None:
        self.init = init
        self.metrics = RolloutMetrics()
        self.recorded: list[tuple[list[int], list[float]]] = []
        # As in the SDK, each client reads the CA bundle, although nothing here uses TLS.
        timeout = httpx.Timeout(300.0, connect=10.0)
        self._http = httpx.AsyncClient(base_url=init.server_url, timeout=timeout)

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self._http.aclose()

    async def chat(self, messages: list[Message], **params: Any) -> ChatAnswer:
        """Return the reply to a history."""
        body = CompletionsRequest(messages=messages, rollout_id=self.init.rollout_id, **params)
        began = time.monotonic()
        answer = ChatAnswer(**(await self._post("/v1/chat/completions", body)).json())
        self.metrics.llm_latency_ms += (time.monotonic() - began) * 1000
        self.metrics.num_llm_calls += 1
        if answer.token_ids and answer.logprobs:
            self.recorded.append((answer.token_ids, answer.logprobs))
            self.metrics.response_tokens += len(answer.token_ids)
        return answer

    async def report(self, outcome: RolloutResponse) -> None:
        """Post the result."""
        await self._post("/v1/rollout/completed", outcome)

    async def _post(self, path: str, body: BaseModel) -> httpx.Response:
        for pause in (1.0, 2.0, 4.0, None):
            try:
                response = await self._http.post(path, json=body.model_dump(exclude_none=True))
                response.raise_for_status()
                return response
            except (httpx.TransportError, httpx.HTTPStatusError):
                if pause is None:
                    raise
                await asyncio.sleep(pause)
        raise AssertionError


async def run(init: RolloutRequest) -> None:
    """Run one rollout and report its result."""
    began = time.monotonic()
    async with Client(init) as client:
        messages = list(init.messages)
        for turn in range(init.max_turns):
            if turn:
                messages.append(result())
            answer = await client.chat(messages, **init.completion_params)
            messages.append(answer.choices[0].message)
        client.metrics.total_latency_ms = (time.monotonic() - began) * 1000
        await client.report(
            RolloutResponse(
                rollout_id=init.rollout_id,
                status="COMPLETED",
                final_messages=messages,
                finish_reason="stop",
                reward=1.0,
                metrics=client.metrics,
            )
        )


def create_app() -> FastAPI:
    """Return the agent server."""
    app = FastAPI()
    known: dict[str, tuple[InitResponse, asyncio.Task[None]]] = {}

    @app.post("/v1/rollout/init", status_code=202, response_model=InitResponse)
    async def init(body: RolloutRequest) -> InitResponse:
        key = body.idempotency_key or body.rollout_id
        if key not in known:
            known[key] = InitResponse(rollout_id=body.rollout_id), asyncio.create_task(run(body))
        return known[key][0]

    return app


async def serve(listening: socket.socket) -> None:
    """Serve until SIGTERM."""
    await uvicorn.Server(uvicorn.Config(create_app(), log_level="error", backlog=4096)).serve(sockets=[listening])
