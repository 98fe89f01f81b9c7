"""The HTTP contract of Osmosis SDK 0.2.14: converts each JSON body to a value and back. chat_bodies.py has the chats.

Nulls at the top level of a body are left out. Nulls within messages are kept. This module checks only the fields that
the contract and the engine need. It passes on all other fields unchanged.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field, JsonValue, ValidationError, WithJsonSchema

from osmosis_grpc.agent.workflow_runnable import NATIVE_KEY
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import (
    Callback,
    Capacity,
    Failure,
    InitRequest,
    OutcomeStatus,
    RolloutOutcome,
    RolloutRequest,
    ToolDict,
    TraceContext,
    jsontext,
)
from osmosis_grpc.protocol.types.messages import MAX_ROLE_CHARS, copy_messages
from osmosis_grpc.protocol.types.requests import (
    DEFAULT_MAX_TOKENS_TOTAL,
    DEFAULT_MAX_TURNS,
    MAX_HEADER_CHARS,
    MAX_ID_CHARS,
    check_header,
    check_id,
    own_params,
    spec_digest,
)

Model = TypeVar("Model", bound=BaseModel)

COMPLETED_PATH = "/v1/rollout/completed"
INIT_PATH = "/v1/rollout/init"

_COUNTERS = (
    "total_latency_ms",
    "llm_latency_ms",
    "tool_latency_ms",
    "num_llm_calls",
    "num_tool_calls",
    "prompt_tokens",
    "response_tokens",
    "max_context_tokens",
)

MAX_URL_CHARS = 4096

_ID_PATTERN = r"^(?!\.{1,2}$)(?=.*\S)[^/\\\u0000-\u001f\u007f-\u009f\u2028\u2029]+$"
Id = Annotated[str, Field(min_length=1, max_length=MAX_ID_CHARS, json_schema_extra={"pattern": _ID_PATTERN})]
_ADVICE_TEXT = re.compile("-?[0-9]{1,9}")


def _whole(value: Any) -> Any:
    """Convert a whole number that is a float or a string to an int. Return any other value unchanged."""
    if isinstance(value, str) and _ADVICE_TEXT.fullmatch(value):
        return int(value)
    return int(value) if isinstance(value, float) and value.is_integer() else value


_TEXT_SCHEMA: dict[str, JsonValue] = {"type": "string", "pattern": f"^{_ADVICE_TEXT.pattern}$"}
_Advice = Annotated[int, BeforeValidator(_whole), WithJsonSchema({"anyOf": [{"type": "integer"}, _TEXT_SCHEMA]})]
_NUMBER_TEXT = re.compile(r"-?[0-9]{1,12}(\.[0-9]{1,12})?")
_FLAG_TEXTS: dict[Any, bool] = {"true": True, "false": False, "1": True, "0": False, 1: True, 0: False}


def _number(value: Any) -> Any:
    """Convert a number that is a string to a float. Return any other value unchanged."""
    return float(value) if isinstance(value, str) and _NUMBER_TEXT.fullmatch(value) else value


def _flag(value: Any) -> Any:
    """Convert "true", "false", 1, 0 and their strings to a bool. Return any other value unchanged."""
    return _FLAG_TEXTS.get(value, value) if isinstance(value, str | int | float) else value


LaxNumber = Annotated[
    float,
    BeforeValidator(_number),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "string", "pattern": f"^{_NUMBER_TEXT.pattern}$"}]}),
]
"""A number, or a string with a number, which the SDK also accepted."""
LaxFlag = Annotated[
    bool, BeforeValidator(_flag), WithJsonSchema({"anyOf": [{"type": "boolean"}, {"enum": list(_FLAG_TEXTS)}]})
]
"""A bool, or 0 and 1, or one of their strings."""
_Reward = Annotated[float, BeforeValidator(lambda value: float(value) if isinstance(value, bool) else value)]
"""A number. True counts as 1 and False as 0, as in the rewards of Python agents."""
MESSAGE: dict[str, JsonValue] = {
    "type": "object",
    "required": ["role"],
    "properties": {"role": {"type": "string", "minLength": 1, "maxLength": MAX_ROLE_CHARS}},
}


Messages = Annotated[list[dict[str, Any]], FailFast()]


class Body(BaseModel):
    """A JSON body. Unknown keys are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore")


