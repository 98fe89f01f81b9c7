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
from osmosis_grpc.trainer import RolloutClient, TrainerServer


async def main(target: str, rows: list[dict[str, Any]]) -> None:
    policy = ToolCallingMock()  # any async callable from ChatRequest to ChatResponse
    async with TrainerServer(policy) as trainer, RolloutClient(target) as client:

        async def rollout(row: dict[str, Any]) -> None:
            rollout_id, callback = f"row-{uuid.uuid4().hex}", trainer.callback()  # an id runs once
            messages = [{"role": role, "content": row[f"{role}_prompt"]} for role in ("system", "user")]
            await client.init(rollout_id=rollout_id, messages=messages, label=row["ground_truth"], callback=callback)
            completion = await trainer.completion(rollout_id, timeout=600)
            if completion.failure:
                print(row["user_prompt"], completion.status, completion.failure.message)
            for sample in completion.samples.values():
                tokens = sum(segment.sampled for segment in sample.segments)
                print(row["user_prompt"], completion.status, "reward", sample.reward, "sampled tokens", tokens)

        await asyncio.gather(*map(rollout, rows))


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("target", help="HOST:PORT of the agent server")
parser.add_argument("data", type=Path, help="a file with a JSON object on each line")
arguments = parser.parse_args()
asyncio.run(main(arguments.target, [json.loads(line) for line in arguments.data.read_text().splitlines()]))
