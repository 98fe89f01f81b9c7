"""The conversation of a sample as a tree: which earlier chat does a history continue?

An agent loop passes its whole history with every chat. Kept as a tree of frozen messages,
in which every answered chat marks its reply, a history is walked down from the root: where
the walk passes the last mark is the chat it continues, and what follows is new. A loop that
rewinds walks another branch. Two histories are equal exactly when they end in the same node,
whichever form they travelled in. Both ends of the wire use this: the server to find what is
new, the trainer to find what it already knows.
"""

from collections.abc import Sequence
from typing import NamedTuple

from osmosis_grpc.types.messages import Message, copy_message


class Node:
    """One message in its place. Frozen: the message is the tree's own copy."""

    __slots__ = ("chat", "children", "depth", "message", "numeric", "parent")

    def __init__(self, message: Message, parent: "Node | None") -> None:
        self.message = message
        self.parent = parent
        self.depth: int = parent.depth + 1 if parent else 0
        self.children: list[Node] = []
        self.chat = 0
        """The newest chat whose reply this message is; 0 for none."""
        self.numeric = _has_numbers(message)

    def matches(self, message: Message) -> bool:
        """Whether it is the same message, where 1, 1.0 and true are three things."""
        try:
            if not self.message == message:  # noqa: SIM201 - what is no JSON may answer anything
                return False
        except Exception:
            return False
        return not self.numeric or _same(self.message, message)


class Place(NamedTuple):
    """Where a history ends in the tree."""

    node: Node
    continues: int
    """The answered chat that it continues; 0 for none."""
    covered: int
    """How many leading messages that chat covers, its reply included."""


class Conversation:
    """The tree of one sample."""

    def __init__(self) -> None:
        self.root = Node({}, None)
        self._replies: dict[int, Node] = {}

    def place(self, messages: Sequence[Message], field: str = "messages") -> Place:
        """The place of a full history; messages not yet in the tree are copied into it.

        Raises InvalidArgument when a new message may not travel; the tree is then unchanged.
        """
        node, known = self.root, 0
        for message in messages:
            child = next((c for c in node.children if c.matches(message)), None)
            if child is None:
                break
            node, known = child, known + 1
        return self._grow(node, [copy_message(m, f"{field}[{known + i}]") for i, m in enumerate(messages[known:])])

    def place_after(self, chat: int, messages: Sequence[Message]) -> Place | None:
        """The place of what follows an answered chat's reply; None when that chat is not known."""
        reply = self._replies.get(chat)
        if reply is None:
            return None
        return self._grow(reply, [copy_message(m, f"messages[{i}]") for i, m in enumerate(messages)])

    def answer(self, place: Node, reply: Message, chat: int) -> Node:
        """Mark `reply`, which the tree keeps, as the reply of `chat` asked at `place`."""
        node = self._child(place, reply)
        node.chat = max(node.chat, chat)
        self._replies[chat] = node
        return node

    def reply(self, chat: int) -> Node | None:
        """The reply of an answered chat."""
        return self._replies.get(chat)

    def _grow(self, node: Node, messages: Sequence[Message]) -> Place:
        for message in messages:
            node = self._child(node, message)
        mark = node
        while mark.parent is not None and not mark.chat:
            mark = mark.parent
        return Place(node, mark.chat, mark.depth)

    @staticmethod
    def _child(node: Node, message: Message) -> Node:
        for child in node.children:
            if child.matches(message):
                return child
        child = Node(message, node)
        node.children.append(child)
        return child


def path(node: Node) -> list[Message]:
    """The messages from the first to this one: the tree's own, not to be changed."""
    messages: list[Message] = []
    while node.parent is not None:
        messages.append(node.message)
        node = node.parent
    messages.reverse()
    return messages


def _same(one: object, other: object) -> bool:
    """Equality of two JSON values that are equal but for the types of their numbers."""
    if isinstance(one, dict) and isinstance(other, dict):
        return all(_same(value, other.get(key)) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return all(map(_same, one, other))
    if isinstance(one, str) and isinstance(other, str):
        return True
    return type(one) is type(other) and repr(one) == repr(other)


def _has_numbers(value: object) -> bool:
    if isinstance(value, dict):
        return any(_has_numbers(item) for item in value.values())
    if isinstance(value, list):
        return any(_has_numbers(item) for item in value)
    return isinstance(value, int | float)
