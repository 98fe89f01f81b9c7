"""A server with a journal and its callers, for tests that make background work fail."""

import asyncio
import contextlib
from contextlib import AsyncExitStack, asynccontextmanager

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from osmosis_grpc import supervise
from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.policies.scripted import EchoPolicy
from osmosis_grpc.server import AgentServer, ServerConfig
from osmosis_grpc.testing.raw import RawTrainer
from osmosis_grpc.trainer import RolloutClient
from osmosis_grpc.types import CompletionStatus
from tests.callback_trainer import CallbackTrainer
from tests.waiting import until

PATIENCE = 20.0
"""Seconds after which something that should happen is taken not to happen."""
FAST = {
    "outbox_delay": (0.02, 0.1),
    "retry_delay": (0.02, 0.1),
    "stop_again_after": (0.05, 0.1),
    "sweep_interval": 0.02,
    "idle_interval": 0.1,
    "trainer_grace": 0.2,
    "blocked_after": 0.1,
}
USER = {"role": "user", "content": "hello"}


class Talk(RolloutAgentLoop):
    """Two chats."""

    name = "talk"
    replayable = True

    def get_tools(self, request):
        return []

    async def run(self, ctx):
        messages = [USER]
        for _ in range(2):
            messages.append((await ctx.chat(messages)).message)
            messages.append(USER)
        return ctx.complete(messages, reward=1.0)


class Tools:
    """Is awaited for no tools; unlike a coroutine it may also never be awaited."""

    def __await__(self):
        yield from asyncio.sleep(0).__await__()
        return []


class SlowTools(Talk):
    """Its get_tools is awaited."""

    name = "slow tools"

    def get_tools(self, request):
        return Tools()


class Hangs(Talk):
    """Waits for ever."""

    name = "hangs"

    async def run(self, ctx):
        await asyncio.Event().wait()


class Stubborn(Talk):
    """Does not stop when it is told to, for a while."""

    name = "stubborn"

    async def run(self, ctx):
        for _ in range(20):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.05)  # it does not stop at once
        return ctx.complete([USER])


class Deployment:
    """A server, a callback trainer and a client."""

    def __init__(self, server, trainer, client):
        self.server, self.trainer, self.client = server, trainer, client
        self.supervisor = server.supervisor

    async def start(self, rollout_id, agent_loop="talk", **fields):
        """Send an Init."""
        async with asyncio.timeout(PATIENCE):
            return await self.client.init(
                rollout_id=rollout_id,
                agent_loop=agent_loop,
                messages=[USER],
                callback=self.trainer.callback(),
                **fields,
            )

    async def end(self, rollout_id):
        """The completion, which the trainer gets."""
        async with asyncio.timeout(PATIENCE):
            return await self.trainer.completion(rollout_id)

    async def run(self, rollout_id, agent_loop="talk", **fields):
        """A rollout from its Init to its completion."""
        await self.start(rollout_id, agent_loop, **fields)
        return await self.end(rollout_id)

    async def completes(self, rollout_id):
        """A rollout that goes well."""
        assert (await self.run(rollout_id)).status is CompletionStatus.COMPLETED

    async def ends_as_ours(self, rollout_id, agent_loop="talk", **fields):
        """A rollout that ends FAILED, which is the server's fault."""
        completion = await self.run(rollout_id, agent_loop, **fields)
        assert (completion.status, completion.failure.boundary) == (CompletionStatus.FAILED, "server")

    async def until(self, condition):
        """Wait until something is true."""
        await until(condition)

    async def health(self):
        """What the health check answers."""
        async with grpc.aio.insecure_channel(self.server.address) as channel:
            answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE)
        return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)

    @asynccontextmanager
    async def raw(self):
        """A trainer that attaches, whose frames the test writes."""
        async with RawTrainer(self.server.address) as raw:
            yield raw

    def failed(self, name):
        """Whether this job has failed."""
        return bool(self.supervisor.failures[name] or supervise.failures[name])


@asynccontextmanager
async def deployment(folder, **config):
    """A Deployment, on a folder."""
    loops = [Talk(), SlowTools(), Hangs(), Stubborn()]
    async with AsyncExitStack() as stack:
        engine = ServerConfig(**(FAST | config))
        server = await stack.enter_async_context(AgentServer(loops, port=0, config=engine, state_dir=folder))
        trainer = await stack.enter_async_context(CallbackTrainer(EchoPolicy()))
        client = await stack.enter_async_context(RolloutClient(server.address))
        yield Deployment(server, trainer, client)
