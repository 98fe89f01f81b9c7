"""A small model learns with GRPO which tools of a calculator agent a question needs. It takes minutes, without a GPU.

python examples/learn_to_calculate/learn.py --seeds 0 1 2 --picture learn.png

The agent server is a process of its own. The model is made on the spot, and a short warm-up teaches it the format.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch
from generator import TorchGenerator
from grpo import WrongData, train
from model import Model
from questions import draw
from vocabulary import PAD, TOKENS, Tokenizer
from warm_up import warm_up

from osmosis_grpc.policies import ChatRenderer, TokenPolicy, TokenPolicyConfig
from osmosis_grpc.trainer import Batch, OutcomeGroup, RolloutRequest, Trainer, advantages, pad

BATCHES, QUESTIONS, GROUP_SIZE = 80, 8, 8
WARM_UP, RATE = 400, 7e-4
ENDS, RISE = 10, 0.3
"""The mean reward of the last ENDS batches is greater than that of the first ENDS batches by at least RISE."""


def learn_alone(seed: int, batches: int, warm_up_updates: int, workers: int) -> list[float]:
    """Train a new model with an agent server of its own. Returns the mean reward of each batch."""
    torch.set_num_threads(1)  # the model is too small for more
    with agent_server(workers) as target:
        return asyncio.run(learn(target, seed, batches=batches, warm_up_updates=warm_up_updates))


async def learn(target: str, seed: int, *, batches: int, warm_up_updates: int) -> list[float]:
    """Train a new model. Returns the mean reward of each batch."""
    torch.manual_seed(seed)
    model, tokenizer = Model(len(TOKENS)), Tokenizer()
    began = time.monotonic()
    warm_up(model, tokenizer, seed=seed, updates=warm_up_updates)
    print(f"seed {seed}  warm-up {time.monotonic() - began:.0f} s", flush=True)
    generator = TorchGenerator(model, seed)
    policy = TokenPolicy(ChatRenderer(tokenizer, tool_parser="hermes"), generator, TokenPolicyConfig(max_tokens=32))
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    source, rewards = random.Random(seed), list[float]()
    async with Trainer([target], policy) as trainer:
        for number in range(batches):
            generator.version = str(number)
            groups = [group async for group in trainer.groups(requests(source, f"{seed}-{number}"), GROUP_SIZE)]
            groups.sort(key=lambda group: group.id)
            difference = train(model, optimizer, batch_of(groups))
            rewards.append(float(sum(group.rewards.mean() for group in groups) / len(groups)))
            print(
                f"seed {seed}  batch {number + 1:2}  mean reward {rewards[-1]:.3f}  "
                f"greatest difference of logprobs {difference:.1e}",
                flush=True,
            )
    return rewards


def requests(source: random.Random, name: str) -> list[RolloutRequest]:
    """Draw the questions of a batch."""
    drawn = [draw(source) for _ in range(QUESTIONS)]
    return [
        RolloutRequest(
            rollout_id=f"{name}-{n}",
            messages=[{"role": "user", "content": question.text}],
            label=str(question.answer),
            max_turns=4,
        )
        for n, question in enumerate(drawn)
    ]


def batch_of(groups: Sequence[OutcomeGroup]) -> Batch:
    """Return the rollouts of some groups as a batch with advantages.

    Exits if no group has completed. Raises WrongData if a prompt does not continue the earlier tokens of its rollout.
    """
    if not groups:
        sys.exit("no group completed; the warnings above say why")
    batch = pad(groups, advantages=[advantages(group) for group in groups], pad_id=PAD)
    if len(batch) != sum(map(len, groups)):
        raise WrongData("a rollout has several segments: a prompt does not begin with the earlier tokens")
    return batch


@contextlib.contextmanager
def agent_server(workers: int) -> Iterator[str]:
    """Serve the calculator agent in one or several processes and a folder of its own. Yields HOST:PORT."""
    command = [sys.executable, "-m", "osmosis_grpc", "serve", "-m", "osmosis_grpc.testing.calculator:agent_loop"]
    options = ["--grpc-port", "0", "--no-http", "--json", "--log-level", "warning"]
    options += ["--workers", str(workers), "--state-dir"]
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


def draw_curves(curves: dict[int, list[float]], path: Path) -> None:
    """Write the mean reward of each batch as a PNG, one line for each seed."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for seed, rewards in curves.items():
        axes.plot(range(1, len(rewards) + 1), rewards, label=f"seed {seed}")
    axes.set(xlabel="batch", ylabel="mean reward", ylim=(0, 1.02), title="GRPO on the calculator agent")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def positive(text: str) -> int:
    """Return a whole number above 0. Raises ArgumentTypeError."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number above 0")
    return int(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[0], help="a model is trained for each seed, two at a time"
    )
    parser.add_argument("--batches", type=positive, default=BATCHES, help="how many batches, each of 64 rollouts")
    parser.add_argument("--warm-up", type=positive, default=WARM_UP, help="how many updates teach the format")
    parser.add_argument("--workers", type=positive, default=1, help="how many processes each agent server has")
    parser.add_argument("--picture", type=Path, default=Path("learn.png"), help="the PNG with the mean rewards")
    options = parser.parse_args()
    processes = ProcessPoolExecutor(min(2, len(options.seeds)), get_context("spawn"))
    with processes:
        given = options.batches, options.warm_up, options.workers
        jobs = {seed: processes.submit(learn_alone, seed, *given) for seed in options.seeds}
    curves, risen = {seed: job.result() for seed, job in jobs.items()}, True
    draw_curves(curves, options.picture)
    for seed, rewards in curves.items():
        if len(rewards) >= 2 * ENDS:
            first, last = sum(rewards[:ENDS]) / ENDS, sum(rewards[-ENDS:]) / ENDS
            print(f"seed {seed}  mean reward of the first {ENDS} batches {first:.3f}, of the last {ENDS} {last:.3f}")
            risen = risen and last - first >= RISE
    print(f"the mean rewards are in {options.picture}")
    if not risen:
        sys.exit(f"the mean reward has not risen by {RISE} for every seed")


if __name__ == "__main__":
    main()
