"""Runs 8 rollouts of the calculator agent on SmolLM2-135M-Instruct, and prints what may be trained on.

    python rollouts.py
    python rollouts.py 127.0.0.1:50051   uses a server that serves the calculator

The agent runs in a server, over a real socket; by default the server is in this process. The model is the trainer's
policy: token ids in, token ids out, with the logprob of each token.
"""

import asyncio
import contextlib
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import numpy as np
from smollm2 import SmolLM2

from osmosis_grpc.policies import ChatRenderer, TokenPolicy, TokenPolicyConfig
from osmosis_grpc.policies.transformers import TransformersGenerator
from osmosis_grpc.server import AgentServer
from osmosis_grpc.testing.calculator import CalculatorAgent
from osmosis_grpc.trainer import RolloutOutcome, RolloutRequest, Trainer

TEMPLATE = (Path(__file__).parent / "chat_template.jinja").read_text()
"""The template of SmolLM2, and how the model reads tools, calls and results. It only appends."""
PARAMS = {"temperature": 0.5, "max_tokens": 40}


def call(a: int, b: int) -> dict[str, Any]:
    """Return a message that calls add."""
    function = {"name": "add", "arguments": f'{{"a": {a}, "b": {b}}}'}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "0", "type": "function", "function": function}]}


EXAMPLE: list[dict[str, Any]] = [
    {"role": "system", "content": "You calculate with tools. Your last line is #### and the result."},
    {"role": "user", "content": "What is 2 + 3?"},
    call(2, 3),
    {"role": "tool", "tool_call_id": "0", "content": "5"},
    {"role": "assistant", "content": "#### 5"},
]
"""A model as small as this one calls a tool only after an example."""
SUMS = [(4, 5), (7, 1), (6, 3), (8, 8)]


def requests(run: str) -> list[RolloutRequest]:
    """Return two rollouts for each sum. Their ids are unique to the run."""
    made = []
    for number in range(8):
        a, b = SUMS[number // 2]
        question = {"role": "user", "content": f"What is {a} + {b}?"}
        made.append(
            RolloutRequest(
                rollout_id=f"local-{run}-{number}",
                messages=[*EXAMPLE, question],
                label=str(a + b),
                completion_params=PARAMS,
                max_turns=4,
            )
        )
    return made


async def main(target: str) -> int:
    print(f"loading {SmolLM2.name}", file=sys.stderr, flush=True)
    smollm2 = SmolLM2()
    smollm2.tokenizer.chat_template = TEMPLATE
    policy = TokenPolicy(
        ChatRenderer(smollm2.tokenizer, tool_parser="json"),
        TransformersGenerator(smollm2.model, smollm2.tokenizer, batch=8, version="SmolLM2-135M"),
        TokenPolicyConfig(seed=1),
    )
    began, outcomes = time.monotonic(), []
    own = AgentServer([CalculatorAgent()], port=0)
    async with contextlib.nullcontext() if target else own, Trainer([target or own.address], policy) as trainer:
        async for outcome in trainer.run(requests(uuid.uuid4().hex[:6])):
            outcomes.append(outcome)
    for outcome in sorted(outcomes, key=lambda outcome: outcome.rollout_id):
        print(line(outcome))
    trainable = sum(bool(outcome.trainable_samples()) for outcome in outcomes)
    print(f"{trainable} of {len(outcomes)} rollouts are trainable, {time.monotonic() - began:.0f} s")
    return 0 if trainable == len(outcomes) else 1


def line(outcome: RolloutOutcome) -> str:
    """Return a line about a rollout: its status and reward, and the tokens and the mean logprob of its segments."""
    texts = [f"{outcome.rollout_id}  {outcome.status}  reward {outcome.reward:g}"]
    for sample in outcome.samples.values():
        for segment in sample.segments:
            mean = float(np.mean(segment.logprobs))
            chats = "1 chat" if len(segment.chats) == 1 else f"{len(segment.chats)} chats"
            texts.append(f"{chats}  {segment.sampled} of {len(segment.ids)} tokens sampled, mean logprob {mean:.2f}")
        if not sample.trainable:
            texts.append(f"not trainable: {sample.not_trainable_reason}")
    return "  ".join(texts)


if __name__ == "__main__":
    sys.exit(asyncio.run(main("".join(sys.argv[1:2]))))
