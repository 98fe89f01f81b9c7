"""An agent server with a journal, a callback trainer and a client on free ports, for tests of several packages."""

import asyncio
import contextlib
from contextlib import AsyncExitStack, asynccontextmanager

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from osmosis_grpc import supervise
from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.policies.scripted import EchoPolicy
from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.server import AgentServer, ServerConfig
from osmosis_grpc.testing.raw import RawTrainer
from osmosis_grpc.trainer import RolloutClient
from tests.callback_trainer import CallbackTrainer
from tests.waiting import until

PATIENCE = 20.0
"""Seconds after which a wait fails."""
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
    """Sends two chats and completes."""

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
    """Returns no tools when it is awaited. Unlike a coroutine it need not be awaited."""

    def __await__(self):
        yield from asyncio.sleep(0).__await__()
        return []


class SlowTools(Talk):
    """Has a get_tools that must be awaited."""

    name = "slow tools"

    def get_tools(self, request):
        return Tools()


class Hangs(Talk):
    """Waits for ever."""

    name = "hangs"

    async def run(self, ctx):
        await asyncio.Event().wait()


class Stubborn(Talk):
    """Ignores cancellation for a while."""

    name = "stubborn"

    async def run(self, ctx):
        for _ in range(20):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.05)  # it does not stop at once
        return ctx.complete([USER])


async def health(address, service=""):
    """Returns the name of the status that the health check answers."""
    async with grpc.aio.insecure_channel(address) as channel:
        request = health_pb2.HealthCheckRequest(service=service)
        answer = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=PATIENCE)
    return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)


class Deployment:
    """A server, a callback trainer and a client. Made by deployment()."""

    def __init__(self, server, trainer, client):
        self.server, self.trainer, self.client = server, trainer, client
        self.supervisor = server.supervisor

    async def start(self, rollout_id, agent_loop="talk", **fields):
        """Sends an Init and returns its result."""
        async with asyncio.timeout(PATIENCE):
            return await self.client.init(
                rollout_id=rollout_id,
                agent_loop=agent_loop,
                messages=[USER],
                callback=self.trainer.callback(),
                **fields,
            )

    async def end(self, rollout_id):
        """Returns the outcome that the trainer got."""
        async with asyncio.timeout(PATIENCE):
            return await self.trainer.outcome(rollout_id)

    async def run(self, rollout_id, agent_loop="talk", **fields):
        """Runs a rollout and returns its outcome."""
        await self.start(rollout_id, agent_loop, **fields)
        return await self.end(rollout_id)

    async def completes(self, rollout_id):
        """Runs a rollout that must end COMPLETED."""
        assert (await self.run(rollout_id)).status is OutcomeStatus.COMPLETED

    async def ends_as_ours(self, rollout_id, agent_loop="talk", **fields):
        """Runs a rollout that must end FAILED by the server's fault."""
        outcome = await self.run(rollout_id, agent_loop, **fields)
        assert (outcome.status, outcome.failure.boundary) == (OutcomeStatus.FAILED, "server")

    async def until(self, condition):
        """Waits for a condition."""
        await until(condition)

    async def health(self):
        """Returns the name of the server's health status."""
        return await health(self.server.address)

    @asynccontextmanager
    async def raw(self):
        """Yields a trainer that attaches, with frames from the test."""
        async with RawTrainer(self.server.address) as raw:
            yield raw

    def failed(self, name):
        """Returns whether this job has failed."""
        return bool(self.supervisor.failures[name] or supervise.failures[name])


@asynccontextmanager
async def deployment(folder, *, policy=None, timeout=None, **config):
    """Yields a Deployment whose journal is in `folder`. `config` are fields of ServerConfig, FAST by default.

    `timeout` limits each call of the client.
    """
    loops = [Talk(), SlowTools(), Hangs(), Stubborn()]
    options = {} if timeout is None else {"timeout": timeout}
    async with AsyncExitStack() as stack:
        engine = ServerConfig(**(FAST | config))
        server = await stack.enter_async_context(AgentServer(loops, port=0, config=engine, state_dir=folder))
        trainer = await stack.enter_async_context(CallbackTrainer(policy or EchoPolicy()))
        client = await stack.enter_async_context(RolloutClient(server.address, **options))
        yield Deployment(server, trainer, client)