class InitBody(Body):
    """Starts a rollout."""

    rollout_id: Id = Field(description="One visible path segment, unique per rollout.")
    server_url: str = Field(
        max_length=MAX_URL_CHARS,
        pattern=r"^[Hh][Tt][Tt][Pp][Ss]?://",
        description="The trainer's base URL: chats and the result go there.",
    )
    messages: Messages = Field(
        json_schema_extra={"items": MESSAGE}, description="The conversation to start from, in OpenAI's format."
    )
    completion_params: dict[str, Any] = Field(description="Sampling parameters, under OpenAI's names.")
    tool_server_url: str | None = Field(default=None, max_length=MAX_URL_CHARS, description="Handed to the agent.")
    max_turns: _Advice = Field(default=DEFAULT_MAX_TURNS, description="Advice to the agent.")
    max_tokens_total: _Advice = Field(default=DEFAULT_MAX_TOKENS_TOTAL, description="Advice to the agent.")
    metadata: dict[str, Any] = Field(default_factory=dict, description="Handed to the agent; bounded in size.")
    api_key: str | None = Field(
        default=None,
        max_length=MAX_HEADER_CHARS,
        json_schema_extra={"pattern": "^[ -~]*$"},
        description="Sent as bearer token with every call to server_url.",
    )
    idempotency_key: str | None = Field(
        default=None,
        max_length=MAX_ID_CHARS,
        json_schema_extra={"pattern": f"^$|{_ID_PATTERN}"},
        description="Another name for the rollout. An empty one is none.",
    )
    agent_loop: str | None = Field(
        default=None, max_length=MAX_ID_CHARS, description="Which agent, where a server hosts several."
    )
    pin_completion_params: bool = Field(
        default=False, description="Whether completion_params replace the parameters that the agent passes."
    )


class InitAnswer(Body):
    """The rollout was accepted."""

    rollout_id: str
    tools: list[dict[str, Any]] = Field(description="The tools of this rollout, in OpenAI's format.")


class Problem(Body):
    """One problem of a body."""

    loc: list[str | int]
    msg: str
    type: str


class Health(Body):
    """Whether the server serves, and its counts."""

    status: str = Field(description="healthy, or draining.")
    agent_loop: str
    active_rollouts: int = Field(description="Accepted and not ended. Waiting rollouts count, too.")
    completed_rollouts: int = Field(description="Ended since the start of the server.")
    undelivered: int = Field(description="Ended, and the trainer has not acknowledged the result.")
    concurrency: dict[str, int] = Field(description="max_concurrent, queued and running, as 0.2.18 had them.")
    instance_id: str = Field(default="", description="The journal's id.")
    process_id: str = Field(default="", description="Another one after each start.")
    lifecycle: dict[str, bool | int] = Field(description="accepting_rollouts and active_rollouts, as in 0.3.3.")


def health(
    capacity: Capacity, agent_loops: Iterable[str], *, draining: bool, instance_id: str = "", process_id: str = ""
) -> dict[str, Any]:
    """Return the fields of Health."""
    active = capacity.running + capacity.queued
    return {
        "status": "draining" if draining else "healthy",
        "agent_loop": ", ".join(agent_loops),
        "active_rollouts": active,
        "completed_rollouts": capacity.completed,
        "undelivered": capacity.undelivered,
        "concurrency": {name: getattr(capacity, name) for name in ("max_concurrent", "queued", "running")},
        "instance_id": instance_id,
        "process_id": process_id,
        "lifecycle": {"accepting_rollouts": not draining, "active_rollouts": active},
    }


def read_init(body: Any, size: int, max_metadata_bytes: int, trace: TraceContext | None = None) -> InitRequest:
    """Read a request to start a rollout. Raises InvalidArgument naming the field."""
    given = validated(InitBody, body)
    check_id(given.rollout_id, "rollout_id")
    if given.idempotency_key:
        check_id(given.idempotency_key, "idempotency_key")
    check_header(given.api_key or "", "api_key")
    metadata, unparsed = bounded_metadata(given.metadata, max_metadata_bytes)
    truth = metadata.get("ground_truth")
    request = RolloutRequest(
        rollout_id=given.rollout_id,
        messages=copy_messages(given.messages, "messages", any_role=True),
        completion_params=own_params(given.completion_params, "completion_params"),
        pin_completion_params=given.pin_completion_params,
        max_turns=_clamped(given.max_turns),
        max_tokens_total=_clamped(given.max_tokens_total),
        metadata=unparsed,
        agent_loop=given.agent_loop or "",
        label=truth if isinstance(truth, str) else None,
        tool_server_url=given.tool_server_url,
        idempotency_key=given.idempotency_key or None,
        server_url=given.server_url,
    )
    return InitRequest(
        request=request,
        callback=Callback(target=given.server_url, credential=given.api_key or ""),
        trace=trace,
        digest=spec_digest(request),
        size=size,
    )


def bounded_metadata(given: dict[str, Any], limit: int) -> tuple[dict[str, Any], Any]:
    """Return a copy of a body's metadata, and its unparsed text. Raises InvalidArgument above `limit` bytes."""
    with jsontext.large_value():
        metadata = jsontext.copy(given, "metadata")
        text = jsontext.render(metadata)
        if len(text.encode()) > limit:
            raise InvalidArgument("metadata", f"is larger than {limit} bytes")
        return metadata, jsontext.Unparsed(text, jsontext.digest(metadata))


