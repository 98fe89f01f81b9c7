"""The house that fuzzing attacks: one agent server and two trainers on loopback, on an event loop of their own.

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

from osmosis_grpc._gen.osmosis.rollout.v1 import attach_pb2, message_pb2, rollout_pb2, tokens_pb2, trainer_pb2
from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.engine import EngineConfig
from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.server import AgentServer
from osmosis_grpc.trainer import TrainerServer, attach
from tests.server.raw_trainer import OPTIONS, RawStream, RawTrainer, cancel, init, innocent, recorded
from tests.trainer.raw_agent_server import RawAgentServer, accepted, chat, complete, referring

SOON = 10.0
_LIMIT = 0.05  # seconds that an answer which need not come is waited for
_WIDE = 1_000_000
_LAST = 5000  # frames after which a stream is begun anew
_CHANGING = {"window", "draining"}  # kinds after which nothing may come any more
_NUMBERS = itertools.count(1)


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


class House(logging.Handler):
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
        self.callbacks: TrainerServer
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
        config = EngineConfig(
            max_concurrent=100_000, trainer_grace=1.0, retry_delay=(0.05, 0.1), outbox_delay=(0.05, 0.1),
            memory_budget=2**26, record_ttl=5.0, sweep_interval=1.0, blocked_after=60.0,
        )  # fmt: skip
        enter = self._stack.enter_async_context
        self.server = await enter(AgentServer([Agent()], port=0, config=config))
        self.drained = await enter(AgentServer([Agent()], port=0))
        self.callbacks = await enter(TrainerServer(lambda request: answer(request, "fine"), ttl=4.0))
        self.dialled = await enter(attach([], lambda request: answer(request, "fine"), listen_on="127.0.0.1:0"))
        self.addresses = {
            "RolloutService": self.server.address, "TrainerService": self.callbacks.address,
            "Drain": self.drained.address, "Accept": self.dialled.address,
        }  # fmt: skip
        self.channels = {
            name: await enter(grpc.aio.insecure_channel(address, options=OPTIONS))
            for name, address in self.addresses.items()
        }

    def end(self) -> None:
        self.run(self._stack.aclose())
        self._loop.close()
        logging.getLogger().removeHandler(self)

    def check(self) -> None:
        """Nothing was found wrong, health answers, and an innocent rollout runs, each way it may come."""
        found, self.found = self.found, []
        assert not found, found[:3]
        self.run(self._check())

    async def _check(self) -> None:
        health = self.channels["RolloutService"].unary_unary(
            "/grpc.health.v1.Health/Check", health_pb2.HealthCheckRequest.SerializeToString,
            health_pb2.HealthCheckResponse.FromString,
        )  # fmt: skip
        assert (await health(health_pb2.HealthCheckRequest(), timeout=SOON)).status == 1
        rollout_id = f"innocent-{next(_NUMBERS)}"
        request = self.request(rollout_id).SerializeToString()
        await self.channels["RolloutService"].unary_unary("/osmosis.rollout.v1.RolloutService/Init")(request)
        assert (await self.callbacks.completion(rollout_id, SOON)).status == "COMPLETED"
        async with RawAgentServer(self.dialled.address) as agent_server:
            await agent_server.attach(agent_loops=[rollout_id])
            done = asyncio.create_task(self.dialled.rollout(rollout_id=rollout_id, agent_loop=rollout_id))
            started = await agent_server.accept()
            await agent_server.ask(started)
            await agent_server.complete(started, **referring(1, runs=(1, 2)))
            assert (await asyncio.wait_for(done, SOON)).status == "COMPLETED"
        async with innocent(self.server, f"{rollout_id}-attached"):
            pass

    def request(self, rollout_id: str = "") -> rollout_pb2.InitRequest:
        """A good InitRequest with a callback and every field that is served."""
        request = init(rollout_id or f"r{next(_NUMBERS):08}").init
        request.callback.target = self.callbacks.address
        request.callback.state = b"state"
        request.sampling.temperature = 1.0
        request.sampling.extra_json = '{"min_p": 0.1}'
        request.agent_timeout.seconds = 5
        request.group.id, request.group.size = "group", 4
        request.trace_context.traceparent = f"00-{'1' * 32}-{'2' * 16}-01"
        request.messages.add(role="assistant", null_content=True, extra_json='{"x": null}').tool_calls.add(
            id="c", type="function"
        ).function.MergeFrom(message_pb2.FunctionCall(name="nod", arguments='{"a": 1}'))
        request.messages.add(role="tool", tool_call_id="c").parts.parts.add(type="text", text="part")
        return request

    def chat(self, rollout_id: str = "") -> trainer_pb2.ChatRequest:
        """A good ChatRequest."""
        message = trainer_pb2.ChatRequest(
            rollout_id=rollout_id or f"c{next(_NUMBERS):08}", attempt=1, sample="main", number=1, state=b"s"
        )
        message.full.messages.add(role="user", text="Hello")
        message.sampling.max_tokens = 5
        tool = message.tools.tools.add(type="function")
        tool.function.name, tool.function.parameters_json = "nod", '{"type": "object"}'
        return message

    def completion(self, rollout_id: str = "") -> trainer_pb2.CompleteRequest:
        """A good CompleteRequest with a sample in it."""
        told = rollout_pb2.Completion(
            rollout_id=rollout_id or f"d{next(_NUMBERS):08}", attempt=1, result_id="a result",
            status=rollout_pb2.COMPLETION_STATUS_COMPLETED, finish_reason="stop", reward=1.0, extra_json="{}",
        )  # fmt: skip
        told.messages.add(role="user", text="Hello")
        told.metrics.num_llm_calls = 1
        told.metrics.total_latency.seconds = 1
        segment = tokens_pb2.Segment(ids=[1, 2, 3], logprobs=[-1.0], mask_runs=[2, 1], chats=[1])
        segment.versions.add(version="v", tokens=1)
        sample = told.samples["main"]
        sample.segments.append(segment)
        sample.trainable, sample.reward = True, 1.0
        return trainer_pb2.CompleteRequest(completion=told, state=b"s")

    async def call(self, address: str, method: str, data: bytes, *, stream: bool) -> str:
        """Send bytes to a method: the name of the status that comes; OK also where none comes soon."""
        channel = self.channels[address]
        call = (channel.unary_stream if stream else channel.unary_unary)(method)(data, timeout=SOON)
        try:
            if not stream:
                await call
            else:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LIMIT):
                        while await call.read() is not grpc.aio.EOF:
                            pass
                call.cancel()
        except grpc.aio.AioRpcError as error:
            return str(error.code().name)
        except asyncio.CancelledError:
            if not stream:
                raise
        return "OK"


class Trainerly:
    """A raw trainer's stream, opened again whenever it ended, with something on it for each kind of frame."""

    def __init__(self, house: House) -> None:
        self._house = house
        self.raw = RawTrainer(house.server.address)
        self.raw.open()
        self.raw.stream.over = "not begun"

    async def ready(self) -> None:
        """Both hellos are said."""
        if self.raw.stream.over is not None:
            await self.raw.attach(max_open_chats=_WIDE)

    async def template(self, kind: str) -> Any:
        """A good frame of a kind, for which there is a use."""
        if kind == "hello":
            return self.raw.hello()
        await self.ready()
        rollout_id = f"a{next(_NUMBERS):08}"
        if kind in ("chat_reply", "complete_reply"):
            return await self._asked(kind, rollout_id)
        if kind == "init":
            request = self._house.request(rollout_id)
            request.ClearField("callback")
            return attach_pb2.TrainerFrame(init=request)
        frame = attach_pb2.TrainerFrame()
        frame.MergeFrom(_SMALL[kind])
        return frame

    async def _asked(self, kind: str, rollout_id: str) -> Any:
        """A good answer to the chat, or to the completion, of a new rollout."""
        chats, stream = kind == "chat_reply", self.raw.stream
        wide = attach_pb2.TrainerFrame(
            window=attach_pb2.TrainerWindow(max_open_chats=_WIDE)
        )  # damage may have closed it
        await self.raw.send(wide, init(rollout_id, turns=int(chats)))

        def found() -> Any:
            if chats:
                return next((chat for chat in stream.all("chat") if chat.rollout_id == rollout_id), None)
            told = (one.completion for one in stream.all("complete"))
            return next((completion for completion in told if completion.rollout_id == rollout_id), None)

        try:
            await stream.until(lambda: found() is not None or stream.over is not None)
        except TimeoutError:
            replies = [reply for reply in stream.all("init_reply") if reply.rollout_id == rollout_id]
            raise AssertionError(
                f"nothing came for {rollout_id}: {replies} {self._house.server.engine.capacity()}"
            ) from None
        assert stream.over is None, (stream.over, stream.details)
        return _chat_reply(found()) if chats else recorded(found())

    async def settle(self, kind: str) -> None:
        """Wait until everything that was sent is handled, or has ended the stream."""
        mark, stream = f"mark-{next(_NUMBERS)}", self.raw.stream
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await self.raw.send(cancel(mark, group_id="nobody is in this group"))
            await stream.until(lambda: stream.over is not None or any(r.id == mark for r in stream.all("cancel_reply")))
        if stream.over is None and (kind in _CHANGING or len(stream.frames) > _LAST):
            await stream.cut()

    async def reopen(self, data: bytes) -> None:
        """Begin a stream with these bytes."""
        if self.raw.stream.over is None:
            await self.raw.stream.cut()
        stream = self.raw.open()
        await stream.send_bytes(data)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LIMIT * 10):
                await stream.until(lambda: stream.count("hello") or stream.over is not None)
        if stream.over is None:
            await stream.cut()

    def codes(self) -> set[int]:
        """The statuses of what was answered singly."""
        frames = self.raw.stream.frames
        answers = [getattr(frame, frame.WhichOneof("frame")) for frame in frames]
        return {a.status.code for a in answers if "status" in a.DESCRIPTOR.fields_by_name and a.HasField("status")}


