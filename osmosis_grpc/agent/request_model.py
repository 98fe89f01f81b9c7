"""The pydantic models of a request that an author makes, and of the counts of a rollout. Imports pydantic."""

import json
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from osmosis_grpc.protocol.types.messages import Message
from osmosis_grpc.protocol.types.requests import DEFAULT_MAX_TOKENS_TOTAL, DEFAULT_MAX_TURNS, MAX_ID_CHARS, Fork, Group

DEFAULT_MAX_METADATA_SIZE_BYTES = 1024 * 1024
"""The most bytes of a request's metadata as JSON."""

_limit: int | None = None


def get_max_metadata_size_bytes() -> int:
    """Return the most bytes that the metadata of a RolloutRequest can have."""
    return DEFAULT_MAX_METADATA_SIZE_BYTES if _limit is None else _limit


def set_max_metadata_size_bytes(size_bytes: int) -> None:
    """Set the limit of this process, also for applications that create_app makes later. Raises ValueError below 1."""
    global _limit
    if size_bytes < 1:
        raise ValueError(f"size_bytes: must be positive, not {size_bytes}")
    _limit = size_bytes


def metadata_limit_that_was_set() -> int | None:
    """Return the limit that set_max_metadata_size_bytes() set; None if it was not called."""
    return _limit


def _not_blank(rollout_id: str) -> str:
    if not rollout_id.strip():
        raise ValueError("cannot be empty or whitespace")
    return rollout_id


RolloutId = Annotated[str, Field(min_length=1, max_length=MAX_ID_CHARS), AfterValidator(_not_blank)]
"""A rollout id: 1 to 256 characters, of which one is not a blank."""


def _url(server_url: str) -> str:
    parts = urlsplit(server_url)
    if server_url and (parts.scheme not in ("http", "https") or not parts.netloc):
        raise ValueError("is not an http:// or https:// URL with a host")
    return server_url


def _metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    try:
        size = len(json.dumps(metadata).encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON: {error}") from None
    limit = get_max_metadata_size_bytes()
    if metadata and size > limit:
        raise ValueError(f"has {size} bytes as JSON, which exceeds maximum {limit}")
    return metadata


class RequestModel(BaseModel):
    """The fields of RolloutRequest, with pydantic's lax conversions."""

    model_config = ConfigDict(title="RolloutRequest", from_attributes=True, extra="ignore")

    rollout_id: RolloutId
    server_url: Annotated[str, AfterValidator(_url)] = ""
    messages: list[Message] = Field(default_factory=list)
    completion_params: dict[str, Any] = Field(default_factory=dict)
    pin_completion_params: bool = False
    tool_server_url: str | None = None
    max_turns: int = DEFAULT_MAX_TURNS
    max_tokens_total: int = DEFAULT_MAX_TOKENS_TOTAL
    metadata: Annotated[dict[str, Any], AfterValidator(_metadata)] = Field(default_factory=dict)
    api_key: str | None = Field(default=None, repr=False)
    idempotency_key: str | None = None
    label: str | None = None
    attempt: int = 1
    agent_loop: str = ""
    group: Group | None = None
    priority: int = 0
    agent_timeout: float | None = None
    grader_timeout: float | None = None
    evaluation: bool = False
    fork: Fork | None = None


class RolloutMetrics(BaseModel):
    """The counts of a rollout. Latencies are in milliseconds."""

    model_config = ConfigDict(from_attributes=True)

    total_latency_ms: float = 0.0
    llm_latency_ms: float = 0.0
    tool_latency_ms: float = 0.0
    num_llm_calls: int = 0
    num_tool_calls: int = 0
    prompt_tokens: int = 0
    response_tokens: int = 0
    max_context_tokens: int = 0
