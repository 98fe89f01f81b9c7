"""A trainer from the stubs of betterproto2: it runs rollouts on one agent server and answers their chats with a policy.

With `listen`, the agent server calls the trainer back. Without it, one stream (Attach) carries everything.
"""

import asyncio
import contextlib
import json
import secrets
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

import betterproto2
import grpclib.events
from gen.google.protobuf import Any as Detail
from gen.osmosis.rollout import v1
from google.rpc import error_details_pb2
from grpclib import GRPCError, Status
from grpclib.client import Channel, Stream
from grpclib.const import Cardinality
from grpclib.encoding.base import StatusDetailsCodecBase
from grpclib.exceptions import StreamTerminatedError
from grpclib.server import Server

FEATURES = ["abandon_chat", "goodbye"]
CALL_TIMEOUT = 30.0
CHECK_INTERVAL = 10.0
"""Seconds between two questions whether the server still has a rollout."""
MAX_BYTES = 1 << 20
"""The most bytes of a stream message with several frames."""
MAX_WAITING = 1024
"""A trainer stops reading while so many of its own frames wait."""
MAX_ENDED = 10_000
"""Ended rollouts whose outcomes the trainer recognizes when they come again."""
SHOWN: ContextVar[str] = ContextVar("authorization", default="")
"""The credential of the call that is being handled. The stubs of betterproto2 do not show metadata to a handler."""
BREAKS = (OSError, StreamTerminatedError, TimeoutError)
"""The errors of a connection that has failed."""
AttachStream = Stream[v1.AttachRequest, v1.AttachResponse]


@dataclass
class Chat:
    """A request for a reply. A policy does not change it."""

    request: v1.ChatRequest
    messages: list[v1.Message]
    """The whole history."""
    tools: list[v1.Tool]
    parent_ids: list[int]
    """The tokens, prompt and reply, of the chat that this chat continues. The prompt begins with them."""
    known: int
    """The number of messages that `parent_ids` covers. The prompt goes on with the tokens of messages[known:]."""


@dataclass
class Reply:
    """A reply. Without `prompt`, `ids` or `logprobs` the sample cannot be trained on."""

    message: v1.Message
    finish_reason: str = "stop"
    prompt: list[int] | None = None
    """All ids of the prompt."""
    ids: list[int] | None = None
    """The sampled ids."""
    logprobs: list[float] = field(default_factory=list)


Policy = Callable[[Chat], Awaitable[Reply]]
"""Samples the reply to a chat. Its task is cancelled when the reply is no longer wanted. A GRPCError is the answer."""


@dataclass
class Segment:
    """A stretch of a conversation: all tokens, the loss mask as runs (zeros first), logprobs of tokens with mask 1."""

    ids: list[int]
    mask_runs: list[int]
    logprobs: list[float]
    chats: list[int]


@dataclass
class Sample:
    """A conversation. Train on its segments if it is `trainable`, and unless `reported.train` is False."""

    reported: v1.Sample
    messages: list[v1.Message]
    segments: list[Segment]
    trainable: bool
    not_trainable_reason: str


@dataclass
class Outcome:
    """An outcome. What the server left out comes from the chats that this trainer answered."""

    reported: v1.RolloutOutcome
    samples: list[Sample]


@dataclass
class Answered:
    """An answered chat: its reply, all messages up to the reply, all tokens, and the digest of the messages."""

    reply: Reply
    messages: list[v1.Message]
    ids: list[int]
    history: str


@dataclass(eq=False)
class Rollout:
    """An attempt of a rollout. All attempts share the result."""

    request: v1.InitRequest
    result: "asyncio.Future[Outcome]" = field(default_factory=asyncio.Future)
    accepted: "asyncio.Future[list[v1.Tool]]" = field(default_factory=asyncio.Future)
    chats: dict[tuple[str, int], tuple[str, "asyncio.Task[Answered]"]] = field(default_factory=dict)
    """By sample and number: the digest of the request, and the sampling."""
    credential: str = field(default_factory=secrets.token_urlsafe)
    """The credential of its callbacks."""
    sent: bool = False
    """Whether the Init was sent on the present stream."""
    result_id: str | None = None
    """Set when the attempt has ended; empty without an outcome."""

    def answered(self, sample: str, number: int) -> Answered | None:
        _, task = self.chats.get((sample, number), ("", None))
        return task.result() if task and task.done() and not task.cancelled() and not task.exception() else None

    def leave(self) -> None:
        for _, task in self.chats.values():
            task.cancel()
        self.chats = {}
        if not self.accepted.done():
            self.accepted.set_result([])


