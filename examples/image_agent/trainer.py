"""Runs the agent on a model server that sees pictures, such as vLLM with Qwen2.5-VL.

python trainer.py 127.0.0.1:50051 http://127.0.0.1:8000/v1 Qwen/Qwen2.5-VL-3B-Instruct
"""

import argparse
import asyncio
import itertools
import uuid

from picture import COLOURS

from osmosis_grpc.policies import OpenAIPolicy
from osmosis_grpc.trainer import RolloutRequest, Trainer


def requests() -> list[RolloutRequest]:
    """Return a rollout for each pair of colours. Their ids are unique to the run."""
    run = uuid.uuid4().hex[:6]
    return [
        RolloutRequest(
            rollout_id=f"image-{run}-{seed}",
            messages=[{"role": "system", "content": "You name colours, and nothing else."}],
            metadata={"colours": list(pair), "seed": seed},
            completion_params={"max_tokens": 16, "temperature": 0.7},
        )
        for seed, pair in enumerate(itertools.permutations(COLOURS, 2))
    ]


async def main(server: str, base_url: str, model: str) -> None:
    async with Trainer([server], OpenAIPolicy(base_url, model)) as trainer:
        async for outcome in trainer.run(requests()):
            sample = outcome.samples["main"]
            why = "" if sample.trainable else f"  not trainable: {sample.not_trainable_reason}"
            print(f"{outcome.rollout_id}  {outcome.status}  reward {outcome.reward}{why}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Runs the agent that shows pictures, on a model server.")
    parser.add_argument("server", help="HOST:PORT of the agent server")
    parser.add_argument("base_url", help="the URL of the model server, with /v1")
    parser.add_argument("model")
    asyncio.run(main(**vars(parser.parse_args())))
