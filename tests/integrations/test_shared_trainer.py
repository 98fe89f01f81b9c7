"""What the adapters of other trainers share: one Trainer for many rollouts, and one row of an outcome."""

import asyncio
from functools import partial

import numpy as np
import pytest

from osmosis_grpc.integrations._one_row import one_row
from osmosis_grpc.integrations._shared_trainer import SharedTrainers
from osmosis_grpc.policies import EchoPolicy, ScriptedPolicy, ToolCallingMock
from osmosis_grpc.protocol.errors import InvalidArgument, Unavailable
from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.trainer import ChatRequest, ChatResponse, RolloutRequest, Trainer, TrainerConfig
from tests.ports import quiet_port

QUESTION = [{"role": "user", "content": "What is (2 + 3) * (4 + 5)?"}]


def request(name, **fields):
    return RolloutRequest(rollout_id=name, messages=QUESTION, label="45", **fields)


async def test_concurrent_rollouts_have_policies_of_their_own_and_share_one_trainer(serve):
    server = await serve()
    trainers, made = SharedTrainers(), []

    def make(policy):
        made.append(Trainer([server.address], policy))
        return made[-1]

    async def outcome(name, policy):
        trainer = await trainers.get("key", make)
        return await trainer.outcome(request(name), policy, retries=0)

    policies = [ToolCallingMock(), EchoPolicy(), ScriptedPolicy(["#### 45"])]
    outcomes = await asyncio.gather(*(outcome(f"r{number}", policy) for number, policy in enumerate(policies)))
    await trainers.close()
    assert [outcome.reward for outcome in outcomes] == [1.0, 0.0, 1.0]
    assert outcomes[1].messages[-1]["content"] == QUESTION[0]["content"]
    assert len(made) == 1


async def test_every_waiting_caller_learns_that_no_server_is_there_and_the_next_one_tries_again(serve):
    address, trainers, made = f"127.0.0.1:{quiet_port()}", SharedTrainers(), []

    def make(policy, config=TrainerConfig(lost_after=0.1)):
        made.append(address)
        return Trainer([address], policy, config=config)

    results = await asyncio.gather(*(trainers.get("key", make) for _ in range(3)), return_exceptions=True)
    assert [type(error) for error in results] == [Unavailable] * 3
    assert all(address in str(error) for error in results)
    assert len(made) == 1
    server = await serve()
    await trainers.get("key", partial(Trainer, [server.address]))
    await trainers.close()


async def test_a_failed_rollout_runs_again_with_its_policy(serve):
    server, trainers, asked = await serve(), SharedTrainers(), []

    async def fails_once(chat: ChatRequest) -> ChatResponse:
        asked.append(chat.attempt)
        if len(asked) == 1:
            raise ValueError("a mistake on purpose")
        return await ToolCallingMock()(chat)

    trainer = await trainers.get("key", partial(Trainer, [server.address]))
    outcome = await trainer.outcome(request("r"), fails_once, retries=1)
    await trainers.close()
    assert outcome.status is OutcomeStatus.COMPLETED
    assert outcome.attempt == 2


async def test_the_row_is_the_segment_with_the_most_sampled_tokens(serve):
    server = await serve()

    async def drifts(chat: ChatRequest) -> ChatResponse:
        reply = await ToolCallingMock()(chat)
        changed = (reply.prompt_ids + (chat.chat_number > 1)).astype("<u4")
        return ChatResponse(message=reply.message, tokens=reply.tokens, prompt_ids=changed)

    async with Trainer([server.address], drifts) as trainer:
        outcome = await trainer.rollout(request("r"))
        evaluation = await trainer.rollout(request("e", evaluation=True))
    segments = outcome.samples["main"].segments
    longest = max(segments, key=lambda segment: segment.sampled)
    row = one_row(outcome)
    assert row.prompt_ids + row.response_ids == longest.ids.tolist()
    assert (
        np.flatnonzero([0] * len(row.prompt_ids) + row.response_mask).tolist()
        == np.flatnonzero(longest.mask()).tolist()
    )
    assert [value for value, one in zip(row.response_logprobs, row.response_mask, strict=True) if one] == (
        longest.logprobs.tolist()
    )
    assert row.response_mask[0] == 1
    assert row.segments_left_out == len(segments) - 1 > 0
    assert row.tokens_left_out == sum(segment.sampled for segment in segments) - longest.sampled
    assert row.reward == 1.0
    assert one_row(evaluation).reward == 1.0


async def test_an_outcome_without_a_trainable_segment_is_refused_with_the_reason(serve):
    server = await serve()

    async def without_tokens(chat: ChatRequest) -> ChatResponse:
        return ChatResponse(message={"role": "assistant", "content": "#### 45"})

    async with Trainer([server.address], without_tokens) as trainer:
        outcome = await trainer.rollout(request("r"))
    with pytest.raises(InvalidArgument, match="rollout r: main: "):
        one_row(outcome)
