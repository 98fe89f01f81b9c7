"""A small model learns tasks of reasoning-gym with GRPO, on an agent server that hosts the library. No GPU.

python examples/reasoning_gym/learn.py --seeds 0 1 2 --choices uniform varied --picture curves.png

The model, its generator and the update are those of examples/learn_to_calculate. A short warm-up on other questions
teaches the format of an answer, and a little arithmetic, so that some tasks are too hard at first and others are not.
`uniform` and `varied` are the two ways in which TaskSampler chooses tasks.
"""

import argparse
import asyncio
import contextlib
import copy
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "learn_to_calculate"))
from generator import TorchGenerator
from grpo import train
from model import Model, token_logprobs
from vocabulary import PAD, TOKENS, Tokenizer

from osmosis_grpc.environments import open_environment, task_requests
from osmosis_grpc.policies import ChatRenderer, TokenPolicy, TokenPolicyConfig
from osmosis_grpc.trainer import OutcomeGroup, RolloutRequest, TaskSampler, Trainer, advantages, pad

QUESTIONS = "reasoning-gym:chain_sum,size={},seed={},min_terms=2,max_terms=2,min_digits=1,max_digits=2,system="
"""Questions such as `State the final answer to the following arithmetic problem: 17 - 5 =`."""
ENVIRONMENT, OTHERS = QUESTIONS.format(128, 1), QUESTIONS.format(400, 2)
"""The tasks, and the questions of the warm-up."""
Choice = Literal["uniform", "varied"]
Curve = dict[str, list[float]]
BATCHES, TASKS, GROUP_SIZE = 120, 4, 8
RATE = 2e-4
"""At several times this rate, the model soon gives one answer only to most questions, so that no group has variance."""
WARM_UP, RIGHT = 600, 0.3
"""The updates of the warm-up, and the share of its answers that are right on purpose."""


def written(source: random.Random, request: RolloutRequest) -> str:
    """Return an answer in the right format. A wrong one is near the right one."""
    near = 0 if source.random() < RIGHT else source.choice((-2, -1, 1, 2))
    return f"<answer>{int(str(request.label)) + near}</answer><|im_end|>"


def warm_up(model: Model, tokenizer: Tokenizer, tasks: list[RolloutRequest], *, seed: int, updates: int) -> None:
    """Train the model on written answers."""
    source, optimizer = random.Random(seed), torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(updates):
        rows = []
        for _ in range(32):
            task = source.choice(tasks)
            prompt = tokenizer.apply_chat_template(task.messages, add_generation_prompt=True, tokenize=True)
            rows.append((prompt, tokenizer.encode(written(source, task))))
        width = max(len(prompt) + len(reply) for prompt, reply in rows)
        ids = torch.tensor([[*prompt, *reply, *[PAD] * (width - len(prompt) - len(reply))] for prompt, reply in rows])
        mask = torch.tensor(
            [[len(prompt) <= at < len(prompt) + len(reply) for at in range(width)] for prompt, reply in rows]
        )
        loss = -token_logprobs(model, ids)[mask].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def begun(tasks: list[RolloutRequest], seed: int) -> Model:
    """Return a new model that knows the format."""
    torch.manual_seed(seed)
    model = Model(len(TOKENS))
    warm_up(model, Tokenizer(), tasks, seed=seed, updates=WARM_UP)
    return model


