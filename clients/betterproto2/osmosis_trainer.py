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
REMEMBERED = 3600
"""Seconds in which an ended rollout recognizes its outcome when it comes again; Limits.outcome_ttl."""
SHOWN: ContextVar[str] = ContextVar("authorization", default="")
"""The credential of the call that is being handled. The stubs of betterproto2 do not show metadata to a handler."""
BREAKS = (OSError, StreamTerminatedError, TimeoutError)
"""The errors of a connection that has failed."""
ChatKey = tuple[str, int, str, int]
"""Rollout, attempt, sample and number of a chat."""
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
    versions: list[v1.VersionSpan] = field(default_factory=list)
    """The versions of the policy that sampled the ids."""


Policy = Callable[[Chat], Awaitable[Reply]]
"""Samples the reply to a chat. Its task is cancelled when the reply is no longer wanted. A GRPCError is the answer."""


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
    result: "asyncio.Future[v1.RolloutOutcome]" = field(default_factory=asyncio.Future)
    accepted: "asyncio.Future[list[v1.Tool]]" = field(default_factory=asyncio.Future)
    chats: dict[tuple[str, int], tuple[str, "asyncio.Task[Answered]"]] = field(default_factory=dict)
    """By sample and number: the digest of the request, and the sampling."""
    sent: bool = False
    """Whether the Init was sent on the present stream."""
    result_id: str | None = None
    """Set when the attempt has ended; empty without an outcome."""

    def answered(self, sample: str, number: int) -> Answered | None:
        _, task = self.chats.get((sample, number), ("", None))
        return task.result() if task and task.done() and not task.cancelled() and not task.exception() else None

    def abandon(self, sample: str = "", number: int = 0) -> None:
        """Stops the sampling of the chats that an AbandonChat names."""
        for key, (_, task) in list(self.chats.items()):
            if is_named(key, sample, number) and not task.done():
                task.cancel()
                del self.chats[key]

    def end(self, result_id: str = "") -> None:
        """Ends the attempt, and stops its samplings."""
        self.result_id = result_id
        self.abandon()
        self.chats.clear()
        self.accept([])

    def accept(self, tools: list[v1.Tool]) -> None:
        if not self.accepted.done():
            self.accepted.set_result(tools)

    def assemble(self, outcome: v1.RolloutOutcome) -> None:
        """Puts in the tokens and messages that the server left out of an outcome."""
        for sample in outcome.samples:
            prefix = self.answered(sample.name, sample.prefix_chat)
            sample.messages[:0] = prefix.messages if prefix else ()
            for segment in sample.segments:
                chats = [self.answered(sample.name, number) for number in segment.chats]
                if not segment.ids and chats and None not in chats:
                    segment.ids = chats[-1].ids  # the newest chat has the tokens of all
                    segment.logprobs = [value for chat in chats for value in chat.reply.logprobs]
                if len(segment.ids) != sum(segment.mask_runs):
                    wrong = f"a segment has {len(segment.ids)} tokens and a mask for {sum(segment.mask_runs)}"
                    sample.trainable, sample.not_trainable_reason = False, wrong


