"""The old HTTP contract's bodies, as the Osmosis SDK v0.2.14 declared them: fields, defaults, bounds.

Both old sides of these tests read and write through them. What an old side receives is held
to the contract strictly: an unknown field in an outcome is refused, for an old trainer
cannot know what to do with it.
"""

import json
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator

Message = dict[str, Any]


class RolloutRequest(BaseModel):
    """POST /v1/rollout/init, at the agent server."""

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

    @field_validator("rollout_id")
    @classmethod
    def _visible(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("is blank")
        return value

    @field_validator("server_url")
    @classmethod
    def _http(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("is not http(s)://host")
        return value

    @field_validator("metadata")
    @classmethod
    def _small(cls, value: dict[str, Any]) -> dict[str, Any]:
        if len(json.dumps(value).encode()) > 1024 * 1024:
            raise ValueError("is larger than 1 MiB")
        return value


class InitResponse(BaseModel):
    """The 202 that answers it."""

    rollout_id: str
    tools: list[dict[str, Any]] = Field(default_factory=list)


class CompletionsRequest(BaseModel):
    """POST {server_url}/v1/chat/completions, at the trainer. An old client drops what is not named here."""

    model: str = "default"
    messages: list[Message]
    rollout_id: str = Field(min_length=1, max_length=256)
    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 512
    stop: list[str] | None = None
    logprobs: bool = True


class RolloutMetrics(BaseModel):
    """The eight counters."""

    model_config = ConfigDict(extra="forbid")

    total_latency_ms: float = 0.0
    llm_latency_ms: float = 0.0
    tool_latency_ms: float = 0.0
    num_llm_calls: int = 0
    num_tool_calls: int = 0
    prompt_tokens: int = 0
    response_tokens: int = 0
    max_context_tokens: int = 0


class RolloutResponse(BaseModel):
    """POST {server_url}/v1/rollout/completed, at the trainer."""

    model_config = ConfigDict(extra="forbid")

    rollout_id: str
    status: Literal["COMPLETED", "ERROR"]
    final_messages: list[Message] = Field(default_factory=list)
    finish_reason: str | None = None
    error_message: str | None = None
    reward: float | None = None
    metrics: RolloutMetrics | None = None
    extra_fields: dict[str, Any] = Field(default_factory=dict)


def body(value: BaseModel) -> dict[str, Any]:
    """A body as the SDK sent it: fields that are null are left out; nulls within a message stay."""
    return value.model_dump(mode="json", exclude_none=True)
