"""Plays the tasks of an environment through an agent server and a trainer, with a model that reads its chats."""

from dataclasses import dataclass

import numpy as np

from osmosis_grpc.environments import open_environment, task_requests
from osmosis_grpc.policies import formula
from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.server import AgentServer
from osmosis_grpc.trainer import Trainer

TASKS = 50


@dataclass
class Played:
    """What counts of one task: the reward of each sample, the parts, and how often the model was asked."""

    rewards: dict
    parts: dict
    turns: int


async def through_server(spec, reply, *, max_turns=100, in_flight=None, **fields):
    """The Played of each task by its key, and the outcomes. `reply` is a function of the messages of a chat."""
    environment = open_environment(spec)
    requests = list(task_requests(environment, "p", max_turns=max_turns, **fields))
    keys = [request.metadata["task_id"].rpartition("#")[2] for request in requests]
    found, outcomes = {}, {}

    async def policy(request):
        return answer(request, reply(request.messages))

    async with AgentServer([environment], port=0) as server, Trainer([server.address], policy) as trainer:
        async for outcome in trainer.run(requests, **({"max_in_flight": in_flight} if in_flight else {})):
            assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
            key = keys[int(outcome.rollout_id.removeprefix("p-"))]
            outcomes[key] = outcome
            rewards = {name: sample.reward for name, sample in outcome.samples.items()}
            turns = sum(len(sample.chats) for sample in outcome.samples.values())
            found[key] = Played(rewards, dict(outcome.reward_components), turns)
            exact(outcome)
    return found, outcomes


def exact(outcome):
    """Each sample has one segment, whose sampled tokens are those that the policy gave, in the order of the chats."""
    for name, sample in outcome.samples.items():
        (segment,) = sample.segments
        assert sample.trainable
        given = [formula.reply_tokens(outcome.rollout_id, name, number, None) for number in segment.chats]
        assert segment.chats == tuple(range(1, len(given) + 1))
        ids = np.concatenate([block.ids for block in given])
        logprobs = np.concatenate([block.logprobs for block in given])
        mask = segment.mask()
        assert segment.ids[mask].tolist() == ids.tolist()
        assert segment.aligned_logprobs()[mask].tolist() == logprobs.tolist()


def number_of(text, count):
    """A number below `count` that depends on a text, and is the same in every process."""
    return (sum(map(ord, text)) * 31 + len(text)) % count
