"""A trainer: starts the rollouts of a data file, answers their chats, prints what there is to train on.

python examples/trainer_minimal.py 127.0.0.1:50051 examples/calculator/test_data.jsonl
"""

import asyncio
import json
import sys
import uuid
from pathlib import Path

from osmosis_grpc.policies import ToolCallingMock
from osmosis_grpc.trainer import RolloutClient, TrainerServer


async def main(target: str, rows: list[dict]) -> None:
    policy = ToolCallingMock()  # any async callable from ChatRequest to ChatResponse
    async with TrainerServer(policy) as trainer, RolloutClient(target) as client:

        async def rollout(row: dict) -> None:
            rollout_id = f"row-{uuid.uuid4().hex}"  # an id runs once
            system, user = ("system", row["system_prompt"]), ("user", row["user_prompt"])
            messages = [{"role": role, "content": text} for role, text in (system, user)]
            await client.init(
                rollout_id=rollout_id, messages=messages, label=row["ground_truth"], callback=trainer.callback()
            )
            completion = await trainer.completion(rollout_id, timeout=600)
            if completion.failure:
                print(user[1], completion.status, completion.failure.message)
            for sample in completion.samples.values():
                tokens = sum(segment.sampled for segment in sample.segments)
                print(user[1], completion.status, "reward", sample.reward, "sampled tokens", tokens)

        await asyncio.gather(*map(rollout, rows))


if len(sys.argv) != 3:
    sys.exit(__doc__)
asyncio.run(main(sys.argv[1], [json.loads(line) for line in Path(sys.argv[2]).read_text().splitlines()]))
