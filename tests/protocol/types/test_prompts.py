"""Prompts whole or as a prefix and what follows: the segments are the same, and so is every prompt read back."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import ChatPurpose, ChatResponse, TokenBlock
from osmosis_grpc.protocol.types.segment_assembly import Assembler

POLICY, JUDGE = ChatPurpose.POLICY, ChatPurpose.JUDGE
IDS = st.lists(st.integers(0, 3), max_size=6)


@st.composite
def samples(draw):
    """Draws chats as (continues, prompt, reply, sent prefix, purpose): growing, drifting, branching, judged."""
    chats, tokens = [], {0: []}
    for number in range(1, draw(st.integers(1, 8)) + 1):
        parent_chat = draw(st.sampled_from(sorted(tokens)))
        known = tokens[parent_chat]
        prompt = [*known[: draw(st.one_of(st.just(len(known)), st.integers(0, len(known))))], *draw(IDS)]
        shared = next(
            (i for i, (a, b) in enumerate(zip(known, prompt, strict=False)) if a != b), min(map(len, (known, prompt)))
        )
        prefix = draw(st.one_of(st.just(shared), st.integers(0, shared)))
        reply = draw(IDS)
        purpose = draw(st.sampled_from([POLICY, POLICY, POLICY, JUDGE]))
        tokens[number] = [*prompt, *reply]
        chats.append((parent_chat, prompt, reply, prefix, purpose))
    return chats


def whole(prompt, reply):
    return ChatResponse(
        message={"role": "assistant"},
        prompt_ids=np.array(prompt, dtype="<u4"),
        tokens=TokenBlock.of(reply, [-0.5 - token for token in reply]),
    )


def short(prompt, reply, prefix):
    return replace(whole(prompt, reply), prompt_ids=np.array(prompt[prefix:], dtype="<u4"), prompt_prefix=prefix)


@pytest.mark.slow
@given(samples())
def test_either_form_makes_the_same_segments(chats):
    one, other = Assembler(), Assembler()
    for number, (parent_chat, prompt, reply, prefix, purpose) in enumerate(chats, start=1):
        told = short(prompt, reply, prefix)
        if purpose is POLICY:
            assert (
                other.prompt_length(parent_chat, told)
                == len(prompt)
                == one.prompt_length(parent_chat, whole(prompt, reply))
            )
            known = other.tokens(parent_chat)
            shared = other.shared_prefix(parent_chat, np.array(prompt, dtype="<u4"))
            assert prefix <= shared <= min(len(known), len(prompt))
            assert known[:shared].tolist() == prompt[:shared]
            assert shared in (len(known), len(prompt)) or known[shared] != prompt[shared]
        one.add(number, parent_chat, whole(prompt, reply), purpose)
        other.add(number, parent_chat, told, purpose)
    assert one.segments() == other.segments()
    assert one.sampled == other.sampled == sum(len(reply) for _, _, reply, _, purpose in chats if purpose is POLICY)
    for number, (_, prompt, reply, _, _) in enumerate(chats, start=1):
        for assembler in (one, other):
            assert assembler.prompt(number).tolist() == prompt
            assert assembler.tokens(number).tolist() == [*prompt, *reply]
    told = [number for segment in one.segments() for number in segment.chats]
    assert sorted(told) == [n for n, chat in enumerate(chats, start=1) if chat[4] is POLICY]
    for segment in one.segments():
        segment.check("segment")
        assert segment.sampled == sum(len(chats[number - 1][2]) for number in segment.chats)


@pytest.mark.parametrize(("parent_chat", "prefix"), [(0, 1), (1, 5), (7, 1), (7, 2**32 - 1)])
def test_a_prefix_longer_than_the_continued_chat_is_refused(parent_chat, prefix):
    assembler = Assembler()
    assembler.add(1, 0, whole([1, 2], [3, 0]), POLICY)
    before = assembler.segments()
    told = replace(whole([9], [1]), prompt_prefix=prefix)
    for call in (
        lambda: assembler.prompt_length(parent_chat, told),
        lambda: assembler.add(2, parent_chat, told, POLICY),
    ):
        with pytest.raises(InvalidArgument) as refusal:
            call()
        assert refusal.value.violations[0][0] == "prompt_prefix"
    assert assembler.segments() == before
    assert assembler.reason == ""
    assert not len(assembler.tokens(2))


def test_a_view_does_not_change_when_the_segment_grows():
    assembler = Assembler()
    assembler.add(1, 0, whole([1] * 200, [2] * 50), POLICY)
    tokens, prompt = assembler.tokens(1), assembler.prompt(1)
    held = assembler.segments()
    for number in range(2, 9):
        assembler.add(number, number - 1, short([0] * 300 * (number - 1), [3] * 50, 0), POLICY)
        assembler.add(number + 100, 1, short([1] * 200 + [2] * 50 + [number] * 100, [4] * 50, 250), POLICY)
    assert tokens.tolist() == [1] * 200 + [2] * 50
    assert prompt.tolist() == [1] * 200
    assert held[0].ids.tolist() == [1] * 200 + [2] * 50


def test_no_prompt_has_no_length():
    assert Assembler().prompt_length(0, replace(whole([1], [2]), prompt_ids=None)) is None
