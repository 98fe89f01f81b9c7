"""A trainer over one stream (Attach), from generated stubs alone: it runs rollouts and prints their segments.

The stream may break at any time. The trainer opens another one with the same attachment id, and both sides send again
what was not answered.

python -m grpc_tools.protoc -I PROTO --python_out=. --grpc_python_out=. PROTO/osmosis/rollout/v1/*.proto
python attach_trainer.py 127.0.0.1:50051
"""

import asyncio
import json
import secrets
import sys
from dataclasses import dataclass, field

import grpc
from google.protobuf import any_pb2, unknown_fields
from osmosis.rollout.v1 import (
    attach_pb2,
    chat_pb2,
    error_pb2,
    message_pb2,
    outcome_pb2,
    rollout_pb2,
    services_pb2,
    services_pb2_grpc,
    tokens_pb2,
)

SIZES = [("grpc.max_receive_message_length", 64 << 20), ("grpc.max_send_message_length", 64 << 20)]
Frame = attach_pb2.TrainerFrame


def tokenize(message: message_pb2.Message) -> list[int]:
    """Your tokenizer."""
    return [*message.text.encode(), 256]


async def sample_reply(messages: list, tools: list, prompt: list[int]) -> tuple[message_pb2.Message, list[int]]:
    """Your sampler. Returns the message and its token ids. This one calls a tool, and then repeats its result."""
    if messages[-1].role == "tool":
        return message_pb2.Message(role="assistant", text=f"#### {messages[-1].text}"), [300, 301]
    call = message_pb2.FunctionCall(name="multiply", arguments=json.dumps({"a": 6, "b": 7}))
    calls = [message_pb2.ToolCall(id="call_1", type="function", function=call)]
    return message_pb2.Message(role="assistant", text="", tool_calls=calls), [302, 303, 304]


@dataclass
class Chat:
    """A sampled chat: all messages up to its reply, all token ids, and the logprobs of the reply."""

    messages: list
    ids: list[int]
    logprobs: list[float]
    response: chat_pb2.ChatResponse


@dataclass
class Rollout:
    """A rollout that the trainer waits for."""

    request: rollout_pb2.InitRequest
    tools: asyncio.Future = field(default_factory=asyncio.Future)
    chats: dict[tuple[str, int], asyncio.Task] = field(default_factory=dict)
    outcome: outcome_pb2.RolloutOutcome | None = None

    def segments(self) -> list[tuple[list[int], list[int], list[float]]]:
        """Returns ids, mask runs and logprobs. The outcome refers to chats, and the trainer has their tokens."""
        found = []
        for sample in self.outcome.samples:
            for segment in sample.segments:
                chats = [self.chats[sample.name, number].result() for number in segment.chats]
                # A segment's tokens are the prompt and the reply of its newest chat.
                logprobs = [value for chat in chats for value in chat.logprobs]
                found.append((chats[-1].ids, list(segment.mask_runs), logprobs))
        return found


