"""Finds the conversation of a rollout that a history continues.

A program sends its whole history with every request, without the name of the conversation. Client libraries also
rewrite messages: they add keys with null, change null content to "", or make text a list of parts. So the tree compares
messages by their meanings (message_keys.py), and replaces a rewritten message by the original one. A message with the
calls of a reply but without its text also counts as the reply. As a result, the engine recognises the earlier chat, and
the tokens stay in one segment.

The tree keeps only the messages of answered requests.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from osmosis_grpc.agent.message_keys import History, arguments_object, message_key, text_of
from osmosis_grpc.protocol.errors import ResourceExhausted
from osmosis_grpc.protocol.types import ChatRef, Message

MAX_BYTES = 256 * 1024 * 1024
"""The most bytes of the messages that one rollout keeps."""
MAX_UNANSWERED = 256
"""The number of histories without a reply whose samples are remembered."""
LEAST_QUOTE, MOST_QUOTE = 24, 400
"""The least and the greatest length of a line by which a reply is found in a later history."""
MAX_QUOTES = 64


@dataclass(slots=True, eq=False)
class _Node:
    """A message at its place in the histories of a rollout."""

    message: Message
    children: "dict[bytes, _Node]" = field(default_factory=dict)
    samples: dict[str, str] = field(default_factory=dict)
    """The samples whose newest reply this message is, by policy. Empty if it is not a reply."""
    replies: "list[_Node]" = field(default_factory=list)
    """The children that are replies, the newest last."""


class Place(NamedTuple):
    """The sample of a history."""

    history: History
    messages: list[Message]
    """The history in the spelling of the earlier requests."""
    sample: str
    """The sample that the history continues. Empty: it begins a new sample."""
    policy: str
    """The trainer's policy that answers the request."""
    parent: ChatRef | None
    """The chat that seems to have started a new sample; None if there is none."""
    calls: dict[str, ChatRef]
    """The calls that were waiting for their results when the history arrived."""


