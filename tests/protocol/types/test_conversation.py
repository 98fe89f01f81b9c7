"""The tree of a sample: which earlier chat a history continues."""

import copy
import gc
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types.conversation_tree import Conversation, Node, path


def user(text, **more):
    return {"role": "user", "content": text, **more}


def said(text):
    return {"role": "assistant", "content": text}


def chat(tree: Conversation, number: int, history: list, reply: dict) -> tuple[int, int]:
    """Ask and answer a chat; what it continued, and how many messages that covers."""
    position = tree.insert(history)
    assert path(position.node) == history
    tree.answer(position.node, copy.deepcopy(reply), number)
    return position.parent_chat, position.prefix_len


def outline(node: Node) -> list:
    """A tree as plain values, to compare."""
    return [node.message, node.chat, [outline(child) for child in reversed(list(node.children))]]


def test_a_linear_conversation_continues_the_newest_chat():
    tree, history = Conversation(), [user("a")]
    for number in range(1, 6):
        prefix_len = 0 if number == 1 else len(history) - 1
        assert chat(tree, number, history, said(f"reply {number}")) == (number - 1, prefix_len)
        history = [*history, said(f"reply {number}"), user(f"next {number}")]


def test_several_messages_between_replies():
    tree = Conversation()
    history = [{"role": "system", "content": "s"}, user("a")]
    assert chat(tree, 1, history, said("x")) == (0, 0)
    history = [*history, said("x"), {"role": "tool", "content": "1"}, {"role": "tool", "content": "2"}, user("b")]
    assert chat(tree, 2, history, said("y")) == (1, 3)


def test_a_rewind_continues_an_older_chat():
    tree = Conversation()
    chat(tree, 1, [user("a")], said("x"))
    chat(tree, 2, [user("a"), said("x"), user("b")], said("y"))
    assert chat(tree, 3, [user("a"), said("x"), user("c")], said("z")) == (1, 2)
    assert chat(tree, 4, [user("a"), said("x"), user("b"), said("y"), user("d")], said("w")) == (2, 4)
    assert chat(tree, 5, [user("a"), said("x"), user("c"), said("z"), user("d")], said("v")) == (3, 4)


def test_another_beginning_continues_nothing():
    tree = Conversation()
    chat(tree, 1, [user("a")], said("x"))
    assert chat(tree, 2, [user("b"), said("x"), user("c")], said("y")) == (0, 0)
    assert chat(tree, 3, [said("x")], said("y")) == (0, 0)


def test_a_reply_that_the_loop_rewrote_is_not_continued():
    tree = Conversation()
    chat(tree, 1, [user("a")], said("x"))
    assert chat(tree, 2, [user("a"), said("x, shortened"), user("b")], said("y")) == (0, 0)
    assert chat(tree, 3, [user("a"), {**said("x"), "name": "n"}, user("b")], said("y")) == (0, 0)


def test_a_history_that_ends_in_a_reply_continues_it():
    tree = Conversation()
    chat(tree, 1, [user("a")], said("x"))
    assert chat(tree, 2, [user("a"), said("x")], said("y")) == (1, 2)


def test_the_same_chat_twice_with_other_replies():
    tree = Conversation()
    assert chat(tree, 1, [user("a")], said("x")) == (0, 0)
    assert chat(tree, 2, [user("a")], said("y")) == (0, 0)
    assert tree.insert([user("a"), said("x"), user("b")]).parent_chat == 1
    assert tree.insert([user("a"), said("y"), user("b")]).parent_chat == 2


def test_of_equal_chats_with_equal_replies_the_newest_is_continued():
    tree = Conversation()
    for number in (1, 2, 3):
        chat(tree, number, [user("a")], said("x"))
        assert tree.insert([user("a"), said("x"), user("b")])[1:] == (number, 2)
    assert tree.reply(1) is tree.reply(2) is tree.reply(3)


def test_the_newest_is_the_one_with_the_highest_number_whichever_was_answered_last():
    """Concurrent chats are answered in any order, which may differ between the two ends."""
    tree = Conversation()
    position = tree.insert([user("a")])
    for number in (2, 3, 1):
        tree.answer(position.node, said("x"), number)
    assert tree.insert([user("a"), said("x"), user("b")]).parent_chat == 3


def test_equal_histories_end_in_the_same_node():
    tree = Conversation()
    one = tree.insert([user("a"), user("b")])
    assert tree.insert([user("a"), user("b")]) == one
    assert tree.insert([user("a"), user("b", name=None)]).node is not one.node
    assert tree.insert([{"content": "a", "role": "user"}, user("b")]).node is one.node


WRAPS = pytest.mark.parametrize("wrap", [lambda v: v, lambda v: {"deep": [0, v]}], ids=["plain", "deep"])


@pytest.mark.parametrize(("one", "other"), [(1, 1.0), (100, 1e2), (0.0, -0.0), (0, 0.0), (2**62, float(2**62))])
@WRAPS
def test_numbers_of_one_value_are_equal_whatever_their_spelling(one, other, wrap):
    tree = Conversation()
    positions = [tree.insert([user("a", n=wrap(value))]).node for value in (one, other)]
    assert positions[0] is positions[1]


