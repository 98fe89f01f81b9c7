"""Reads a request of /v1/chat/completions, and writes its reply."""

import time
from collections.abc import Callable
from typing import Any
from uuid import uuid4

from smollm2 import Sampled, Sampling
from tool_texts import Invalid, called, texts

LENGTHS = ("max_tokens", "max_completion_tokens")
NUMBERS = {"temperature": (0.0, 2.0), "top_p": (0.0, 1.0)}
KNOWN = {"model", "messages", "tools", "tool_choice", "logprobs", "return_token_ids", "stream", "n", "seed", "user"}
KNOWN |= {*LENGTHS, *NUMBERS}
OFF = {"top_k": (0, -1), "min_p": (0,), "presence_penalty": (0,), "frequency_penalty": (0,), "repetition_penalty": (1,)}
"""Parameters that are only accepted with these values, which change nothing."""


class Refused(Exception):
    """A request that gets no reply. `status` is that of HTTP."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def asked(body: Any, model: str) -> tuple[list[dict[str, str]], Sampling]:
    """Return the messages of a request as texts, and its sampling. Raises Refused for what the server cannot do."""
    if not isinstance(body, dict):
        raise Refused(400, "the body is not an object")
    if body.get("model") != model:
        raise Refused(404, f"the model {body.get('model')!r} does not exist; the model here is {model}")
    given = {name: value for name, value in body.items() if value is not None and value not in OFF.get(name, ())}
    if unknown := given.keys() - KNOWN:
        raise Refused(400, f"not supported: {', '.join(sorted(unknown))}")
    if given.get("stream") or given.get("n", 1) != 1 or given.get("tool_choice", "auto") not in ("auto", "none"):
        raise Refused(400, "not supported: stream, more than one choice, and a tool_choice other than auto and none")
    for name, (least, most) in NUMBERS.items():
        value = given.get(name, 1.0)
        if not isinstance(value, int | float) or not least <= value <= most:
            raise Refused(400, f"{name} is not a number from {least:g} to {most:g}")
    limit = next((given[name] for name in LENGTHS if name in given), 256)
    if not isinstance(limit, int) or limit < 1:
        raise Refused(400, "max_tokens is not a number from 1")
    if not isinstance(given.get("seed"), int | None):
        raise Refused(400, "seed is not a whole number")
    try:
        messages = texts(given.get("messages"), _tools(body))
    except Invalid as error:
        raise Refused(400, str(error)) from None
    return messages, Sampling(limit, given.get("temperature", 1.0), given.get("top_p", 1.0), given.get("seed"))


def completion(
    body: dict[str, Any], prompt: list[int], sampled: Sampled, text: Callable[[list[int]], str]
) -> dict[str, Any]:
    """Return the body of the reply. `text` makes a text of token ids."""
    content = text(sampled.ids)
    calls, content = called(content) if _tools(body) else ([], content)
    choice: dict[str, Any] = {"index": 0, "message": {"role": "assistant", "content": content or None}}
    choice["finish_reason"] = "tool_calls" if calls else sampled.finish_reason
    if calls:
        choice["message"]["tool_calls"] = calls
    usage = {"prompt_tokens": len(prompt), "completion_tokens": len(sampled.ids)}
    made = {
        "id": f"chatcmpl-{uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": body["model"],
        "choices": [choice],
        "usage": {**usage, "total_tokens": sum(usage.values())},
    }
    if body.get("logprobs"):
        pairs = zip(sampled.ids, sampled.logprobs, strict=True)
        tokens = [{"token": text([token]), "logprob": logprob, "top_logprobs": []} for token, logprob in pairs]
        choice["logprobs"] = {"content": tokens}
    if body.get("return_token_ids"):
        choice["token_ids"] = sampled.ids
        made["prompt_token_ids"] = prompt
    return made


def _tools(body: dict[str, Any]) -> Any:
    return None if body.get("tool_choice") == "none" else body.get("tools")