class Conversations:
    """The histories of one rollout."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._root = _Node({})
        self._free = max_bytes
        self._unanswered: dict[tuple[bytes, str], str] = {}
        """The samples of the newest requests that got no reply, by the digest of their histories and by policy."""
        self._calls: dict[str, ChatRef] = {}
        """The newest chat of each sample whose reply calls tools that have no results yet; the newest last."""
        self._replies: dict[bytes, Message] = {}
        """The newest reply of each key. It finds a reply even if the program has removed earlier messages."""
        self._answers: dict[tuple[str, int], _Node] = {}
        """The reply of each chat."""
        self._quotes: dict[ChatRef, str] = {}
        """The longest line of the newest replies, by which they are found in other histories; the newest last."""
        self._parents: dict[str, str] = {}
        """The sample that has called each sample. A parent comes before its children."""

    def place(self, history: History, named: str = "", policy: str = "") -> Place:
        """Return the place of a history. `named` is the sample that the request names.

        A history continues samples of `policy` only: a sample has one policy, which answers all of its chats. The
        parent of a new sample is a guess: the newest chat whose reply the history quotes, as the prompt of a sub-agent
        and a compacted history do, or else the newest chat whose tool calls wait for their results. Raises
        ResourceExhausted if the rollout has too many messages.
        """
        node = self._root
        spelled, sample, known = list(history.messages), "", 0
        for key in history.keys:
            child = node.children.get(key)
            if child is None:
                break
            spelled[known] = child.message
            node, sample, known = child, child.samples.get(policy, sample), known + 1
        for index in range(known, len(spelled)):
            spelled[index] = self._replies.get(history.keys[index], spelled[index])
        if sum(history.sizes[known:]) > self._free:
            raise ResourceExhausted("the messages of this rollout have too many bytes; send fewer or shorter ones")
        sample = sample or self._unanswered.get((history.digest, policy), "") or self._changed(history, policy)
        parent = None if sample else self._quoted(spelled) or next(reversed(self._calls.values()), None)
        calls = self._calls
        if named or sample:
            self._goes_on(named or sample)
        return Place(history, spelled, named or sample, policy, parent, calls)

    def begin(self, messages: Sequence[Message], written: Sequence[Message]) -> None:
        """Keep the beginning of histories. `written` has the messages as the program is going to write them."""
        node = self._root
        for message, other in zip(messages, written, strict=True):
            node = self._child(node, message, *message_key(other))

    def answered(
        self, place: Place, sample: str, chat_number: int, reply: Message, written: Message | None = None
    ) -> None:
        """Keep a history and its reply. `written` is the reply as the program is going to write it, if it is known."""
        self._unanswered.pop((place.history.digest, place.policy), None)
        node = self._root
        for message, key, size in zip(place.messages, place.history.keys, place.history.sizes, strict=True):
            node = self._child(node, message, key, size)
        key, size = message_key(written or reply)
        answer = self._child(node, reply, key, size)
        self._replies[key] = reply
        if reply.get("tool_calls"):  # some programs keep a reply's calls but not its text
            bare = message_key({**(written or reply), "content": None})[0]
            node.children.setdefault(bare, answer)
            self._replies.setdefault(bare, reply)
        answer.message, answer.samples[place.policy] = reply, sample
        if answer in node.replies:
            node.replies.remove(answer)
        node.replies.append(answer)
        self._answers[sample, chat_number] = answer
        quote = max((line.strip() for text in _told(reply) for line in text.split("\n")), key=len, default="")
        if len(quote) >= LEAST_QUOTE:
            self._quotes[ChatRef(sample, chat_number)] = quote[:MOST_QUOTE]
            if len(self._quotes) > MAX_QUOTES:
                del self._quotes[next(iter(self._quotes))]
        if place.parent is not None:
            self._parents.setdefault(sample, place.parent.sample)
        self._calls.pop(sample, None)
        if reply.get("tool_calls"):
            self._calls[sample] = ChatRef(sample, chat_number)

    def _quoted(self, messages: Sequence[Message]) -> ChatRef | None:
        """Return the newest chat whose reply is quoted in a user message; None if there is none."""
        told = "\n".join(filter(None, (text_of(message) for message in messages if message.get("role") == "user")))
        for chat, quote in reversed(self._quotes.items()):
            if quote in told:
                return chat
        return None

    def continued(self, sample: str, chat_number: int) -> bool:
        """Return whether a later, answered history contains the reply of a chat."""
        return bool(self._answers[sample, chat_number].children)

    def refused(self, place: Place) -> None:
        """Forget a history that was refused at once."""
        self._calls = place.calls

    def failed(self, place: Place, sample: str) -> None:
        """Record that a history got no reply. The same history then belongs to the same sample."""
        self._unanswered[place.history.digest, place.policy] = sample
        if len(self._unanswered) > MAX_UNANSWERED:
            del self._unanswered[next(iter(self._unanswered))]

    def _child(self, node: _Node, message: Message, key: bytes, size: int) -> _Node:
        child = node.children.get(key)
        if child is None:
            child = node.children[key] = _Node(message)
            self._free -= size
        return child

    def _goes_on(self, sample: str) -> None:
        """Forget the pending tool calls of a sample that continues, and those of samples that these calls started."""
        over = {sample}
        for child, parent in self._parents.items():
            if parent in over:
                over.add(child)
        self._calls = {name: call for name, call in self._calls.items() if name not in over}

    def _changed(self, history: History, policy: str) -> str:
        """Return the sample of a history in which the program has changed a reply, for example left out its reasoning.

        Such a history continues the sample, with another segment. Empty if there is no such sample.
        """
        node, sample = self._root, ""
        for message, key in zip(history.messages, history.keys, strict=True):
            child = node.children.get(key)
            if message.get("role") == "assistant" and node.replies and (child is None or not child.samples):
                child = node.replies[-1]
            if child is None:
                break
            node, sample = child, child.samples.get(policy, sample)
        return sample


def _told(reply: Message) -> Iterator[str]:
    """Yield the texts of a reply that another conversation may repeat: its own, and those in its calls."""
    yield text_of(reply)
    for call in reply.get("tool_calls") or ():
        arguments = arguments_object((call.get("function") or {}).get("arguments"))
        yield from (value for value in arguments.values() if isinstance(value, str))
