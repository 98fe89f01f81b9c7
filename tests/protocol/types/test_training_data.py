"""What a trainer takes from an outcome: logprobs beside ids, and nothing of a rollout that must not be trained on."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.policies import ScriptedPolicy
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import Failure, OutcomeStatus, RolloutOutcome, Sample, Segment, TokenBlock
from osmosis_grpc.testing import run_rollout

SEGMENT = Segment(ids=np.arange(5, dtype="<u4"), logprobs=np.full(2, -0.5, "<f4"), mask_runs=(3, 2), chats=(1,))
TRAINABLE = Sample(trainable=True, segments=(SEGMENT,))
USER = {"role": "user", "content": "What is 2 + 3?"}


class Talker(RolloutAgentLoop):
    """Chats twice, then completes or raises."""

    name = "talker"

    def get_tools(self, request):
        return []

    async def run(self, ctx):
        messages = list(ctx.request.messages)
        for _ in range(2):
            messages.append((await ctx.chat(messages)).message)
            messages.append({"role": "user", "content": "And then?"})
        if ctx.request.metadata.get("raise"):
            raise RuntimeError("the weather service is away")
        return ctx.complete(messages, reward=ctx.request.metadata.get("reward"))


async def finished(**metadata):
    return await run_rollout(Talker(), ScriptedPolicy(["five", "six"], tokens=3), [USER], metadata=metadata)


async def test_logprobs_are_aligned_with_ids():
    outcome = await finished(reward=1.0)
    (segment,) = outcome.samples["main"].segments
    logprobs, mask = segment.aligned_logprobs(), segment.mask()
    assert logprobs.dtype == np.float32
    assert len(segment.ids) == len(mask) == len(logprobs) > len(segment.logprobs)
    assert np.array_equal(logprobs[mask], segment.logprobs)
    assert not logprobs[~mask].any(), "0.0 where no token was sampled: a product with the mask stays finite"


@settings(deadline=None)
@given(st.lists(st.integers(0, 5), max_size=6), st.integers(0, 2**31))
def test_aligned_logprobs_of_any_mask(runs, seed):
    sampled, whole = sum(runs[1::2]), sum(runs)
    random = np.random.default_rng(seed)
    segment = Segment(
        ids=np.arange(whole, dtype="<u4"), logprobs=-random.random(sampled, dtype="<f4"), mask_runs=tuple(runs)
    )
    logprobs = segment.aligned_logprobs()
    assert logprobs.shape == (whole,)
    assert np.array_equal(logprobs[segment.mask()], segment.logprobs)
    assert len(segment.ids[segment.mask()]) == segment.sampled
    assert np.count_nonzero(logprobs) == np.count_nonzero(segment.logprobs)


def test_a_segment_without_its_tokens_says_so():
    segment = Segment(ids=np.empty(0, "<u4"), logprobs=np.empty(0, "<f4"), mask_runs=(2, 3), chats=(1,))
    with pytest.raises(InvalidArgument, match="chats 1"):
        segment.aligned_logprobs()


async def test_a_completed_rollout_has_samples_to_train_on():
    outcome = await finished(reward=0.5)
    assert outcome.not_trainable_reason == ""
    assert list(outcome.trainable_samples()) == ["main"]
    assert outcome.trainable_samples()["main"].reward == 0.5


async def test_a_failed_rollout_has_nothing_to_train_on():
    outcome = await finished(**{"raise": True})
    assert outcome.status is OutcomeStatus.FAILED
    assert outcome.samples["main"].segments, "its tokens can be looked at"
    assert outcome.trainable_samples() == {}
    assert "FAILED" in outcome.not_trainable_reason
    assert "the weather service is away" in outcome.not_trainable_reason


async def test_no_reward_is_not_trained_on():
    outcome = await finished()
    assert outcome.status is OutcomeStatus.COMPLETED
    assert outcome.trainable_samples() == {}
    assert "no reward" in outcome.not_trainable_reason
    assert replace(outcome, reward=0.25).trainable_samples()["main"].reward == 0.25


async def test_a_policy_without_tokens():
    async def wordy(request):
        return replace(await ScriptedPolicy(["five", "six"])(request), tokens=None)

    outcome = await run_rollout(Talker(), wordy, [USER], metadata={"reward": 1.0})
    assert outcome.trainable_samples() == {}
    assert "main: chat 1: the reply came without token ids" in outcome.not_trainable_reason


def test_an_evaluation_has_nothing_to_train_on():
    outcome = RolloutOutcome(
        rollout_id="e", status=OutcomeStatus.COMPLETED, reward=1.0, samples={"main": TRAINABLE}, evaluation=True
    )
    assert outcome.trainable_samples() == {}
    assert "evaluation" in outcome.not_trainable_reason


def test_rewards_of_several_samples():
    one, two, three = replace(TRAINABLE, reward=0.5), TRAINABLE, Sample(not_trainable_reason="no ids")
    outcome = RolloutOutcome(
        rollout_id="r", status=OutcomeStatus.COMPLETED, reward=1.0, samples={"a": one, "b": two, "c": three}
    )
    assert {name: sample.reward for name, sample in outcome.trainable_samples().items()} == {"a": 0.5, "b": 1.0}


@pytest.mark.parametrize("status", [s for s in OutcomeStatus if s is not OutcomeStatus.COMPLETED])
def test_no_other_status_is_trained_on(status):
    failure = None if status is OutcomeStatus.CANCELLED else Failure("agent", "it broke")
    outcome = RolloutOutcome(rollout_id="r", status=status, failure=failure, samples={"main": TRAINABLE})
    assert outcome.trainable_samples() == {}
    assert str(status) in outcome.not_trainable_reason


@pytest.mark.parametrize("segments", [(), (replace(SEGMENT, ids=np.empty(0, "<u4"), logprobs=np.empty(0, "<f4")),)])
def test_tokens_that_were_left_out_are_not_trained_on(segments):
    sample = replace(TRAINABLE, segments=segments)
    outcome = RolloutOutcome(rollout_id="r", status=OutcomeStatus.COMPLETED, reward=1.0, samples={"main": sample})
    assert outcome.trainable_samples() == {}
    assert outcome.not_trainable_reason == "main: its tokens were left out"


@pytest.mark.parametrize(
    ("logprobs", "place"),
    [([-1.0, np.inf], "logprob 1 is inf"), ([-np.inf, -1.0], "logprob 0 is -inf"), ([np.nan, 0.5], "logprob 1 is 0.5")],
)
def test_an_impossible_logprob_is_named_with_its_place(logprobs, place):
    with pytest.raises(InvalidArgument) as refusal:
        TokenBlock.of([5, 6], logprobs)
    assert refusal.value.violations[0][0] == "tokens.logprobs"
    assert place in str(refusal.value)


@pytest.mark.parametrize(("ids", "place"), [([1, -2], "id 1 is -2"), ([1, 2**33], "id 1 is"), ([0.5], "float64")])
def test_a_token_id_that_is_none_is_named_with_its_place(ids, place):
    with pytest.raises(InvalidArgument) as refusal:
        TokenBlock.of(ids)
    assert place in str(refusal.value)
