"""The old SDK's request flow: FastAPI, pydantic in and out, one httpx client per rollout, full history per chat."""

import asyncio
import importlib.util
import json
import socket
import sys
import time
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel, Field, field_validator

from benchmarks.script import result

Message = dict[str, Any]

if importlib.util.find_spec("sniffio") is None:
    # httpcore tries to import it at every lock, and each time Python would look for it on disk: a quarter of all time.
    sys.modules["sniffio"] = None  # type: ignore[assignment]


class InitBody(BaseModel):
    """Starts a rollout."""

    rollout_id: str = Field(min_length=1, max_length=256)
    server_url: str
    messages: list[Message]
    completion_params: dict[str, Any]
    tool_server_url: str | None = None
    max_turns: int = 10
    max_tokens_total: int = 8192
    metadata: dict[str, Any] = Field(default_factory=dict)
    api_key: str | None = None
    idempotency_key: str | None = None

    @field_validator("server_url")
    @classmethod
    def is_url(cls, value: str) -> str:
        url = httpx.URL(value)
        if url.scheme not in ("http", "https") or not url.host:
            raise ValueError("is not a URL")
        return value

    @field_validator("metadata")
    @classmethod
    def is_small(cls, value: dict[str, Any]) -> dict[str, Any]:
        if len(json.dumps(value).encode()) > 2**20:
            raise ValueError("is too large")
        return value


class InitAnswer(BaseModel):
    """The rollout is accepted."""

    rollout_id: str
    tools: list[dict[str, Any]] = Field(default_factory=list)


class ChatBody(BaseModel):
    """Asks for a reply."""

    model: str = "default"
    messages: list[Message]
    rollout_id: str = Field(min_length=1, max_length=256)
    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 512
    stop: list[str] | None = None
    logprobs: bool = True


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


class Metrics(BaseModel):
    """What a rollout took."""

    total_latency_ms: float = 0.0
    llm_latency_ms: float = 0.0
    tool_latency_ms: float = 0.0
    num_llm_calls: int = 0
    num_tool_calls: int = 0
    prompt_tokens: int = 0
    response_tokens: int = 0
    max_context_tokens: int = 0


class ResultBody(BaseModel):
    """The result of a rollout."""

    rollout_id: str
    status: str
    final_messages: list[Message] = Field(default_factory=list)
    finish_reason: str | None = None
    error_message: str | None = None
    reward: float | None = None
    metrics: Metrics | None = None
    extra_fields: dict[str, Any] = Field(default_factory=dict)


class Client:
    """The calls of one rollout, and the tokens it was told."""

    def __init__(self, init: InitBody) -> None:
        self.init = init
        self.metrics = Metrics()
        self.recorded: list[tuple[list[int], list[float]]] = []
        # As the SDK does it: each client reads the CA bundle, though nothing here speaks TLS.
        timeout = httpx.Timeout(300.0, connect=10.0)
        self._http = httpx.AsyncClient(base_url=init.server_url, timeout=timeout)

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self._http.aclose()

    async def chat(self, messages: list[Message], **params: Any) -> ChatAnswer:
        """A reply to the full history."""
        body = ChatBody(messages=messages, rollout_id=self.init.rollout_id, **params)
        began = time.monotonic()
        answer = ChatAnswer(**(await self._post("/v1/chat/completions", body)).json())
        self.metrics.llm_latency_ms += (time.monotonic() - began) * 1000
        self.metrics.num_llm_calls += 1
        if answer.token_ids and answer.logprobs:
            self.recorded.append((answer.token_ids, answer.logprobs))
            self.metrics.response_tokens += len(answer.token_ids)
        return answer

    async def report(self, outcome: ResultBody) -> None:
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


async def run(init: InitBody) -> None:
    """One rollout: the loop, and the report of its result."""
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
            ResultBody(
                rollout_id=init.rollout_id,
                status="COMPLETED",
                final_messages=messages,
                finish_reason="stop",
                reward=1.0,
                metrics=client.metrics,
            )
        )


def create_app() -> FastAPI:
    """The agent server."""
    app = FastAPI()
    known: dict[str, tuple[InitAnswer, asyncio.Task[None]]] = {}

    @app.post("/v1/rollout/init", status_code=202, response_model=InitAnswer)
    async def init(body: InitBody) -> InitAnswer:
        key = body.idempotency_key or body.rollout_id
        if key not in known:
            known[key] = InitAnswer(rollout_id=body.rollout_id), asyncio.create_task(run(body))
        return known[key][0]

    return app


async def serve(listening: socket.socket) -> None:
    """Serve until told to stop."""
    await uvicorn.Server(uvicorn.Config(create_app(), log_level="error", backlog=4096)).serve(sockets=[listening])
