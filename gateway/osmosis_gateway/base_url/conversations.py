"""Finds the conversation of a rollout that a history continues.

A program sends its whole history with every request and names no conversation. Client libraries write messages again:
they add keys with null, change null content to "", or make text a list of parts. So the tree compares messages by their
meaning, and puts the earlier spelling of a message in place of a later one. The engine then finds that the history
continues an earlier chat, and the tokens stay in one segment.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from osmosis_grpc.errors import InvalidArgument
from osmosis_grpc.types import ChatRef, Message, jsontext

_TEXT_PARTS = ("text", "input_text", "output_text")


@dataclass(slots=True, eq=False)
class _Node:
    """A message at its place in the histories of a rollout."""

    message: Message
    children: "dict[str, _Node]" = field(default_factory=dict)
    sample: str = ""
    """The sample whose newest reply this message is; empty if it is no reply."""
    failed: str = ""
    """The sample of the newest request that ended here without a reply; empty if there is none."""
    replies: "list[_Node]" = field(default_factory=list)
    """The children that are replies, the newest last."""


class Place(NamedTuple):
    """A history in the tree."""

    messages: list[Message]
    """The history in the spelling of the earlier requests."""
    sample: str
    """The sample that the history continues. Empty: it begins a new sample."""
    parent: ChatRef | None
    """The chat that seems to have called a new sample. None for a sample that stands alone."""
    end: _Node


class Conversations:
    """The histories of one rollout."""

    def __init__(self) -> None:
        self._root = _Node({})
        self._calls: dict[str, ChatRef] = {}
        """The chats whose replies have tool calls without a result, by call id, the newest last."""

    def place(self, messages: Sequence[Message]) -> Place:
        """Return the place of a history, and keep its messages."""
        node, spelled, sample = self._root, [], ""
        for message in messages:
            if message.get("role") == "tool":
                self._calls.pop(str(message.get("tool_call_id")), None)
            key = _key(message)
            child = node.children.get(key)
            if child is None:
                child = node.children[key] = _Node(message)
            spelled.append(child.message)
            node, sample = child, child.sample or sample
        sample = sample or node.failed or self._like(messages)
        parent = next(reversed(self._calls.values()), None) if not sample else None
        return Place(spelled, sample, parent, node)

    def answered(self, place: Place, sample: str, chat_number: int, reply: Message) -> None:
        """Note the reply to a history."""
        key = _key(reply)
        node = place.end.children.get(key)
        if node is None:
            node = place.end.children[key] = _Node(reply)
        node.message, node.sample = reply, sample
        place.end.replies.append(node)
        place.end.failed = ""
        for call in reply.get("tool_calls") or ():
            if isinstance(call, Mapping) and call.get("id"):
                self._calls[str(call["id"])] = ChatRef(sample, chat_number)

    def failed(self, place: Place, sample: str) -> None:
        """Note that a history got no reply. The same history then belongs to the same sample."""
        place.end.failed = sample

    def _like(self, messages: Sequence[Message]) -> str:
        """Return the sample of a history in which the program has changed a reply, for example left out its reasoning.

        Such a history continues the sample, with another segment. Empty if there is no such sample.
        """
        node, sample = self._root, ""
        for message in messages:
            child = node.children.get(_key(message))
            if message.get("role") == "assistant" and node.replies and (child is None or not child.sample):
                child = node.replies[-1]
            if child is None:
                break
            node, sample = child, child.sample or sample
        return sample


def _key(message: Mapping[str, Any]) -> str:
    """Return a text that is the same for messages with the same meaning."""
    role = message.get("role")
    calls = [_call_key(call) for call in message.get("tool_calls") or ()]
    about = message.get("tool_call_id") if role == "tool" else message.get("name")
    return jsontext.canonical([role, _content(message.get("content")), calls, about])


def _content(content: Any) -> Any:
    """Return the content: a text if it is only text, with "" for none."""
    if content is None:
        return ""
    if isinstance(content, list) and all(
        isinstance(part, dict) and part.get("type") in _TEXT_PARTS for part in content
    ):
        return "".join(str(part.get("text") or "") for part in content)
    return content


def _call_key(call: Any) -> Any:
    """Return what identifies a tool call: its id and name, or without an id its name and arguments."""
    if not isinstance(call, Mapping):
        return call
    function = call.get("function")
    function = function if isinstance(function, Mapping) else {}
    if call.get("id"):
        return [call["id"], function.get("name")]
    arguments = function.get("arguments")
    with suppress(InvalidArgument):  # arguments that are no JSON are compared as text
        arguments = jsontext.parse(arguments, "arguments") if isinstance(arguments, str) else arguments
    return [None, function.get("name"), arguments]
