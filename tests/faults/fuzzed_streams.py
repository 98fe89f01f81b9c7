"""Both sides of an attachment for fuzzing: streams that are opened again whenever one ended."""

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import attach_pb2, chat_pb2, message_pb2, rollout_pb2, tokens_pb2
from osmosis_grpc.testing.raw import RawAgentServer, RawStream, RawTrainer
from osmosis_grpc.testing.raw.server_frames import accepted, chat, complete
from osmosis_grpc.testing.raw.trainer_frames import cancel, init, recorded
from tests.faults.fuzzed import LIMIT, NUMBERS, Deployment, annotation

LOST = "Internal error from Core"
"""The error of grpc.aio's client for a write after the end of its stream; it does not have the status."""
_WIDE = 1_000_000
_LAST = 5000  # frames after which a stream is begun anew
_CHANGING = {"window", "draining", "goodbye"}  # kinds after which nothing may come any more


class _Forgetful(RawTrainer):
    """Keeps no events: thousands of subscriptions get every event."""

    def open(self) -> RawStream:
        stream = super().open()
        stream.forgets, stream.timeout = frozenset({"event"}), 60.0
        return stream


class Trainerly:
    """A raw trainer's stream, opened again whenever it ended, with something on it for each kind of frame."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self.raw = _Forgetful(deployment.server.address)
        self.raw.open()
        self.raw.stream.over = "not begun"
        self.late: set[str] = set()
        """Statuses of streams that ended after everything sent on them had been answered."""

    async def ready(self) -> None:
        """Both hellos are said."""
        if self.raw.stream.over is not None:
            await self.raw.attach(max_open_chats=_WIDE)

    async def template(self, kind: str) -> Any:
        """A good frame of a kind, for which there is a use."""
        return await _on_a_stream(self, lambda: self._template(kind))

    async def _template(self, kind: str) -> Any:
        if kind == "hello":
            return self.raw.hello()
        await self.ready()
        rollout_id = f"a{next(NUMBERS):08}"
        if kind in ("chat_reply", "complete_reply"):
            return await self._asked(kind, rollout_id)
        if kind == "init":
            request = self._deployment.request(rollout_id)
            request.ClearField("callback")
            return attach_pb2.TrainerFrame(init=request)
        if kind == "annotate":
            await self._accepted(rollout_id)
            annotate = attach_pb2.AnnotateFrame(id="an annotation", request=annotation(rollout_id))
            return attach_pb2.TrainerFrame(annotate=annotate)
        frame = attach_pb2.TrainerFrame()
        frame.MergeFrom(_SMALL[kind])
        return frame

    async def _accepted(self, rollout_id: str) -> None:
        """Begin a rollout, and wait for the answer to its Init."""
        stream = self.raw.stream
        await self.raw.send(init(rollout_id, turns=0))
        await stream.until(
            lambda: stream.over is not None or any(r.rollout_id == rollout_id for r in stream.all("init_reply"))
        )
        if stream.over is not None:
            raise asyncio.InvalidStateError

    async def _asked(self, kind: str, rollout_id: str) -> Any:
        """A good answer to the chat, or to the outcome, of a new rollout."""
        chats, stream = kind == "chat_reply", self.raw.stream
        wide = attach_pb2.TrainerFrame(
            window=attach_pb2.TrainerWindow(max_open_chats=_WIDE)
        )  # damage may have closed it
        await self.raw.send(wide, init(rollout_id, turns=int(chats)))

        def found() -> Any:
            if chats:
                return next((chat for chat in stream.all("chat") if chat.rollout_id == rollout_id), None)
            received = (one.outcome for one in stream.all("complete"))
            return next((outcome for outcome in received if outcome.rollout_id == rollout_id), None)

        try:
            await stream.until(lambda: found() is not None or stream.over is not None)
        except TimeoutError:
            replies = [reply for reply in stream.all("init_reply") if reply.rollout_id == rollout_id]
            raise AssertionError(
                f"nothing came for {rollout_id}: {replies} {self._deployment.server.engine.capacity()}"
            ) from None
        if stream.over is not None:
            raise asyncio.InvalidStateError
        return _chat_reply(found()) if chats else recorded(found())

    async def settle(self, kind: str) -> None:
        """Wait until everything that was sent is handled, or has ended the stream."""
        mark, stream = f"mark-{next(NUMBERS)}", self.raw.stream
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await self.raw.send(cancel(mark, group_id="nobody is in this group"))
            await stream.until(lambda: stream.over is not None or any(r.id == mark for r in stream.all("cancel_reply")))
        if stream.over is None and (kind in _CHANGING or len(stream.frames) + stream.forgotten > _LAST):
            await stream.cut()

    async def reopen(self, data: bytes) -> None:
        """Begin a stream with these bytes."""
        if self.raw.stream.over is None:
            await self.raw.stream.cut()
        stream = self.raw.open()
        await stream.send_bytes(data)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LIMIT * 10):
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

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self.raw = RawAgentServer(deployment.dialled.address)
        self.raw.open()
        self.raw.stream.over = "not begun"
        self.late: set[str] = set()
        """Statuses of streams that ended after everything sent on them had been answered."""
        self._asked = itertools.count(1)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._rollout: rollout_pb2.InitRequest | None = None

    async def ready(self) -> None:
        if self.raw.stream.over is not None:
            await self.raw.attach(agent_loops=["fuzzed"], max_open_rollouts=_WIDE)
            self._rollout = None

    async def template(self, kind: str) -> Any:
        """A good frame of a kind; a rollout that was accepted and is not over goes with it."""
        return await _on_a_stream(self, lambda: self._template(kind))

    async def _template(self, kind: str) -> Any:
        if kind == "hello":
            return self.raw.hello()
        await self.ready()
        rollout = await self._running()
        if kind == "chat":
            return chat(rollout, next(self._asked), state=b"s")
        if kind == "complete":
            frame = complete(rollout)
            frame.complete.MergeFrom(self._deployment.outcome(rollout.rollout_id))
            return frame
        if kind == "init_reply":
            return accepted(rollout, message_pb2.Tool(type="function"))
        if kind == "event":
            received = attach_pb2.ServerFrame()
            received.MergeFrom(_SERVERS[kind])
            received.event.response.event.rollout_id = rollout.rollout_id
            return received
        if kind == "abandon_chat":
            received = attach_pb2.ServerFrame()
            received.MergeFrom(_SERVERS[kind])
            received.abandon_chat.rollout_id, received.abandon_chat.chat_number = rollout.rollout_id, 1
            return received
        frame = attach_pb2.ServerFrame()
        frame.MergeFrom(_SERVERS[kind])
        return frame

    async def _running(self) -> rollout_pb2.InitRequest:
        if self._rollout is None or self._rollout.rollout_id not in self._deployment.dialled.scheduler.rollouts:
            name = f"s{next(NUMBERS):08}"
            wide = attach_pb2.ServerWindow(max_open_rollouts=_WIDE)  # damage may have closed it
            await self.raw.send(attach_pb2.ServerFrame(window=wide))
            task = asyncio.create_task(self._deployment.dialled.rollout(rollout_id=name, agent_loop="fuzzed"))
            self._tasks.add(task)
            task.add_done_callback(lambda done: (self._tasks.discard(done), done.cancelled() or done.exception()))
            inits = self.raw.stream.all
            await self.raw.stream.until(lambda: any(i.rollout_id == name for i in inits("init")))
            self._rollout = next(i for i in inits("init") if i.rollout_id == name)
            await self.raw.send(accepted(self._rollout))
            self._asked = itertools.count(1)
        return self._rollout

    async def settle(self, kind: str) -> None:
        """Wait for the answer to an unknown outcome, which comes after all earlier answers."""
        mark = f"mark-{next(NUMBERS)}"
        nobody = rollout_pb2.InitRequest(rollout_id=mark, attempt=1)
        stream = self.raw.stream
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await self.raw.send(complete(nobody))
            await stream.until(
                lambda: stream.over is not None or any(r.rollout_id == mark for r in stream.all("complete_reply"))
            )
        if stream.over is None and (kind in _CHANGING or len(stream.frames) + stream.forgotten > _LAST):
            await stream.cut()

    async def reopen(self, data: bytes) -> None:
        if self.raw.stream.over is None:
            await self.raw.stream.cut()
        stream = self.raw.open()
        await stream.send_bytes(data)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LIMIT * 10):
                await stream.until(lambda: stream.count("hello") or stream.over is not None)
        if stream.over is None:
            await stream.cut()

    codes = Trainerly.codes


async def _on_a_stream(side: Any, make: Callable[[], Awaitable[Any]]) -> Any:
    """Make something with a stream, on the next one where what was sent before has ended this one late."""
    while True:
        try:
            return await make()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            ended = await side.raw.stream.ended()
            if side.raw.stream.details != LOST:
                side.late.add(ended)


def _chat_reply(asked: chat_pb2.ChatRequest) -> attach_pb2.TrainerFrame:
    received = attach_pb2.ChatReply(
        rollout_id=asked.rollout_id, attempt=asked.attempt, sample=asked.sample, chat_number=asked.chat_number
    )
    response = received.response
    response.message.role, response.message.text, response.finish_reason = "assistant", "fine", "stop"
    response.usage.total_tokens = 3
    response.tokens.ids.extend([1, 2])
    response.tokens.logprobs.extend([-1.0, -2.0])
    response.tokens.extras["entropy"].MergeFrom(
        tokens_pb2.Extra(tensor=tokens_pb2.Tensor(type=tokens_pb2.TENSOR_TYPE_FLOAT32, shape=[2], data=b"\0" * 8))
    )
    response.prompt.ids.extend([7, 8])
    values = tokens_pb2.Tensor(type=tokens_pb2.TENSOR_TYPE_UINT32, shape=[1], data=b"\0" * 4)
    ragged = tokens_pb2.RaggedTensor(values=values, offsets=[0, 1, 1])
    response.prompt.extras["sampling_mask"].MergeFrom(tokens_pb2.Extra(ragged=ragged))
    response.versions.add(version="v", tokens=2)
    response.extra_json = '{"a": 1}'
    return attach_pb2.TrainerFrame(chat_reply=received)


_REFS = [attach_pb2.RolloutRef(rollout_id="r", attempt=1)]
_SMALL = {
    "open_rollouts": attach_pb2.TrainerFrame(open_rollouts=attach_pb2.OpenRollouts(rollouts=_REFS)),
    "cancel": attach_pb2.TrainerFrame(cancel=attach_pb2.CancelFrame(id="a cancel")),
    "subscribe": attach_pb2.TrainerFrame(subscribe=attach_pb2.Subscribe(id="a subscription", tokens=True)),
    "unsubscribe": attach_pb2.TrainerFrame(unsubscribe=attach_pb2.Unsubscribe(id="a subscription")),
    "window": attach_pb2.TrainerFrame(window=attach_pb2.TrainerWindow(max_open_chats=100)),
    "heartbeat": attach_pb2.TrainerFrame(heartbeat=attach_pb2.Heartbeat()),
    "goodbye": attach_pb2.TrainerFrame(goodbye=attach_pb2.Goodbye()),
    "unknown_frame": attach_pb2.TrainerFrame(unknown_frame=attach_pb2.UnknownFrame(frame_number=20)),
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
    "draining": attach_pb2.ServerFrame(draining=attach_pb2.Draining()),
    "abandon_chat": attach_pb2.ServerFrame(abandon_chat=chat_pb2.AbandonChatRequest(attempt=1, sample="main")),
    "goodbye": attach_pb2.ServerFrame(goodbye=attach_pb2.Goodbye(kept=_REFS)),
    "annotate_reply": attach_pb2.ServerFrame(annotate_reply=attach_pb2.AnnotateReply(id="an annotation")),
    "unknown_frame": attach_pb2.ServerFrame(unknown_frame=attach_pb2.UnknownFrame(frame_number=20)),
}
_SERVERS["cancel_reply"].cancel_reply.response.results.add(rollout_id="r", attempt=1)
_SERVERS["annotate_reply"].annotate_reply.response.event_number = 7
_SERVERS["event"].event.response.event.MergeFrom(
    _SERVERS["event"].event.response.event.__class__(attempt=1, event_number=1)
)
_SERVERS["event"].event.response.event.chat_answered.sample = "main"