class Trainer:
    """Runs rollouts on one agent server. Used as `async with Trainer("127.0.0.1:50051", policy) as trainer`."""

    def __init__(
        self,
        target: str,
        policy: Policy,
        *,
        token: str = "",
        on_outcome: Callable[[Outcome], None] = lambda outcome: None,
        listen: str = "",
        advertise: str = "",
        history: v1.HistoryForm = v1.HistoryForm.UNSPECIFIED,
        max_open_chats: int = 256,
    ) -> None:
        """`on_outcome` stores an outcome. It gets each outcome once, before the server gets its receipt."""
        host, _, port = target.rpartition(":")
        self._target = target
        self.problem: object = "no answer"
        """The last error of the connection."""
        self.channel = Channel(host, int(port), status_details_codec=DetailsCodec())
        metadata = {"authorization": f"Bearer {token}"} if token else None
        self.stub = v1.RolloutServiceStub(self.channel, metadata=metadata)
        self.rollouts: dict[str, Rollout] = {}
        self.history = history
        self.failure: BaseException | None = None
        self._policy = policy
        self._on_outcome = on_outcome
        self._ended: list[Rollout] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._link: Attachment | Callbacks = Attachment(self, max_open_chats)
        if listen:
            self._link = Callbacks(self, listen, advertise)

    async def __aenter__(self) -> "Trainer":
        """Raises ConnectionError if the agent server cannot be reached for 30 seconds."""
        try:
            await asyncio.wait_for(self._link.open(), CALL_TIMEOUT)
        except TimeoutError:
            await self.__aexit__()
            raise ConnectionError(f"{self._target} cannot be reached: {self.problem}") from None
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._link.close()
        self.fail_all(ConnectionError("the trainer is closed"))
        for task in self._tasks:
            task.cancel()
        self.channel.close()

    async def rollout(self, spec: v1.RolloutSpec, rollout_id: str = "", attempt: int = 1) -> Outcome:
        """Runs a rollout. Returns its outcome, which may be a failure. A cancelled call cancels the rollout."""
        if self.failure is not None:
            raise self.failure
        rollout = Rollout(v1.InitRequest(rollout_id=rollout_id or secrets.token_hex(16), attempt=attempt, spec=spec))
        lower = self.rollouts.get(rollout.request.rollout_id)
        if lower and lower.request.attempt >= attempt:
            raise ValueError(f"rollout {rollout_id} has attempt {lower.request.attempt}")
        if lower:
            self.end(lower, ConnectionError("a higher attempt replaced the rollout"))
        self.rollouts[rollout.request.rollout_id] = rollout
        self._link.start(rollout)
        try:
            return await asyncio.shield(rollout.result)
        except asyncio.CancelledError:
            self._link.cancel(self.rollouts[rollout.request.rollout_id])
            raise

    def set_max_open_chats(self, count: int) -> None:
        """Changes the number of chats that the server may have open over a stream. 0 pauses."""
        if isinstance(self._link, Attachment):
            self._link.set_max_open_chats(count)

    def spawn(self, work: Any) -> "asyncio.Task[Any]":
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def open_stream(self) -> AttachStream:
        """Returns a stream of Attach. The stub has one, too, but sends in a task whose errors it does not read."""
        route, kind = "/osmosis.rollout.v1.RolloutService/Attach", Cardinality.STREAM_STREAM
        metadata = self.stub.metadata
        return self.channel.request(route, kind, v1.AttachRequest, v1.AttachResponse, metadata=metadata)

    async def retry(self, call: Callable[[v1.RolloutServiceStub], Awaitable[Any]]) -> Any:
        """Calls until there is an answer."""
        while True:
            try:
                return await call(self.stub)
            except BREAKS as error:
                self.problem = error
                await asyncio.sleep(0.5)

    def is_open(self, rollout: Rollout) -> bool:
        """Returns whether an attempt is the newest one and has not ended at its server."""
        return self.rollouts.get(rollout.request.rollout_id) is rollout and rollout.result_id is None

    def end(self, rollout: Rollout, error: BaseException | None, result_id: str = "") -> None:
        if error is not None and not rollout.result.done():
            rollout.result.set_exception(error)
            rollout.result.exception()  # no warning if nothing waits
        rollout.result_id = result_id
        rollout.leave()
        self._ended.append(rollout)
        if len(self._ended) > MAX_ENDED:
            oldest = self._ended.pop(0)
            if self.rollouts.get(oldest.request.rollout_id) is oldest:
                del self.rollouts[oldest.request.rollout_id]

    def fail_all(self, error: BaseException) -> None:
        self.failure = self.failure or error
        for rollout in list(self.rollouts.values()):
            if rollout.result_id is None:
                self.end(rollout, error)

    def restart(self, rollout: Rollout) -> None:
        """Starts the next attempt of a rollout that the server has forgotten."""
        if self.is_open(rollout):
            rollout.leave()
            again = Rollout(replace(rollout.request, attempt=rollout.request.attempt + 1), rollout.result)
            again.credential = rollout.credential
            self.rollouts[again.request.rollout_id] = again
            self._link.start(again)

    def find(self, rollout_id: str, attempt: int, unknown: Status) -> Rollout:
        """Returns an attempt. Raises the status with which a trainer refuses another one."""
        rollout = self.rollouts.get(rollout_id)
        newest = rollout.request.attempt if rollout else 0
        if rollout is None or (attempt or 1) > newest:
            raise refusal(unknown, "ROLLOUT_UNKNOWN", f"attempt {attempt or 1} of {rollout_id} was not started here")
        if (attempt or 1) < newest:
            detail = v1.CurrentAttempt(rollout_id=rollout_id, attempt=newest)
            raise refusal(Status.ABORTED, "ATTEMPT_SUPERSEDED", f"{rollout_id} is at attempt {newest}", detail)
        return rollout

    async def answer(self, request: v1.ChatRequest) -> v1.ChatResponse:
        """Answers a chat. Samples it once, however often it is asked, also if the caller leaves."""
        rollout = self.find(request.rollout_id, request.attempt, Status.NOT_FOUND)
        tools = request.tools.tools if request.tools else await asyncio.shield(rollout.accepted)
        rollout = self.find(request.rollout_id, request.attempt, Status.NOT_FOUND)
        if not self.is_open(rollout):
            raise refusal(Status.FAILED_PRECONDITION, "ROLLOUT_ENDED", "the rollout has ended")
        if request.policy or not ((request.full or request.delta) and request.sample and request.chat_number):
            wrong = "policy, history, sample or chat_number is wrong"
            raise refusal(Status.INVALID_ARGUMENT, "INVALID_FIELD", wrong)
        given = request.delta or request.full
        parent = rollout.answered(request.sample, given.parent_chat)
        if request.delta and parent is None:
            detail = v1.UnknownChat(sample=request.sample, chat_number=given.parent_chat)
            raise refusal(Status.FAILED_PRECONDITION, "UNKNOWN_CHAT", "the parent chat is not known", detail)
        messages = [*(parent.messages if request.delta else []), *given.messages]
        history = extend(parent.history if request.delta else "", given.messages)
        ids, known = (parent.ids if parent else []), (len(messages) - len(given.messages) if request.delta else 0)
        if request.full and parent:
            known = request.full.prefix_messages
        elif fork := request.forked_prefix:
            ids, known = (fork.tokens.ids if fork.tokens else []), fork.messages
        digest = identity(request, history, tools)
        key = (request.sample, request.chat_number)
        if key not in rollout.chats:
            chat = Chat(request, messages, tools, ids, known)
            task = self.spawn(self._sample(rollout, chat, history))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())  # raised from each caller
            rollout.chats[key] = digest, task
        known_digest, task = rollout.chats[key]
        if known_digest != digest:
            raise refusal(Status.ALREADY_EXISTS, "CHAT_DIFFERS", "another chat has this number")
        await asyncio.wait([task])
        if task.cancelled():
            raise refusal(Status.CANCELLED, "CANCELLED", "the sampling was stopped")
        return response(task.result(), parent)

    async def _sample(self, rollout: Rollout, chat: Chat, history: str) -> Answered:
        key = (chat.request.sample, chat.request.chat_number)
        try:
            reply = await self._policy(chat)
            ids = [*(reply.prompt or ()), *(reply.ids or ())]
            return Answered(reply, [*chat.messages, reply.message], ids, extend(history, [reply.message]))
        except Exception as error:
            if rollout.chats.get(key, ("", None))[1] is asyncio.current_task():
                del rollout.chats[key]  # asked again, it is sampled again
            if isinstance(error, GRPCError):
                raise
            raise refusal(Status.INTERNAL, "INTERNAL", f"the policy failed: {error!r}") from error

    def abandon(self, request: v1.AbandonChatRequest) -> None:
        """Stops the sampling of chats whose replies are no longer wanted."""
        rollout = self.rollouts.get(request.rollout_id)
        if rollout is None or rollout.request.attempt != (request.attempt or 1):
            return
        for key, (_, task) in list(rollout.chats.items()):
            if is_named(request, *key) and not task.done():
                task.cancel()
                del rollout.chats[key]
        if request.reason == "SUPERSEDED":  # the attempt has no outcome
            self.end(rollout, ConnectionError("a higher attempt replaced the rollout"))

    def record(self, reported: v1.RolloutOutcome) -> v1.Receipt:
        """Records an outcome and returns its receipt."""
        rollout = self.find(reported.rollout_id, reported.attempt, Status.INVALID_ARGUMENT)
        if rollout.result_id == "":
            raise refusal(Status.UNAVAILABLE, "UNAVAILABLE", "the trainer no longer waits for the rollout")
        if rollout.result_id is not None:
            same = rollout.result_id == reported.result_id
            return v1.Receipt.ALREADY_RECORDED if same else v1.Receipt.CONFLICT
        outcome = Outcome(reported, [_whole(sample, rollout) for sample in reported.samples])
        self._on_outcome(outcome)
        if not rollout.result.done():
            rollout.result.set_result(outcome)
        self.end(rollout, None, reported.result_id)
        return v1.Receipt.RECORDED