@pytest.mark.parametrize(("one", "other"), [(1, True), (1.0, True), (0, False), (2**53 + 1, float(2**53)), (1, "1")])
@WRAPS
def test_other_values_are_other_messages(one, other, wrap):
    tree = Conversation()
    positions = [tree.insert([user("a", n=wrap(value))]).node for value in (one, other)]
    assert positions[0] is not positions[1]
    tree.answer(positions[0], said("x"), 1)
    assert tree.insert([user("a", n=wrap(one)), said("x")]).parent_chat == 1
    assert tree.insert([user("a", n=wrap(other)), said("x")]).parent_chat == 0


def test_changing_a_message_after_the_call_does_not_reach_the_tree():
    tree, history = Conversation(), [user(["p", {"q": [1]}])]
    position = tree.insert(history)
    tree.answer(position.node, said("x"), 1)
    before = copy.deepcopy(history)
    history[0]["content"][1]["q"].append(2)
    history[0]["more"] = 1
    assert path(position.node) == before
    assert tree.insert([*before, said("x")]).parent_chat == 1
    assert tree.insert([*history, said("x")]).parent_chat == 0


def test_tuples_are_lists():
    tree = Conversation()
    assert tree.insert([user(["a"])]).node is tree.insert([user(("a",))]).node


def test_nothing_can_follow_an_unknown_chat():
    tree = Conversation()
    assert tree.insert_after(1, [user("b")]) is None
    assert tree.reply(1) is None
    chat(tree, 1, [user("a")], said("x"))
    assert tree.insert_after(1, [user("b")]) == tree.insert([user("a"), said("x"), user("b")])
    assert tree.insert_after(2, [user("b")]) is None


BAD = [
    {"role": "robot", "content": "a"},
    {"content": "a"},
    "text",
    None,
    user(float("nan")),
    user("\ud800"),
    user({1: 2}),
    user(object()),
    user("a", n=Decimal(1)),
    user("a", n=np.int64(1)),
    user(np.array([1, 2])),
]


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: ascii(bad)[:40])
def test_a_bad_message_leaves_the_tree_as_it_was(bad):
    """Earlier messages in the tree make no difference, even if Python finds them equal."""
    tree = Conversation()
    chat(tree, 1, [user("a", n=1)], said("x"))
    tree.insert([user("a")])
    before = copy.deepcopy(outline(tree.root))
    known = [user("a", n=1), said("x")]
    for history in ([bad], [*known, bad], [*known, user("new"), bad], [user("new"), bad, user("newer")]):
        with pytest.raises(InvalidArgument) as refusal:
            tree.insert(history, "messages")
        assert refusal.value.violations[0][0].startswith(f"messages[{[m is bad for m in history].index(True)}]")
        assert outline(tree.root) == before
    with pytest.raises(InvalidArgument):
        tree.insert_after(1, [user("new"), bad])
    assert outline(tree.root) == before


TEXT = st.sampled_from(["a", "b", 1, 1.0, None])
TURN = st.tuples(st.integers(0, 5), st.lists(TEXT, max_size=2), TEXT)


@given(st.lists(TURN, min_size=1, max_size=8))
def test_placing_in_full_equals_placing_after_the_chat(turns):
    """Whatever form a history travels in, it ends in one node and continues one chat."""
    tree, twin = Conversation(), Conversation()
    histories: dict[int, list] = {0: []}
    for number, (back, texts, reply) in enumerate(turns, start=1):
        parent_chat = max(0, number - 1 - back)
        new = [user(text) for text in texts]
        full = histories[parent_chat] + new
        position = tree.insert(full)
        assert path(position.node) == full
        if parent_chat:
            assert tree.insert_after(parent_chat, new) == position
            assert twin.insert_after(parent_chat, new)[1:] == position[1:]
        else:
            assert twin.insert(full)[1:] == position[1:]
        known = [n for n, h in histories.items() if n and full[: len(h)] == h]
        longest = max((len(histories[n]) for n in known), default=0)
        assert position.prefix_len == longest
        assert position.parent_chat == max((n for n in known if len(histories[n]) == longest), default=0)
        tree.answer(position.node, said(reply), number)
        twin.answer(twin.insert(full).node, said(reply), number)
        histories[number] = [*full, said(reply)]
        assert path(tree.reply(number)) == histories[number]
    assert outline(tree.root) == outline(twin.root)


def test_a_released_tree_is_freed_without_garbage_collection():
    tree = Conversation()
    first = tree.insert([user("a"), user("b")]).node
    tree.answer(first, {"role": "assistant", "content": "c"}, 1)
    for other in "xyz":
        tree.insert([user("a"), user(other), user("d")])
        tree.insert([user("a"), user(other), user("e")])

    def nodes():
        return sum(type(each) is Node for each in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        before = nodes()
        tree.release()
        assert path(first) == [user("a"), user("b")], "a history can still be read"
        del tree, first
        assert before - nodes() == 13
    finally:
        gc.enable()