class Serverly:
    """The same for a raw agent server that dials the trainer."""

    def __init__(self, house: House) -> None:
        self._house = house
        self.raw = RawAgentServer(house.dialled.address)
        self.raw.open()
        self.raw.stream.over = "not begun"
        self._asked = itertools.count(1)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._rollout: rollout_pb2.InitRequest | None = None

    async def ready(self) -> None:
        if self.raw.stream.over is not None:
            await self.raw.attach(agent_loops=["fuzzed"], max_open_rollouts=_WIDE)
            self._rollout = None

    async def template(self, kind: str) -> Any:
        """A good frame of a kind; a rollout that was accepted and is not over goes with it."""
        if kind == "hello":
            return self.raw.hello()
        await self.ready()
        rollout = await self._running()
        if kind == "chat":
            return chat(rollout, next(self._asked), state=b"s")
        if kind == "complete":
            frame = complete(rollout)
            frame.complete.MergeFrom(self._house.completion(rollout.rollout_id))
            return frame
        if kind == "init_reply":
            return accepted(rollout, message_pb2.Tool(type="function"))
        if kind == "event":
            told = attach_pb2.ServerFrame()
            told.MergeFrom(_SERVERS[kind])
            told.event.response.event.rollout_id = rollout.rollout_id
            return told
        frame = attach_pb2.ServerFrame()
        frame.MergeFrom(_SERVERS[kind])
        return frame

    async def _running(self) -> rollout_pb2.InitRequest:
        if self._rollout is None or self._rollout.rollout_id not in self._house.dialled._pool.rollouts:
            name = f"s{next(_NUMBERS):08}"
            wide = attach_pb2.ServerWindow(max_open_rollouts=_WIDE)  # damage may have closed it
            await self.raw.send(attach_pb2.ServerFrame(window=wide))
            task = asyncio.create_task(self._house.dialled.rollout(rollout_id=name, agent_loop="fuzzed"))
            self._tasks.add(task)
            task.add_done_callback(lambda done: (self._tasks.discard(done), done.cancelled() or done.exception()))
            inits = self.raw.stream.all
            await self.raw.stream.until(lambda: any(i.rollout_id == name for i in inits("init")))
            self._rollout = next(i for i in inits("init") if i.rollout_id == name)
            await self.raw.send(accepted(self._rollout))
            self._asked = itertools.count(1)
        return self._rollout

    async def settle(self, kind: str) -> None:
        """A completion of nobody's is answered after everything before it."""
        mark = f"mark-{next(_NUMBERS)}"
        nobody = rollout_pb2.InitRequest(rollout_id=mark, attempt=1)
        stream = self.raw.stream
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await self.raw.send(complete(nobody))
            await stream.until(
                lambda: stream.over is not None or any(r.rollout_id == mark for r in stream.all("complete_reply"))
            )
        if stream.over is None and (kind in _CHANGING or len(stream.frames) > _LAST):
            await stream.cut()

    async def reopen(self, data: bytes) -> None:
        if self.raw.stream.over is None:
            await self.raw.stream.cut()
        stream = self.raw.open()
        await stream.send_bytes(data)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LIMIT * 10):
                await stream.until(lambda: stream.count("hello") or stream.over is not None)
        if stream.over is None:
            await stream.cut()

    codes = Trainerly.codes


