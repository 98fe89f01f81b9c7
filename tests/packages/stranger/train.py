"""A trainer with policies of its own: a function, a class, a token generator."""

import asyncio
import random
import uuid

import numpy as np
from agent import Adder, Chooser

from osmosis_grpc.policies import FinishReason, Generated, GenerateRequest, ScriptedPolicy
from osmosis_grpc.server import AgentServer
from osmosis_grpc.trainer import (
    Batch,
    ChatRequest,
    ChatResponse,
    OutcomeGroup,
    Policy,
    RolloutOutcome,
    RolloutRequest,
    SyncTrainer,
    TokenBlock,
    Trainer,
    TrainerConfig,
    advantages,
    pad,
)


def toss(request: ChatRequest) -> ChatResponse:
    """Answer with a coin."""
    token = random.choice([0, 1])
    message = {"role": "assistant", "content": ["no", f"3 for {request.rollout_id}"][token]}
    return ChatResponse(message=message, prompt_ids=TokenBlock.of([2, 3]).ids, tokens=TokenBlock.of([token], [-0.693]))


class Counting:
    """Counts the chats of another policy."""

    def __init__(self, inner: Policy) -> None:
        self.inner = inner
        self.count = 0

    async def __call__(self, request: ChatRequest) -> ChatResponse:
        """Answer a chat."""
        self.count += 1
        answer = self.inner(request)
        return answer if isinstance(answer, ChatResponse) else await answer


class Sampler:
    """A token generator."""

    async def generate(self, request: GenerateRequest) -> Generated:
        """Sample one token."""
        ids = np.array([len(request.prompt_ids) % 7], np.uint32)
        return Generated(token_ids=ids, logprobs=np.array([-1.0], np.float32), finish_reason=FinishReason.STOP)


def size(batch: Batch) -> int:
    """Return the number of trained tokens."""
    return int(batch.loss_mask.sum())


async def main() -> None:
    """Train on a group."""
    run = uuid.uuid4().hex[:8]
    question = [{"role": "user", "content": "1 + 2?"}]
    requests = [RolloutRequest(rollout_id=f"{run}-{n}", messages=question, agent_loop="adder") for n in range(2)]
    policy = Counting(toss)
    async with (
        AgentServer([Adder(), Chooser()], port=0) as server,
        Trainer([server.address], policy, config=TrainerConfig(longest_pause=1.0)) as trainer,
    ):
        group: OutcomeGroup
        async for group in trainer.groups(requests, group_size=4):
            batch = pad(group, advantages=advantages(group))
            rewards: list[float] = group.rewards.tolist()
            assert len(rewards) == 4
            assert batch.advantages is not None
            assert size(batch) == 4
        outcome: RolloutOutcome = await trainer.rollout(rollout_id=run, messages=question, agent_loop="chooser")
        if outcome.failure is not None:
            raise RuntimeError(outcome.failure.message)
    assert policy.count == 9


def blocking(target: str) -> float | None:
    """Run one rollout from code that is not async."""
    with SyncTrainer([target], ScriptedPolicy(["3"])) as trainer:
        return trainer.rollout(messages=[{"role": "user", "content": "1 + 2?"}]).reward


if __name__ == "__main__":
    asyncio.run(main())
