"""Finds the chats whose replies the agent dropped.

An agent may send the same chat several times, to retry or to take the best reply. The reply with which the conversation
continues is kept. The others are dropped, along with all chats that continue them. Nothing else counts as dropped: if
the agent edits a reply, shortens its history, or sends different chats after the same history, its earlier replies may
still be useful work.
"""

from collections.abc import Collection, Hashable, Mapping

from osmosis_grpc.protocol.types.conversation_tree import Conversation, Node


def dropped_chats(
    tree: Conversation, end: Node, forms: Mapping[int, Hashable], undecided: Collection[int] = ()
) -> set[int]:
    """Return the numbers of the dropped chats. `end` is the last message of the conversation.

    A chat is dropped if an equal chat, or one equal to a chat in its history, also got a reply, and the conversation
    continues with that one. If the replies are equal, too, the newest one is kept. Chats are equal if their histories
    and their values in `forms` are. Chats in `undecided` never count as dropped.
    """
    replies = tree.replies
    if len({reply.parent for reply in replies.values()}) == len(replies):  # no history was sent twice
        return set()
    line: dict[Node, Node | None] = {}
    node: Node | None = end
    following: Node | None = None
    while node is not None:
        line[node] = following
        following, node = node, node.parent
    found = set()
    for number, reply in replies.items():
        branch, at = None, reply
        while at not in line and at.parent is not None:
            branch, at = at, at.parent
        own, kept = (number, reply.chat) if branch is None else (branch.chat, _chat_of(line[at]))
        if own and kept and own != kept and forms.get(own) == forms.get(kept) and number not in undecided:
            found.add(number)
    return found


def _chat_of(node: Node | None) -> int:
    return 0 if node is None else node.chat
