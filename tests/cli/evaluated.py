"""An agent, a dataset and eval functions for the tests of eval, compare and rescore."""

import json
import os
from pathlib import Path

AGENT = """
from osmosis_grpc.rollout import RolloutAgentLoop

class Asker(RolloutAgentLoop):
    name = "asker"

    async def run(self, ctx):
        print("the agent prints")
        messages = list(ctx.request.messages)
        if "fail" in messages[-1]["content"]:
            raise ValueError("\\x1b[31mI fail")
        messages.append((await ctx.chat(messages, **ctx.request.completion_params)).message)
        return ctx.complete(messages, reward=0.25)

agent_loop = Asker()
"""
REWARDS = """
def exact(solution_str, ground_truth, extra_info=None, **kwargs):
    return float(ground_truth in solution_str)

async def length(messages, ground_truth, metadata):
    return len(messages) / 4

def strict(solution_str, ground_truth):
    return float(solution_str == ground_truth)

def fails(solution_str, ground_truth):
    print("the function prints")
    if ground_truth == "3":
        raise ValueError("\\x1b[31mI cannot judge\\nthis")
    return float("nan") if ground_truth == "9" else 1
"""
GRADERS = """
from osmosis_grpc.rollout import Grader, GraderConfig

class Strictness(GraderConfig):
    name: str = "strictness"
    right: float = 1.0

class Exact(Grader[Strictness]):
    async def grade(self, ctx):
        if ctx.label == "9":
            raise ValueError("I cannot judge\\nthis")
        for name, sample in ctx.samples.items():
            ctx.set_sample_reward(name, self.config.right * (ctx.label in sample.messages[-1]["content"]))

strictness = Strictness()
"""
ROWS = [
    {"user_prompt": "What is 6 / 2?", "ground_truth": "3"},
    {"user_prompt": "What is 1 / 0?", "ground_truth": "9"},
    {"user_prompt": "What is 8 / 2?", "ground_truth": "4"},
]
SCRIPT = {"0.1": ["No."], "0": ["It is 3."], "1": ["It is 7."], "*": ["It is 4."]}
MODEL = ("--model", "mock:script=script.json")


def write(folder: Path, rows=ROWS) -> None:
    """Write all files into a folder."""
    (folder / "agent.py").write_text(AGENT)
    (folder / "rewards.py").write_text(REWARDS)
    (folder / "graders.py").write_text(GRADERS)
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "script.json").write_text(json.dumps(SCRIPT))


def arguments(command: str, *more: str) -> list[str]:
    """The command line for the agent and the dataset."""
    return ["-m", "osmosis_grpc", command, "-m", "agent:agent_loop", "-d", "data.jsonl", *more]


def environment(**variables: str) -> dict[str, str]:
    """The variables without those of a model."""
    return {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")} | variables


def records(text: str) -> list[dict]:
    """The records of a command's output."""
    return [json.loads(line) for line in text.splitlines()]


def results_of(run: Path) -> list[dict]:
    """The lines of a run's results."""
    return records((run / "results.jsonl").read_text())
