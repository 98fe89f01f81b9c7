"""The HTTP contract of Osmosis SDK 0.2.14: converts each JSON body to a value and back.

Nulls at the top level of a body are left out. Nulls within messages are kept. This module checks only the fields that
the contract and the engine need. It passes on all other fields unchanged.
"""

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field, JsonValue, ValidationError, WithJsonSchema

from osmosis_grpc.agent import CompletionsResult
from osmosis_grpc.agent.workflow_runnable import NATIVE_KEY
from osmosis_grpc.protocol.errors import InvalidArgument, ReplyUnreadable
from osmosis_grpc.protocol.types import (
    Callback,
    Capacity,
    ChatRequest,
    ChatResponse,
    Failure,
    Ids,
    InitRequest,
    OutcomeStatus,
    RolloutOutcome,
    RolloutRequest,
    TokenBlock,
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

log = logging.getLogger(__name__)

Model = TypeVar("Model", bound=BaseModel)
Kind = TypeVar("Kind")

CHAT_PATH = "/v1/chat/completions"
COMPLETED_PATH = "/v1/rollout/completed"
INIT_PATH = "/v1/rollout/init"

_CHAT_DEFAULTS: dict[str, Any] = {"model": "default", "temperature": 1.0, "top_p": 1.0, "max_tokens": 512}
_OWN = ("rollout_id", "messages", "stream", "tools")  # the keys of a chat's body that are not sampling parameters
_REPLY = {"id", "object", "created", "model", "choices", "usage", "token_ids", "logprobs", "prompt_token_ids"}
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
_Id = Annotated[str, Field(min_length=1, max_length=MAX_ID_CHARS, json_schema_extra={"pattern": _ID_PATTERN})]
_ADVICE_TEXT = re.compile("-?[0-9]{1,9}")


def _whole(value: Any) -> Any:
    """Return a whole number that is written as a float or as a text as an int, and any other value unchanged."""
    if isinstance(value, str) and _ADVICE_TEXT.fullmatch(value):
        return int(value)
    return int(value) if isinstance(value, float) and value.is_integer() else value


_TEXT_SCHEMA: dict[str, JsonValue] = {"type": "string", "pattern": f"^{_ADVICE_TEXT.pattern}$"}
_Advice = Annotated[int, BeforeValidator(_whole), WithJsonSchema({"anyOf": [{"type": "integer"}, _TEXT_SCHEMA]})]
_NUMBER_TEXT = re.compile(r"-?[0-9]{1,12}(\.[0-9]{1,12})?")
_FLAG_TEXTS: dict[Any, bool] = {"true": True, "false": False, "1": True, "0": False, 1: True, 0: False}


def _number(value: Any) -> Any:
    """Return a number that is written as a text as a float, and any other value unchanged."""
    return float(value) if isinstance(value, str) and _NUMBER_TEXT.fullmatch(value) else value


def _flag(value: Any) -> Any:
    """Return a bool that is written as a text or a number as a bool, and any other value unchanged."""
    return _FLAG_TEXTS.get(value, value) if isinstance(value, str | int | float) else value


LaxNumber = Annotated[
    float,
    BeforeValidator(_number),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "string", "pattern": f"^{_NUMBER_TEXT.pattern}$"}]}),
]
"""A number, also as a text, because the SDK read bodies in that way."""
LaxFlag = Annotated[
    bool, BeforeValidator(_flag), WithJsonSchema({"anyOf": [{"type": "boolean"}, {"enum": list(_FLAG_TEXTS)}]})
]
"""A bool, also as a text or as 0 and 1."""
_Reward = Annotated[float, BeforeValidator(lambda value: float(value) if isinstance(value, bool) else value)]
"""A number. A bool counts as 1 or 0, as in the rewards of Python agents."""
_MESSAGE: dict[str, JsonValue] = {
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

    rollout_id: _Id = Field(description="One visible path segment, unique per rollout.")
    server_url: str = Field(
        max_length=MAX_URL_CHARS,
        pattern=r"^[Hh][Tt][Tt][Pp][Ss]?://",
        description="The trainer's base URL: chats and the result go there.",
    )
    messages: Messages = Field(
        json_schema_extra={"items": _MESSAGE}, description="The conversation to start from, in OpenAI's format."
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

    As with the SDK, each function has `parameters` and `strict`, because the trainer shows the schemas to the model.
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

    The idempotency key comes from the run's own `api_key`. So the legacy server does not treat a new run as a
    repetition of an earlier run with the same id.
    """
    metadata = dict(request.metadata)
    if request.label is not None:
        metadata.setdefault("ground_truth", request.label)
    return _without_nulls(
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


def chat_body(request: ChatRequest) -> dict[str, Any]:
    """Return the body of a chat. The body has tools only if they differ from the rollout's tools."""
    params = {name: value for name, value in request.params.items() if name not in _OWN}
    if isinstance(params.get("stop"), str):
        params["stop"] = [params["stop"]]
    defaults = dict(_CHAT_DEFAULTS)
    if params.get("max_completion_tokens") is not None:
        del defaults["max_tokens"]
    tools = list(request.tools) if request.tools_overridden and request.tools is not None else None
    return _without_nulls(
        defaults
        | {"logprobs": True}
        | _without_nulls(params)
        | {"rollout_id": request.rollout_id, "messages": list(request.messages), "tools": tools}
    )


def read_chat(body: Any) -> tuple[str, list[dict[str, Any]], dict[str, Any]]:
    """Read the chat of a legacy agent: rollout id, messages, sampling parameters. Raises InvalidArgument."""
    given = validated(ChatBody, body)
    for name in ("sample", "purpose", "self"):
        if name in body:
            raise InvalidArgument(name, "is not a sampling parameter")
    params = {name: value for name, value in body.items() if name not in (*_OWN, "model", "logprobs")}
    return given.rollout_id, given.messages, _without_nulls(params)


class ChatBody(Body):
    """Asks for a model reply. Further keys are sampling parameters."""

    model_config = ConfigDict(strict=True, extra="allow")

    rollout_id: _Id
    messages: Messages = Field(json_schema_extra={"items": _MESSAGE})


def read_reply(raw: bytes) -> ChatResponse:
    """Read a trainer's reply. Raises ReplyUnreadable."""
    try:
        return reply_of(jsontext.parse(raw.decode(), "body"), len(raw))
    except (ValueError, InvalidArgument) as error:
        raise ReplyUnreadable(f"the trainer's reply cannot be read: {type(error).__name__}: {error}") from None


def reply_of(body: Any, size: int) -> ChatResponse:
    """Return the reply in the body of an answer of `size` bytes. Raises ReplyUnreadable."""
    try:
        choice = body["choices"][0]
        block, prompt = _tokens(body)
        response = ChatResponse(
            message={"role": "assistant"} | _message(choice["message"]),
            finish_reason=_a(str, choice.get("finish_reason") or "stop"),
            usage=_usage(body.get("usage")),
            tokens=block,
            prompt_ids=prompt,
            extra={key: body[key] for key in body.keys() - _REPLY},
            size=size,
        )
        response.check()
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, InvalidArgument) as error:
        raise ReplyUnreadable(f"the trainer's reply cannot be read: {type(error).__name__}: {error}") from None
    return response


def _tokens(body: Mapping[str, Any]) -> tuple[TokenBlock | None, Ids | None]:
    """Return the tokens of the reply and the tokens of the prompt. Each is None if it is missing or unreadable.

    The contract does not require tokens. Without tokens the sample is not trainable.
    """
    ids, logprobs, prompt = body.get("token_ids"), body.get("logprobs"), body.get("prompt_token_ids")
    try:
        block = TokenBlock.of(ids, logprobs if isinstance(logprobs, list) else None) if ids else None
        return block, TokenBlock.of(prompt).ids if prompt else None
    except InvalidArgument as error:
        log.warning("a trainer's tokens cannot be read and are left out: %s", error)
        return None, None


def reply_body(rollout_id: str, result: CompletionsResult, created: int) -> dict[str, Any]:
    """Return the body of a reply to a legacy agent."""
    usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0} | _without_nulls(result.usage or {})
    choice = {"index": 0, "message": result.message, "finish_reason": result.finish_reason or "stop"}
    return {
        "id": rollout_id,
        "object": "chat.completion",
        "created": created,
        "model": "default",
        "choices": [choice],
        "usage": usage,
    }


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
    return _without_nulls(
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
    """Return the reason of a failure, and its place in the agent's code."""
    reason = {"reason": str(failure.reason)} if failure.reason else {}
    frames = [asdict(frame) for frame in failure.frames]
    return reason | ({"file": failure.file, "line": failure.line, "frames": frames} if failure.file else {})


class CompletedBody(Body):
    """The body with which a legacy agent server reports the result of a rollout."""

    rollout_id: _Id
    status: str = Field(pattern="^(COMPLETED|ERROR)$")
    final_messages: Messages = Field(default_factory=list, json_schema_extra={"items": _MESSAGE})
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
    """Return an outcome with status ERROR, in place of an outcome that cannot be read."""
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
    """Return the nearest number that fits the protocol's uint32. The contract itself sets no bounds."""
    return min(max(advice, 0), 2**32 - 1)


def _path(location: Sequence[str | int]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).removeprefix(".")


def _without_nulls(body: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in body.items() if value is not None}


def _a(kind: type[Kind], value: Any) -> Kind:
    if not isinstance(value, kind):
        raise TypeError(f"a {type(value).__name__} is not a {kind.__name__}")
    return value


def _message(message: Any) -> dict[str, Any]:
    calls = _a(dict, message).get("tool_calls")
    if calls is not None and not all(isinstance(call, dict) for call in _a(list, calls)):
        raise TypeError("tool_calls are not objects")
    return _a(dict, message)


def _usage(reported: Any) -> dict[str, Any] | None:
    """Return the token counts of a reply. Counts that are whole numbers become ints.

    Other counts are left out with a warning. A reply without usage is better than a rollout that fails.
    """
    if reported is None:
        return None
    if not isinstance(reported, dict):
        log.warning("a trainer's usage is a %s and no object; it is left out", type(reported).__name__)
        return None
    counts = _without_nulls(reported)
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        value = counts.get(name, 0)
        if isinstance(value, float) and value.is_integer():
            counts[name] = value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            log.warning("a trainer's usage has %s %.40r, which is no count; it is left out", name, value)
            del counts[name]
    return counts or None
