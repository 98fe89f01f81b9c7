"""The deployment that fuzzing attacks: one agent server and two trainers on loopback, on an event loop of their own.

Whatever is logged as an error or raised in a task meanwhile is a finding.
"""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any, ClassVar

import grpc
from grpc_health.v1 import health_pb2

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import (
    annotation_pb2,
    chat_pb2,
    message_pb2,
    outcome_pb2,
    rollout_pb2,
    tokens_pb2,
)
from osmosis_grpc.server import AgentServer, ServerConfig
from osmosis_grpc.testing.raw import RawAgentServer
from osmosis_grpc.testing.raw.connections import OPTIONS
from osmosis_grpc.testing.raw.server_frames import referring
from osmosis_grpc.testing.raw.trainer_frames import init
from osmosis_grpc.trainer import Trainer
from tests.callback_trainer import CallbackTrainer
from tests.credentials import shown
from tests.server.attached import bystander

SOON = 10.0
LIMIT = 0.05  # seconds that an answer which need not come is waited for
NUMBERS = itertools.count(1)


class Agent(RolloutAgentLoop):
    """Chats as often as its metadata says, and completes."""

    name: ClassVar[str] = "talk"

    def get_tools(self, request: Any) -> Any:
        return [{"type": "function", "function": {"name": "nod", "parameters": {"type": "object"}}}]

    async def run(self, ctx: Any) -> Any:
        messages = list(ctx.request.messages)
        turns = ctx.request.metadata.get("turns", 1)
        for _ in range(turns if isinstance(turns, int) and turns in range(4) else 1):
            messages.append((await ctx.chat(messages)).message)
        return ctx.complete(messages, reward=1.0)