def _chat_reply(asked: trainer_pb2.ChatRequest) -> attach_pb2.TrainerFrame:
    told = attach_pb2.ChatReply(
        rollout_id=asked.rollout_id, attempt=asked.attempt, sample=asked.sample, number=asked.number
    )
    response = told.response
    response.message.role, response.message.text, response.finish_reason = "assistant", "fine", "stop"
    response.usage.total_tokens = 3
    response.tokens.ids.extend([1, 2])
    response.tokens.logprobs.extend([-1.0, -2.0])
    response.tokens.extras["entropy"].MergeFrom(
        tokens_pb2.Tensor(type=tokens_pb2.TENSOR_TYPE_FLOAT32, shape=[2], data=b"\0" * 8)
    )
    response.prompt.ids.extend([7, 8])
    response.versions.add(version="v", tokens=2)
    response.extra_json = '{"a": 1}'
    return attach_pb2.TrainerFrame(chat_reply=told)


_REFS = [attach_pb2.RolloutRef(rollout_id="r", attempt=1)]
_SMALL = {
    "open_rollouts": attach_pb2.TrainerFrame(open_rollouts=attach_pb2.OpenRollouts(rollouts=_REFS)),
    "cancel": attach_pb2.TrainerFrame(cancel=attach_pb2.CancelAsk(id="a cancel")),
    "subscribe": attach_pb2.TrainerFrame(subscribe=attach_pb2.Subscribe(id="a subscription", tokens=True)),
    "unsubscribe": attach_pb2.TrainerFrame(unsubscribe=attach_pb2.Unsubscribe(id="a subscription")),
    "window": attach_pb2.TrainerFrame(window=attach_pb2.TrainerWindow(max_open_chats=100)),
    "heartbeat": attach_pb2.TrainerFrame(heartbeat=attach_pb2.Heartbeat()),
}
_SMALL["cancel"].cancel.request.rollout_id = "r"
_SMALL["subscribe"].subscribe.request.rollout_id = "r"
_SERVERS = {
    "unknown_rollouts": attach_pb2.ServerFrame(unknown_rollouts=attach_pb2.UnknownRollouts(rollouts=_REFS)),
    "cancel_reply": attach_pb2.ServerFrame(cancel_reply=attach_pb2.CancelReply(id="1")),
    "event": attach_pb2.ServerFrame(event=attach_pb2.EventFrame(id="s1")),
    "unsubscribed": attach_pb2.ServerFrame(unsubscribed=attach_pb2.Unsubscribed(id="s1")),
    "window": attach_pb2.ServerFrame(window=attach_pb2.ServerWindow(max_open_rollouts=50)),
    "heartbeat": attach_pb2.ServerFrame(heartbeat=attach_pb2.Heartbeat()),
    "draining": attach_pb2.ServerFrame(draining=attach_pb2.Draining(kept=_REFS)),
}
_SERVERS["cancel_reply"].cancel_reply.response.results.add(rollout_id="r", attempt=1)
_SERVERS["event"].event.response.event.MergeFrom(_SERVERS["event"].event.response.event.__class__(attempt=1, number=1))
_SERVERS["event"].event.response.event.chat_answered.sample = "main"

__all__ = ["House", "RawStream", "Serverly", "Trainerly"]
