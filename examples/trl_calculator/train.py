"""The calculator agent under TRL's GRPOTrainer. The model is made on the spot, and there is no GPU.

python examples/trl_calculator/train.py --picture trl.png

The agent server is a process of its own.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import torch
from checking import CheckingTrainer, rows
from llama import small_tokenizer, taught_model
from trl import GRPOConfig

sys.path.insert(0, str(Path(__file__).parents[1] / "learn_to_calculate"))
from learn import agent_server, draw_curves, positive

from osmosis_grpc.integrations.trl import TrlRollouts, outcome_reward

STEPS, GROUP_SIZE = 60, 8
WARM_UP, RATE = 400, 2e-3
ENDS, RISE = 5, 0.1


def train(target: str, folder: str, *, seed: int, steps: int, warm_up_updates: int) -> list[float]:
    """Train a new model. Returns the mean reward of each step."""
    tokenizer = small_tokenizer()
    with TrlRollouts([target], label="answer", fields={"max_turns": 4}) as rollouts:
        trainer = CheckingTrainer(
            model=taught_model(seed, warm_up_updates),
            processing_class=tokenizer,
            train_dataset=rows(seed),
            rollout_func=rollouts,
            reward_funcs=outcome_reward,
            args=GRPOConfig(
                output_dir=folder,
                max_steps=steps,
                per_device_train_batch_size=64,
                num_generations=GROUP_SIZE,
                max_completion_length=96,
                temperature=1.0,
                learning_rate=RATE,
                lr_scheduler_type="constant",
                logging_steps=1,
                report_to=[],
                save_strategy="no",
                disable_tqdm=True,
                use_cpu=True,
                bf16=False,
                seed=seed,
            ),
        )
        trainer.train()
    print(f"greatest difference of logprobs {trainer.greatest:.1e}, rollouts {dict(rollouts.counts)}")
    return [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=positive, default=STEPS, help="how many steps of TRL, each of 64 rollouts")
    parser.add_argument("--warm-up", type=positive, default=WARM_UP, help="how many updates teach the format")
    parser.add_argument("--workers", type=positive, default=1, help="how many processes the agent server has")
    parser.add_argument("--picture", type=Path, default=Path("trl.png"), help="the PNG with the mean rewards")
    options = parser.parse_args()
    torch.set_num_threads(1)  # the model is too small for more
    with agent_server(options.workers) as target, tempfile.TemporaryDirectory() as folder:
        rewards = train(target, folder, seed=options.seed, steps=options.steps, warm_up_updates=options.warm_up)
    draw_curves({options.seed: rewards}, options.picture)
    if len(rewards) >= 2 * ENDS:
        first, last = sum(rewards[:ENDS]) / ENDS, sum(rewards[-ENDS:]) / ENDS
        print(f"mean reward of the first {ENDS} steps {first:.3f}, of the last {ENDS} {last:.3f}")
        if last - first < RISE:
            sys.exit(f"the mean reward has not risen by {RISE}")


if __name__ == "__main__":
    main()
