"""The conversation of a sample as a tree: which earlier chat does a history continue?

An agent loop passes its whole history with every chat. The tree keeps frozen messages, and every
answered chat marks the node of its reply. A walk from the root along a history finds the chat that
it continues, which is the last mark on the way; the messages after it are new. A loop that rewinds
walks another branch. Two histories are equal exactly if they end in the same node, whether they were
sent in full or as deltas. The server uses the tree to find new messages, the trainer to find known
ones.
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
        """Returns whether it is the same message. The values 1, 1.0 and true differ."""
        try:
            if not self.message == message:  # noqa: SIM201 - a value that is no JSON may define its own !=
                return False
        except Exception:
            return False
        return not self.numeric or _same(self.message, message)


class Position(NamedTuple):
    """The end of a history in the tree."""

    node: Node
    continues: int
    """The answered chat that it continues; 0 for none."""
    prefix_len: int
    """How many leading messages that chat covers, its reply included."""


class Conversation:
    """The tree of one sample.

    Most histories continue the newest one. The tree keeps that one as a list, too, and compares a
    history with it in one step. Only new messages are compared one by one.
    """

    __slots__ = ("_end", "_line", "_numeric", "_replies", "root")

    def __init__(self) -> None:
        self.root = Node({}, None)
        self._replies: dict[int, Node] = {}
        self._end = self.root
        self._line: list[Message] = []
        self._numeric: list[int] = []

    def insert(self, messages: Sequence[Message], field: str = "messages") -> Position:
        """Returns the position of a full history, and copies new messages into the tree.

        Raises InvalidArgument for a new message that cannot be sent; the tree is then unchanged.
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
        """Returns the position of messages that follow an answered chat's reply; None if that chat is unknown."""
        reply = self._replies.get(chat)
        if reply is None:
            return None
        return self._grow(reply, [copy_message(m, f"messages[{i}]") for i, m in enumerate(messages)])

    def answer(self, position: Node, reply: Message, chat: int) -> Node:
        """Adds the reply to `chat` below the chat's position, and returns its node. The tree keeps `reply` itself."""
        node = self._child(position, reply)
        node.chat = max(node.chat, chat)
        self._replies[chat] = node
        if self._end is position:
            self._extend(node)
        return node

    def reply(self, chat: int) -> Node | None:
        """Returns the node of an answered chat's reply; None if the chat is unknown."""
        return self._replies.get(chat)

    def messages(self, node: Node) -> list[Message]:
        """Returns the messages from the first to this one. They are the tree's own: do not change them."""
        return self._line.copy() if node is self._end else path(node)

    def tool_messages(self) -> dict[str, int]:
        """Returns how many tool messages answer each call id: the most in one history.

        A message in several branches counts once.
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
        """Returns whether a history begins with the newest one."""
        line = self._line
        try:
            if not (line and messages[: len(line)] == line):
                return False
        except Exception:  # a value that is no JSON may raise when it is compared
            return False
        return all(_same(line[index], messages[index]) for index in self._numeric)

    def _grow(self, node: Node, messages: Sequence[Message]) -> Position:
        if node is not self._end:
            self._switch(node)
        for message in messages:
            node = self._child(node, message)
            self._extend(node)
        mark = node
        while mark.parent is not None and not mark.chat:
            mark = mark.parent
        return Position(node, mark.chat, mark.depth)

    def _extend(self, node: Node) -> None:
        """Appends a node to the newest history."""
        self._end = node
        self._line.append(node.message)
        if node.numeric:
            self._numeric.append(node.depth - 1)

    def _switch(self, node: Node) -> None:
        """Makes the history that ends here the newest one."""
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
    """Counts a message by its call id, if it is a tool message."""
    if message.get("role") == "tool":
        call_id = str(message.get("tool_call_id") or "")
        counts[call_id] = counts.get(call_id, 0) + 1


def path(node: Node) -> list[Message]:
    """Returns the messages from the first to this one. They are the tree's own: do not change them."""
    return [each.message for each in _nodes(node)]


def _nodes(node: Node) -> list[Node]:
    """Returns the nodes from the first message to this one."""
    nodes = []
    while node.parent is not None:
        nodes.append(node)
        node = node.parent
    return nodes[::-1]


def _same(one: object, other: object) -> bool:
    """Returns whether two JSON values that compare equal have numbers of the same types, too."""
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
