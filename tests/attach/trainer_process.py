"""A trainer in a process of its own: python -m tests.attach.trainer_process TARGETS NAME COUNT.

Answers the first chat of each rollout and, and no other. Prints a JSON
line for each chat that it answered and for each outcome.
"""

import asyncio
import json
import sys

from osmosis_grpc.trainer import ChatRequest, ChatResponse, Trainer
from tests.attach.policies import CountingPolicy, requests


class Halting(CountingPolicy):
    """Answers first chats; the others wait for ever."""

    async def __call__(self, request: ChatRequest, /) -> ChatResponse:
        if request.chat_number > 1:
            await asyncio.Event().wait()
        response = await super().__call__(request)
        print(json.dumps({"answered": request.rollout_id, "text": response.message["content"]}), flush=True)
        return response


async def main(targets: str, name: str, count: str) -> None:
    async with Trainer(targets.split(","), Halting()) as trainer:
        async for outcome in trainer.run(list(requests(name, int(count)))):
            print(json.dumps({"ended": outcome.rollout_id, "status": outcome.status}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