class Trainer:
    """Runs rollouts on one agent server. Used as `async with Trainer("127.0.0.1:50051", policy) as trainer`."""

    def __init__(
        self,
        target: str,
        policy: Policy,
        *,
        token: str = "",
        on_outcome: Callable[[v1.RolloutOutcome], None] = lambda outcome: None,
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
        self._tasks: set[asyncio.Task[Any]] = set()
        self._link = Callbacks(self, listen, advertise) if listen else Attachment(self, max_open_chats)

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

    async def rollout(self, spec: v1.RolloutSpec, rollout_id: str = "") -> v1.RolloutOutcome:
        """Runs a rollout. Returns its outcome, which may be a failure. A cancelled call cancels the rollout."""
        if self.failure is not None:
            raise self.failure
        rollout_id = rollout_id or secrets.token_hex(16)
        if rollout_id in self.rollouts:
            raise ValueError(f"rollout {rollout_id} was started before")
        result = self._start(Rollout(v1.InitRequest(rollout_id=rollout_id, attempt=1, spec=spec))).result
        try:
            return await asyncio.shield(result)
        except asyncio.CancelledError:
            self._link.cancel(self.rollouts[rollout_id])
            raise

    def _start(self, rollout: Rollout) -> Rollout:
        self.rollouts[rollout.request.rollout_id] = rollout
        self._link.start(rollout)
        return rollout

    def spawn(self, work: Any) -> "asyncio.Task[Any]":
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def retry(self, call: Callable[[v1.RolloutServiceStub], Awaitable[Any]]) -> Any:
        """Calls until there is an answer."""
        while True:
            try:
                return await call(self.stub)
            except BREAKS as error:
                self.problem = error
                await asyncio.sleep(0.5)

    def fail(self, rollout: Rollout, error: BaseException) -> None:
        """Ends a rollout that has no outcome."""
        if not rollout.result.done():
            rollout.result.set_exception(error)
            rollout.result.exception()  # no warning if nothing waits
        self._end(rollout)

    def refused(self, rollout: Rollout, error: GRPCError) -> float:
        """Returns the seconds before a refused Init is sent again. Ends the rollout if the refusal is final."""
        retry = detail(error, error_details_pb2.RetryInfo)
        if retry is not None:
            return float(retry.retry_delay.ToTimedelta().total_seconds())
        if error.status not in (Status.UNAVAILABLE, Status.RESOURCE_EXHAUSTED, Status.DEADLINE_EXCEEDED):
            self.fail(rollout, error)
        return 1.0

    def _end(self, rollout: Rollout, result_id: str = "") -> None:
        rollout.end(result_id)
        asyncio.get_running_loop().call_later(REMEMBERED, self.rollouts.pop, rollout.request.rollout_id, None)

    def fail_all(self, error: BaseException) -> None:
        self.failure = self.failure or error
        for rollout in list(self.rollouts.values()):
            if rollout.result_id is None:
                self.fail(rollout, error)

    def restart(self, rollout_id: str, attempt: int) -> None:
        """Starts the next attempt of a rollout that the server has forgotten."""
        rollout = self.rollouts.get(rollout_id)
        if rollout and rollout.request.attempt == attempt and rollout.result_id is None:
            rollout.end()
            self._start(Rollout(replace(rollout.request, attempt=attempt + 1), rollout.result))

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
        if rollout.result_id is not None:
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
        offered, sampled = canonical(v1.Tools(tools=tools)), canonical(request.sampling or v1.SamplingParams())
        digest = digest_of(history, offered, sampled, str(int(request.purpose) or 1))
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
        reply = task.result().reply
        return v1.ChatResponse(
            message=reply.message,
            finish_reason=reply.finish_reason,
            tokens=None if reply.ids is None else v1.TokenBlock(ids=reply.ids, logprobs=reply.logprobs),
            prompt=None if reply.prompt is None else v1.TokenBlock(ids=reply.prompt),
            versions=reply.versions,
        )

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
        rollout.abandon(request.sample, request.chat_number)
        if request.reason == "SUPERSEDED":  # the attempt has no outcome
            self.fail(rollout, ConnectionError("a higher attempt replaced the rollout"))

    def record(self, outcome: v1.RolloutOutcome) -> v1.Receipt:
        """Records an outcome and returns its receipt."""
        rollout = self.find(outcome.rollout_id, outcome.attempt, Status.INVALID_ARGUMENT)
        if rollout.result_id == "":
            raise refusal(Status.UNAVAILABLE, "UNAVAILABLE", "the trainer no longer waits for the rollout")
        if rollout.result_id is not None:
            same = rollout.result_id == outcome.result_id
            return v1.Receipt.ALREADY_RECORDED if same else v1.Receipt.CONFLICT
        rollout.assemble(outcome)
        self._on_outcome(outcome)
        if not rollout.result.done():
            rollout.result.set_result(outcome)
        self._end(rollout, outcome.result_id)
        return v1.Receipt.RECORDED


class Callbacks(v1.TrainerServiceBase):
    """The transport with one call for each message: the trainer calls the server, and the server calls the trainer."""

    def __init__(self, trainer: Trainer, listen: str, advertise: str) -> None:
        self._trainer = trainer
        self._listen = listen
        self._advertise = advertise
        self._secret = secrets.token_urlsafe()
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
        callback = replace(self._callback, credential=digest_of(self._secret, request.rollout_id))
        which = v1.GetRolloutRequest(rollout_id=request.rollout_id, attempt=request.attempt)
        while rollout.result_id is None:
            pause = CHECK_INTERVAL
            try:
                if rollout.accepted.done():
                    await stub.get_rollout(which, timeout=CALL_TIMEOUT)
                else:
                    rollout.accept((await stub.init(replace(request, callback=callback), timeout=CALL_TIMEOUT)).tools)
            except BREAKS:
                pause = 0.5
            except GRPCError as error:
                if not rollout.accepted.done():
                    pause = self._trainer.refused(rollout, error)
                elif error.status is Status.NOT_FOUND:
                    self._trainer.restart(request.rollout_id, request.attempt)
            await asyncio.wait([rollout.result], timeout=pause)

    async def _keep_credential(self, event: grpclib.events.RecvRequest) -> None:
        SHOWN.set(str(event.metadata.get("authorization", "")))

    def _check(self, rollout_id: str) -> Trainer:
        """Returns the trainer for a call with the credential of the rollout. Refuses another call."""

        def is_of(each: str) -> bool:
            return secrets.compare_digest(SHOWN.get().encode(), f"Bearer {digest_of(self._secret, each)}".encode())

        if is_of(rollout_id):
            return self._trainer
        if any(is_of(each) for each in self._trainer.rollouts):
            raise refusal(Status.PERMISSION_DENIED, "PERMISSION_DENIED", "the credential is of another rollout")
        raise refusal(Status.UNAUTHENTICATED, "UNAUTHENTICATED", "the credential is not of this trainer")

    async def chat(self, message: v1.ChatRequest) -> v1.ChatResponse:
        return await self._check(message.rollout_id).answer(message)

    async def abandon_chat(self, message: v1.AbandonChatRequest) -> v1.AbandonChatResponse:
        self._check(message.rollout_id).abandon(message)
        return v1.AbandonChatResponse()

    async def complete(self, message: v1.CompleteRequest) -> v1.CompleteResponse:
        outcome = message.outcome or v1.RolloutOutcome()
        return v1.CompleteResponse(receipt=self._check(outcome.rollout_id).record(outcome))


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
        self._open: dict[ChatKey, asyncio.Task[None]] = {}
        """The chats of the present stream without an answer."""

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
            self._leave_chats(lambda key: True)
            if not self._closing:
                await asyncio.sleep(pause)

    async def _follow(self) -> None:
        """Opens a stream and follows it to its end. Raises the server's status, or one of BREAKS."""
        # The stub has this call, too, but it sends in a task whose errors it does not read.
        route, kind = "/osmosis.rollout.v1.RolloutService/Attach", Cardinality.STREAM_STREAM
        types, metadata = (v1.AttachRequest, v1.AttachResponse), self._trainer.stub.metadata
        async with self._trainer.channel.request(route, kind, *types, metadata=metadata) as stream:
            await stream.send_message(v1.AttachRequest(frames=[v1.TrainerFrame(hello=self.hello)]))
            async with asyncio.timeout(45):
                first = await stream.recv_message()
            hello = first.frames[0].hello if first and first.frames else None
            if hello is None:
                raise StreamTerminatedError("the server has sent no hello")
            self._frames = asyncio.Queue()
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
            if message is None:  # the stream raises the server's status in place of this error, if there is one
                raise StreamTerminatedError("the server has ended the stream")
            for frame in message.frames:
                self._handle(frame)

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
            await stream.send_message(v1.AttachRequest(frames=[frame]), end=frame.goodbye is not None)

    def _take(self, hello: v1.ServerHello) -> None:
        """Begins to use a stream: sends what the server may not have."""
        self._window = 1024 if hello.max_open_rollouts is None else hello.max_open_rollouts
        self.hello.journal_id = hello.journal_id
        for rollout in self._live:
            rollout.sent = rollout.accepted.done()
        sent = [each.request for each in self._live if each.sent and each.result_id is None]
        refs = [v1.RolloutRef(rollout_id=each.rollout_id, attempt=each.attempt) for each in sent]
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
        self._live = [rollout for rollout in self._live if rollout.result_id is None]
        count = sum(rollout.sent for rollout in self._live)
        for rollout in self._live:
            if not rollout.sent and self._frames is not None and count < self._window:
                rollout.sent, count = True, count + 1
                self._send(init=rollout.request)

    def start(self, rollout: Rollout) -> None:
        self._live.append(rollout)
        self._send_inits()

    def cancel(self, rollout: Rollout) -> None:
        if not rollout.sent:
            self._trainer.fail(rollout, ConnectionError("cancelled"))  # the server does not have it
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
        if kind:
            getattr(self, f"_on_{kind}", lambda value: None)(value)
        elif frame._unknown_fields:  # betterproto2 has no public name for it
            number = betterproto2.decode_varint(frame._unknown_fields, 0)[0] >> 3
            self._send(unknown_frame=v1.UnknownFrame(frame_number=number))
        self._send_inits()

    def _on_window(self, window: v1.ServerWindow) -> None:
        self._window = window.max_open_rollouts

    def _on_draining(self, draining: v1.Draining) -> None:
        self._window = 0

    def _on_unknown_rollouts(self, unknown: v1.UnknownRollouts) -> None:
        for ref in unknown.rollouts:
            self._trainer.restart(ref.rollout_id, ref.attempt)

    def _on_cancel_reply(self, reply: v1.CancelReply) -> None:
        self._cancels.pop(reply.id, None)

    def _on_init_reply(self, reply: v1.InitReply) -> None:
        rollout = self._trainer.rollouts.get(reply.rollout_id)
        if rollout is None or rollout.request.attempt != reply.attempt or rollout.result_id is not None:
            return
        if reply.status is None:
            rollout.accept(reply.response.tools if reply.response else [])
            return
        error = GRPCError(Status(reply.status.code), reply.status.message, reply.status.details)
        pause = self._trainer.refused(rollout, error)
        asyncio.get_running_loop().call_later(pause, self._again, rollout)  # it keeps its slot until then

    def _again(self, rollout: Rollout) -> None:
        rollout.sent = rollout.accepted.done()
        self._send_inits()

    def _on_chat(self, request: v1.ChatRequest) -> None:
        key = (request.rollout_id, request.attempt, request.sample, request.chat_number)
        if key in self._open:
            return  # the server gets one answer
        if len(self._open) >= (self.hello.max_open_chats or 0):
            raise StreamTerminatedError("the server asks a chat beyond the window")
        self._open[key] = self._trainer.spawn(self._answer(key, request))

    async def _answer(self, key: ChatKey, request: v1.ChatRequest) -> None:
        """Answers a chat. Cancelled if the stream breaks, since the server asks again, or if the chat is abandoned."""
        reply = v1.ChatReply(*key)
        try:
            reply.response = await self._trainer.answer(request)
        except GRPCError as error:
            reply.status = as_value(error)
        del self._open[key]
        self._send(chat_reply=reply)

    def _on_abandon_chat(self, request: v1.AbandonChatRequest) -> None:
        rollout = (request.rollout_id, request.attempt)
        self._leave_chats(lambda key: key[:2] == rollout and is_named(key[2:], request.sample, request.chat_number))
        self._trainer.abandon(request)

    def _leave_chats(self, chosen: Callable[[ChatKey], bool]) -> None:
        for key in filter(chosen, list(self._open)):
            self._open.pop(key).cancel()

    def _on_complete(self, request: v1.CompleteRequest) -> None:
        outcome = request.outcome or v1.RolloutOutcome()
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
    info = error_details_pb2.ErrorInfo(domain="osmosis.rollout", reason=reason).SerializeToString()
    packed = {"google.rpc.ErrorInfo": info}
    packed |= {f"osmosis.rollout.v1.{type(each).__name__}": bytes(each) for each in details}
    return GRPCError(status, message, [Detail(f"type.googleapis.com/{name}", data) for name, data in packed.items()])


def as_value(error: GRPCError) -> v1.Status:
    return v1.Status(code=error.status.value, message=error.message or "", details=error.details or [])


def detail(error: GRPCError, kind: Any) -> Any:
    """Returns the detail of a kind of google.rpc.error_details_pb2; None without one."""
    for each in error.details or ():
        if each.type_url.endswith(f"/{kind.DESCRIPTOR.full_name}"):
            return kind.FromString(each.value)
    return None


def is_named(chat: tuple[str, int], sample: str, number: int) -> bool:
    """Returns whether an AbandonChat with this sample and number names a chat."""
    return sample in ("", chat[0]) and number in (0, chat[1])


def extend(history: str, messages: list[v1.Message]) -> str:
    """Returns the digest of a history with further messages."""
    for message in messages:
        history = digest_of(history, canonical(message))
    return history


def digest_of(*texts: str) -> str:
    return sha256("\0".join(texts).encode()).hexdigest()


def canonical(message: betterproto2.Message) -> str:
    """Returns a text that is the same for equal messages. JSON text within them is compared by value."""
    return json.dumps(json.loads(json.dumps(message.to_dict()), object_hook=_by_value), sort_keys=True)


def _by_value(fields: dict[str, Any]) -> dict[str, Any]:
    for key in {"extraJson", "parametersJson"} & fields.keys():
        with contextlib.suppress(ValueError):
            fields[key] = ["JSON", json.loads(fields[key], parse_float=_number)]
    if fields.get("extraJson") == ["JSON", {}]:  # {} means none
        del fields["extraJson"]
    return fields


def _number(digits: str) -> float | int:
    return int(value) if (value := float(digits)).is_integer() else value
