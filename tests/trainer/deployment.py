"""A trainer that listens, with raw agent servers and rollouts that somebody waits for."""

import asyncio
from contextlib import aclosing, asynccontextmanager
from typing import Any

import grpc

from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import services_pb2
from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.testing.raw import RawAgentServer
from osmosis_grpc.testing.raw.server_frames import referring
from osmosis_grpc.testing.raw.stream import TIMEOUT

CODE = {code.name: code.value[0] for code in grpc.StatusCode}
QUESTION = [{"role": "user", "content": "How are you?"}]


class Policy:
    """Says fine, once it may."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, str, int]] = []
        self.may = asyncio.Event()
        self.may.set()

    async def __call__(self, request: Any) -> Any:
        self.asked.append((request.rollout_id, request.attempt, request.sample, request.chat_number))
        await self.may.wait()
        return answer(request, "fine", tokens=2)


class Deployment:
    """A trainer with raw agent servers."""

    def __init__(self, trainer: Any, stack: Any) -> None:
        self.trainer = trainer
        self._stack = stack

    async def server(self) -> RawAgentServer:
        return await self._stack.enter_async_context(RawAgentServer(self.trainer.address))

    def run(self, rollout_id: str, **fields: Any) -> "asyncio.Task[Any]":
        """A rollout that somebody waits for."""
        request = {"agent_loop": "talk", "messages": QUESTION} | fields
        return begun(self.trainer.rollout(rollout_id=rollout_id, **request))

    @asynccontextmanager
    async def bystander(self):
        """Another server with a rollout in progress, which goes on and completes afterwards, on the same stream."""
        server = await self.server()
        await server.attach(agent_loops=["bystander"])
        stream = server.stream
        done = self.run("bystander", agent_loop="bystander")
        request = await server.accept()
        yield server
        assert (await server.ask(request)).response.message.text == "fine"
        await server.complete(request, **referring(1, runs=(1, 2)))
        assert (await done).status is OutcomeStatus.COMPLETED
        assert stream.over is None


def begun(work: Any) -> "asyncio.Task[Any]":
    """A task of work that is soon over. A test that failed before need not look at it."""
    task = asyncio.create_task(within(work))
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task


async def within(work: Any) -> Any:
    async with asyncio.timeout(TIMEOUT):
        return await work


async def collect(values: Any) -> list[Any]:
    """All values of an async generator, which end soon."""
    async with asyncio.timeout(TIMEOUT), aclosing(values):
        return [value async for value in values]


def frames(*listed: Any) -> bytes:
    return services_pb2.AcceptRequest(frames=listed).SerializeToString()