class Callbacks(v1.TrainerServiceBase):
    """The transport with one call for each message: the trainer calls the server, and the server calls the trainer."""

    def __init__(self, trainer: Trainer, listen: str, advertise: str) -> None:
        self._trainer = trainer
        self._listen = listen
        self._advertise = advertise
        self._callback: v1.Callback | None = None
        """Set when the listener serves."""
        self._server = Server([self], status_details_codec=DetailsCodec())
        grpclib.events.listen(self._server, grpclib.events.RecvRequest, self._keep_credential)

    async def open(self) -> None:
        info = await self._trainer.retry(
            lambda stub: stub.get_server_info(v1.GetServerInfoRequest(), timeout=CALL_TIMEOUT)
        )
        host, _, port = self._listen.rpartition(":")
        await self._server.start(host, int(port))
        taken = self._server._server.sockets[0].getsockname()[1]  # grpclib has no public name for it
        self._callback = v1.Callback(
            target=self._advertise or f"{host}:{taken}",
            history=self._trainer.history,
            run_id=secrets.token_hex(16),
            protocol=1,
            features=FEATURES,
            outcome_by_reference="outcome_by_reference" in info.features,
        )

    async def close(self) -> None:
        if self._callback is not None:
            self._server.close()  # answers that wait are sent
            await self._server.wait_closed()

    def start(self, rollout: Rollout) -> None:
        self._trainer.spawn(self._follow(rollout))

    def cancel(self, rollout: Rollout) -> None:
        request = v1.CancelRequest(rollout_id=rollout.request.rollout_id, attempt=rollout.request.attempt)
        self._trainer.spawn(self._trainer.retry(lambda stub: stub.cancel(request, timeout=CALL_TIMEOUT)))

    async def _follow(self, rollout: Rollout) -> None:
        """Sends the Init until it is answered. Then asks from time to time whether the server still has the rollout."""
        stub, request = self._trainer.stub, rollout.request
        callback = replace(self._callback, credential=rollout.credential)
        which = v1.GetRolloutRequest(rollout_id=request.rollout_id, attempt=request.attempt)
        while self._trainer.is_open(rollout):
            pause: float | None = CHECK_INTERVAL
            try:
                if rollout.accepted.done():
                    await stub.get_rollout(which, timeout=CALL_TIMEOUT)
                else:
                    answer = await stub.init(replace(request, callback=callback), timeout=CALL_TIMEOUT)
                    if not rollout.accepted.done():
                        rollout.accepted.set_result(answer.tools)
            except BREAKS:
                pause = 0.5
            except GRPCError as error:
                if not rollout.accepted.done():
                    pause = retry_after(error)
                    if pause is None:
                        self._trainer.end(rollout, error)
                        return
                elif error.status is Status.NOT_FOUND:
                    self._trainer.restart(rollout)
            await asyncio.wait([rollout.result], timeout=pause)

    async def _keep_credential(self, event: grpclib.events.RecvRequest) -> None:
        SHOWN.set(str(event.metadata.get("authorization", "")))

    def _check(self, rollout_id: str) -> None:
        """Refuses a call without the credential of the rollout."""
        shown = SHOWN.get().encode()
        known = self._trainer.rollouts.values()
        owners = [each for each in known if secrets.compare_digest(shown, f"Bearer {each.credential}".encode())]
        if not owners:
            raise refusal(Status.UNAUTHENTICATED, "UNAUTHENTICATED", "the credential is not of this trainer")
        if all(each.request.rollout_id != rollout_id for each in owners):
            raise refusal(Status.PERMISSION_DENIED, "PERMISSION_DENIED", "the credential is of another rollout")

    async def chat(self, message: v1.ChatRequest) -> v1.ChatResponse:
        self._check(message.rollout_id)
        return await self._trainer.answer(message)

    async def abandon_chat(self, message: v1.AbandonChatRequest) -> v1.AbandonChatResponse:
        self._check(message.rollout_id)
        self._trainer.abandon(message)
        return v1.AbandonChatResponse()

    async def complete(self, message: v1.CompleteRequest) -> v1.CompleteResponse:
        outcome = message.outcome or v1.RolloutOutcome()
        self._check(outcome.rollout_id)
        return v1.CompleteResponse(receipt=self._trainer.record(outcome))


