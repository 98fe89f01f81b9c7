"""All parts around a legacy agent server, running, and what has to be gone when a test ends."""

import asyncio
import contextlib
import gc
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import pytest_asyncio

from osmosis_gateway.http_agent import HttpAgent
from osmosis_grpc.network.channel_options import client_options
from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.errors import CallError
from osmosis_grpc.server import AgentServer, ServerConfig
from osmosis_grpc.settings.settings import RolloutClientSettings
from osmosis_grpc.trainer import RolloutClient
from tests.callback_trainer import CallbackTrainer
from tests.gateway.legacy_agent import QUESTION, REPLY, OldAgentServer
from tests.waiting import ended, until

SETTINGS = RolloutClientSettings(retry_base_delay=0.1, retry_max_delay=1.0)
ENGINE = {"outbox_delay": (0.05, 0.2), "retry_delay": (0.05, 0.1), "stop_again_after": (0.05, 0.1)}


class Policy:
    """Answers after `gate` is open, and counts."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.answered = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.reply: dict[str, Any] = REPLY
        self.faults: list[Exception] = []

    async def __call__(self, request: Any) -> Any:
        self.asked.append(request)
        await self.gate.wait()
        self.answered += 1
        if self.faults:
            raise self.faults.pop(0)
        return answer(request, self.reply, tokens=3)


@dataclass
class Deployment:
    """The old agent server, our loop and server that host it, a trainer, and its client."""

    old: OldAgentServer
    loop: HttpAgent
    server: AgentServer
    client: RolloutClient
    trainer: CallbackTrainer
    policy: Policy

    async def init(self, rollout_id: str = "r1", **more: Any) -> Any:
        request = {"messages": QUESTION, "callback": self.trainer.callback()} | more
        return await self.client.init(rollout_id=rollout_id, **request)

    async def end(self, rollout_id: str = "r1", **more: Any) -> Any:
        return await self.trainer.outcome(rollout_id, timeout=10, **more)

    async def finish(self, *rollout_ids: str) -> Any:
        """The old agent is through: the last one's outcome."""
        for rollout_id in rollout_ids:
            assert await self.old.complete(rollout_id, final_messages=QUESTION) == 200
            outcome = await self.end(rollout_id)
            assert outcome.status == "COMPLETED"
        return outcome

    async def wait(self, rollout_id: str = "r1", attempt: int = 0) -> Any:
        async with asyncio.timeout(10):
            return await ended(self.client, rollout_id, attempt)

    async def asked(self, count: int = 1) -> None:
        await until(lambda: len(self.policy.asked) >= count)

    async def open_chats(self, count: int = 1) -> None:
        """Wait until so many chats of the old agents are open."""
        await until(lambda: self.loop.open_chats == count)

    async def held(self) -> asyncio.Task[Any]:
        """r1 runs, and its first chat is with the trainer."""
        self.policy.gate.clear()
        await self.init()
        chat = asyncio.create_task(self.old.chat("r1"))
        await self.asked()
        return chat

    async def gone(self, legacy_id: str) -> None:
        """The old agents of an id hear that it is over, and what they report changes nothing."""
        for init in [init for init in self.old.inits if init["rollout_id"] == legacy_id]:
            assert (await self.old.chat_of(init))[0] == 410
            assert (await self.old.chat_of(init, [*QUESTION, REPLY]))[0] == 410
            for status in ("COMPLETED", "ERROR"):
                assert await self.old.complete_of(init, status, reward=1.0) == 200

    def idle(self) -> bool:
        capacity = self.server.engine.capacity()
        return not (self.loop.runs or capacity.running or capacity.queued)

    async def fine_afterwards(self) -> None:
        """Nothing is kept, and the next rollout works."""
        await until(self.idle)
        self.old.init_answers.clear()
        assert (await self.init("good")).created
        assert (await self.old.chat("good"))[0] == 200
        await self.finish("good")


def once(target: str) -> RolloutClient:
    """Return a client whose channel does not retry: a test counts the posts of one Init."""
    options = client_options(grpc__enable_retries=0)
    with patch("osmosis_grpc.trainer.rollout_client.client_options", lambda: options):
        return RolloutClient(target)


def left_over(*more: str) -> list[str]:
    """Tasks of ours that go on."""
    ours = ("Relay.", "_outcome", "settled", "HttpAgent", "run_asgi", "plays", *more)
    work = [task.get_coro() for task in asyncio.all_tasks() if not task.done()]
    names = [getattr(coroutine, "__qualname__", "") for coroutine in work]  # grpc's generators have none
    return [name for name in names if any(part in name for part in ours) and name != "Engine._run"]


@pytest_asyncio.fixture(name="later", scope="module", loop_scope="module")
async def closings():
    """Closings that take a while and that no test waits for."""
    gc.collect()
    gc.freeze()
    closing: list[asyncio.Task[None]] = []
    yield closing
    await asyncio.gather(*closing)
    gc.unfreeze()


@pytest_asyncio.fixture(name="build", loop_scope="module")
async def builder(later):
    """Makes a Deployment; in the end, looks for what was left behind."""
    deployments: list[Deployment] = []
    complaints: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    async with contextlib.AsyncExitStack() as stack, contextlib.AsyncExitStack() as slow:

        async def made(*, script=None, hosted=None, old=None, **config) -> Deployment:
            enter = stack.enter_async_context
            if old is None:
                old = await slow.enter_async_context(OldAgentServer())
                old.script = script
            loop = HttpAgent(old.url, **({"settings": SETTINGS} | (hosted or {})))
            await slow.enter_async_context(loop)
            server = await enter(AgentServer([loop], port=0, config=ServerConfig(**(ENGINE | config))))
            policy = Policy()
            trainer = await enter(CallbackTrainer(policy))
            client = await enter(once(server.address))
            deployments.append(Deployment(old, loop, server, client, trainer, policy))
            return deployments[-1]

        yield made
        for deployment in deployments:
            with contextlib.suppress(CallError):  # what a failed test has left running
                await deployment.client.cancel(everything=True)
            await until(deployment.idle)
            await until(lambda: not left_over())
        last = slow.pop_all()
    later.append(asyncio.create_task(last.aclose()))
    gc.collect()
    await asyncio.sleep(0)
    assert complaints == []
    await until(lambda: not left_over("Engine."))


@pytest_asyncio.fixture(name="deployment", loop_scope="module")
async def usual(build):
    """One Deployment with the usual settings."""
    return await build()
