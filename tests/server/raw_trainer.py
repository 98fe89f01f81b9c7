"""A scripted trainer over the plain stubs: frames in lists, on streams that it opens or takes.

Nothing here knows osmosis_grpc.trainer or the frame streams of osmosis_grpc.link.
"""

import asyncio
import itertools
from collections import Counter
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import grpc
from google.rpc import error_details_pb2, status_pb2

from osmosis_grpc._gen.osmosis.rollout.v1 import (
    attach_pb2,
    control_pb2,
    error_pb2,
    message_pb2,
    rollout_pb2,
    services_pb2,
    services_pb2_grpc,
    trainer_pb2,
)
from osmosis_grpc.agent import RolloutAgentLoop

ATTACH = "/osmosis.rollout.v1.RolloutService/Attach"
OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
SOON = 10.0
"""Seconds after which a test gives up waiting."""
_NAMES = itertools.count(1)


class RawStream:
    """One stream call, either side's: the frames that came, by kind, and how it ended."""

    forgets: frozenset[str] = frozenset()
    """Kinds of frames that are counted and not kept."""
    patience = SOON
    """Seconds that anything is waited for."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self.frames: list[Any] = []
        self.messages: list[tuple[int, int]] = []
        """How many frames and bytes each message had."""
        self.forgotten = 0
        self.over: str | None = None
        """The name of the status that it ended with."""
        self.details = ""
        self.status = status_pb2.Status()
        self._taken: Counter[str] = Counter()
        self._news = asyncio.Condition()
        self._reader = asyncio.create_task(self._read())

    async def send(self, *frames: Any) -> None:
        """Send frames, in one message."""
        await self.send_bytes(self._list(frames).SerializeToString())

    async def send_bytes(self, data: bytes) -> None:
        """Send a message as bytes."""
        await self._call.write(data)

    async def next(self, kind: str) -> Any:
        """The next frame of a kind that was not asked for yet."""
        async with asyncio.timeout(self.patience), self._news:
            await self._news.wait_for(lambda: self.fresh(kind) or self.over is not None)
        if not self.fresh(kind):
            raise AssertionError(f"the stream ended before a {kind}: {self.over} {self.details}")
        self._taken[kind] += 1
        return self.all(kind)[self._taken[kind] - 1]

    async def until(self, holds: Any) -> None:
        """Wait until something holds of what came."""
        async with asyncio.timeout(self.patience), self._news:
            await self._news.wait_for(holds)

    def all(self, kind: str) -> list[Any]:
        """Every frame of a kind that came."""
        return [getattr(frame, kind) for frame in self.frames if frame.WhichOneof("frame") == kind]

    def count(self, kind: str) -> int:
        """How many frames of a kind came."""
        return sum(frame.WhichOneof("frame") == kind for frame in self.frames)

    def fresh(self, kind: str) -> int:
        """How many frames of a kind came that next() did not give yet."""
        return self.count(kind) - self._taken[kind]

    async def ended(self) -> str:
        """Wait for the end; the name of its status."""
        async with asyncio.timeout(self.patience):
            await asyncio.shield(self._reader)
        assert self.over is not None
        return self.over

    async def leave(self) -> None:
        """Say that nothing more follows."""
        await self._call.done_writing()

    async def cut(self) -> None:
        """Break the stream off."""
        self._call.cancel()
        await self.ended()

    def field(self) -> str:
        """The field that an INVALID_ARGUMENT which ended the stream names."""
        return field_of(self.status)

    def _list(self, frames: Any) -> Any:
        return services_pb2.AttachRequest(frames=frames)

    async def _read(self) -> None:
        over = "OK"
        try:
            while (message := await self._call.read()) is not grpc.aio.EOF:
                async with self._news:
                    self.messages.append((len(message.frames), message.ByteSize()))
                    kept = [frame for frame in message.frames if frame.WhichOneof("frame") not in self.forgets]
                    self.frames += kept
                    self.forgotten += len(message.frames) - len(kept)
                    self._news.notify_all()
        except grpc.aio.AioRpcError as error:
            over, self.details = error.code().name, error.details() or ""
            for key, value in error.trailing_metadata() or ():
                if key == "grpc-status-details-bin":
                    self.status.ParseFromString(value)
        except asyncio.CancelledError:
            over = "CANCELLED"
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
        finally:
            self.over = over
        async with self._news:
            self._news.notify_all()


class RawTrainer:
    """A trainer with an attachment id of its own, and all the streams that it opens."""

    def __init__(self, address: str) -> None:
        self.attachment_id = f"raw-trainer-number-{next(_NAMES)}"
        self.stream: RawStream
        """The newest."""
        self.tokens: dict[tuple[str, str, int], list[int]] = {}
        """Prompt and reply of each chat that was answered."""
        self._channel = grpc.aio.insecure_channel(address, options=(("grpc.use_local_subchannel_pool", 1), *OPTIONS))
        self._answer = services_pb2.AttachResponse.FromString
        self._barriers = itertools.count(1)

    async def __aenter__(self) -> "RawTrainer":
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self._channel.close()

    def open(self) -> RawStream:
        """A stream on which nothing was said."""
        self.stream = RawStream(self._channel.stream_stream(ATTACH, None, self._answer)())
        return self.stream

    async def attach(self, **hello: Any) -> RawStream:
        """A stream on which both hellos were said."""
        stream = self.open()
        await stream.send(self.hello(**hello))
        await stream.next("hello")
        return stream

    def hello(self, **fields: Any) -> attach_pb2.TrainerFrame:
        """Who it is."""
        defaults = {
            "attachment_id": self.attachment_id,
            "process_uuid": "raw",
            "version": "raw 1",
            "protocol_min": 1,
            "protocol_max": 1,
            "max_open_chats": 100,
        }
        return attach_pb2.TrainerFrame(hello=attach_pb2.TrainerHello(**(defaults | fields)))

    async def send(self, *frames: Any) -> None:
        """Send on the newest stream."""
        await self.stream.send(*frames)

    async def start(self, rollout_id: str, **fields: Any) -> rollout_pb2.InitResponse:
        """Start a rollout; the answer to its Init."""
        await self.send(init(rollout_id, **fields))
        reply = await self.stream.next("init_reply")
        assert (reply.rollout_id, reply.WhichOneof("result")) == (rollout_id, "response"), reply
        return reply.response

    async def chat(self) -> trainer_pb2.ChatRequest:
        """The next chat."""
        return await self.stream.next("chat")

    async def answer(self, chat: trainer_pb2.ChatRequest, text: str = "fine") -> None:
        """Answer a chat: one id for the prompt's new part, one for the reply."""
        delta = chat.WhichOneof("history") == "delta"
        continues = chat.delta.continues if delta else chat.number - 1
        known = self.tokens.get((chat.rollout_id, chat.sample, continues), [])
        prompt = [*known, chat.number]
        self.tokens[chat.rollout_id, chat.sample, chat.number] = [*prompt, 1000 + chat.number]
        response = reply(text)
        response.tokens.ids.append(1000 + chat.number)
        response.tokens.logprobs.append(-0.5)
        response.prompt_prefix = len(known) if delta else 0
        response.prompt.ids.extend(prompt[response.prompt_prefix :])
        await self.send(chat_reply(chat, response=response))

    async def completion(self) -> rollout_pb2.Completion:
        """The next completion, not answered."""
        return (await self.stream.next("complete")).completion

    async def settled(self) -> rollout_pb2.Completion:
        """The next completion, answered."""
        completion = await self.completion()
        await self.send(recorded(completion))
        return completion

    async def finish(self) -> rollout_pb2.Completion:
        """Answer every chat that comes, up to the next completion, which is answered too."""
        while await self._chats_come():
            await self.answer(await self.chat())
        return await self.settled()

    async def answer_all_with(self, answer: Any) -> None:
        """Send what `answer` makes of each chat that comes, up to the next completion."""
        while await self._chats_come():
            await self.send(answer(await self.chat()))

    async def _chats_come(self) -> bool:
        fresh = self.stream.fresh
        await self.stream.until(lambda: fresh("chat") or fresh("complete") or self.stream.over is not None)
        return fresh("chat") > 0

    async def barrier(self) -> None:
        """Wait until everything that was to be sent before now has come."""
        name = f"barrier {next(self._barriers)}"
        request = control_pb2.CancelRequest(group_id="nobody is in this group")
        await self.send(attach_pb2.TrainerFrame(cancel=attach_pb2.CancelAsk(id=name, request=request)))
        await self.stream.until(lambda: name in {reply.id for reply in self.stream.all("cancel_reply")})