class Attachment:
    """The transport with streams (Attach), one after the other. They share an attachment id."""

    def __init__(self, trainer: Trainer, max_open_chats: int) -> None:
        self._trainer = trainer
        self.hello = v1.TrainerHello(
            attachment_id=secrets.token_hex(16),
            process_id=secrets.token_hex(16),
            version="osmosis-betterproto2 1",
            protocol_min=1,
            protocol_max=1,
            max_open_chats=max_open_chats,
            history=trainer.history,
            features=FEATURES,
        )
        self._attached: asyncio.Future[None] = asyncio.Future()
        self._ended: asyncio.Task[None] | None = None
        self._closing = False
        self._window = 0
        self._live: list[Rollout] = []
        self._cancels: dict[str, v1.CancelFrame] = {}
        self._frames: asyncio.Queue[v1.TrainerFrame] | None = None
        """The frames of the present stream that are not sent. None during a break."""
        self._open: set[tuple[str, int, str, int]] = set()
        self._largest = max_open_chats

    async def open(self) -> None:
        self._ended = asyncio.ensure_future(self._run())
        await self._attached

    async def _run(self) -> None:
        """Opens a stream after each break."""
        pause = 0.1
        while not self._closing:
            self._frames = None
            try:
                await self._follow()
            except BREAKS as error:
                self._trainer.problem = error
            except GRPCError as error:
                self._trainer.problem = error
                busy = error.status in (Status.UNAVAILABLE, Status.RESOURCE_EXHAUSTED)
                if error.status is Status.ABORTED or (self._frames is None and not busy):
                    self._trainer.fail_all(error)  # another stream has this id, or the hello was refused
                    if not self._attached.done():
                        self._attached.set_exception(error)
                    return
            pause = 0.1 if self._frames is not None else min(2 * pause, 5.0)
            self._frames = None
            if not self._closing:
                await asyncio.sleep(pause)

    async def _follow(self) -> None:
        """Opens a stream and follows it to its end. Raises the server's status, or one of BREAKS."""
        self._largest = self.hello.max_open_chats or 0
        async with self._trainer.open_stream() as stream:
            await stream.send_message(v1.AttachRequest(frames=[v1.TrainerFrame(hello=self.hello)]))
            async with asyncio.timeout(45):
                first = await stream.recv_message()
            hello = first.frames[0].hello if first and first.frames else None
            if hello is None:
                raise StreamTerminatedError("the server has sent no hello")
            self._frames, self._open = asyncio.Queue(), set()
            self._take(hello)
            for frame in first.frames[1:]:
                self._handle(frame)
            # One of them meets a break first. It ends the other, and both are read.
            tasks = [asyncio.ensure_future(each(stream, hello.limits)) for each in (self._send_frames, self._receive)]
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _receive(self, stream: AttachStream, limits: v1.Limits) -> None:
        """Handles the frames of the server. Raises at the end of the stream."""
        timeout = limits.heartbeat_timeout.total_seconds()
        while True:
            async with asyncio.timeout(timeout):
                message = await stream.recv_message()
            if message is None:
                break
            for frame in message.frames:
                self._handle(frame)
            if self._frames.qsize() > MAX_WAITING:
                await self._frames.join()
        raise StreamTerminatedError("the server has ended the stream")  # the stream raises a status in its place

    async def _send_frames(self, stream: AttachStream, limits: v1.Limits) -> None:
        """Sends the frames up to Goodbye, and a heartbeat after an interval without a frame."""
        frames, frame = self._frames, v1.TrainerFrame()
        interval = limits.heartbeat_interval.total_seconds()
        while frame.goodbye is None:
            try:
                async with asyncio.timeout(interval):  # wait_for of Python 3.11 may drop a cancel
                    frame = await frames.get()
            except TimeoutError:
                frames.put_nowait(v1.TrainerFrame(heartbeat=v1.Heartbeat()))
                continue
            batch, size = [frame], len(bytes(frame))
            while size < MAX_BYTES and len(batch) < 4096 and not frames.empty():
                frame = frames.get_nowait()
                batch.append(frame)
                size += len(bytes(frame))
            await stream.send_message(v1.AttachRequest(frames=batch), end=frame.goodbye is not None)
            for _ in batch:
                frames.task_done()

    def _take(self, hello: v1.ServerHello) -> None:
        """Begins to use a stream: sends what the server may not have."""
        self._window = 1024 if hello.max_open_rollouts is None else hello.max_open_rollouts
        self.hello.journal_id = hello.journal_id
        live = [rollout for rollout in self._live if self._trainer.is_open(rollout)]
        for rollout in live:
            rollout.sent = rollout.accepted.done()
        refs = [
            v1.RolloutRef(rollout_id=each.request.rollout_id, attempt=each.request.attempt)
            for each in live
            if each.sent
        ]
        for n in range(0, len(refs), 1000):
            self._send(open_rollouts=v1.OpenRollouts(rollouts=refs[n : n + 1000]))
        for frame in self._cancels.values():
            self._send(cancel=frame)
        self._send_inits()
        if not self._attached.done():
            self._attached.set_result(None)

    def _send(self, **frame: Any) -> None:
        """Sends a frame. It is lost in a break: the next stream begins with what was not answered."""
        if self._frames is not None:
            self._frames.put_nowait(v1.TrainerFrame(**frame))

    def _send_inits(self) -> None:
        """Sends Inits as far as the server's window allows. An Init is open until the outcome arrives."""
        self._live = [rollout for rollout in self._live if self._trainer.is_open(rollout)]
        count = sum(rollout.sent for rollout in self._live)
        for rollout in self._live:
            if not rollout.sent and self._frames is not None and count < self._window:
                rollout.sent, count = True, count + 1
                self._send(init=rollout.request)

    def set_max_open_chats(self, count: int) -> None:
        self.hello.max_open_chats = count
        self._largest = max(self._largest, count)
        self._send(window=v1.TrainerWindow(max_open_chats=count))

    def start(self, rollout: Rollout) -> None:
        self._live.append(rollout)
        self._send_inits()

    def cancel(self, rollout: Rollout) -> None:
        if not rollout.sent:
            self._trainer.end(rollout, ConnectionError("cancelled"))  # the server does not have it
            return
        request = v1.CancelRequest(rollout_id=rollout.request.rollout_id, attempt=rollout.request.attempt)
        frame = v1.CancelFrame(id=secrets.token_hex(8), request=request)
        self._cancels[frame.id] = frame
        self._send(cancel=frame)

    async def close(self) -> None:
        """Says goodbye, and waits until the server has closed the stream."""
        self._closing = True
        self._send(goodbye=v1.Goodbye())
        if self._ended is not None:
            with contextlib.suppress(TimeoutError, asyncio.CancelledError):
                await asyncio.wait_for(self._ended, 5 if self._frames is not None else 0.1)

    def _handle(self, frame: v1.ServerFrame) -> None:
        kind, value = betterproto2.which_one_of(frame, "frame")
        if kind == "chat":
            self._chat(value)
        elif kind == "abandon_chat":
            rollout = (value.rollout_id, value.attempt)
            self._open -= {key for key in self._open if key[:2] == rollout and is_named(value, *key[2:])}
            self._trainer.abandon(value)
        elif kind == "complete":
            self._complete(value.outcome or v1.RolloutOutcome())
        elif kind == "init_reply":
            self._init_answered(value)
        elif kind == "unknown_rollouts":
            for ref in value.rollouts:
                known = self._trainer.rollouts.get(ref.rollout_id)
                if known and known.request.attempt == ref.attempt:
                    self._trainer.restart(known)
        elif kind in ("window", "draining"):
            self._window = value.max_open_rollouts if kind == "window" else 0
        elif kind == "cancel_reply":
            self._cancels.pop(value.id, None)
        elif not kind and frame._unknown_fields:  # betterproto2 has no public name for it
            self._send(unknown_frame=v1.UnknownFrame(frame_number=field_number(frame._unknown_fields)))
        self._send_inits()

    def _init_answered(self, reply: v1.InitReply) -> None:
        rollout = self._trainer.rollouts.get(reply.rollout_id)
        if rollout is None or rollout.request.attempt != reply.attempt or rollout.result_id is not None:
            return
        if reply.status is None:
            if not rollout.accepted.done():
                rollout.accepted.set_result(reply.response.tools if reply.response else [])
            return
        error = GRPCError(Status(reply.status.code), reply.status.message, reply.status.details)
        pause = retry_after(error)
        if pause is None:
            self._trainer.end(rollout, error)
        else:
            asyncio.get_running_loop().call_later(pause, self._again, rollout)  # it keeps its slot until then

    def _again(self, rollout: Rollout) -> None:
        rollout.sent = rollout.accepted.done()
        self._send_inits()

    def _chat(self, request: v1.ChatRequest) -> None:
        key = (request.rollout_id, request.attempt, request.sample, request.chat_number)
        if key in self._open:
            return  # the server gets one answer
        if len(self._open) >= (self.hello.max_open_chats or 0):
            error = refusal(Status.RESOURCE_EXHAUSTED, "WINDOW_EXCEEDED", "a chat beyond the window")
            if len(self._open) >= self._largest:
                raise StreamTerminatedError("a chat beyond the largest window") from error  # ends the stream
            self._send(chat_reply=chat_reply(request, status=as_value(error)))
            return
        self._open.add(key)
        self._trainer.spawn(self._answer(key, request, self._frames))

    async def _answer(self, key: Any, request: v1.ChatRequest, stream: Any) -> None:
        """Answers a chat on the stream that asked. If the stream has broken, the server asks again."""
        try:
            reply = chat_reply(request, response=await self._trainer.answer(request))
        except GRPCError as error:
            reply = chat_reply(request, status=as_value(error))
        if stream is self._frames and key in self._open:  # not abandoned
            self._open.remove(key)
            self._send(chat_reply=reply)

    def _complete(self, outcome: v1.RolloutOutcome) -> None:
        reply = v1.CompleteReply(rollout_id=outcome.rollout_id, attempt=outcome.attempt, result_id=outcome.result_id)
        try:
            reply.receipt = self._trainer.record(outcome)
        except GRPCError as error:
            reply.status = as_value(error)
        self._send(complete_reply=reply)