def init_answer(rollout_id: str, tools: Iterable[ToolDict]) -> dict[str, Any]:
    """Return the answer to an Init.

    Each function has `parameters` and `strict`, as in the SDK, because the trainer shows the schemas to the model.
    """
    return {"rollout_id": rollout_id, "tools": [_complete(tool) for tool in tools]}


def _complete(tool: ToolDict) -> ToolDict:
    function = tool.get("function")
    if not isinstance(function, dict):
        return tool
    missing = {key: value for key, value in _FUNCTION_DEFAULTS.items() if key not in function}
    return tool | {"function": function | missing}


_FUNCTION_DEFAULTS = {"parameters": {"type": "object", "properties": {}, "required": []}, "strict": False}


def init_body(request: RolloutRequest, rollout_id: str, server_url: str, api_key: str) -> dict[str, Any]:
    """Return the body that starts a rollout at a legacy agent server. A label becomes ground_truth in the metadata.

    The idempotency key comes from the run's own `api_key`, so that the legacy server does not take a new run for a
    repeat of an earlier run with the same id.
    """
    metadata = dict(request.metadata)
    if request.label is not None:
        metadata.setdefault("ground_truth", request.label)
    return without_nulls(
        {
            "rollout_id": rollout_id,
            "server_url": server_url,
            "messages": list(request.messages),
            "completion_params": dict(request.completion_params),
            "tool_server_url": request.tool_server_url,
            "max_turns": request.max_turns,
            "max_tokens_total": request.max_tokens_total,
            "metadata": metadata,
            "api_key": api_key,
            "idempotency_key": api_key[:32],
        }
    )


def result_body(outcome: RolloutOutcome) -> dict[str, Any]:
    """Return the body of a rollout's result.

    A status other than COMPLETED becomes ERROR. The error message then begins with the original status.
    """
    completed = outcome.status is OutcomeStatus.COMPLETED
    reason = outcome.failure.message if outcome.failure else outcome.finish_reason
    omitted = {"omitted": list(outcome.omitted)} if outcome.omitted else {}
    failure = outcome.failure
    extra = {name: value for name, value in outcome.extra_fields.items() if name != NATIVE_KEY}
    reported = {"failure": _failure(failure)} if failure and (failure.reason or failure.file) else {}
    return without_nulls(
        {
            "rollout_id": outcome.rollout_id,
            "status": "COMPLETED" if completed else "ERROR",
            "final_messages": list(outcome.messages),
            "finish_reason": outcome.finish_reason or None,
            "error_message": None if completed else f"{outcome.status}: {reason}",
            "reward": outcome.reward,
            "metrics": {name: getattr(outcome.metrics, name) for name in _COUNTERS},
            "extra_fields": reported | extra | omitted,
        }
    )


def _failure(failure: Failure) -> dict[str, Any]:
    reason = {"reason": str(failure.reason)} if failure.reason else {}
    frames = [asdict(frame) for frame in failure.frames]
    return reason | ({"file": failure.file, "line": failure.line, "frames": frames} if failure.file else {})


class CompletedBody(Body):
    """The result of a rollout, as a legacy agent server reports it."""

    rollout_id: Id
    status: str = Field(pattern="^(COMPLETED|ERROR)$")
    final_messages: Messages = Field(default_factory=list, json_schema_extra={"items": MESSAGE})
    finish_reason: str | None = None
    error_message: str | None = None
    reward: _Reward | None = None
    metrics: dict[str, Any] | None = None
    extra_fields: dict[str, Any] = Field(default_factory=dict)

    @property
    def tool_calls(self) -> tuple[int, float]:
        """The number of tool calls and their total milliseconds."""
        reported = self.metrics or {}
        count, latency = reported.get("num_tool_calls"), reported.get("tool_latency_ms")
        return (
            count if isinstance(count, int) and not isinstance(count, bool) and 0 <= count <= 100_000 else 0,
            float(latency) if isinstance(latency, int | float) and 0 <= latency < 1e12 else 0.0,
        )


def unreadable(problem: str) -> CompletedBody:
    """Return an outcome with status ERROR, to use instead of an outcome that cannot be read."""
    reported = f"the legacy agent's outcome cannot be read: {problem}"
    return CompletedBody(rollout_id="unreadable", status="ERROR", error_message=reported)


def validated(model: type[Model], body: Any) -> Model:
    """Validate a body with its model. Raises InvalidArgument naming every wrong field."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        rows = [(_path(row["loc"]), row["msg"]) for row in error.errors(include_url=False, include_input=False)]
        raise InvalidArgument(*rows[0], rows[1:]) from None


def _clamped(advice: int) -> int:
    """Return the nearest number that fits in a uint32 of the protocol. The contract itself sets no bounds."""
    return min(max(advice, 0), 2**32 - 1)


def _path(location: Sequence[str | int]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).removeprefix(".")


def without_nulls(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a body without the keys whose value is null."""
    return {key: value for key, value in body.items() if value is not None}
