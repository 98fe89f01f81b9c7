"""The conversation of a sample as a tree. The tree finds the earlier chat that a history continues.

An agent loop passes its whole history with every chat. Each node of the tree is a message that must not change. Each
answered chat marks the node of its reply. A walk from the root along a history passes marked nodes, and the last of
them is the chat that the history continues. The messages after that node are new. If an agent loop goes back to an
earlier message, its next history takes another branch.

Two histories are equal exactly if they end in the same node. This is also true if one was sent in full and the other as
a delta. The server uses the tree to find the new messages. The trainer uses the tree to find the known messages.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from osmosis_grpc.protocol.types.messages import Message, copy_message

_NUMBERS = (int, float)
_SCALARS = (str, int, float, type(None))


class Node:
    """One message at its position in the tree. The message belongs to the tree and must not change."""

    __slots__ = ("_elder", "_newest", "chat", "depth", "message", "numeric", "parent")

    def __init__(self, message: Message, parent: "Node | None") -> None:
        self.message = message
        self.parent = parent
        self.depth: int = parent.depth + 1 if parent else 0
        self._newest: Node | None = None
        """The child that was added last. Each child has the child before it; a tuple of children takes more memory."""
        self._elder: Node | None = None
        """The child of the same parent that was added before this one."""
        self.chat = 0
        """The number of the newest chat that has this message as its reply; 0 for none."""
        self.numeric = _has_numbers(message)

    @property
    def children(self) -> Iterator["Node"]:
        """The messages that follow this one. The message that was added last comes first."""
        child = self._newest
        while child is not None:
            yield child
            child = child._elder

    def child(self, message: Message) -> "Node | None":
        """Return the child with an equal message; None if there is none."""
        child = self._newest
        while child is not None and not child.matches(message):
            child = child._elder
        return child

    def add(self, message: Message) -> "Node":
        """Add a child and return it."""
        child = Node(message, self)
        child._elder, self._newest = self._newest, child
        return child

    def matches(self, message: Message) -> bool:
        """Return whether `message` equals the message of this node. 1 and 1.0 are equal; 1 and true differ."""
        try:
            if not self.message == message:  # noqa: SIM201 - a value that is not JSON may define its own !=
                return False
        except Exception:
            return False
        return not self.numeric or _same(self.message, message)


class Position(NamedTuple):
    """The end of a history in the tree."""

    node: Node
    parent_chat: int
    """The answered chat that the history continues; 0 for none."""
    prefix_len: int
    """The number of leading messages that come from the chat `parent_chat`, its reply included."""


class Conversation:
    """The tree of one sample.

    Most histories continue the newest history. So the tree also keeps the newest history as a list, and compares this
    list with a history in one step. Only the other messages are compared one by one.
    """

    __slots__ = ("_any_role", "_end", "_line", "_numeric", "_replies", "_same", "root", "tool_messages")

    def __init__(self, any_role: bool = False, same: Callable[[Message, Message], bool] | None = None) -> None:
        self._same = same
        """Returns whether a message has the meaning of a message of the tree. With None, messages must be equal."""
        self.root = Node({}, None)
        self._any_role = any_role
        """See check_role()."""
        self._replies: dict[int, Node] = {}
        self._end = self.root
        self._line: list[Message] = []
        self._numeric: list[int] = []
        self.tool_messages: dict[str, int] = {}
        """How many tool messages answer each call id in one history. It is the highest count of any history."""

    def insert(self, messages: Sequence[Message], field: str = "messages") -> Position:
        """Return the position of a full history, and copy new messages into the tree.

        If the tree has a message with the same meaning, the tree's message is kept.

        Raises InvalidArgument for a new message that cannot be sent. The tree is then unchanged.
        """
        node, known = self._walk(messages)
        new = messages[known:]
        if new:
            new = [copy_message(m, f"{field}[{known + i}]", self._any_role) for i, m in enumerate(new)]
        return self._grow(node, new)

    def _walk(self, messages: Sequence[Message]) -> tuple[Node, int]:
        """Return the node of the longest beginning of a history that the tree has, and its number of messages."""
        node, known = self.root, 0
        if self._continues_line(messages):
            node, known = self._end, len(self._line)
        for message in messages[known:]:
            child = node.child(message) or self._respelled(node, message)
            if child is None:
                break
            node, known = child, known + 1
        return node, known

    def shares(self, messages: Sequence[Message]) -> int:
        """Return how many leading messages of a history the tree has."""
        return self._walk(messages)[1]

    def insert_after(self, chat: int, messages: Sequence[Message]) -> Position | None:
        """Return the position of messages that follow the reply of an answered chat, and copy them into the tree.

        Returns None if the chat is unknown.
        """
        reply = self._replies.get(chat)
        if reply is None:
            return None
        return self._grow(reply, [copy_message(m, f"messages[{i}]") for i, m in enumerate(messages)])

    def answer(self, position: Node, reply: Message, chat: int) -> Node:
        """Add the reply of `chat` below the chat's position, and return the reply's node.

        The tree keeps `reply` itself and not a copy.
        """
        node = self._child(position, reply)
        node.chat = max(node.chat, chat)
        self._replies[chat] = node
        if self._end is position:
            self._extend(node)
        return node

    @property
    def replies(self) -> Mapping[int, Node]:
        """The nodes of all replies, by chat number. Chats with equal histories and equal replies share a node."""
        return self._replies

    def reply(self, chat: int) -> Node | None:
        """Return the node of an answered chat's reply; None if the chat is unknown."""
        return self._replies.get(chat)

    def messages(self, node: Node) -> list[Message]:
        """Return the messages from the first message to this node. They belong to the tree: do not change them."""
        return self._line.copy() if node is self._end else path(node)

    def release(self) -> None:
        """Cut the links from each message to the messages that follow it. Call it when the tree is no longer used.

        Without the links, the messages and their nodes are freed at once. With them, they wait for the garbage
        collector, which stops the process for a longer time the more objects there are.
        """
        branches = [self.root]
        while branches:
            node: Node | None = branches.pop()
            while node is not None:
                child, node._newest = node._newest, None
                if child is not None and child._elder is not None:
                    branches += _cut_elders(child)
                node = child

    def _respelled(self, node: Node, message: Message) -> Node | None:
        """Return the child whose message has the same meaning; None if there is none."""
        same = self._same
        return next((child for child in node.children if same(child.message, message)), None) if same else None

    def _continues_line(self, messages: Sequence[Message]) -> bool:
        """Return whether a history begins with the newest history."""
        line = self._line
        try:
            if not (line and messages[: len(line)] == line):
                return False
        except Exception:  # a value that is not JSON may raise when it is compared
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
        self._end = node
        self._line.append(node.message)
        if node.numeric:
            self._numeric.append(node.depth - 1)

    def _switch(self, node: Node) -> None:
        nodes = _nodes(node)
        self._end = node
        self._line = [each.message for each in nodes]
        self._numeric = [index for index, each in enumerate(nodes) if each.numeric]

    def _child(self, node: Node, message: Message) -> Node:
        known = node.child(message)
        if known is not None:
            return known
        new = node.add(message)
        if message.get("role") == "tool":
            call_id = answered_call(message) or ""
            most = self.tool_messages.get(call_id, 0)
            same = sum(answered_call(each.message) == call_id for each in _nodes(node)) if most else 0
            self.tool_messages[call_id] = max(most, same + 1)
        return new


