"""The chats of the HTTP contract of Osmosis SDK 0.2.14: converts requests and replies to values and back."""

import logging
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ConfigDict, Field

from osmosis_gateway.http_bodies import MESSAGE, Body, Id, Messages, validated, without_nulls
from osmosis_grpc.agent import CompletionsResult
from osmosis_grpc.protocol.errors import InvalidArgument, ReplyUnreadable
from osmosis_grpc.protocol.types import ChatRequest, ChatResponse, Ids, TokenBlock, jsontext

log = logging.getLogger(__name__)

Kind = TypeVar("Kind")

CHAT_PATH = "/v1/chat/completions"

_CHAT_DEFAULTS: dict[str, Any] = {"model": "default", "temperature": 1.0, "top_p": 1.0, "max_tokens": 512}
_OWN = ("rollout_id", "messages", "stream", "tools")  # the keys of a chat's body that are not sampling parameters
_REPLY = {"id", "object", "created", "model", "choices", "usage", "token_ids", "logprobs", "prompt_token_ids"}


def chat_body(request: ChatRequest) -> dict[str, Any]:
    """Return the body of a chat. The body has tools only if they differ from the rollout's tools."""
    params = {name: value for name, value in request.params.items() if name not in _OWN}
    if isinstance(params.get("stop"), str):
        params["stop"] = [params["stop"]]
    defaults = dict(_CHAT_DEFAULTS)
    if params.get("max_completion_tokens") is not None:
        del defaults["max_tokens"]
    tools = list(request.tools) if request.tools_overridden and request.tools is not None else None
    return without_nulls(
        defaults
        | {"logprobs": True}
        | without_nulls(params)
        | {"rollout_id": request.rollout_id, "messages": list(request.messages), "tools": tools}
    )


def read_chat(body: Any) -> tuple[str, list[dict[str, Any]], dict[str, Any]]:
    """Return the rollout id, messages and sampling parameters of a legacy agent's chat. Raises InvalidArgument."""
    given = validated(ChatBody, body)
    for name in ("sample", "purpose", "self"):
        if name in body:
            raise InvalidArgument(name, "is not a sampling parameter")
    params = {name: value for name, value in body.items() if name not in (*_OWN, "model", "logprobs")}
    return given.rollout_id, given.messages, without_nulls(params)


class ChatBody(Body):
    """Asks for a model reply. Further keys are sampling parameters."""

    model_config = ConfigDict(strict=True, extra="allow")

    rollout_id: Id
    messages: Messages = Field(json_schema_extra={"items": MESSAGE})


def read_reply(raw: bytes) -> ChatResponse:
    """Read a trainer's reply. Raises ReplyUnreadable."""
    try:
        return reply_of(jsontext.parse(raw.decode(), "body"), len(raw))
    except (ValueError, InvalidArgument) as error:
        raise ReplyUnreadable(f"the trainer's reply cannot be read: {type(error).__name__}: {error}") from None


def reply_of(body: Any, size: int) -> ChatResponse:
    """Return the reply in the parsed body of an answer of `size` bytes. Raises ReplyUnreadable."""
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
    """Return the tokens of the reply and the ids of the prompt. Missing ones are None; if any is invalid, both are.

    The contract does not require tokens. Without tokens, the sample is not trainable.
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
    usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0} | without_nulls(result.usage or {})
    choice = {"index": 0, "message": result.message, "finish_reason": result.finish_reason or "stop"}
    return {
        "id": rollout_id,
        "object": "chat.completion",
        "created": created,
        "model": "default",
        "choices": [choice],
        "usage": usage,
    }


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
    """Return the token counts of a reply. A float such as 12.0 becomes an int.

    Log a warning and leave out any other count, because a reply without usage is better than a failed rollout.
    """
    if reported is None:
        return None
    if not isinstance(reported, dict):
        log.warning("a trainer's usage is a %s and no object; it is left out", type(reported).__name__)
        return None
    counts = without_nulls(reported)
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        value = counts.get(name, 0)
        if isinstance(value, float) and value.is_integer():
            counts[name] = value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            log.warning("a trainer's usage has %s %.40r, which is not a count; it is left out", name, value)
            del counts[name]
    return counts or None
