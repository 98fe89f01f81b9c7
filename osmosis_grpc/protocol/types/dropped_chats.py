"""Finds the chats whose replies the agent dropped.

An agent may ask the same question twice, to retry or to take the best of several replies. The reply with which the
conversation goes on is kept. The others are dropped, along with everything that continues them. Nothing else counts as
dropped: if the agent edits a reply, shortens its history, or asks several questions after the same history, its earlier
replies can be legitimate work.
"""

from collections.abc import Collection, Hashable, Mapping

from osmosis_grpc.protocol.types.conversation_tree import Conversation, Node


def dropped_chats(
    tree: Conversation, end: Node, forms: Mapping[int, Hashable], undecided: Collection[int] = ()
) -> set[int]:
    """Return the numbers of the dropped chats. `end` is the last message of the conversation.

    A chat is dropped if the question of its reply, or of a reply in its history, also got another reply, and the
    conversation goes on with that one. If the replies are equal as well, the newest one is kept. `forms` has what chats
    asked for besides their history; questions are equal only if this is equal, too. Chats in `undecided` never count as
    dropped.
    """
    replies = tree.replies
    if len({reply.parent for reply in replies.values()}) == len(replies):  # no history was asked twice
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