def answered_call(message: Message) -> str | None:
    """Return the id of the call that a tool message answers; None for another message."""
    return str(message.get("tool_call_id") or "") if message.get("role") == "tool" else None


def _cut_elders(child: Node) -> list[Node]:
    """Cut the links from a child to the children before it, and return these."""
    elders = []
    while child._elder is not None:
        elder, child._elder = child._elder, None
        elders.append(elder)
        child = elder
    return elders


def path(node: Node) -> list[Message]:
    """Return the messages from the first message to this node. They belong to the tree: do not change them."""
    return [each.message for each in _nodes(node)]


def _nodes(node: Node) -> list[Node]:
    nodes = []
    while node.parent is not None:
        nodes.append(node)
        node = node.parent
    return nodes[::-1]


def _same(one: object, other: object) -> bool:
    """Return whether two values that Python calls equal are equal JSON values. In Python, True equals 1."""
    if isinstance(one, dict) and isinstance(other, dict):
        return all(_same(value, other.get(key)) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return all(map(_same, one, other))
    return isinstance(other, _SCALARS) and isinstance(one, bool) is isinstance(other, bool)


def _has_numbers(value: object) -> bool:
    kind = type(value)
    if kind is dict or kind is list:
        items: Any = value.values() if kind is dict else value  # type: ignore[attr-defined]
        for item in items:  # noqa: SIM110 - any() takes twice the time
            if type(item) is not str and _has_numbers(item):
                return True
        return False
    return isinstance(value, _NUMBERS)
