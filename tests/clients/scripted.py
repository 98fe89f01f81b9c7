"""The policy of the clients' programs, in Python, and the outcomes of this project's trainer with it."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from osmosis_grpc.protocol.types import ChatRequest, ChatResponse, TokenBlock
from osmosis_grpc.trainer import RolloutOutcome, Trainer
from tests.clients.client_process import SCRIPTED

PROMPT_ID, REPLY_ID = 1000, 2000


async def policy(request: ChatRequest, /) -> ChatResponse:
    """Replies as calculator.json says. One id for each message of the prompt, and two for each reply."""
    step = SCRIPTED[request.rollout_id]["replies"][request.chat_number - 1]
    calls = [
        {"id": f"call_{request.chat_number}_{n}", "type": "function", "function": call}
        for n, call in enumerate(step.get("tool_calls", ()))
    ]
    message: dict[str, Any] = {"role": "assistant", "content": step["content"]}
    if calls:
        message["tool_calls"] = calls
    known = [] if request.known_ids is None else request.known_ids.tolist()
    new = [PROMPT_ID + _size(message["content"]) for message in request.messages[request.prefix_len :]]
    ids = np.array([request.chat_number, REPLY_ID + _size(step["content"])], dtype="<u4")
    return ChatResponse(
        message=message,
        finish_reason="tool_calls" if calls else "stop",
        tokens=TokenBlock(ids, np.array([-0.5, -0.25], dtype="<f4")),
        prompt_ids=np.array([*known, *new], dtype="<u4"),
    )


async def python_outcomes(address: str) -> dict[str, Any]:
    """Runs the scripted rollouts with this project's trainer. Returns their outcomes as clients print them, by id."""
    async with Trainer([address], policy) as trainer:

        async def run(rollout_id: str, script: Mapping[str, Any]) -> RolloutOutcome:
            question = [{"role": "user", "content": script["question"]}]
            return await trainer.rollout(
                rollout_id=rollout_id, agent_loop="calculator", messages=question, label=script["label"]
            )

        outcomes = await asyncio.gather(*(run(*item) for item in SCRIPTED.items()))
    return {outcome.rollout_id: _shown(outcome) for outcome in outcomes}


def by_rollout(outcomes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the printed outcomes by rollout id, without what differs between runs."""
    keys = ("attempt", "status", "reward", "samples")
    return {each["rollout_id"]: {key: each[key] for key in keys} for each in outcomes}


def _shown(outcome: RolloutOutcome) -> dict[str, Any]:
    samples = [
        {
            "name": name,
            "trainable": sample.trainable,
            "segments": [
                {
                    "ids": segment.ids.tolist(),
                    "mask_runs": list(segment.mask_runs),
                    "logprobs": segment.logprobs.tolist(),
                    "chats": list(segment.chats),
                }
                for segment in sample.segments
            ],
        }
        for name, sample in outcome.samples.items()
    ]
    return {"attempt": outcome.attempt, "status": str(outcome.status), "reward": outcome.reward, "samples": samples}


def _size(text: str) -> int:
    return len(text.encode())
