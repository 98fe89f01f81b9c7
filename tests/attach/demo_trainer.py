"""The demo's rollouts over an attachment: python -m tests.attach.demo_trainer dial TARGET | listen ADDRESS.

Prints "ready" when it listens, then a JSON line for each outcome.
"""

import asyncio
import json
import sys

from osmosis_grpc.cli.demo import TASKS
from osmosis_grpc.policies import ToolCallingMock
from osmosis_grpc.trainer import RolloutRequest, Trainer, TrainerConfig


async def main(way: str, address: str) -> None:
    asked = [
        RolloutRequest(rollout_id=f"demo-{n}", messages=[{"role": "user", "content": question}], label=label)
        for n, (question, label) in enumerate(TASKS)
    ]
    targets, listen_on = ([address], "") if way == "dial" else ([], address)
    async with Trainer(targets, ToolCallingMock(), listen=listen_on, config=TrainerConfig(lost_after=20)) as trainer:
        print("ready", flush=True)
        async for outcome in trainer.run(asked):
            line = {"rollout_id": outcome.rollout_id, "status": outcome.status, "reward": outcome.reward}
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
