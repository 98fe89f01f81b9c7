"""GRPO in NumPy: a policy learns what the calculator's questions have for an answer. No torch, no GPU.

python examples/grpo_numpy.py                   starts an agent server of its own
python examples/grpo_numpy.py 127.0.0.1:50051   uses one that serves the calculator
"""

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import uuid
import zlib
from collections.abc import Iterator

import numpy as np

from osmosis_grpc.trainer import (
    Batch,
    ChatRequest,
    ChatResponse,
    RolloutRequest,
    TokenBlock,
    Trainer,
    VersionSpan,
    advantages,
    pad,
)

QUESTIONS = {"What is 2 + 3?": 5, "What is 3 * 4?": 12, "What is 9 - 2?": 7, "What is 8 / 8?": 1, "What is 6 + 4?": 10}
TEXTS = list(QUESTIONS)
ANSWERS = 16  # the policy may answer 0 to 15
STEPS, GROUP_SIZE, UPDATES, RATE, SEED = 15, 16, 2, 2.5, 0
RUN = f"grpo-{uuid.uuid4().hex[:8]}"  # a rollout id runs once, so the ids of this run are its own


class Policy:
    """A softmax over the answers for each question: the smallest policy that can learn.

    Its tokenizer: a prompt is its bytes, 0 to 255, and the answer n is the token 256 + n.
    """

    def __init__(self) -> None:
        self.logits = np.zeros((len(QUESTIONS), ANSWERS))
        self.version = 0

    def logprobs(self, question: np.ndarray) -> np.ndarray:
        """The logprobs of all answers to each of these questions."""
        logits = self.logits[question] - self.logits[question].max(axis=-1, keepdims=True)
        normalized: np.ndarray = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        return normalized

    def __call__(self, request: ChatRequest) -> ChatResponse:
        """Sample a reply, with its exact tokens and logprobs. Each rollout has random numbers of its own."""
        prompt = request.messages[-1]["content"]
        random = np.random.default_rng([SEED, zlib.crc32(request.rollout_id.removeprefix(RUN).encode())])
        (logprobs,) = self.logprobs(np.array([TEXTS.index(prompt)]))
        answer = int(random.choice(ANSWERS, p=np.exp(logprobs)))
        return ChatResponse(
            message={"role": "assistant", "content": f"#### {answer}"},
            prompt_ids=TokenBlock.of(list(prompt.encode())).ids,
            tokens=TokenBlock.of([256 + answer], [logprobs[answer]]),
            versions=(VersionSpan(f"step-{self.version}", 1),),
        )

    def train(self, batch: Batch) -> None:
        """A few policy-gradient steps with PPO's clipped ratio, from the padded arrays alone."""
        prompts = batch.attention_mask & ~batch.loss_mask
        texts = [bytes(row[mask].tolist()).decode() for row, mask in zip(batch.ids, prompts, strict=True)]
        question = np.array([TEXTS.index(text) for text in texts])
        answer, recorded = batch.ids[batch.loss_mask] - 256, batch.logprobs[batch.loss_mask]
        rows = np.arange(len(batch))
        assert batch.advantages is not None
        for update in range(UPDATES):
            logprobs = self.logprobs(question)
            if update == 0:  # nothing was retokenized, rounded or mixed up on the way
                assert np.allclose(logprobs[rows, answer], recorded, atol=1e-6)
            ratio = np.exp(logprobs[rows, answer] - recorded)
            clipped = np.where(batch.advantages > 0, ratio > 1.2, ratio < 0.8)
            gradient = np.eye(ANSWERS)[answer] - np.exp(logprobs)
            gradient *= (~clipped * ratio * batch.advantages)[:, np.newaxis]
            np.add.at(self.logits, question, RATE * gradient / GROUP_SIZE)
        self.version += 1


def requests(name: str) -> list[RolloutRequest]:
    return [
        RolloutRequest(rollout_id=f"{RUN}-{name}-{n}", messages=[{"role": "user", "content": text}], label=str(answer))
        for n, (text, answer) in enumerate(QUESTIONS.items())
    ]


async def main(target: str) -> None:
    policy = Policy()
    async with Trainer([target], policy) as trainer:
        for step in range(STEPS):
            groups = [group async for group in trainer.groups(requests(f"step{step}"), GROUP_SIZE)]
            if not groups:
                sys.exit("no group completed; the warnings above say why")
            useful = [group for group in groups if not group.zero_variance]
            if useful:
                policy.train(pad(useful, advantages=[advantages(group) for group in useful]))
            reward = np.mean([group.rewards.mean() for group in groups])
            print(f"step {step:2}  mean reward {reward:.3f}  groups {len(useful)} of {len(groups)}", flush=True)
        result = await trainer.evaluate(requests("evaluation"), group_size=GROUP_SIZE)
        print(f"evaluation  mean reward {result.mean_reward:.3f}  rollouts {result.n}  failed {result.failed}")


@contextlib.contextmanager
def agent_server() -> Iterator[str]:
    """Serves the calculator in a process and a folder of its own. Yields HOST:PORT."""
    command = [sys.executable, "-m", "osmosis_grpc", "serve", "-m", "osmosis_grpc.testing.calculator:agent_loop"]
    options = ["--grpc-port", "0", "--no-http", "--json", "--log-level", "warning", "--state-dir"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OSMOSIS_")}
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen([*command, *options, folder], stdout=subprocess.PIPE, env=clean, text=True) as server,
    ):
        try:
            assert server.stdout is not None
            yield json.loads(server.stdout.readline() or sys.exit("the agent server did not start"))["grpc"]
        finally:
            server.terminate()


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("target", nargs="?", help="HOST:PORT of an agent server that serves the calculator")
target = parser.parse_args().target
with contextlib.nullcontext(target) if target else agent_server() as address:
    asyncio.run(main(address))