class DetailsCodec(StatusDetailsCodecBase):
    """Error details as they are on the wire. grpclib's own codec needs messages of Google's library."""

    def encode(self, status: Status, message: str | None, details: Any) -> bytes:
        return bytes(v1.Status(code=status.value, message=message or "", details=details or []))

    def decode(self, status: Status, message: str | None, data: bytes) -> list[Detail]:
        return v1.Status.parse(data).details


def refusal(status: Status, reason: str, message: str, *details: betterproto2.Message) -> GRPCError:
    """Returns an error with an ErrorInfo and further details."""
    info = error_details_pb2.ErrorInfo(domain="osmosis.rollout", reason=reason)
    packed = [Detail(type_url="type.googleapis.com/google.rpc.ErrorInfo", value=info.SerializeToString())]
    for each in details:
        packed.append(
            Detail(type_url=f"type.googleapis.com/osmosis.rollout.v1.{type(each).__name__}", value=bytes(each))
        )
    return GRPCError(status, message, packed)


def as_value(error: GRPCError) -> v1.Status:
    return v1.Status(code=error.status.value, message=error.message or "", details=error.details or [])


def detail(error: GRPCError, kind: Any) -> Any:
    """Returns the detail of a kind of google.rpc.error_details_pb2; None without one."""
    for each in error.details or ():
        if each.type_url.endswith(f"/{kind.DESCRIPTOR.full_name}"):
            return kind.FromString(each.value)
    return None


