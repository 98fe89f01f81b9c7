"""A trainer: starts the rollouts of a data file, answers their chats, prints what there is to train on.

python examples/trainer_minimal.py 127.0.0.1:50051 examples/calculator/test_data.jsonl
"""

import asyncio
import json
import sys
from pathlib import Path

from osmosis_grpc.policies import ToolCallingMock
from osmosis_grpc.trainer import RolloutClient, TrainerServer


async def main(target: str, rows: list[dict]) -> None:
    policy = ToolCallingMock()  # any async callable from ChatRequest to ChatResponse
    async with TrainerServer(policy) as trainer, RolloutClient(target) as client:

        async def rollout(number: int, row: dict) -> None:
            rollout_id = f"row-{number}"
            messages = [
                {"role": "system", "content": row["system_prompt"]},
                {"role": "user", "content": row["user_prompt"]},
            ]
            await client.init(
                rollout_id=rollout_id, messages=messages, label=row["ground_truth"], callback=trainer.callback()
            )
            completion = await trainer.completion(rollout_id)
            for segment in completion.samples["main"].segments:
                print(completion.rollout_id, completion.status, "reward", completion.reward,
                      "tokens", len(segment.ids), "of which sampled", segment.sampled)  # fmt: skip

        await asyncio.gather(*(rollout(number, row) for number, row in enumerate(rows)))


data = [json.loads(line) for line in Path(sys.argv[2]).read_text().splitlines()]
asyncio.run(main(sys.argv[1], data))
