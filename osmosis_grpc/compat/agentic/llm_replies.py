"""Reads the reply of an LLM function: a text, a dict or an object."""

from collections.abc import Mapping
from typing import Any

from osmosis_grpc.policies.anthropic import read_message
from osmosis_grpc.policies.model_http import BAD_BODY
from osmosis_grpc.policies.openai import read_completion
from osmosis_grpc.protocol.errors import Internal
from osmosis_grpc.protocol.types import ChatResponse
from osmosis_grpc.protocol.types.messages import copy_message, dump_model

MESSAGE_KEYS = frozenset({"content", "tool_calls"})
ADVICE = "return the reply's text, an assistant message, or the reply of the openai or anthropic package"


def reply_of(value: Any) -> ChatResponse:
    """Return the reply that an LLM function has returned.

    Accepts a text; an assistant message; {"message": ..., "finish_reason": ..., "usage": ...}; a reply in OpenAI's or
    Anthropic's format; {"text": ...}; a pydantic model of one; an object with such attributes; a ChatResponse.
    Raises Internal for anything else. A text never becomes a token: only a reply with token ids has tokens.
    """
    if isinstance(value, ChatResponse):
        return value
    if isinstance(value, str):
        return _checked({"content": value})
    try:
        body = _mapping(value)
        if "choices" in body:
            return read_completion(dict(body))
        if body.get("type") == "message" and isinstance(body.get("content"), list):
            return read_message(dict(body))
        if isinstance(body.get("message"), Mapping | str) or hasattr(body.get("message"), "content"):
            message = body["message"]
            message = {"content": message} if isinstance(message, str) else _mapping(message)
            return _checked(message, body.get("finish_reason"), body.get("usage"))
        if MESSAGE_KEYS & body.keys():
            return _checked(body, body.get("finish_reason"), body.get("usage"))
        if isinstance(body.get("text"), str):
            return _checked({"content": body["text"]}, body.get("finish_reason"), body.get("usage"))
    except BAD_BODY as error:
        raise Internal(f"llm_generate_func returned {_kind(value)} that cannot be read: {error}; {ADVICE}") from None
    raise Internal(f"llm_generate_func returned {_kind(value)}; {ADVICE}")


def _mapping(value: Any) -> Mapping[str, Any]:
    """Return the fields of a dict or an object. Leaves out the fields that are None."""
    plain = dump_model(value)
    if isinstance(plain, Mapping):
        return plain
    names = ("choices", "message", "content", "tool_calls", "text", "finish_reason", "usage")
    return {name: getattr(value, name) for name in names if getattr(value, name, None) is not None}


def _checked(message: Mapping[str, Any], finish_reason: Any = None, usage: Any = None) -> ChatResponse:
    """Return a reply with a message. Raises InvalidArgument for a message that is none of an assistant."""
    kept = {name: value for name, value in message.items() if name not in ("finish_reason", "usage")}
    made = copy_message({"role": "assistant", "content": None} | kept, "message")
    response = ChatResponse(
        message=made,
        finish_reason=str(finish_reason or ("tool_calls" if made.get("tool_calls") else "stop")),
        usage=dict(_mapping(usage)) if usage is not None else None,
    )
    response.check()
    return response


def _kind(value: Any) -> str:
    return "None" if value is None else f"an object of the class {type(value).__name__}"