def retry_after(error: GRPCError) -> float | None:
    """Returns the pause in seconds before a refused Init may be sent again; None if it may not."""
    retry = detail(error, error_details_pb2.RetryInfo)
    if retry is not None:
        return float(retry.retry_delay.ToTimedelta().total_seconds())
    again = (Status.UNAVAILABLE, Status.RESOURCE_EXHAUSTED, Status.DEADLINE_EXCEEDED)
    return 1.0 if error.status in again else None


def is_named(request: v1.AbandonChatRequest, sample: str, number: int) -> bool:
    return request.sample in ("", sample) and request.chat_number in (0, number)


def chat_reply(request: v1.ChatRequest, **result: Any) -> v1.ChatReply:
    name = {key: getattr(request, key) for key in ("rollout_id", "attempt", "sample", "chat_number")}
    return v1.ChatReply(**name, **result)


def response(answered: Answered, parent: Answered | None) -> v1.ChatResponse:
    """Returns the reply for the wire, without the ids of the prompt that the server has from the parent."""
    reply, prefix = answered.reply, 0
    if reply.prompt is not None and parent is not None:
        pairs = zip(reply.prompt, parent.ids, strict=False)
        prefix = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(reply.prompt), len(parent.ids)))
    return v1.ChatResponse(
        message=reply.message,
        finish_reason=reply.finish_reason,
        tokens=None if reply.ids is None else v1.TokenBlock(ids=reply.ids, logprobs=reply.logprobs),
        prompt=None if reply.prompt is None else v1.TokenBlock(ids=reply.prompt[prefix:]),
        prompt_prefix=prefix,
    )


