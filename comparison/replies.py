"""The shapes in which the mock engine answers: chat completions, completions, vLLM's and SGLang's generate."""

import json
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from comparison.models import END, Model

Json = dict[str, Any]


@dataclass(frozen=True)
class Sampled:
    """One reply as the engine sampled it, and how it names itself."""

    name: str
    kind: str
    prompt: list[int]
    ids: list[int]
    logprobs: list[float]
    finish: str
    version: str
    stop: str


def parse(text: str, model: Model, stop: str = "") -> Json:
    """Return the message of a text, as vLLM does with the parsers `hermes` and `qwen3`."""
    text = text.removesuffix(END[model.name])
    if stop:
        text = text.split(stop, 1)[0]
    reasoning = None
    if "</think>" in text:
        reasoning, text = text.split("</think>", 1)
        reasoning, text = reasoning.removeprefix("<think>").strip("\n"), text.lstrip("\n")
    calls = []
    for found in re.findall(r"<tool_call>(.*?)</tool_call>", text, re.S):
        try:
            call = json.loads(found)
            function = {"name": call["name"], "arguments": json.dumps(call["arguments"], ensure_ascii=False)}
        except (ValueError, KeyError, TypeError):
            continue
        identity = f"call_{len(calls)}_{zlib.crc32(found.encode()) % 9999}"
        calls.append({"id": identity, "type": "function", "function": function})
    content = text[: text.find("<tool_call>")].rstrip() if calls else text
    message: Json = {"role": "assistant", "content": content if content or not calls else None}
    if reasoning is not None:
        message["reasoning_content"] = message["reasoning"] = reasoning
    if calls:
        message["tool_calls"] = calls
    return message


def whole(replies: Sequence[Sampled], body: Json, model: Model) -> Json:
    """Return the answer to a request that does not stream. Only chats have several choices."""
    reply = replies[0]
    usage = {"prompt_tokens": len(reply.prompt), "completion_tokens": sum(len(each.ids) for each in replies)}
    base: Json = {
        "id": reply.name,
        "created": 1,
        "model": body.get("model", "mock"),
        "usage": {**usage, "total_tokens": sum(usage.values())},
        "metadata": {"weight_version": reply.version},
        "weight_version": int(reply.version),
    }
    if reply.kind == "chat":
        return {**base, **_chat(replies, body, model)}
    return {**base, **_SHAPES[reply.kind](reply, body, model)}


def _chat(replies: Sequence[Sampled], body: Json, model: Model) -> Json:
    choices = []
    for index, reply in enumerate(replies):
        message = parse(model.decode(reply.ids), model, reply.stop)
        choice: Json = {"index": index, "message": message, "finish_reason": _finish(reply, message), "logprobs": None}
        if body.get("logprobs"):
            choice["logprobs"] = {"content": _content(reply, body, model)}
        if body.get("return_token_ids"):
            choice["token_ids"] = reply.ids
        if reply.stop:
            choice["stop_reason"] = reply.stop
        choices.append(choice)
    prompt = {"prompt_token_ids": replies[0].prompt} if body.get("return_token_ids") else {}
    return {"object": "chat.completion", "choices": choices, **prompt}


def _completion(reply: Sampled, body: Json, model: Model) -> Json:
    text = model.decode(reply.ids).removesuffix(END[model.name])
    if reply.stop:
        text = text.split(reply.stop, 1)[0]
    choice: Json = {
        "index": 0,
        "text": text,
        "finish_reason": reply.finish,
        "stop_reason": reply.stop or None,
        "logprobs": None,
    }
    if body.get("logprobs") is not None:
        names = [_token(i, body, model) for i in reply.ids]
        offsets = [0] * len(names)
        choice["logprobs"] = {
            "tokens": names,
            "token_logprobs": reply.logprobs,
            "top_logprobs": None,
            "text_offset": offsets,
        }
    if body.get("return_token_ids"):
        choice |= {"token_ids": reply.ids, "prompt_token_ids": reply.prompt}
    return {"object": "text_completion", "choices": [choice]}


def _generate(reply: Sampled, body: Json, model: Model) -> Json:
    content = _content(reply, {"return_tokens_as_token_ids": True}, model)
    choice = {"index": 0, "token_ids": reply.ids, "finish_reason": reply.finish, "logprobs": {"content": content}}
    return {"request_id": reply.name, "choices": [choice]}


def _sglang(reply: Sampled, _body: Json, model: Model) -> Json:
    pairs = [[logprob, i, None] for i, logprob in zip(reply.ids, reply.logprobs, strict=True)]
    meta = {
        "id": reply.name,
        "finish_reason": {"type": reply.finish},
        "output_token_logprobs": pairs,
        "weight_version": reply.version,
        "completion_tokens": len(reply.ids),
        "prompt_tokens": len(reply.prompt),
    }
    return {"text": model.decode(reply.ids), "output_ids": reply.ids, "meta_info": meta}


_SHAPES = {"completion": _completion, "generate": _generate, "sglang": _sglang}


def streamed(reply: Sampled, body: Json, model: Model) -> Iterator[bytes]:
    """Yield the events of a reply that streams: a few tokens each, tool calls whole, the usage, and [DONE]."""
    answer = whole([reply], body, model)
    choice, usage = answer["choices"][0], answer.pop("usage")
    answer["object"] = "chat.completion.chunk"
    prompt = answer.pop("prompt_token_ids", None)
    message = choice["message"]
    names = (choice["logprobs"] or {}).get("content")
    deltas: list[Json] = [{"role": "assistant", "content": ""}]
    if message.get("reasoning"):
        deltas.append({"reasoning": message["reasoning"], "reasoning_content": message["reasoning"]})
    content = message.get("content") or ""
    deltas += [{"content": content[at : at + 12]} for at in range(0, len(content), 12)]
    if message.get("tool_calls"):
        deltas.append({"tool_calls": [{"index": n, **call} for n, call in enumerate(message["tool_calls"])]})
    share = -(-len(reply.ids) // max(1, len(deltas) - 1)) if reply.ids else 0
    for number, delta in enumerate(deltas):
        last = number == len(deltas) - 1
        at = max(0, number - 1) * share
        until = len(reply.ids) if last else at + share if number else at
        part: Json = {
            "index": 0,
            "delta": delta,
            "finish_reason": choice["finish_reason"] if last else None,
            "logprobs": None,
        }
        if names is not None:
            part["logprobs"] = {"content": names[at:until]}
        if "token_ids" in choice:
            part["token_ids"] = reply.ids[at:until]
        if last and reply.stop:
            part["stop_reason"] = reply.stop
        first = {"prompt_token_ids": prompt} if prompt is not None and not number else {}
        yield _event({**answer, **first, "choices": [part]})
    yield _event({**answer, "choices": [], "usage": usage})
    yield b"data: [DONE]\n\n"


def _event(value: Json) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def _finish(reply: Sampled, message: Json) -> str:
    return "tool_calls" if message.get("tool_calls") and reply.finish == "stop" else reply.finish


def _token(i: int, body: Json, model: Model) -> str:
    return f"token_id:{i}" if body.get("return_tokens_as_token_ids") else str(model.tokenizer.id_to_token(i))


def _content(reply: Sampled, body: Json, model: Model) -> list[Json]:
    pairs = zip(reply.ids, reply.logprobs, strict=True)
    return [{"token": _token(i, body, model), "logprob": lp, "bytes": None, "top_logprobs": []} for i, lp in pairs]
