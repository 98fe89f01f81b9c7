"""Converts messages and replies between OpenAI's format and the blocks of Strands, without importing Strands."""

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from osmosis_grpc.agent.results import CompletionsResult
from osmosis_grpc.agent.rollout_scope import AGENT_REGISTERED
from osmosis_grpc.protocol.types import Message, RolloutOutcome, TrajectoryEvent, events

BLANK = "[blank text]"
"""The text that Strands writes in place of a blank reply in later requests."""
INVALID_NAME = "INVALID_TOOL_NAME"
"""The name that Strands writes in place of an invalid tool name in later requests."""
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_\-]{1,64}\n?")
_DATA_URL = re.compile(r"data:image/([a-z+.-]+);base64,(.*)", re.S)
_STOP_REASONS = {"tool_calls": "tool_use", "length": "max_tokens", "content_filter": "content_filtered"}


def is_native(message: Any) -> bool:
    """Return whether a message is already in the format of Strands."""
    content = message.get("content")
    blocks = isinstance(content, list) and all(isinstance(block, dict) and "type" not in block for block in content)
    return blocks and not message.get("tool_calls") and message.get("role") != "tool"


def to_strands(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Convert messages of OpenAI's format to that of Strands. Messages that already have it stay as they are.

    Consecutive tool messages become one message, as in Strands. Raises ValueError for a part that Strands cannot
    represent, for example audio.
    """
    made: list[Message] = []
    previous = ""
    for index, message in enumerate(messages):
        role, path = str(message.get("role") or ""), f"messages[{index}]"
        if is_native(message):
            made.append(dict(message))
        elif role == "tool":
            block = {"toolResult": _tool_result(message, path)}
            if previous == "tool":
                made[-1]["content"].append(block)
            else:
                made.append({"role": "user", "content": [block]})
        else:
            uses = [{"toolUse": use} for use in _tool_uses(message.get("tool_calls") or (), "")]
            made.append({"role": role, "content": [*_blocks(message.get("content"), path), *map(_parsed, uses)]})
        previous = role
    return made


def reply_blocks(reply: CompletionsResult) -> list[dict[str, Any]]:
    """Return the blocks of a reply. The `input` of a tool use is the policy's unparsed JSON."""
    message = reply.message
    thoughts = message.get("reasoning_content") or message.get("reasoning")
    blocks: list[dict[str, Any]] = []
    if isinstance(thoughts, str) and thoughts:
        blocks.append({"reasoningContent": {"reasoningText": {"text": thoughts}}})
    text = _text(message.get("content"))
    if text:
        blocks.append({"text": text})
    uses = _tool_uses(message.get("tool_calls") or (), f"call_{reply.chat_number}_")
    return [*blocks, *({"toolUse": use} for use in uses)]


def stream_events(reply: CompletionsResult) -> Iterator[dict[str, Any]]:
    """Yield the events with which Strands streams a reply."""
    yield {"messageStart": {"role": "assistant"}}
    blocks = reply_blocks(reply)
    for block in blocks:
        use = block.get("toolUse")
        start = {"toolUse": {"name": use["name"], "toolUseId": use["toolUseId"]}} if use else {}
        yield {"contentBlockStart": {"start": start}}
        if use:
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": use["input"]}}}}
        elif "text" in block:
            yield {"contentBlockDelta": {"delta": {"text": block["text"]}}}
        else:
            yield {"contentBlockDelta": {"delta": {"reasoningContent": block["reasoningContent"]["reasoningText"]}}}
        yield {"contentBlockStop": {}}
    calls = any("toolUse" in block for block in blocks)
    reason = _STOP_REASONS.get(reply.finish_reason or "", "tool_use" if calls else "end_turn")
    yield {"messageStop": {"stopReason": reason}}
    usage = {name: int(reply.usage.get(key) or 0) for name, key in _USAGE.items()}
    yield {"metadata": {"usage": usage, "metrics": {"latencyMs": 0}}}


_USAGE = {"inputTokens": "prompt_tokens", "outputTokens": "completion_tokens", "totalTokens": "total_tokens"}


def resent(message: Message) -> Message:
    """Convert an assistant message to the form in which Strands sends it in later requests. Keep other messages."""
    if message.get("role") != "assistant":
        return message
    content = [_parsed(block) for block in message["content"] if "toolUse" not in block or block["toolUse"]["name"]]
    calls = any("toolUse" in block for block in content)
    kept = []
    for block in content or [{"text": BLANK}]:
        if "text" in block and not str(block["text"] or "").strip():
            if not calls:
                kept.append({"text": BLANK})
        elif "toolUse" in block and not _TOOL_NAME.fullmatch(block["toolUse"]["name"]):
            kept.append({"toolUse": block["toolUse"] | {"name": INVALID_NAME}})
        else:
            kept.append(block)
    return {"role": "assistant", "content": kept}


def without_thoughts(message: Message) -> Message:
    """Drop the reasoning of a message. The recorded reply, which replaces the message later, has it."""
    return {**message, "content": [block for block in message["content"] if "reasoningContent" not in block]}


def in_short(message: Message) -> Message:
    """Simplify a message in OpenAI's format: if its content is a list with one text, use the text."""
    content = message.get("content")
    if isinstance(content, list) and len(content) == 1 and content[0].keys() == {"type", "text"}:
        return {**message, "content": content[0]["text"]}
    return message


def _parsed(block: dict[str, Any]) -> dict[str, Any]:
    """Parse the JSON input of a tool use. Like Strands, read invalid JSON as {}."""
    use = block.get("toolUse")
    if use is None or not isinstance(use["input"], str):
        return block
    try:
        value = json.loads(use["input"]) if use["input"].strip() else {}
    except ValueError:
        value = {}
    return {"toolUse": use | {"input": value}}


def _tool_uses(calls: Any, id_prefix: str) -> list[dict[str, Any]]:
    """Convert tool calls to tool uses. A call without an id gets one that is the same in every run."""
    made = []
    for number, call in enumerate(calls, 1):
        function = call.get("function") or {}
        arguments = function.get("arguments")
        written = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
        made.append(
            {
                "toolUseId": str(call.get("id") or f"{id_prefix}{number}"),
                "name": str(function.get("name") or ""),
                "input": written,
            }
        )
    return made


def _tool_result(message: Mapping[str, Any], path: str) -> dict[str, Any]:
    call_id = message.get("tool_call_id")
    if not isinstance(call_id, str) or not call_id:
        raise ValueError(f"{path}.tool_call_id: is missing")
    return {"toolUseId": call_id, "status": "success", "content": _blocks(message.get("content"), path)}


def _blocks(content: Any, path: str) -> list[dict[str, Any]]:
    if content is None:
        return []
    if isinstance(content, str):
        return [{"text": content}]
    if not isinstance(content, list):
        raise ValueError(f"{path}.content: is a {type(content).__name__}, neither a string nor a list")
    return [_block(part, f"{path}.content[{index}]") for index, part in enumerate(content)]


def _block(part: Any, path: str) -> dict[str, Any]:
    if isinstance(part, str):
        return {"text": part}
    if not isinstance(part, dict):
        raise ValueError(f"{path}: is a {type(part).__name__}, not a dict")
    kind = part.get("type")
    if kind is None:
        return part
    if kind == "text":
        return {"text": str(part.get("text") or "")}
    if kind == "image_url":
        url = part.get("image_url")
        found = _DATA_URL.fullmatch(str(url.get("url") if isinstance(url, dict) else url))
        if found is None:
            raise ValueError(f"{path}.image_url: is not a data URL with an image; Strands takes no other URL")
        return {"image": {"format": found[1], "source": {"bytes": base64.b64decode(found[2])}}}
    raise ValueError(f"{path}: Strands has no block for a part of the type {kind!r}")


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


NATIVE: dict[str, Callable[[Sequence[Message]], list[Message]]] = {"strands": to_strands}
"""Maps the name of a library to the function that converts OpenAI's messages to the library's format."""


def recorded_samples(outcome: RolloutOutcome, trajectory: Iterable[TrajectoryEvent]) -> dict[str, list[Message]]:
    """Return the messages of each sample, by name, for grade_recorded().

    The messages of a registered agent are in the format of its library. If the agent keeps its system prompt apart from
    its messages, the prompt is prepended.

    Args:
        outcome: The outcome of the rollout.
        trajectory: The events of the rollout.
    """
    formats = {
        event.kind.data.get("agent"): event.kind.data.get("format")
        for event in trajectory
        if isinstance(event.kind, events.Logged) and event.kind.name == AGENT_REGISTERED
    }
    native = {name: NATIVE.get(str(formats.get(name)), list) for name in outcome.samples}
    return {name: native[name](sample.messages) for name, sample in outcome.samples.items()}