def _whole(sample: v1.Sample, rollout: Rollout) -> Sample:
    prefix = rollout.answered(sample.name, sample.prefix_chat)
    messages = [*(prefix.messages if prefix else ()), *sample.messages]
    try:
        segments = [_fill(segment, sample.name, rollout) for segment in sample.segments]
    except ValueError as error:
        return Sample(sample, messages, [], False, str(error))
    return Sample(sample, messages, segments, sample.trainable, sample.not_trainable_reason)


def _fill(segment: v1.Segment, sample: str, rollout: Rollout) -> Segment:
    ids, logprobs = segment.ids, segment.logprobs
    if not ids and segment.mask_runs:
        chats = [rollout.answered(sample, number) for number in segment.chats]
        if None in chats or not chats:
            raise ValueError(f"a segment names chats that were not answered here: {segment.chats}")
        ids = chats[-1].ids  # the newest chat has the tokens of all
        logprobs = [value for chat in chats for value in chat.reply.logprobs]
    if len(ids) != sum(segment.mask_runs):
        raise ValueError(f"a segment has {len(ids)} tokens and a mask for {sum(segment.mask_runs)}")
    return Segment(ids, segment.mask_runs, logprobs, segment.chats)


def identity(request: v1.ChatRequest, history: str, tools: list[v1.Tool]) -> str:
    """Returns a digest that is the same for equal chats, in whichever form their histories come."""
    rest = [canonical(v1.Tools(tools=tools)), canonical(request.sampling or v1.SamplingParams())]
    return digest_of(history, *rest, str(int(request.purpose) or 1))


def extend(history: str, messages: list[v1.Message]) -> str:
    """Returns the digest of a history with further messages."""
    for message in messages:
        history = digest_of(history, canonical(message))
    return history


def digest_of(*texts: str) -> str:
    return sha256("\0".join(texts).encode()).hexdigest()


def canonical(message: betterproto2.Message) -> str:
    """Returns a text that is the same for equal messages. JSON text within them is compared by value."""
    return json.dumps(_values(message.to_dict()), sort_keys=True)


def _values(value: Any) -> Any:
    if isinstance(value, list):
        return [_values(item) for item in value]
    if not isinstance(value, dict):
        return value
    parsed = {
        key: _parse(item) if key in ("extraJson", "parametersJson") else _values(item) for key, item in value.items()
    }
    return {key: item for key, item in parsed.items() if key != "extraJson" or item != {}}  # {} means none


def _parse(text: str) -> Any:
    def number(digits: str) -> float | int:
        return int(value) if (value := float(digits)).is_integer() else value

    try:
        return json.loads(text, parse_float=number)
    except ValueError:
        return text


def field_number(unknown: bytes) -> int:
    """Returns the number of the first field."""
    return betterproto2.decode_varint(unknown, 0)[0] >> 3
