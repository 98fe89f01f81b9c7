"""Rollouts that run on a server while a test looks at them."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import Queue

from osmosis_grpc.policies import Policy
from osmosis_grpc.policies.scripted import EchoPolicy, answer
from osmosis_grpc.protocol.types import ChatRequest, ChatResponse, Message
from osmosis_grpc.trainer import RolloutClient
from tests.callback_trainer import CallbackTrainer
from tests.viewer.browser.conftest import CANARY, apart

TURNS = 2
"""The turns of a rollout whose replies the test chooses."""


async def run(address: str, *names: str, policy: Policy | None = None) -> None:
    """Run rollouts to their ends."""
    async with CallbackTrainer(policy or EchoPolicy()) as trainer, RolloutClient(address, token=CANARY) as client:
        for name in names:
            question = [{"role": "user", "content": "What is 1 + 2?"}]
            callback = trainer.callback()
            await client.init(rollout_id=name, messages=question, callback=callback, max_turns=TURNS)
        await asyncio.gather(*(trainer.outcome(name, timeout=60) for name in names))


@contextmanager
def answering(address: str, name: str) -> Iterator["Queue[Message]"]:
    """Run a rollout. Its model replies with the messages that the test puts into the queue."""
    replies: Queue[Message] = Queue()

    async def policy(request: ChatRequest) -> ChatResponse:
        reply = await asyncio.to_thread(replies.get)
        return answer(request, {"role": "assistant", "content": "", **reply})

    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(apart, run(address, name, policy=policy))
        try:
            yield replies
        finally:
            for _ in range(TURNS):  # a test that has failed leaves a rollout that waits
                replies.put({"content": "The test has ended."})
            running.result()