async def learn(
    target: str, model: Model, tasks: list[RolloutRequest], choice: Choice, seed: int, batches: int
) -> Curve:
    """Train a model. Return the mean reward over all tasks before and after, and what each batch had."""
    tokenizer = Tokenizer()
    generator = TorchGenerator(model, seed)
    policy = TokenPolicy(ChatRenderer(tokenizer), generator, TokenPolicyConfig(max_tokens=24))
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    sampler, name = TaskSampler(tasks, choice=choice, seed=seed), f"{choice}-{seed}"
    rewards, flat = list[float](), list[float]()
    async with Trainer([target], policy) as trainer:
        before = await mean_reward(trainer, tasks, f"{name}-before")
        for number in range(batches):
            generator.version = str(number)
            drawn = sampler.draw(TASKS, f"{name}-{number}")
            groups = [group async for group in trainer.groups(drawn, GROUP_SIZE)]
            groups.sort(key=lambda group: group.id)
            for group in groups:
                sampler.note(group)
            train(model, optimizer, pad(groups, advantages=[advantages(group) for group in groups], pad_id=PAD))
            rewards.append(mean(groups))
            flat.append(sum(group.zero_variance for group in groups) / len(groups))
            if number % 20 == 19:
                last = sum(flat[-20:]) / 20
                print(
                    f"{name}  batch {number + 1}  mean reward {rewards[-1]:.3f}  without variance {last:.2f}",
                    flush=True,
                )
        after = await mean_reward(trainer, tasks, f"{name}-after")
    print(
        f"{name}  all tasks: mean reward {before:.3f} before, {after:.3f} after; "
        f"without variance {sum(flat) / len(flat):.3f}",
        flush=True,
    )
    return {"all": [before, after], "rewards": rewards, "flat": flat}


async def mean_reward(trainer: Trainer, tasks: list[RolloutRequest], prefix: str) -> float:
    """Return the mean reward over all tasks, four rollouts each."""
    requests = [replace(task, rollout_id=f"{prefix}-{number}") for number, task in enumerate(tasks)]
    return mean([group async for group in trainer.groups(requests, 4)])


def mean(groups: list[OutcomeGroup]) -> float:
    return float(sum(group.rewards.mean() for group in groups) / len(groups))


@contextlib.contextmanager
def agent_server() -> Iterator[str]:
    """Serve the environment in another process. Yields HOST:PORT."""
    command = [sys.executable, "-m", "osmosis_grpc", "serve", "--env", ENVIRONMENT, "--grpc-port", "0", "--no-http"]
    options = ["--json", "--log-level", "warning", "--state-dir"]
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


def draw_curves(curves: dict[str, Curve], path: Path) -> None:
    """Write two pictures side by side: the mean reward of each batch, and the share of groups without variance."""
    import matplotlib as mpl

    mpl.use("Agg")
    import numpy as np
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for name, curve in curves.items():
        style = "-" if name.startswith("varied") else ":"
        for at, key in enumerate(("rewards", "flat")):
            smooth = np.convolve(curve[key], np.ones(20) / 20, "valid")
            axes[at].plot(range(20, 20 + len(smooth)), smooth, style, label=re.sub("-", ", seed ", name))
    axes[0].set(xlabel="batch", ylabel="mean reward of the last 20 batches", ylim=(0, 1))
    axes[1].set(xlabel="batch", ylabel="groups without variance, last 20 batches", ylim=(0, 1))
    axes[0].legend()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="a model is trained for each seed")
    parser.add_argument(
        "--choices", nargs="+", default=["varied"], choices=["uniform", "varied"], help="how tasks are chosen"
    )
    parser.add_argument("--batches", type=int, default=BATCHES, help="how many batches, each of 32 rollouts")
    parser.add_argument("--picture", type=Path, help="the PNG with the curves")
    options = parser.parse_args()
    torch.set_num_threads(1)  # the model is too small for more
    curves: dict[str, Curve] = {}
    tasks, others = (list(task_requests(open_environment(each), "task")) for each in (ENVIRONMENT, OTHERS))
    with agent_server() as target:
        for seed in options.seeds:
            model = begun(others, seed)
            for choice in options.choices:
                learning = learn(target, copy.deepcopy(model), tasks, choice, seed, options.batches)
                curves[f"{choice}-{seed}"] = asyncio.run(learning)
    if options.picture:
        draw_curves(curves, options.picture)
    if not all(curve["all"][1] > curve["all"][0] for curve in curves.values()):
        sys.exit("the mean reward over all tasks has not risen for every seed")


if __name__ == "__main__":
    main()
