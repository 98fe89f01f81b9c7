"""The calculator agent under TRL's GRPOTrainer, with a real vLLM that samples and gets new weights before each step.

python examples/vllm_trl/train.py --vllm .venv-vllm/bin/vllm --seeds 0 1 2

TRL and vLLM are in environments of their own, and neither needs a GPU. There are three processes: this one trains, an
agent server runs the agent, and vLLM samples. Each step does this:

1. Save the weights of the model in a folder. Pause vLLM, let it load the folder, and name the weights after the step.
2. Run 64 rollouts. The policy sends token ids to vLLM, and gets token ids with logprobs.
3. Compute the logprob of each sampled token again, with the model that is about to be updated. Exit if one differs by
   more than TOLERANCE. Then update the model.

It also exits if a token was sampled with the weights of another step, and if the reward does not rise.
"""

import argparse
import asyncio
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import torch
from engine import engine
from transformers import PrinterCallback, TrainerCallback
from transformers.utils.logging import disable_progress_bar
from trl import GRPOConfig, GRPOTrainer

sys.path[1:1] = [str(Path(__file__).parents[1] / name) for name in ("trl_calculator", "learn_to_calculate")]
from checking import CheckingTrainer, rows
from learn import agent_server, positive
from llama import small_tokenizer, taught_model

from osmosis_grpc.integrations.trl import TrlRollouts, outcome_reward
from osmosis_grpc.integrations.vllm_http import VllmHttpControl, VllmHttpGenerator
from osmosis_grpc.policies import ChatRenderer, TokenPolicy

STEPS, GROUP_SIZE = 60, 8
WARM_UP, RATE = 400, 7e-4
ENDS, RISE, TOLERANCE = 10, 0.1, 1e-3


class FreshRollouts(TrlRollouts):
    """Rollouts whose tokens vLLM samples with the newest weights of the trainer."""

    def __init__(self, servers: str, url: str, folder: Path, tokenizer, **options) -> None:
        policy = TokenPolicy(ChatRenderer(tokenizer, tool_parser="hermes"), VllmHttpGenerator(url))
        super().__init__(servers, policy=policy, **options)
        self._url, self._folder = url, folder

    def __call__(self, prompts, trainer: GRPOTrainer):
        version = str(trainer.state.global_step)
        trainer.accelerator.unwrap_model(trainer.model).save_pretrained(self._folder)
        asyncio.run(self._load(version))
        columns = super().__call__(prompts, trainer)
        found = {span.version for each in self.outcomes for part in segments(each) for span in part.versions}
        if found != {version}:
            sys.exit(f"step {version} has tokens of the weights {sorted(found)}")
        return columns

    async def _load(self, version: str) -> None:
        async with VllmHttpControl(self._url) as vllm, vllm.updating(version):
            await vllm.load_weights(str(self._folder))


class StrictTrainer(CheckingTrainer):
    """Computes with float32 what vLLM has sampled with float32."""

    tolerance = TOLERANCE


class Report(TrainerCallback):
    """Prints a line for each step."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.trainer: StrictTrainer | None = None

    def on_log(self, args, state, control, logs=None, **more) -> None:
        if self.trainer is not None and "reward" in (logs or {}):
            print(
                f"seed {self.seed}  step {state.global_step:2}  reward {logs['reward']:.3f}  "
                f"largest difference of a logprob {self.trainer.differences[-1]:.1e}",
                flush=True,
            )


def segments(outcome):
    """Return the segments of all samples."""
    return [segment for sample in outcome.samples.values() for segment in sample.segments]


def train(target: str, vllm: str, folder: Path, *, seed: int, steps: int, warm_up_updates: int) -> list[float]:
    """Train a new model. Returns the mean reward of each step."""
    tokenizer, model = small_tokenizer(), taught_model(seed, warm_up_updates, heads=2)
    served = folder / f"model-{seed}"
    model.save_pretrained(served)
    report = Report(seed)
    with (
        engine(vllm, served, folder / f"vllm-{seed}.log") as url,
        FreshRollouts(target, url, served, tokenizer, label="answer", fields={"max_turns": 4}) as rollouts,
    ):
        report.trainer = trainer = StrictTrainer(
            model=model,
            processing_class=tokenizer,
            train_dataset=rows(seed),
            rollout_func=rollouts,
            reward_funcs=outcome_reward,
            callbacks=[report],
            args=GRPOConfig(
                output_dir=str(folder / "trl"),
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
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    print(f"seed {seed}  largest difference of all steps {trainer.greatest:.1e}  rollouts {dict(rollouts.counts)}")
    return [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", default="vllm", help="the program vllm, which may be in another environment")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--steps", type=positive, default=STEPS, help="how many steps of TRL, each of 64 rollouts")
    parser.add_argument("--warm-up", type=positive, default=WARM_UP, help="how many updates teach the format")
    options = parser.parse_args()
    torch.set_num_threads(1)  # the model is too small for more
    disable_progress_bar()  # one for each folder of weights
    low = []
    with ExitStack() as stack:
        target = stack.enter_context(agent_server(1))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for seed in options.seeds:
            rewards = train(
                target, options.vllm, folder, seed=seed, steps=options.steps, warm_up_updates=options.warm_up
            )
            if len(rewards) >= 2 * ENDS:
                first, last = sum(rewards[:ENDS]) / ENDS, sum(rewards[-ENDS:]) / ENDS
                print(f"seed {seed}  mean reward of the first {ENDS} steps {first:.3f}, of the last {ENDS} {last:.3f}")
                low += [seed] if last - first < RISE else []
    if low:
        sys.exit(f"the mean reward has not risen by {RISE}: seeds {low}")


if __name__ == "__main__":
    main()