class Trainer:
    """Runs rollouts on one agent server."""

    def __init__(self, requests: list[rollout_pb2.InitRequest]) -> None:
        self.rollouts = {request.rollout_id: Rollout(request) for request in requests}
        self.hello = attach_pb2.TrainerHello(
            attachment_id=secrets.token_hex(16),
            process_id=secrets.token_hex(8),
            version="attach_trainer.py 1",
            protocol_min=1,
            protocol_max=1,
            max_open_chats=256,
            features=["abandon_chat", "goodbye"],
        )
        self.tasks: set[asyncio.Task] = set()

    def waiting(self) -> list[Rollout]:
        return [rollout for rollout in self.rollouts.values() if rollout.outcome is None]

    async def run(self, address: str) -> None:
        async with grpc.aio.insecure_channel(address, options=SIZES) as channel:
            stub = services_pb2_grpc.RolloutServiceStub(channel)
            while self.waiting():
                try:
                    await self.attach(stub.Attach())
                except (grpc.aio.AioRpcError, TimeoutError, EOFError) as error:
                    if isinstance(error, grpc.aio.AioRpcError) and error.code() in (
                        grpc.StatusCode.ABORTED,  # another stream has this attachment id
                        grpc.StatusCode.INVALID_ARGUMENT,
                        grpc.StatusCode.UNAUTHENTICATED,
                    ):
                        raise
                    await asyncio.sleep(0.5)

    async def attach(self, call: grpc.aio.StreamStreamCall) -> None:
        """Follow one stream until all outcomes are there. Raises if it breaks."""
        await call.write(services_pb2.AttachRequest(frames=[Frame(hello=self.hello)]))  # alone in its message
        first = await self.read(call, 30)
        hello, rest = first[0].hello, first[1:]
        self.hello.journal_id = hello.journal_id
        self.window = hello.max_open_rollouts if hello.HasField("max_open_rollouts") else 1024
        self.unsent = [rollout for rollout in self.waiting() if not rollout.tools.done()]
        known = [rollout.request for rollout in self.waiting() if rollout.tools.done()]
        frames: asyncio.Queue[Frame] = asyncio.Queue()
        if known:
            refs = [attach_pb2.RolloutRef(rollout_id=each.rollout_id, attempt=each.attempt) for each in known]
            frames.put_nowait(Frame(open_rollouts=attach_pb2.OpenRollouts(rollouts=refs)))
        sender = asyncio.create_task(self.send(call, frames, hello.limits.heartbeat_interval.seconds))
        try:
            while self.waiting():
                self.send_inits(frames)
                for frame in rest or await self.read(call, hello.limits.heartbeat_timeout.seconds):
                    self.handle(frame, frames)
                rest = []
            frames.put_nowait(Frame(goodbye=attach_pb2.Goodbye()))  # after the last receipt
            await sender
            while await call.read() is not grpc.aio.EOF:  # the server closes the stream with OK
                pass
        finally:
            sender.cancel()
            await asyncio.gather(sender, return_exceptions=True)

    async def read(self, call: grpc.aio.StreamStreamCall, timeout: float) -> list[attach_pb2.ServerFrame]:
        message = await asyncio.wait_for(call.read(), timeout)
        if message is grpc.aio.EOF:
            raise EOFError
        return list(message.frames)

    async def send(self, call: grpc.aio.StreamStreamCall, frames: asyncio.Queue, interval: float) -> None:
        """Send frames up to Goodbye, and a heartbeat after `interval` seconds without a frame."""
        frame = Frame()
        while not frame.HasField("goodbye"):
            try:
                frame = await asyncio.wait_for(frames.get(), interval)
            except TimeoutError:
                frame = Frame(heartbeat=attach_pb2.Heartbeat())
            await call.write(services_pb2.AttachRequest(frames=[frame]))
        await call.done_writing()

    def send_inits(self, frames: asyncio.Queue) -> None:
        """Send Inits while the server's window allows it."""
        while self.unsent and len(self.waiting()) - len(self.unsent) < self.window:
            frames.put_nowait(Frame(init=self.unsent.pop(0).request))

    def handle(self, frame: attach_pb2.ServerFrame, frames: asyncio.Queue) -> None:
        kind = frame.WhichOneof("frame")
        if kind is None:
            (number,) = (each.field_number for each in unknown_fields.UnknownFieldSet(frame))
            frames.put_nowait(Frame(unknown_frame=attach_pb2.UnknownFrame(frame_number=number)))
        elif kind == "window":
            self.window = frame.window.max_open_rollouts
        elif kind == "init_reply":
            reply = frame.init_reply
            rollout = self.rollouts[reply.rollout_id]
            if reply.HasField("status"):  # try again after RetryInfo if the code is UNAVAILABLE or RESOURCE_EXHAUSTED
                raise RuntimeError(f"{reply.rollout_id}: {reply.status.message}")
            if not rollout.tools.done():
                rollout.tools.set_result(list(reply.response.tools))
        elif kind == "unknown_rollouts":  # the server has lost its journal
            for ref in frame.unknown_rollouts.rollouts:
                request = self.rollouts[ref.rollout_id].request
                request.attempt = ref.attempt + 1
                self.rollouts[ref.rollout_id] = Rollout(request)
                self.unsent.append(self.rollouts[ref.rollout_id])
        elif kind == "chat":
            task = asyncio.create_task(self.answer(frame.chat, frames))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
        elif kind == "abandon_chat":
            lost = frame.abandon_chat
            for (sample, number), task in self.rollouts[lost.rollout_id].chats.items():
                if lost.sample in ("", sample) and lost.chat_number in (0, number):
                    task.cancel()  # your sampler stops
        elif kind == "complete":
            frames.put_nowait(Frame(complete_reply=self.record(frame.complete.outcome)))

    def record(self, outcome: outcome_pb2.RolloutOutcome) -> attach_pb2.CompleteReply:
        rollout = self.rollouts[outcome.rollout_id]
        receipt = outcome_pb2.RECEIPT_RECORDED
        if rollout.outcome is not None:
            same = rollout.outcome.result_id == outcome.result_id
            receipt = outcome_pb2.RECEIPT_ALREADY_RECORDED if same else outcome_pb2.RECEIPT_CONFLICT
        else:
            rollout.outcome = outcome  # on disk, in a real trainer
        return attach_pb2.CompleteReply(
            rollout_id=outcome.rollout_id, attempt=outcome.attempt, result_id=outcome.result_id, receipt=receipt
        )

    async def answer(self, request: chat_pb2.ChatRequest, frames: asyncio.Queue) -> None:
        """Sample a chat once. Answer it on the stream that asked."""
        reply = attach_pb2.ChatReply(
            rollout_id=request.rollout_id,
            attempt=request.attempt,
            sample=request.sample,
            chat_number=request.chat_number,
        )
        rollout, key = self.rollouts[request.rollout_id], (request.sample, request.chat_number)
        parent = rollout.chats.get((request.sample, request.delta.parent_chat))
        if request.HasField("delta") and parent is None:
            detail = any_pb2.Any()
            detail.Pack(error_pb2.UnknownChat(sample=request.sample, chat_number=request.delta.parent_chat))
            reply.status.CopyFrom(error_pb2.Status(code=9, message="unknown chat", details=[detail]))
        else:
            if key not in rollout.chats:
                rollout.chats[key] = asyncio.create_task(self.sample(rollout, request, parent))
            reply.response.CopyFrom((await rollout.chats[key]).response)
        frames.put_nowait(Frame(chat_reply=reply))

    async def sample(self, rollout: Rollout, request: chat_pb2.ChatRequest, parent: asyncio.Task | None) -> Chat:
        tools = await rollout.tools  # a chat may come before the answer to its Init
        earlier = await parent if parent else Chat([], [], [], chat_pb2.ChatResponse())
        new = list(request.delta.messages if parent else request.full.messages)
        messages = [*earlier.messages, *new]
        added = [token for message in new for token in tokenize(message)]
        prompt = [*earlier.ids, *added]  # token-in token-out: the ids of the parent chat, then new ones
        message, ids = await sample_reply(messages, tools, prompt)
        logprobs = [-0.5] * len(ids)
        response = chat_pb2.ChatResponse(
            message=message,
            finish_reason="tool_calls" if message.tool_calls else "stop",
            prompt=tokens_pb2.TokenBlock(ids=added),
            prompt_prefix=len(earlier.ids),
            tokens=tokens_pb2.TokenBlock(ids=ids, logprobs=logprobs),
        )
        return Chat([*messages, message], [*prompt, *ids], logprobs, response)


async def main(address: str, count: int = 4) -> None:
    question = message_pb2.Message(role="user", text="What is 6 * 7?")
    spec = rollout_pb2.RolloutSpec(messages=[question], label="42")
    name = secrets.token_hex(4)
    trainer = Trainer([rollout_pb2.InitRequest(rollout_id=f"{name}-{n}", attempt=1, spec=spec) for n in range(count)])
    await trainer.run(address)
    for rollout in trainer.rollouts.values():
        outcome = rollout.outcome
        print(outcome_pb2.OutcomeStatus.Name(outcome.status), "reward", outcome.reward)
        for ids, mask_runs, logprobs in rollout.segments():  # train on these
            print(len(ids), "tokens, mask runs", mask_runs, "and", len(logprobs), "logprobs")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
