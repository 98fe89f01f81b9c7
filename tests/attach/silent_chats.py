"""A rollout with one chat that is silent for long: each way to connect, past a proxy that cuts what is idle."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from osmosis_grpc.trainer import ChatRequest, ChatResponse, RolloutClient, RolloutOutcome, RolloutRequest, Trainer
from tests.attach.cutting_proxy import CuttingProxy
from tests.attach.policies import CountingPolicy, check_run, requests
from tests.attach.servers import ServerProcess
from tests.callback_trainer import CallbackTrainer
from tests.waiting import until

WAYS = ("attach", "callback", "dial-out")


class SilentOnce(CountingPolicy):
    """Answers the second chat of a rollout after `seconds`, the others soon."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    async def __call__(self, request: ChatRequest, /) -> ChatResponse:
        self.latency = (self.seconds, self.seconds) if request.chat_number == 2 else (0.0, 0.01)
        return await super().__call__(request)


async def silent_rollout(
    way: str,
    seconds: float,
    folder: Path,
    idle_limit: float | None,
    make_proxy: Callable[[str, float], Any] = CuttingProxy,
) -> int:
    """Run a rollout whose second chat takes `seconds`, with a server process of its own, and check its end.

    With an `idle_limit` what carries the chats goes through a proxy. How many connections that cut.
    """
    async with AsyncExitStack() as stack:
        deployment = _Deployment(stack, SilentOnce(seconds), folder, idle_limit, make_proxy)
        [request] = requests(way, 1)
        async with asyncio.timeout(seconds + 60):  # twelve servers start at once in one of the tests
            outcome = await deployment.ways[way](request)
        check_run([request.rollout_id], [outcome], deployment.policy)
        assert outcome.attempt == 1
        return sum(proxy.cut_when_idle for proxy in deployment.proxies)


class _Deployment:
    """Both sides of a way to connect. What the methods return is the rollout's outcome."""

    def __init__(
        self,
        stack: AsyncExitStack,
        policy: CountingPolicy,
        folder: Path,
        idle_limit: float | None,
        make_proxy: Callable[[str, float], Any],
    ) -> None:
        self.stack = stack
        self.policy = policy
        self.folder = folder
        self.idle_limit = idle_limit
        self.make_proxy = make_proxy
        self.proxies: list[Any] = []
        self.ways = dict(zip(WAYS, (self.attach, self.callback, self.dial_out), strict=True))

    async def attach(self, request: RolloutRequest) -> RolloutOutcome:
        server = await self._server()
        target = await self._past_the_proxy(server.address)
        trainer = await self.stack.enter_async_context(Trainer([target], self.policy))
        return await trainer.rollout(request)

    async def callback(self, request: RolloutRequest) -> RolloutOutcome:
        trainer = await self.stack.enter_async_context(CallbackTrainer(self.policy))
        target = await self._past_the_proxy(trainer.callback().target)
        client = await self.stack.enter_async_context(RolloutClient((await self._server()).address))
        await client.init(request, callback=trainer.callback(target=target))
        return await trainer.outcome(request.rollout_id)

    async def dial_out(self, request: RolloutRequest) -> RolloutOutcome:
        trainer = await self.stack.enter_async_context(Trainer([], self.policy, listen="127.0.0.1:0"))
        await self._server("--connect", await self._past_the_proxy(trainer.address))
        await until(lambda: any(server.attached for server in trainer.servers))
        return await trainer.rollout(request)

    async def _server(self, *arguments: str) -> ServerProcess:
        return await self.stack.enter_async_context(ServerProcess("--state-dir", str(self.folder), *arguments))

    async def _past_the_proxy(self, address: str) -> str:
        if self.idle_limit is None:
            return address
        self.proxies.append(await self.stack.enter_async_context(self.make_proxy(address, self.idle_limit)))
        return str(self.proxies[-1].address)
