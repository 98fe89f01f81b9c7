"""Segments: no sampled token under mask 1 twice, none left out, whatever shape the chats of a sample have."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import ChatPurpose, ChatResponse, Segment, SplitReason, TokenBlock, VersionSpan
from osmosis_grpc.protocol.types.segment_builder import SegmentBuilder

POLICY, JUDGE = ChatPurpose.POLICY, ChatPurpose.JUDGE


def response(prompt, reply, logprobs=None, *, prefix=0, versions=()) -> ChatResponse:
    """Returns a reply. Its logprobs are -1/(id + 1) by default."""
    logprobs = [-1 / (token + 1) for token in reply] if logprobs is None else logprobs
    return ChatResponse(
        message={"role": "assistant"},
        tokens=TokenBlock.of(reply, logprobs),
        prompt_prefix=prefix,
        versions=versions,
        prompt_ids=np.array(prompt, dtype="<u4"),
    )


def assembled(*chats) -> tuple[Segment, ...]:
    """The segments of chats given as (continues, prompt, reply)."""
    assembler = SegmentBuilder()
    for number, (parent_chat, prompt, reply) in enumerate(chats, start=1):
        assembler.add(number, parent_chat, response(prompt, reply), POLICY)
    return assembler.segments()


def shape(segment: Segment) -> tuple:
    return segment.ids.tolist(), segment.mask().tolist(), segment.chats, segment.drift_index


def test_one_chat():
    (segment,) = assembled((0, [1, 2], [3]))
    assert shape(segment) == ([1, 2, 3], [0, 0, 1], (1,), None)
    assert segment.logprobs.tolist() == [-0.25]


def test_a_linear_conversation_is_its_newest_prompt_and_reply():
    (segment,) = assembled((0, [1, 2], [3]), (1, [1, 2, 3, 4], [5, 6]), (2, [1, 2, 3, 4, 5, 6, 7], [8]))
    assert shape(segment) == ([1, 2, 3, 4, 5, 6, 7, 8], [0, 0, 1, 0, 1, 1, 0, 1], (1, 2, 3), None)
    assert segment.mask_runs == (2, 1, 1, 2, 1, 1)


def test_a_branch_begins_a_segment():
    first, second = assembled((0, [1], [2]), (1, [1, 2, 3], [4]), (1, [1, 2, 9], [5]))
    assert shape(first) == ([1, 2, 3, 4], [0, 1, 0, 1], (1, 2), None)
    assert shape(second) == ([1, 2, 9, 5], [0, 0, 0, 1], (3,), None)


def test_drift_begins_a_segment_and_tells_where():
    first, second = assembled((0, [1], [2, 3]), (1, [1, 2, 9, 4], [5]))
    assert shape(first) == ([1, 2, 3], [0, 1, 1], (1,), None)
    assert shape(second) == ([1, 2, 9, 4, 5], [0, 0, 0, 0, 1], (2,), 2)
    assert assembled((0, [1], [2]), (1, [9], [5]))[1].drift_index == 0
    assert assembled((0, [1], [2, 3]), (1, [1, 2], [5]))[1].drift_index == 2, "the prompt ends early"


# Chats as (parent chat, prompt, reply, how it is added), and why each segment begins.
JUDGED, RECORDED = {"purpose": ChatPurpose.JUDGE}, {"forked": True}
SPLITS = {
    "one segment": ([(0, [1], [2], {}), (1, [1, 2, 3], [4], {})], [None]),
    "a history that continues no chat": (
        [(0, [1], [2], {}), (0, [1, 9], [3], {}), (2, [1, 9, 3], [4], {})],
        [None, SplitReason.HISTORY_CHANGED],
    ),
    "a branch": ([(0, [1], [2], {}), (1, [1, 2, 3], [4], {}), (1, [1, 2, 9], [5], {})], [None, SplitReason.BRANCH]),
    "other tokens": ([(0, [1], [2], {}), (1, [1, 9], [3], {})], [None, SplitReason.TOKENS_DIFFER]),
    "other tokens in a branch": (
        [(0, [1], [2], {}), (1, [1, 2, 3], [4], {}), (1, [1, 9], [5], {})],
        [None, SplitReason.TOKENS_DIFFER],
    ),
    "after a recorded chat": ([(0, [1], [2], RECORDED), (1, [1, 2, 3], [4], {})], [SplitReason.RECORDED]),
    "after a judge's chat": (
        [(0, [1], [2], {}), (1, [1, 2, 3], [4], JUDGED), (2, [1, 2, 3, 4, 5], [6], {})],
        [None, SplitReason.JUDGE],
    ),
    "after a judge's chat without tokens": (
        [(0, [1], [2], {}), (1, None, None, JUDGED), (2, [1, 2, 3], [4], {})],
        [None, SplitReason.NO_TOKENS],
    ),
}


@pytest.mark.parametrize("refer", [False, True])
@pytest.mark.parametrize(("chats", "reasons"), SPLITS.values(), ids=list(SPLITS))
def test_each_segment_but_the_first_says_why_it_began(chats, reasons, refer):
    assembler = SegmentBuilder()
    for number, (parent_chat, prompt, reply, how) in enumerate(chats, 1):
        made = ChatResponse(message={"role": "assistant"}) if reply is None else response(prompt, reply)
        assembler.add(number, parent_chat, made, **{"purpose": POLICY, **how}, refer=refer, keep_ids=True)
    segments = assembler.references() if refer else assembler.segments()
    assert [segment.split for segment in segments] == reasons


def test_a_segment_that_is_cut_off_by_a_later_reply_says_why_it_began():
    """Chat 3 came first and grew the segment, until chat 2 with the lower number did."""
    assembler = SegmentBuilder()
    for number, prompt in ((1, [1]), (3, [1, 2, 9]), (2, [1, 2, 3])):
        assembler.add(number, min(number - 1, 1), response(prompt, [number + 1]), POLICY)
    reasons = {segment.chats: segment.split for segment in assembler.segments()}
    assert reasons == {(1, 2): None, (3,): SplitReason.BRANCH}


def test_chats_after_a_branch_or_drift_grow_the_new_segment():
    _, second = assembled((0, [1], [2]), (1, [1, 9], [3]), (2, [1, 9, 3, 4], [5]))
    assert shape(second) == ([1, 9, 3, 4, 5], [0, 0, 1, 0, 1], (2, 3), 1)


def test_the_same_chat_twice_is_two_segments():
    segments = assembled((0, [1], [2]), (0, [1], [2]), (1, [1, 2, 3], [4]), (1, [1, 2, 3], [4]))
    assert [segment.chats for segment in segments] == [(1, 3), (2,), (4,)]
    assert sum(segment.sampled for segment in segments) == 4


def test_segments_are_frozen_when_they_are_taken():
    assembler = SegmentBuilder()
    assembler.add(1, 0, response([1], [2]), POLICY)
    (before,) = assembler.segments()
    assembler.add(2, 1, response([1, 2, 3], [4]), POLICY)
    assert shape(before) == ([1, 2], [0, 1], (1,), None)
    for array in (before.ids, before.logprobs):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


UNTOLD = [
    ({"tokens": None}, "without token ids"),
    ({"prompt_ids": None}, "prompt"),
    ({"tokens": TokenBlock.of([5])}, "logprobs"),
    ({"tokens": TokenBlock.of([5, 6], [np.nan, -1.0])}, "logprob 0 is NaN"),
    ({"tokens": TokenBlock.of([5, 6, 7], [-1.0, np.nan, np.nan])}, "logprob 1 is NaN, and 1 more"),
]


@pytest.mark.parametrize(("lacking", "word"), UNTOLD, ids=lambda value: str(value)[:20])
def test_missing_tokens_make_no_segments_and_give_a_reason(lacking, word):
    assembler = SegmentBuilder()
    assembler.add(1, 0, response([1], [2]), POLICY)
    assert assembler.reason == ""
    assembler.add(2, 1, replace(response([1, 2, 3], [4]), **lacking), POLICY)
    assembler.add(3, 2, replace(response([1, 2, 3, 4], [5]), tokens=None), POLICY)
    assert assembler.segments() == ()
    assert assembler.reason.startswith("chat 2: ")
    assert word in assembler.reason
    assembler.add(4, 0, response([1], [2]), POLICY)
    assert assembler.segments() == (), "a later chat mends nothing"


def test_an_empty_reply_is_trainable():
    """An empty reply is complete, with an empty array of logprobs and without one."""
    for tokens in (TokenBlock.of([], []), TokenBlock.of([])):
        assembler = SegmentBuilder()
        assembler.add(1, 0, replace(response([1, 2], []), tokens=tokens), POLICY)
        assembler.add(2, 1, response([1, 2, 3], [4]), POLICY)
        assert assembler.reason == ""
        (segment,) = assembler.segments()
        assert shape(segment) == ([1, 2, 3, 4], [0, 0, 0, 1], (1, 2), None)


def test_a_judge_never_appears():
    assembler = SegmentBuilder()
    assembler.add(1, 0, response([1], [2]), POLICY)
    assembler.add(2, 1, response([1, 2, 3], [4]), JUDGE)
    assembler.add(3, 0, ChatResponse(message={"role": "assistant"}), JUDGE)
    assembler.add(4, 1, response([1, 2, 5], [6]), POLICY)
    (segment,) = assembler.segments()
    assert shape(segment) == ([1, 2, 5, 6], [0, 1, 0, 1], (1, 4), None)
    assert assembler.tokens(2).tolist() == [1, 2, 3, 4], "a chat that continues the judge's may leave them out"
    assert len(assembler.tokens(3)) == 0


def test_a_chat_may_leave_out_the_tokens_of_a_judges_chat():
    assembler = SegmentBuilder()
    assembler.add(1, 0, response([1], [2]), JUDGE)
    assembler.add(2, 1, response([3], [4], prefix=2), JUDGE)
    assembler.add(3, 2, response([5], [6], prefix=4), POLICY)
    (segment,) = assembler.segments()
    assert shape(segment) == ([1, 2, 3, 4, 5, 6], [0, 0, 0, 0, 0, 1], (3,), None)


def test_a_prefix_longer_than_the_continued_chat_is_refused():
    assembler = SegmentBuilder()
    assembler.add(1, 0, response([1], [2]), POLICY)
    for parent_chat, prefix in ((1, 3), (0, 1), (7, 1)):
        with pytest.raises(InvalidArgument) as refusal:
            assembler.add(2, parent_chat, response([9], [4], prefix=prefix), POLICY)
        assert refusal.value.violations[0][0] == "prompt_prefix"
    assert [segment.chats for segment in assembler.segments()] == [(1,)]


@dataclass
class Chat:
    """One chat of a made-up sample, and the tokens it really had."""

    chat_number: int
    parent_chat: int
    purpose: ChatPurpose
    prompt: list[int]
    reply: list[int]
    logprobs: list[float]
    versions: tuple[VersionSpan, ...]
    tokens: list[int] = field(init=False)

    def __post_init__(self):
        self.tokens = self.prompt + self.reply

    def response(self, prefix: int = 0) -> ChatResponse:
        return response(self.prompt[prefix:], self.reply, self.logprobs, prefix=prefix, versions=self.versions)


IDS = st.lists(st.integers(0, 3), max_size=4)  # few ids, so that prompts agree by accident too


@st.composite
def samples(draw) -> list[Chat]:
    """Chats that go on, rewind, drift, begin anew, repeat one another, or judge."""
    chats: dict[int, Chat] = {}
    for number in range(1, draw(st.integers(1, 8)) + 1):
        parent_chat = draw(st.sampled_from([number - 1, number - 1, *range(number)]))
        base = chats[parent_chat].tokens if parent_chat else []
        prompt = base + draw(IDS)
        if base and draw(st.integers(0, 3)) == 0:
            prompt = base[: draw(st.integers(0, len(base)))] + draw(IDS)
        reply = draw(IDS)
        logprobs = [-(number + index / 16) for index in range(len(reply))]
        cut = draw(st.integers(0, len(reply)))
        versions = draw(
            st.sampled_from(
                [
                    (VersionSpan("a", len(reply)),),
                    (VersionSpan("a", 12345),),  # one stands for all
                    (VersionSpan("a", cut), VersionSpan("b", len(reply) - cut)),
                    (),
                ]
            )
        )
        purpose = JUDGE if draw(st.integers(0, 7)) == 0 else POLICY
        chats[number] = Chat(number, parent_chat, purpose, prompt, reply, logprobs, versions)
    return list(chats.values())


def build(chats: list[Chat], prefix=lambda assembler, chat: 0) -> tuple[Segment, ...]:
    assembler = SegmentBuilder()
    for chat in chats:
        assembler.add(chat.chat_number, chat.parent_chat, chat.response(prefix(assembler, chat)), chat.purpose)
    assert assembler.reason == ""
    segments = assembler.segments()
    assert assembler.sampled == sum(segment.sampled for segment in segments)
    for chat in chats:
        assert assembler.tokens(chat.chat_number).tolist() == chat.tokens
    return segments


@given(samples())
def test_every_sampled_token_is_trained_on_exactly_once(chats):
    segments = build(chats)
    policy = {chat.chat_number: chat for chat in chats if chat.purpose is POLICY}
    assert sorted(number for segment in segments for number in segment.chats) == sorted(policy)
    assert sum(int(segment.mask().sum()) for segment in segments) == sum(len(c.reply) for c in policy.values())
    for segment in segments:
        segment.check("segment")
        trained = np.zeros(len(segment.ids), dtype=np.uint8)
        logprobs: list[float] = []
        for chat in (policy[number] for number in segment.chats):
            end = len(chat.tokens)
            assert segment.ids[:end].tolist() == chat.tokens, "a segment begins with all tokens of each of its chats"
            assert not trained[len(chat.prompt) :].any()
            trained[len(chat.prompt) : end] = 1
            logprobs += chat.logprobs
        assert len(segment.ids) == end, "and ends with its newest"
        assert segment.mask().tolist() == trained.tolist()
        assert segment.logprobs.tolist() == logprobs


@given(samples())
def test_a_segment_begins_only_after_a_branch_or_drift(chats):
    policy = {chat.chat_number: chat for chat in chats if chat.purpose is POLICY}
    tokens = {chat.chat_number: chat.tokens for chat in chats}
    for index, segment in enumerate(build(chats)):
        assert segment.split is not None or index == 0
        first, *others = (policy[number] for number in segment.chats)
        before = first
        for chat in others:
            assert chat.prompt[: len(before.tokens)] == before.tokens
            assert policy[chat.parent_chat].tokens == before.tokens
            before = chat
        base = tokens.get(first.parent_chat, [])
        shared = next((i for i, token in enumerate(base) if first.prompt[i : i + 1] != [token]), None)
        assert segment.drift_index == shared
        assert (segment.split is SplitReason.TOKENS_DIFFER) is (shared is not None)
        if first.parent_chat in policy and shared is None:
            lower = [c for c in policy.values() if c.chat_number < first.chat_number]
            branches = [c for c in lower if c.parent_chat == first.parent_chat and c.prompt[: len(base)] == base]
            assert branches, "neither drift nor a branch"


@given(samples())
def test_versions_add_up_or_are_empty(chats):
    by_number = {chat.chat_number: chat for chat in chats}
    for segment in build(chats):
        if not all(by_number[number].versions for number in segment.chats):
            assert segment.versions == ()
            continue
        assert sum(span.tokens for span in segment.versions) == segment.sampled
        told = [
            version
            for number in segment.chats
            for span in by_number[number].versions
            for version in [span.version] * (len(by_number[number].reply) if span.tokens == 12345 else span.tokens)
        ]
        assert [span.version for span in segment.versions for _ in range(span.tokens)] == told


@given(samples(), st.randoms())
def test_prompts_from_a_prefix_on_make_the_same_segments(chats, random):
    def shared(assembler: SegmentBuilder, chat: Chat) -> int:
        return assembler.shared_prefix(chat.parent_chat, np.array(chat.prompt, dtype="<u4"))

    def fewer(assembler: SegmentBuilder, chat: Chat) -> int:
        return random.randint(0, shared(assembler, chat))

    assert build(chats) == build(chats, shared) == build(chats, fewer)


@given(samples(), st.randoms())
def test_the_order_of_the_replies_makes_no_difference(chats, random):
    """Each chat is asked after the reply that it continues. Its own reply may come at any time after that."""
    left, answered, order = list(chats), {0}, []
    while left:
        chat = random.choice([chat for chat in left if chat.parent_chat in answered])
        left.remove(chat)
        answered.add(chat.chat_number)
        order.append(chat)

    def fewer(assembler: SegmentBuilder, chat: Chat) -> int:
        return random.randint(0, assembler.shared_prefix(chat.parent_chat, np.array(chat.prompt, dtype="<u4")))

    assert build(chats) == build(order) == build(order, fewer)


@given(samples(), st.randoms())
def test_an_assembler_without_earlier_ids_refers_to_the_same_segments(chats, random):
    """The ids are given to it again when a prompt repeats ids that it does not keep."""
    whole, bare, left, answered, added, refer = SegmentBuilder(), SegmentBuilder(), list(chats), {0}, [], True
    while left:
        chat = random.choice([chat for chat in left if chat.parent_chat in answered])
        left.remove(chat)
        answered.add(chat.chat_number)
        shared = whole.shared_prefix(chat.parent_chat, np.array(chat.prompt, dtype="<u4"))
        prefix = random.choice((shared, shared, shared, random.randint(0, shared)))
        if bare.lacks(chat.parent_chat, prefix):
            bare, refer = SegmentBuilder(), False
            for earlier, reply in added:
                bare.add(earlier.chat_number, earlier.parent_chat, reply, earlier.purpose)
            assert bare.chats == whole.chats
        added.append((chat, chat.response(prefix)))
        whole.add(chat.chat_number, chat.parent_chat, added[-1][1], chat.purpose)
        keep_ids = random.random() < 0.3
        bare.add(chat.chat_number, chat.parent_chat, added[-1][1], chat.purpose, refer=refer, keep_ids=keep_ids)
        assert bare.references() == whole.references()
        assert refer or bare.segments() == whole.segments()


def test_an_assembler_that_refers_keeps_the_ids_of_the_newest_chat_only():
    assembler = SegmentBuilder()
    assembler.add(1, 0, response([1], [2]), POLICY, refer=True)
    assert not assembler.lacks(1)
    assembler.add(2, 1, response([3], [4], prefix=2), POLICY, refer=True)
    assert assembler.lacks(2)
    assert assembler.lacks(1, 1)
    assert not assembler.lacks(1, 2), "all tokens of the chat are left out"
    assert not assembler.lacks(2, 2), "those of the newest chat are kept"


def test_a_reply_that_needs_dropped_ids_makes_the_sample_not_trainable():
    assembler = SegmentBuilder()
    assembler.add(1, 0, response([1], [2]), POLICY, refer=True)
    assembler.add(2, 1, response([3], [4], prefix=2), POLICY, refer=True)
    assert assembler.add(3, 2, response([2, 3, 4, 5], [6], prefix=1), POLICY, refer=True) == 5
    assert assembler.reason == "chat 3: the ids of chat 2 are lost"
    assert assembler.references() == ()
    assert assembler.add(4, 3, response([7], [8], prefix=6), POLICY, refer=True) == 7


def test_the_lower_of_two_chats_grows_the_segment_although_it_came_later():
    assembler = SegmentBuilder()
    replies = {
        1: (0, response([1], [2])),
        3: (1, response([1, 2, 7], [8])),
        4: (3, response([9], [10], prefix=4)),
        2: (1, response([3], [4], prefix=2)),
    }
    for number, (parent_chat, reply) in replies.items():
        assembler.add(number, parent_chat, reply, POLICY)
    before = assembler.tokens(4)
    first, second = assembler.segments()
    assert shape(first) == ([1, 2, 3, 4], [0, 1, 0, 1], (1, 2), None)
    assert shape(second) == ([1, 2, 7, 8, 9, 10], [0, 0, 0, 1, 0, 1], (3, 4), None)
    assert before.tolist() == assembler.tokens(4).tolist() == [1, 2, 7, 8, 9, 10]
    assert assembler.tokens(2).tolist() == [1, 2, 3, 4]


def test_a_long_sample_of_short_prompts():
    """Four hundred turns, each sending only what is new."""
    assembler, prompt = SegmentBuilder(), list(range(50))
    for number in range(1, 401):
        assembler.add(number, number - 1, response(prompt[-50:], range(50), prefix=len(prompt) - 50), POLICY)
        prompt = [*prompt, *range(50), *range(50)]
    (segment,) = assembler.segments()
    assert segment.ids.tolist() == prompt[:-50]
    assert segment.mask_runs == (50, 50) * 400
    assert segment.mask().tolist() == ([0] * 50 + [1] * 50) * 400


def unsplit(segments) -> list[Segment]:
    """Returns segments without the reasons for which they began: they depend on the segments before them."""
    return [replace(segment, split=None) for segment in segments]


@given(samples(), st.randoms())
def test_without_dropped_chats_the_others_grow_as_if_these_had_not_been_asked(chats, random):
    left = {chat.chat_number for chat in chats if random.random() < 0.3}
    for chat in chats:
        left |= {chat.chat_number} if chat.parent_chat in left else set()
    assembler = SegmentBuilder()
    for chat in chats:
        made = chat.response(assembler.shared_prefix(chat.parent_chat, np.array(chat.prompt, dtype="<u4")))
        assembler.add(chat.chat_number, chat.parent_chat, made, chat.purpose)
    tokens = {chat.chat_number: assembler.tokens(chat.chat_number).tolist() for chat in chats}
    assembler.drop(left)
    segments = assembler.segments()
    kept = [segment for segment in segments if not segment.dropped]
    assert unsplit(kept) == unsplit(build([chat for chat in chats if chat.chat_number not in left]))
    judged = {chat.chat_number for chat in chats if chat.purpose is JUDGE}
    assert sorted(n for segment in segments if segment.dropped for n in segment.chats) == sorted(left - judged)
    assert {chat.chat_number: assembler.tokens(chat.chat_number).tolist() for chat in chats} == tokens
    for segment in segments:
        segment.check("segment")
    assembler.drop(left)
    assert assembler.segments() == segments, "twice is once"


@given(samples(), st.randoms())
def test_an_assembler_without_ids_drops_the_same_chats(chats, random):
    left = {chat.chat_number for chat in chats if random.random() < 0.3}
    whole, bare = SegmentBuilder(), SegmentBuilder()
    for chat in chats:
        made = chat.response(whole.shared_prefix(chat.parent_chat, np.array(chat.prompt, dtype="<u4")))
        if bare.lacks(chat.parent_chat, made.prompt_prefix):
            break  # the ids would be read from the journal
        whole.add(chat.chat_number, chat.parent_chat, made, chat.purpose)
        bare.add(chat.chat_number, chat.parent_chat, made, chat.purpose, refer=True)
    for assembler in (whole, bare):
        assembler.drop(left)
    assert bare.references() == whole.references()


def test_a_dropped_chat_that_a_kept_one_continues_is_kept():
    assembler = SegmentBuilder()
    for number, parent_chat, prompt, reply in ((1, 0, [1], [2]), (2, 1, [1, 2, 3], [4])):
        assembler.add(number, parent_chat, response(prompt, reply), POLICY)
    assembler.drop({1})
    assert [(segment.chats, segment.dropped) for segment in assembler.segments()] == [((1, 2), False)]


def test_a_view_does_not_change_when_the_segment_grows():
    assembler = SegmentBuilder()
    assembler.add(1, 0, response([1] * 200, [2] * 50), POLICY)
    tokens, prompt, segments = assembler.tokens(1), assembler.prompt(1), assembler.segments()
    for number in range(2, 9):
        assembler.add(number, number - 1, response([0] * 300 * (number - 1), [3] * 50), POLICY)
        assembler.add(number + 100, 1, response([number] * 100, [4] * 50, prefix=250), POLICY)
    assert tokens.tolist() == segments[0].ids.tolist() == [1] * 200 + [2] * 50
    assert prompt.tolist() == [1] * 200


def test_a_reply_without_its_prompt_has_no_prompt_length():
    assert SegmentBuilder().prompt_length(0, replace(response([1], [2]), prompt_ids=None)) is None
