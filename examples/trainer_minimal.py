"""A trainer: starts the rollouts of a data file, answers their chats, prints what there is to train on.

python examples/trainer_minimal.py 127.0.0.1:50051 examples/calculator/test_data.jsonl
"""

import argparse
import asyncio
import json
import uuid
from pathlib import Path
from typing import Any

from osmosis_grpc.policies import ToolCallingMock
from osmosis_grpc.trainer import RolloutRequest, Trainer


async def main(target: str, rows: list[dict[str, Any]]) -> None:
    policy = ToolCallingMock()  # any async callable from ChatRequest to ChatResponse
    run, requests = uuid.uuid4().hex, []  # an id runs once
    for number, row in enumerate(rows):
        roles = {"system": row["system_prompt"], "user": row["user_prompt"]}
        messages = [{"role": role, "content": text} for role, text in roles.items()]
        fields = {"rollout_id": f"row-{run}-{number}", "messages": messages, "label": row["ground_truth"]}
        requests.append(RolloutRequest(**fields))
    async with Trainer(target, policy) as trainer:
        async for outcome in trainer.run(requests):
            question = rows[int(outcome.rollout_id.rpartition("-")[2])]["user_prompt"]
            if outcome.failure:
                print(question, outcome.status, outcome.failure.message)
            for sample in outcome.samples.values():
                tokens = sum(segment.sampled for segment in sample.segments)
                print(question, outcome.status, "reward", sample.reward, "sampled tokens", tokens)


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("target", help="HOST:PORT of the agent server")
parser.add_argument("data", type=Path, help="a file with a JSON object on each line")
arguments = parser.parse_args()
asyncio.run(main(arguments.target, [json.loads(line) for line in arguments.data.read_bytes().splitlines()]))
