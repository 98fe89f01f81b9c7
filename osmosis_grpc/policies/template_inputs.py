"""Prepares the inputs of chat templates: messages in the form that templates expect, and one time for each rollout.

Templates write the arguments of tool calls as JSON, so they get objects instead of OpenAI's strings. They get an empty
string for a missing content, a string for parts that are all texts, and {"type": "image"} for an image.

Templates read the clock with `strftime_now`. When the date changes at midnight, the next prompt of a rollout would not
continue the last one, and its sample would get a new segment. So a macro of this name replaces the function. It is a
macro because transformers does not let callers pass functions to templates.
"""

import json
import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from osmosis_grpc.policies.media import MODALITIES
from osmosis_grpc.protocol.types import ChatRequest, Message
from osmosis_grpc.supervise import SYSTEM


def template_messages(messages: Iterable[Message]) -> list[Message]:
    """Return copies of messages in the form that templates expect."""
    return [_message(message) for message in messages]


def reasoning_in_content(messages: Iterable[Message]) -> list[Message]:
    """Return copies of template_messages() with the reasoning of replies in the content, as models write it."""
    return [_with_reasoning(message) for message in messages]


def _with_reasoning(message: Message) -> Message:
    reasoning, content = message.get("reasoning_content"), message.get("content")
    if message.get("role") != "assistant" or not isinstance(reasoning, str) or not isinstance(content, str):
        return message
    kept = {name: value for name, value in message.items() if name != "reasoning_content"}
    return {**kept, "content": f"<think>{reasoning}</think>{content}"}


def with_text_arguments(messages: Iterable[Message]) -> list[Message]:
    """Return copies of template_messages() with the arguments of calls as strings, as DeepSeek's templates need."""
    return [_with_texts(message) for message in messages]


def _with_texts(message: Message) -> Message:
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    return {**message, "tool_calls": [_text_call(call) for call in calls]}


def _text_call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), dict):
        return call
    return {**call, "function": {**function, "arguments": json.dumps(function["arguments"], ensure_ascii=False)}}


def _message(message: Message) -> Message:
    made = {**message, "content": _content(message.get("content"))}
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        made["tool_calls"] = [_call(call) for call in calls]
    elif "tool_calls" in made:
        del made["tool_calls"]
    return made


def _content(content: Any) -> Any:
    if content is None:
        return ""
    if not isinstance(content, list):
        return content
    if all(isinstance(part, Mapping) and isinstance(part.get("text"), str) for part in content):
        return "".join(part["text"] for part in content)
    return [_part(part) for part in content]


def _part(part: Any) -> Any:
    kind = part.get("type") if isinstance(part, Mapping) else None
    return {"type": MODALITIES[kind].value} if kind in MODALITIES else part


def _call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    arguments = function.get("arguments") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(arguments, str):
        return call
    try:
        parsed = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return call  # not JSON, so the template gets the string
    return {**call, "function": {**function, "arguments": parsed}} if isinstance(parsed, dict) else call


MOST = 16_384
"""The times of this many rollouts are kept. The least recently used one is dropped first."""
DAYS = 7
"""If another process rendered the first prompt of a rollout, it did so at most this many days ago, because no rollout
lasts longer."""
NAME = "strftime_now"
_MACRO = "{% macro strftime_now(format) %}{{ osmosis_times[format] }}{% endmacro %}\n"
"""The newline is not rendered. It puts the template on its own line."""
_CALL = re.compile(rf"\b{NAME}\s*\(")
_WITH_TEXT = re.compile(rf"""\b{NAME}\s*\(\s*(?:'([^'\\]*)'|"([^"\\]*)")\s*\)""")


class TemplateTimes:
    """The time of the first prompt of each rollout."""

    def __init__(self) -> None:
        self._times: OrderedDict[tuple[str, int], datetime] = OrderedDict()

    def of(self, request: ChatRequest, *, continues: bool) -> list[datetime]:
        """Return the times at which the rollout's first prompt may have been rendered.

        For a known rollout, that is one time. If the rollout is unknown but the chat continues another one, an earlier
        process rendered that prompt, today or on one of the DAYS before. Find the time that fits and pass it to keep().
        """
        key = request.rollout_id, request.attempt
        if key in self._times:
            self._times.move_to_end(key)
            return [self._times[key]]
        now = datetime.fromtimestamp(SYSTEM.time())
        return [now - timedelta(days=days) for days in range(DAYS + 1 if continues else 1)]

    def keep(self, request: ChatRequest, time: datetime) -> None:
        """Keep the time of a rollout."""
        self._times[request.rollout_id, request.attempt] = time
        if len(self._times) > MOST:
            self._times.popitem(last=False)


def clocked_template(tokenizer: Any, params: Mapping[str, Any], tools: Any) -> str:
    """Return the source of the chat template if it writes the time, else an empty string.

    `params` are the variables of the template. The string is also empty if they contain `strftime_now`, or if the
    template computes a format of the time.
    """
    chosen = getattr(tokenizer, "get_chat_template", None)
    source = params.get("chat_template", getattr(tokenizer, "chat_template", None))
    if isinstance(source, Mapping) and callable(chosen):
        source = chosen(None, tools)
    return source if isinstance(source, str) and NAME not in params and _formats(source) else ""


def at_time(source: str, time: datetime) -> dict[str, Any]:
    """Return the arguments of apply_chat_template() that make a template see a time."""
    return {"chat_template": _MACRO + source, "osmosis_times": {each: time.strftime(each) for each in _formats(source)}}


@lru_cache(maxsize=16)
def _formats(source: str) -> frozenset[str]:
    """Return the formats in which a template writes the time; an empty set if it computes one of them."""
    found = _WITH_TEXT.findall(source)
    return frozenset(map("".join, found)) if len(found) == len(_CALL.findall(source)) else frozenset()
