"""pad(): from outcomes to padded arrays, and back."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from osmosis_grpc.policies import ScriptedPolicy
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import Failure, OutcomeStatus, RaggedTensor, Sample, Segment, Tensor, VersionSpan
from osmosis_grpc.trainer import Advantages, OutcomeGroup, RolloutOutcome, Row, Skipped, Trainer, advantages, pad
from tests.trainer.conftest import talker


def segment(runs, seed=0, versions=()):
    """A segment with these runs of the mask."""
    random = np.random.default_rng(seed)
    return Segment(
        ids=random.integers(0, 2**32, sum(runs), dtype=np.uint32),
        logprobs=-random.random(sum(runs[1::2]), dtype=np.float32),
        mask_runs=tuple(runs),
        versions=tuple(versions),
    )


@st.composite
def segments(draw):
    runs = draw(st.lists(st.integers(0, 4), min_size=1, max_size=6))
    left, spans = sum(runs[1::2]), []
    if draw(st.booleans()):
        while left:
            tokens = draw(st.integers(1, left))
            spans.append(VersionSpan(draw(st.sampled_from(["", "v1", "v2"])), tokens))
            left -= tokens
    return segment(runs, draw(st.integers(0, 2**31)), spans)


@st.composite
def outcomes(draw):
    made = []
    for number in range(draw(st.integers(1, 4))):
        samples = {
            name: Sample(trainable=True, segments=tuple(draw(st.lists(segments(), min_size=1, max_size=3))))
            for name in draw(st.lists(st.sampled_from(["main", "helper", "critic"]), min_size=1, unique=True))
        }
        made.append(completed(f"r{number}", reward=draw(st.floats(-4, 4, width=32)), samples=samples))
    return made


def completed(rollout_id="r", *, reward=1.0, samples=None, **fields):
    samples = {"main": Sample(trainable=True, segments=(segment((2, 3)),))} if samples is None else samples
    defaults = {"status": OutcomeStatus.COMPLETED, "reward": reward, "samples": samples}
    return RolloutOutcome(rollout_id=rollout_id, **(defaults | fields))


def by_token(segment):
    """The version of each token under the mask; None where the policy did not name it."""
    if not segment.versions:
        return [None] * segment.sampled
    return [span.version for span in segment.versions for _ in range(span.tokens)]


def rebuilt(batch, number):
    """What a row holds of its segment: ids, mask, logprobs, versions."""
    there = batch.attention_mask[number]
    mask = batch.loss_mask[number][there]
    names = [None if index < 0 else batch.version_names[index] for index in batch.versions[number][there][mask]]
    return batch.ids[number][there], mask, batch.logprobs[number][there][mask], names


@pytest.mark.slow
@settings(deadline=None)
@given(outcomes(), st.sampled_from(["left", "right"]), st.sampled_from([0, 7, 2**32 - 1, -100]))
def test_segments_can_be_rebuilt_from_rows(given_outcomes, side, pad_id):
    batch = pad(given_outcomes, side=side, pad_id=pad_id)
    wanted = [
        (Row(index, outcome.rollout_id, name, number), segment, outcome.reward)
        for index, outcome in enumerate(given_outcomes)
        for name, sample in outcome.samples.items()
        for number, segment in enumerate(sample.segments)
    ]
    assert batch.rows == tuple(row for row, _, _ in wanted)
    assert len(batch) == len(wanted)
    width = max((len(segment.ids) for _, segment, _ in wanted), default=0)
    for array in (batch.ids, batch.attention_mask, batch.loss_mask, batch.logprobs, batch.versions):
        assert array.shape == (len(wanted), width)
    for number, (_, segment, reward) in enumerate(wanted):
        ids, mask, logprobs, names = rebuilt(batch, number)
        assert np.array_equal(ids, segment.ids)
        assert np.array_equal(mask, segment.mask())
        assert np.array_equal(logprobs, segment.logprobs)
        assert names == by_token(segment)
        assert batch.rewards[number] == np.float32(reward)
        assert batch.lengths[number] == len(segment.ids)
        padding = ~batch.attention_mask[number]
        assert (batch.ids[number][padding] == pad_id).all()
        assert not batch.logprobs[number][~batch.loss_mask[number]].any()
        assert (np.diff(batch.attention_mask[number].astype(int)) * (1 if side == "left" else -1) >= 0).all()
    assert not batch.loss_mask[~batch.attention_mask].any()
    assert not batch.truncated.any()


def test_the_arrays_of_one_batch():
    long = Segment(
        ids=np.array([1, 2, 3, 4], "<u4"),
        logprobs=np.array([-0.5, -0.25], "<f4"),
        mask_runs=(2, 2),
        versions=(VersionSpan("step-1", 1), VersionSpan("step-2", 1)),
    )
    short = Segment(ids=np.array([5, 6], "<u4"), logprobs=np.array([-1.0], "<f4"), mask_runs=(1, 1))
    given_outcomes = [
        completed("a", reward=1.0, samples={"main": Sample(trainable=True, segments=(long,))}),
        completed("b", reward=0.0, samples={"main": Sample(trainable=True, segments=(short,))}),
    ]
    batch = pad(given_outcomes, advantages=advantages(given_outcomes, "grpo_no_std"), pad_id=9, side="left")
    assert batch.ids.tolist() == [[1, 2, 3, 4], [9, 9, 5, 6]]
    assert batch.attention_mask.tolist() == [[True] * 4, [False, False, True, True]]
    assert batch.loss_mask.tolist() == [[False, False, True, True], [False, False, False, True]]
    assert batch.logprobs.tolist() == [[0, 0, -0.5, -0.25], [0, 0, 0, -1.0]]
    assert batch.versions.tolist() == [[-1, -1, 0, 1], [-1, -1, -1, -1]]
    assert batch.version_names == ("step-1", "step-2")
    assert batch.rewards.tolist() == [1.0, 0.0]
    assert batch.advantages.tolist() == [0.5, -0.5]
    assert batch.lengths.tolist() == [4, 2]
    assert (batch.pad_id, batch.side, batch.skipped) == (9, "left", ())


def test_every_segment_has_its_samples_reward_and_advantage():
    main = Sample(trainable=True, segments=(segment((1, 2)), segment((3, 1))), reward=1.0)
    helper = Sample(trainable=True, segments=(segment((1, 1)),), reward=5.0)
    one = completed("a", reward=None, samples={"main": main, "helper": helper})
    two = completed("b", reward=None, samples={"main": replace(main, reward=0.0), "helper": helper})
    batch = pad([one, two], advantages=advantages([one, two], "grpo_no_std"))
    assert [(row.rollout_id, row.sample, row.segment) for row in batch.rows] == [
        ("a", "main", 0),
        ("a", "main", 1),
        ("a", "helper", 0),
        ("b", "main", 0),
        ("b", "main", 1),
        ("b", "helper", 0),
    ]
    assert batch.rewards.tolist() == [1.0, 1.0, 5.0, 0.0, 0.0, 5.0]
    assert batch.advantages.tolist() == [0.5, 0.5, 0.0, -0.5, -0.5, 0.0]


def test_several_groups_in_one_batch():
    groups = [
        OutcomeGroup(id=name, size=2, outcomes=(completed(f"{name}-0", reward=1.0), completed(f"{name}-1", reward=0.0)))
        for name in ("g", "h")
    ]
    batch = pad(groups, advantages=[advantages(group, "grpo_no_std") for group in groups])
    assert [row.rollout_id for row in batch.rows] == ["g-0", "g-1", "h-0", "h-1"]
    assert [row.outcome for row in batch.rows] == [0, 1, 2, 3]
    assert batch.advantages.tolist() == [0.5, -0.5, 0.5, -0.5]
    with pytest.raises(InvalidArgument, match="advantages: have none of rollout h-0"):
        pad(groups, advantages=advantages(groups[0]))
    assert pad(groups).advantages is None
    assert isinstance(advantages(groups[0]), Advantages)


@pytest.mark.parametrize("numbers", [[1, 2.5, -3], (1, 2.5, -3), np.array([1, 2.5, -3]), iter([1, 2.5, -3])])
def test_one_number_for_each_outcome(numbers):
    """All samples and segments of an outcome get it, groups counted by their outcomes."""
    main = Sample(trainable=True, segments=(segment((1, 2)), segment((3, 1))))
    helper = Sample(trainable=True, segments=(segment((1, 1)),))
    failed = completed("b", reward=None, status=OutcomeStatus.FAILED)
    group = OutcomeGroup(id="g", size=2, outcomes=(completed("a", samples={"main": main, "helper": helper}), failed))
    batch = pad([group, completed("c")], advantages=numbers, untrainable="skip")
    assert [row.rollout_id for row in batch.rows] == ["a", "a", "a", "c"]
    assert batch.advantages.tolist() == [1.0, 1.0, 1.0, -3.0]
    assert batch.advantages.dtype == np.float32


@pytest.mark.parametrize(
    ("given_advantages", "problem"),
    [
        ([1, 2, 3], "has 3 numbers for 2 outcomes"),
        (np.zeros(3), "has 3 numbers for 2 outcomes"),
        (5.0, "is a float"),
        (["1", "2"], "holds what is not a number"),
        (np.zeros((2, 1)), "holds what is not a number"),
        ([[1], [1, 2]], "holds what is not a number"),
        ([advantages([completed("a")]), 1.0], "holds what is not a number"),
    ],
)
def test_other_advantages_are_refused(given_advantages, problem):
    wanted = r"pass advantages\(group\) for every group in the batch, or one number for each outcome"
    with pytest.raises(InvalidArgument, match=f"advantages: {problem}; {wanted}"):
        pad([completed("a"), completed("b")], advantages=given_advantages)


def test_a_batch_is_printed_in_one_line():
    many = [
        completed(f"r{n}", samples={"main": Sample(trainable=True, segments=(segment((40, 60)),))}) for n in range(64)
    ]
    text = repr(pad(many, advantages=[0.0] * 64))
    assert "\n" not in text
    assert len(text) < 400
    assert text.startswith("Batch(rows=64, ids=int64[64, 100], attention_mask=bool[64, 100], ")
    assert "advantages=float32[64]" in text
    assert "advantages=None" in repr(pad(many))


UNTRAINABLE = {
    "failed": (
        completed("bad", reward=None, status=OutcomeStatus.FAILED, failure=Failure("agent", "it broke")),
        "FAILED: it broke",
    ),
    "cancelled": (completed("bad", reward=None, status=OutcomeStatus.CANCELLED), "CANCELLED"),
    "an evaluation": (completed("bad", evaluation=True), "evaluation"),
    "no reward": (completed("bad", reward=None), "no reward"),
    "no tokens": (completed("bad", samples={"main": Sample(not_trainable_reason="no ids")}), "main: no ids"),
    "no sample": (completed("bad", samples={}), "no reply"),
}


@pytest.mark.parametrize("case", UNTRAINABLE)
def test_pad_refuses_by_name_what_must_not_be_trained_on(case):
    bad, reason = UNTRAINABLE[case]
    with pytest.raises(InvalidArgument, match=f"rollout bad is not trained on: .*{reason}.*untrainable="):
        pad([completed("good"), bad])
    batch = pad([bad, completed("good")], untrainable="skip")
    assert batch.rows == (Row(1, "good", "main", 0),)
    assert batch.skipped == (Skipped("bad", "", bad.not_trainable_reason),)


def test_a_sample_without_tokens_beside_one_with_them_is_listed():
    good = Sample(trainable=True, segments=(segment((1, 1)),))
    outcome = completed("r", samples={"judge": Sample(not_trainable_reason="no ids"), "main": good})
    batch = pad([outcome])
    assert [row.sample for row in batch.rows] == ["main"]
    assert batch.skipped == (Skipped("r", "judge", "no ids"),)


def test_a_segment_that_is_too_long():
    two = Sample(trainable=True, segments=(segment((2, 1)), segment((2, 4), versions=[VersionSpan("v", 4)])))
    outcome = completed("r", samples={"main": two})
    with pytest.raises(InvalidArgument, match=r"rollout r, sample main: segment 1 has 6 tokens.*max_length 4"):
        pad([outcome], max_length=4)
    cut = pad([outcome], max_length=4, too_long="truncate")
    assert np.array_equal(cut.ids[1], two.segments[1].ids[:4])
    assert np.array_equal(cut.logprobs[1][2:], two.segments[1].logprobs[:2])
    assert cut.versions[1].tolist() == [-1, -1, 0, 0]
    assert (cut.lengths.tolist(), cut.truncated.tolist()) == ([3, 4], [False, True])
    left = pad([outcome], max_length=4, too_long="skip")
    assert [row.segment for row in left.rows] == [0]
    assert left.skipped == (Skipped("r", "main", "segment 1 has 6 tokens, more than max_length 4", segment=1),)
    assert pad([outcome], max_length=100).ids.shape == (2, 6), "no wider than the longest row"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"side": "top"}, "side: 'top' is not one of right, left"),
        ({"max_length": 0}, "max_length: 0 is less than 1"),
        ({"too_long": "cut"}, "too_long: 'cut' is not one of raise, truncate, skip"),
        ({"untrainable": "train"}, "untrainable: 'train' is not one of raise, skip"),
    ],
)
def test_bad_arguments_are_refused_by_name(options, message):
    with pytest.raises(InvalidArgument, match=message):
        pad([completed()], **options)


def test_only_outcomes_are_padded():
    with pytest.raises(TypeError, match="outcomes: holds a Sample"):
        pad([Sample()])


def test_nothing_to_pad():
    with pytest.raises(InvalidArgument) as raised:
        pad([])
    assert [field for field, _ in raised.value.violations] == ["outcomes"]


async def test_what_a_trainer_receives_can_be_padded(serve):
    policy = ScriptedPolicy(["one", "two"], tokens=3, version="step-7")
    server = await serve(talker())
    messages = [{"role": "user", "content": "Hello"}]
    async with Trainer([server.address], policy) as trainer:
        outcome = await trainer.rollout(rollout_id="r", messages=messages, metadata={"turns": 2})
    batch = pad([outcome])
    assert len(batch) == len(outcome.samples["main"].segments) > 0
    assert batch.loss_mask.sum() == 6
    assert (batch.logprobs[batch.loss_mask] < 0).all()
    assert (batch.versions[batch.loss_mask] == 0).all()
    assert batch.version_names == ("step-7",)
    assert batch.rewards.tolist() == [1.0] * len(batch)


def with_extras(runs, seed=0, **extras):
    """A segment with these extras. Those in capitals are sampled extras."""
    made = segment(runs, seed)
    return replace(
        made,
        token_extras={name: extra for name, extra in extras.items() if name.islower()},
        sampled_extras={name.lower(): extra for name, extra in extras.items() if not name.islower()},
    )


def numbers(*shape):
    return Tensor.of(np.arange(1, np.prod(shape) + 1, dtype="float32").reshape(shape))


@pytest.mark.parametrize("side", ["right", "left"])
def test_extras_are_padded(side):
    first = with_extras((2, 1), experts=numbers(3, 2), ENTROPY=numbers(1))
    second = with_extras((0, 2, 2), experts=numbers(4, 2), ENTROPY=numbers(2))
    outcome = completed("r", reward=1.0, samples={"main": Sample(trainable=True, segments=(first, second))})
    batch = pad([outcome], side=side, extras=["experts", "entropy"])
    assert batch.extras["experts"].shape == (2, 4, 2)
    for name, extra in batch.extras.items():
        for number, each in enumerate((first, second)):
            assert np.array_equal(extra[number][batch.attention_mask[number]], each.aligned_extra(name).numpy())
        assert not extra[~batch.attention_mask].any()
    assert not batch.extras["entropy"][~batch.loss_mask].any()
    short = pad([outcome], side=side, max_length=2, too_long="truncate", extras=["experts"])
    assert np.array_equal(short.extras["experts"][0], first.token_extras["experts"].numpy()[:2])
    assert pad([outcome]).extras == {}


def test_extras_that_cannot_be_padded_are_refused():
    ragged, two, one = RaggedTensor.of([[1], [2], [3]], "uint32"), numbers(3, 2), numbers(3, 1)
    listed = [
        (with_extras((2, 1)), with_extras((2, 1)), "is not in the segment"),
        (with_extras((2, 1), x=ragged), with_extras((2, 1), x=ragged), "x is ragged"),
        (with_extras((2, 1), x=two), with_extras((2, 1), x=one), "float32\\[1\\], others float32\\[2\\]"),
    ]
    for first, second, problem in listed:
        outcome = completed("r", reward=1.0, samples={"main": Sample(trainable=True, segments=(first, second))})
        with pytest.raises(InvalidArgument, match=f"extras: .*{problem}"):
            pad([outcome], extras=["x"])