class Deployment(logging.Handler):
    """The servers, what was sent to them, and what they found wrong with themselves."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda _, context: self.found.append(str(context)))
        self._stack = AsyncExitStack()
        self.server: AgentServer
        self.drained: AgentServer
        """One of its own for Drain, which cannot be taken back."""
        self.callbacks: CallbackTrainer
        self.dialled: Any
        """A trainer that agent servers dial."""
        self.addresses: dict[str, str] = {}

    def emit(self, record: logging.LogRecord) -> None:
        if "expired undelivered" not in record.msg:  # so it should: its callback's port was fuzzed
            self.found.append(self.format(record))

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run to the end, with the servers."""
        return self._loop.run_until_complete(work)

    def begin(self) -> None:
        logging.getLogger().addHandler(self)
        self.run(self._begin())

    async def _begin(self) -> None:
        config = ServerConfig(
            max_concurrent=100_000,
            trainer_grace=1.0,
            retry_delay=(0.05, 0.1),
            outbox_delay=(0.05, 0.1),
            memory_budget=2**26,
            record_ttl=5.0,
            sweep_interval=1.0,
            blocked_after=60.0,
        )
        enter = self._stack.enter_async_context
        self.server = await enter(AgentServer([Agent()], port=0, config=config))
        self.drained = await enter(AgentServer([Agent()], port=0))
        self.callbacks = await enter(CallbackTrainer(lambda request: answer(request, "fine"), ttl=4.0))
        self.dialled = await enter(Trainer([], lambda request: answer(request, "fine"), listen="127.0.0.1:0"))
        self.addresses = {
            "RolloutService": self.server.address,
            "TrainerService": self.callbacks.address,
            "Drain": self.drained.address,
            "Accept": self.dialled.address,
        }
        self.channels = {
            name: await enter(grpc.aio.insecure_channel(address, options=OPTIONS))
            for name, address in self.addresses.items()
        }

    def end(self) -> None:
        self.run(self._stack.aclose())
        self._loop.close()
        logging.getLogger().removeHandler(self)

    def check(self) -> None:
        """Nothing was found wrong, health answers, and a bystander rollout runs, each way it may come."""
        found, self.found = self.found, []
        assert not found, found[:3]
        self.run(self._check())

    async def _check(self) -> None:
        health = self.channels["RolloutService"].unary_unary(
            "/grpc.health.v1.Health/Check",
            health_pb2.HealthCheckRequest.SerializeToString,
            health_pb2.HealthCheckResponse.FromString,
        )
        assert (await health(health_pb2.HealthCheckRequest(), timeout=SOON)).status == 1
        rollout_id = f"bystander-{next(NUMBERS)}"
        request = self.request(rollout_id).SerializeToString()
        await self.channels["RolloutService"].unary_unary("/osmosis.rollout.v1.RolloutService/Init")(request)
        assert (await self.callbacks.outcome(rollout_id, SOON)).status == "COMPLETED"
        async with RawAgentServer(self.dialled.address) as agent_server:
            await agent_server.attach(agent_loops=[rollout_id])
            done = asyncio.create_task(self.dialled.rollout(rollout_id=rollout_id, agent_loop=rollout_id))
            started = await agent_server.accept()
            await agent_server.ask(started)
            await agent_server.complete(started, **referring(1, runs=(1, 2)))
            assert (await asyncio.wait_for(done, SOON)).status == "COMPLETED"
        async with bystander(self.server, f"{rollout_id}-attached"):
            pass

    def request(self, rollout_id: str = "") -> rollout_pb2.InitRequest:
        """A good InitRequest with a callback and every field that is served."""
        request = init(rollout_id or f"r{next(NUMBERS):08}").init
        request.callback.target = self.callbacks.address
        request.callback.credential = self.callbacks.callback().credential
        request.callback.state = b"state"
        request.spec.sampling.temperature = 1.0
        request.spec.sampling.extra_json = '{"min_p": 0.1}'
        request.spec.agent_timeout.seconds = 5
        request.spec.group.id, request.spec.group.size = "group", 4
        request.trace_context.traceparent = f"00-{'1' * 32}-{'2' * 16}-01"
        request.spec.messages.add(
            role="assistant", null_content=message_pb2.NullContent(), extra_json='{"x": null}'
        ).tool_calls.add(id="c", type="function").function.MergeFrom(
            message_pb2.FunctionCall(name="nod", arguments='{"a": 1}')
        )
        request.spec.messages.add(role="tool", tool_call_id="c").parts.parts.add(type="text", text="part")
        return request

    def chat(self, rollout_id: str = "") -> chat_pb2.ChatRequest:
        """A good ChatRequest."""
        message = chat_pb2.ChatRequest(
            rollout_id=rollout_id or f"c{next(NUMBERS):08}", attempt=1, sample="main", chat_number=1, state=b"s"
        )
        message.full.messages.add(role="user", text="Hello")
        message.sampling.max_tokens = 5
        tool = message.tools.tools.add(type="function")
        tool.function.name, tool.function.parameters_json = "nod", '{"type": "object"}'
        return message

    def outcome(self, rollout_id: str = "") -> outcome_pb2.CompleteRequest:
        """A good CompleteRequest with a sample in it."""
        received = outcome_pb2.RolloutOutcome(
            rollout_id=rollout_id or f"d{next(NUMBERS):08}",
            attempt=1,
            result_id="a result",
            status=outcome_pb2.OUTCOME_STATUS_COMPLETED,
            finish_reason="stop",
            reward=1.0,
            extra_json="{}",
        )
        received.metrics.num_llm_calls = 1
        received.metrics.total_latency.seconds = 1
        segment = tokens_pb2.Segment(ids=[1, 2, 3], logprobs=[-1.0], mask_runs=[2, 1], chats=[1])
        segment.versions.add(version="v", tokens=1)
        sample = received.samples.add(name="main")
        sample.messages.add(role="user", text="Hello")
        sample.segments.append(segment)
        sample.trainable, sample.reward = True, 1.0
        return outcome_pb2.CompleteRequest(outcome=received, state=b"s")

    async def accepted(self) -> str:
        """The id of a rollout that the server has just accepted."""
        request = self.request()
        init_method = "/osmosis.rollout.v1.RolloutService/Init"
        assert await self.call("RolloutService", init_method, request.SerializeToString(), stream=False) == "OK"
        return request.rollout_id

    def abandoned(self) -> chat_pb2.AbandonChatRequest:
        """A good AbandonChatRequest."""
        return chat_pb2.AbandonChatRequest(
            rollout_id="c", attempt=1, sample="main", chat_number=1, reason="cancelled", state=b"s"
        )

    async def call(self, address: str, method: str, data: bytes, *, stream: bool) -> str:
        """Send bytes to a method: the name of the status that comes; OK also where none comes soon."""
        channel = self.channels[address]
        metadata = shown(self.callbacks) if address == "TrainerService" else None
        call = (channel.unary_stream if stream else channel.unary_unary)(method)(data, timeout=SOON, metadata=metadata)
        try:
            if not stream:
                await call
            else:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LIMIT):
                        while await call.read() is not grpc.aio.EOF:
                            pass
                call.cancel()
        except grpc.aio.AioRpcError as error:
            return str(error.code().name)
        except asyncio.CancelledError:
            if not stream:
                raise
        return "OK"


def annotation(rollout_id: str) -> annotation_pb2.AnnotateRequest:
    """A good AnnotateRequest with every field."""
    request = annotation_pb2.AnnotateRequest(rollout_id=rollout_id, attempt=1)
    note = request.annotation
    note.id, note.author, note.note, note.dropped_reason = "a1", "trainer", "seen", "stale"
    note.advantage, note.reward, note.trained, note.sample = 0.5, 1.0, True, "main"
    note.weight_step = "7"
    note.labels.append("tool misuse")
    note.segments.add(sample="main", index=0, logprobs=[-1.0], entropies=[0.5], advantages=[0.5])
    return request
