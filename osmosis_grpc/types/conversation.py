"""The conversation of a sample as a tree: which earlier chat does a history continue?

An agent loop passes its whole history with every chat. Kept as a tree of frozen messages,
in which every answered chat marks its reply, a history is walked down from the root: where
the walk passes the last mark is the chat it continues, and what follows is new. A loop that
rewinds walks another branch. Two histories are equal exactly when they end in the same node,
whichever form they travelled in. Both ends of the wire use this: the server to find what is
new, the trainer to find what it already knows.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from osmosis_grpc.types.messages import Message, copy_message

_NUMBERS = (int, float)


class Node:
    """One message in its position. Frozen: the message is the tree's own copy."""

    __slots__ = ("chat", "children", "depth", "message", "numeric", "parent")

    def __init__(self, message: Message, parent: "Node | None") -> None:
        self.message = message
        self.parent = parent
        self.depth: int = parent.depth + 1 if parent else 0
        self.children: Sequence[Node] = ()
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


class Position(NamedTuple):
    """Where a history ends in the tree."""

    node: Node
    continues: int
    """The answered chat that it continues; 0 for none."""
    prefix_len: int
    """How many leading messages that chat covers, its reply included."""


class Conversation:
    """The tree of one sample.

    Most histories go on where the newest one ended. That line is kept as a list, so that a
    history is compared with it at once, and only what is new is looked at one by one.
    """

    __slots__ = ("_end", "_line", "_numeric", "_replies", "root")

    def __init__(self) -> None:
        self.root = Node({}, None)
        self._replies: dict[int, Node] = {}
        self._end = self.root
        self._line: list[Message] = []
        self._numeric: list[int] = []

    def insert(self, messages: Sequence[Message], field: str = "messages") -> Position:
        """The position of a full history; messages not yet in the tree are copied into it.

        Raises InvalidArgument when a new message may not travel; the tree is then unchanged.
        """
        node, known = self.root, 0
        if self._continues_line(messages):
            node, known = self._end, len(self._line)
        for message in messages[known:]:
            for child in node.children:
                if child.matches(message):
                    break
            else:
                break
            node, known = child, known + 1
        new = messages[known:]
        return self._grow(node, [copy_message(m, f"{field}[{known + i}]") for i, m in enumerate(new)] if new else new)

    def insert_after(self, chat: int, messages: Sequence[Message]) -> Position | None:
        """The position of what follows an answered chat's reply; None when that chat is not known."""
        reply = self._replies.get(chat)
        if reply is None:
            return None
        return self._grow(reply, [copy_message(m, f"messages[{i}]") for i, m in enumerate(messages)])

    def answer(self, position: Node, reply: Message, chat: int) -> Node:
        """Mark `reply`, which the tree keeps, as the reply of `chat` asked at `position`."""
        node = self._child(position, reply)
        node.chat = max(node.chat, chat)
        self._replies[chat] = node
        if self._end is position:
            self._extend(node)
        return node

    def reply(self, chat: int) -> Node | None:
        """The reply of an answered chat."""
        return self._replies.get(chat)

    def messages(self, node: Node) -> list[Message]:
        """The messages from the first to this one: the tree's own, not to be changed."""
        return self._line.copy() if node is self._end else path(node)

    def tool_messages(self) -> dict[str, int]:
        """Returns how many tool messages answer each call id: the most that one history holds.

        A message that stands in several branches counts once.
        """
        most: dict[str, int] = {}
        branches: list[tuple[Node, dict[str, int]]] = [(self.root, {})]
        while branches:
            node, counts = branches.pop()
            while True:
                count_tool_message(node.message, counts)
                if not node.children:
                    break
                branches += [(child, counts.copy()) for child in node.children[1:]]
                node = node.children[0]
            for call_id, count in counts.items():
                most[call_id] = max(count, most.get(call_id, 0))
        return most

    def _continues_line(self, messages: Sequence[Message]) -> bool:
        """Whether a history begins with the newest one, or with that and its reply."""
        line = self._line
        try:
            if not (line and messages[: len(line)] == line):
                return False
        except Exception:  # what is no JSON may answer anything
            return False
        return all(_same(line[index], messages[index]) for index in self._numeric)

    def _grow(self, node: Node, messages: Sequence[Message]) -> Position:
        if node is not self._end:
            self._turn(node)
        for message in messages:
            node = self._child(node, message)
            self._extend(node)
        mark = node
        while mark.parent is not None and not mark.chat:
            mark = mark.parent
        return Position(node, mark.chat, mark.depth)

    def _extend(self, node: Node) -> None:
        """The newest history goes on."""
        self._end = node
        self._line.append(node.message)
        if node.numeric:
            self._numeric.append(node.depth - 1)

    def _turn(self, node: Node) -> None:
        """The newest history ends elsewhere."""
        nodes = _nodes(node)
        self._end = node
        self._line = [each.message for each in nodes]
        self._numeric = [index for index, each in enumerate(nodes) if each.numeric]

    @staticmethod
    def _child(node: Node, message: Message) -> Node:
        for child in node.children:
            if child.matches(message):
                return child
        child = Node(message, node)
        node.children = (*node.children, child)
        return child


def count_tool_message(message: Message, counts: dict[str, int]) -> None:
    """Add a message to the counts by call id, if it is a tool's."""
    if message.get("role") == "tool":
        call_id = str(message.get("tool_call_id") or "")
        counts[call_id] = counts.get(call_id, 0) + 1


def path(node: Node) -> list[Message]:
    """The messages from the first to this one: the tree's own, not to be changed."""
    return [each.message for each in _nodes(node)]


def _nodes(node: Node) -> list[Node]:
    """Returns the nodes from the first message to this one."""
    nodes = []
    while node.parent is not None:
        nodes.append(node)
        node = node.parent
    return nodes[::-1]


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
    kind = type(value)
    if kind is dict or kind is list:
        items: Any = value.values() if kind is dict else value  # type: ignore[attr-defined]
        for item in items:  # noqa: SIM110 - any() takes twice the time
            if type(item) is not str and _has_numbers(item):
                return True
        return False
    return isinstance(value, _NUMBERS)