@asynccontextmanager
async def bystander(server: Any, rollout_id: str = "bystander"):
    """Another trainer with a rollout in progress, which goes on and completes afterwards, on the same stream."""
    async with RawTrainer(server.address) as other:
        stream = await other.attach()
        await other.start(rollout_id, turns=2)
        chat = await other.chat()
        yield other
        await other.answer(chat)
        completion = await other.finish()
        assert (completion.rollout_id, completion.status) == (rollout_id, rollout_pb2.COMPLETION_STATUS_COMPLETED)
        assert stream is other.stream
        assert stream.over is None


def init(rollout_id: str, *, turns: int = 1, agent_loop: str = "talk", **fields: Any) -> attach_pb2.TrainerFrame:
    """Starts a rollout of so many chats."""
    question = message_pb2.Message(role="user", text="How are you?")
    request = rollout_pb2.InitRequest(
        rollout_id=rollout_id, agent_loop=agent_loop, messages=[question], metadata_json=f'{{"turns": {turns}}}'
    )
    request.MergeFrom(rollout_pb2.InitRequest(**fields))
    return attach_pb2.TrainerFrame(init=request)


def reply(text: str) -> trainer_pb2.ChatResponse:
    """A reply without tokens."""
    message = message_pb2.Message(role="assistant", text=text)
    return trainer_pb2.ChatResponse(message=message, finish_reason="stop")


def chat_reply(chat: trainer_pb2.ChatRequest, **result: Any) -> attach_pb2.TrainerFrame:
    """Answers a chat: `response` or `status`."""
    return attach_pb2.TrainerFrame(
        chat_reply=attach_pb2.ChatReply(
            rollout_id=chat.rollout_id, attempt=chat.attempt, sample=chat.sample, number=chat.number, **result
        )
    )


def recorded(completion: rollout_pb2.Completion) -> attach_pb2.TrainerFrame:
    """Answers a completion."""
    return attach_pb2.TrainerFrame(
        complete_reply=attach_pb2.CompleteReply(
            rollout_id=completion.rollout_id,
            attempt=completion.attempt,
            result_id=completion.result_id,
            outcome=trainer_pb2.COMPLETE_OUTCOME_RECORDED,
        )
    )


def cancel(name: str, **request: Any) -> attach_pb2.TrainerFrame:
    """Cancels rollouts."""
    ask = attach_pb2.CancelAsk(id=name, request=control_pb2.CancelRequest(**request))
    return attach_pb2.TrainerFrame(cancel=ask)


def subscribe(name: str, rollout_id: str, *, tokens: bool = False, **request: Any) -> attach_pb2.TrainerFrame:
    """Begins to follow a rollout."""
    wanted = control_pb2.StreamEventsRequest(rollout_id=rollout_id, **request)
    return attach_pb2.TrainerFrame(subscribe=attach_pb2.Subscribe(id=name, request=wanted, tokens=tokens))


def window(size: int) -> attach_pb2.TrainerFrame:
    """How many chats may be open."""
    return attach_pb2.TrainerFrame(window=attach_pb2.TrainerWindow(max_open_chats=size))


HEARTBEAT = attach_pb2.TrainerFrame(heartbeat=attach_pb2.Heartbeat())


def details(status: Any, kind: Any) -> Any:
    """A detail of a status; None when it has no such one."""
    for packed in status.details:
        detail = kind()
        if packed.Unpack(detail):
            return detail
    return None


def field_of(status: Any) -> str:
    """The field that an INVALID_ARGUMENT names."""
    bad = details(status, error_details_pb2.BadRequest)
    return bad.field_violations[0].field if bad is not None else "no BadRequest"


def unknown_chat(chat: trainer_pb2.ChatRequest) -> error_pb2.Status:
    """What a trainer answers that does not have the chat which a delta refers to."""
    status = error_pb2.Status(code=grpc.StatusCode.FAILED_PRECONDITION.value[0], message="I have no such chat")
    status.details.add().Pack(error_pb2.UnknownChat(sample=chat.sample, number=chat.delta.continues))
    return status


class AcceptServicer(services_pb2_grpc.TrainerServiceServicer):
    """TrainerService for agent servers that dial out: their streams, to be read by the test."""

    def __init__(self) -> None:
        self.streams: asyncio.Queue[RawStream] = asyncio.Queue()

    async def Accept(self, request_iterator: Any, context: Any) -> None:
        stream = _Accepted(context)
        await self.streams.put(stream)
        await stream.ended()


class _Accepted(RawStream):
    def _list(self, frames: Any) -> Any:
        return services_pb2.AcceptResponse(frames=frames)

    async def send_bytes(self, data: bytes) -> None:
        await self._call.write(services_pb2.AcceptResponse.FromString(data))


@asynccontextmanager
async def accepting_trainer():
    """A trainer that agent servers dial."""
    servicer, server = AcceptServicer(), grpc.aio.server()
    services_pb2_grpc.add_TrainerServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield servicer, f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


class Talk(RolloutAgentLoop):
    """Asks as often as it is told to, each time with something new."""

    name: ClassVar[str] = "talk"

    def get_tools(self, request: Any) -> Any:
        return [{"type": "function", "function": {"name": "nod", "parameters": {"type": "object"}}}]

    async def run(self, ctx: Any) -> Any:
        messages = list(ctx.request.messages)
        for turn in range(ctx.request.metadata["turns"]):
            messages.append((await ctx.chat(messages)).message)
            messages.append({"role": "user", "content": f"so much for turn {turn + 1}"})
        return ctx.complete(messages, reward=1.0)


class Wide(RolloutAgentLoop):
    """Asks that often at once, each in a sample of its own."""

    name: ClassVar[str] = "wide"

    def get_tools(self, request: Any) -> Any:
        return []

    async def run(self, ctx: Any) -> Any:
        chats = (ctx.chat(ctx.request.messages, sample=f"s{n}") for n in range(ctx.request.metadata["turns"]))
        await asyncio.gather(*chats)
        return ctx.complete([])
