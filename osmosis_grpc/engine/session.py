"""The engine's side of a RolloutContext: the chat client and the trajectory of one run.

The chat client keeps frozen copies of what was sent and received, finds which earlier chat a
history continues, numbers the chats, and asks again under the same number while the trainer
is away. What it sends, it has written to the log before.
"""

import asyncio
import dataclasses
import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from osmosis_grpc.engine import failpoints
from osmosis_grpc.engine.context import EngineContext
from osmosis_grpc.engine.record import Peer, Record
from osmosis_grpc.engine.recording import Diverged, Reply
from osmosis_grpc.errors import (
    Aborted,
    AlreadyExists,
    CallError,
    DeadlineExceeded,
    InvalidArgument,
    ReplyUnreadable,
    RolloutEndedError,
    Unavailable,
)
from osmosis_grpc.supervise import Backoff, OnFailure, future, job
from osmosis_grpc.types import (
    ChatPurpose,
    ChatRef,
    ChatRequest,
    ChatResponse,
    EventKind,
    Message,
    RolloutState,
    Sample,
    events,
    jsontext,
)
from osmosis_grpc.types.assembly import Assembler
from osmosis_grpc.types.completion import clip, describe
from osmosis_grpc.types.conversation import Conversation, Node, count_tool_message, path
from osmosis_grpc.types.requests import check_id, own_params
from osmosis_grpc.types.tools import dump_model, tool_dicts

log = logging.getLogger(__name__)

CHAT = job("engine.chat", OnFailure.RAISE)

ConversationStart = tuple[list[Message], ChatRef | None]
"""A conversation, and the answered chat that it begins with."""


class _SampleState:
    __slots__ = ("assembler", "chats", "conversation", "newest")

    def __init__(self) -> None:
        self.conversation = Conversation()
        self.assembler = Assembler()
        self.chats = 0
        self.newest: Node | None = None


class RolloutSession:
    """One run of one rollout. Every method raises RolloutEndedError after the end.

    `on_superseded` is called when the trainer runs a higher attempt, `on_diverged` when the agent, run again, asks
    another question than before.
    """

    __slots__ = ("_context", "_on_diverged", "_on_superseded", "_record", "_samples", "_unsampled", "open")

    def __init__(
        self,
        record: Record,
        context: EngineContext,
        on_superseded: Callable[[Record], None],
        on_diverged: Callable[[Record, str], None],
    ) -> None:
        self._record = record
        self._context = context
        self._on_superseded = on_superseded
        self._on_diverged = on_diverged
        self._samples: dict[str, _SampleState] = {}
        self._unsampled: _SampleState | None = None
        self.open = True

    def check_open(self) -> None:
        if not self.open:
            raise RolloutEndedError(f"rollout {self._record.rollout_id} has ended; its context is of no more use")

    def record(self, kind: EventKind) -> None:
        self.check_open()
        self._context.log.append(self._record, kind)

    def count_tool_call(self, latency_ms: float) -> None:
        self.check_open()
        record = self._record
        record.run.meter.tool_recorded(latency_ms)
        record.run.progress, record.run.progress_time = self._context.clock.monotonic(), self._context.clock.time()

    def tool_running(self, name: str) -> Callable[[str], float]:
        self.check_open()
        record, clock = self._record, self._context.clock
        began = clock.monotonic()
        record.run.meter.tool_opened(began)
        doing, words = object(), ("tool", name)
        record.run.doing[doing] = words, clock.time()

        def done(call_id: str) -> float:
            now = clock.monotonic()
            record.run.doing.pop(doing, None)
            record.run.did = words
            record.run.meter.tool_closed(now, call_id, now - began)
            return now - began

        return done

    def add_sample(self, name: str | None) -> str:
        self.check_open()
        if name is None:
            numbers = itertools.count(len(self._samples) + 1)
            name = next(made for n in numbers if (made := f"sample-{n}") not in self._samples)
        try:
            check_id(name, "sample")
        except InvalidArgument as error:
            raise _agents_mistake(error) from error
        if name in self._samples:
            raise ValueError(f"there is a sample named {name!r} already")
        self._samples[name] = _SampleState()
        self._context.log.append(self._record, events.SampleAdded(name))
        return name

    async def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        sample: str,
        purpose: ChatPurpose,
        tools: Sequence[Any] | None,
        params: Mapping[str, Any],
    ) -> ChatResponse:
        if not self.open:
            await asyncio.sleep(0)  # an agent that ignores the error in a loop must not block the event loop
        self.check_open()
        if sample not in self._samples:
            self.add_sample(sample)
        state, record = self._samples[sample], self._record
        try:
            plain = _plain(messages, "messages")
            position = state.conversation.insert(plain)
            chat_tools = None if tools is None else tool_dicts(tools)
            params = own_params(params, "params") if params else jsontext.NOTHING
        except InvalidArgument as error:
            raise _agents_mistake(error) from error
        state.chats += 1
        number = state.chats
        callback = record.init.callback
        history = state.conversation.messages(position.node)
        known = None if record.peer.has_tokens else state.assembler.tokens(position.continues)
        request = ChatRequest(
            rollout_id=record.rollout_id,
            attempt=record.attempt,
            sample=sample,
            number=number,
            messages=history,
            params=params,
            tools=record.tools if chat_tools is None else chat_tools,
            tools_overridden=chat_tools is not None,
            purpose=purpose,
            continues=position.continues,
            prefix_len=position.prefix_len,
            known_ids=known if known is not None and len(known) else None,
            state=callback.state if callback else b"",
            timeout=self._timeout(),
        )
        asked = events.ChatRequested(
            sample=sample,
            number=number,
            continues=position.continues,
            messages=history[position.prefix_len :],
            params=params,
            tools=chat_tools,
            purpose=purpose,
        )
        recorded = self._recorded(asked) if record.run.recording is not None else None
        self._context.log.append(record, asked)
        began = self._context.clock.monotonic()
        record.run.meter.chat_opened(began)
        doing, words = (sample, number), ("chat", sample, number)
        record.run.doing[doing] = words, self._context.clock.time()
        record.run.called = ()
        try:
            response = await self._ask(request) if recorded is None else recorded.response
            self.check_open()
            prompt_ids = _assemble(state.assembler, number, position.continues, response, purpose)
        except CallError as error:
            self._failed(request, error, will_retry=False)
            if isinstance(error, Aborted):
                self._on_superseded(record)
            elif record.run.recording is not None and isinstance(error, AlreadyExists):
                self._on_diverged(record, str(Diverged(asked)))
            raise
        finally:
            record.run.doing.pop(doing, None)
            record.run.did = words
            ended = self._context.clock.monotonic()
            record.run.meter.chat_closed(ended)
        reply = state.conversation.answer(position.node, response.message, number)
        if purpose is ChatPurpose.POLICY:  # what a judge said is no sample
            state.newest = reply
        record.run.meter.answered(response, prompt_ids or 0, ended - began)
        self._context.log.append(
            record,
            events.ChatAnswered(
                sample=sample,
                number=number,
                response=response,
                latency=ended - began,
                recorded_number=0 if recorded is None else recorded.number,
            ),
        )
        record.run.called = _called(response.message)
        return response

    def _recorded(self, asked: events.ChatRequested) -> Reply | None:
        """What this chat was answered before the server was started again."""
        assert self._record.run.recording is not None
        try:
            return self._record.run.recording.reply(asked)
        except Diverged as error:
            self._on_diverged(self._record, str(error))
            raise RolloutEndedError(str(error)) from None

    async def _ask(self, request: ChatRequest) -> ChatResponse:
        """Ask until there is an answer, under the same number, while the trainer may come back."""
        backoff = Backoff(*self._context.config.retry_delay)
        away_since: float | None = None
        while True:
            peer, asked = self._record.peer, self._context.clock.monotonic()
            try:
                return await self._try(peer, request)
            except CallError as error:
                now = self._context.clock.monotonic()
                if self._record.peer is not peer:
                    away_since = None
                    request = self._again(request)
                    continue
                if not error.retryable:
                    raise
                if isinstance(error, DeadlineExceeded) and now - asked >= self._context.config.chat_silence * 0.9:
                    away_since = None  # silent, but there: it is still sampling
                    request = self._again(request)
                    continue
                first = away_since is None
                away_since = now if away_since is None else away_since
                pause = error.retry_after if error.retry_after is not None else backoff.next()
                if now + pause - away_since > self._context.config.trainer_grace:
                    raise
                if first:
                    log.warning(
                        "chat %d of rollout %s: the trainer cannot answer now (%s); asking again for up to %g s",
                        request.number,
                        request.rollout_id,
                        clip(describe(error)),
                        self._context.config.trainer_grace,
                    )
                self._failed(request, error, will_retry=True)
            await self._pause(pause)
            request = self._again(request)

    async def _try(self, peer: Peer, request: ChatRequest) -> ChatResponse:
        asked: Any = peer.chat(request)
        call = asked if hasattr(asked, "cancel") else future(CHAT, asked)
        self._record.calls.add(call)
        failpoints.reach("chat.open")
        try:
            response: ChatResponse = await call
            self._context.destinations.reached(peer.destination_key)
            return response
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            if not self.open:
                self.check_open()
            if self._record.peer is not peer:
                raise Unavailable("the rollout was re-pointed") from None
            raise Unavailable("the chat was cut off") from None
        finally:
            self._record.calls.discard(call)

    def _timeout(self) -> float:
        """How long one try may take."""
        silence, deadline = self._context.config.chat_silence, self._record.run.deadline
        return silence if deadline is None else max(0.001, min(silence, deadline - self._context.clock.monotonic()))

    def _again(self, request: ChatRequest) -> ChatRequest:
        """The same chat for another try, perhaps at another place."""
        callback = self._record.init.callback
        return dataclasses.replace(request, timeout=self._timeout(), state=callback.state if callback else b"")

    async def _pause(self, seconds: float) -> None:
        """Wait, but not past a re-pointing."""
        repointed = self._record.repointed()
        try:
            async with asyncio.timeout(seconds):
                await repointed.wait()
        except TimeoutError:
            pass
        self.check_open()

    def _failed(self, request: ChatRequest, error: CallError, *, will_retry: bool) -> None:
        if self.open and self._record.state is RolloutState.RUNNING:
            self._context.log.append(
                self._record,
                events.ChatFailed(
                    sample=request.sample,
                    number=request.number,
                    code=error.code,
                    message=clip(str(error)),
                    will_retry=will_retry,
                ),
            )

    def frozen(self, messages: Sequence[Any], field: str) -> ConversationStart:
        """Messages as this run's own copies. Raises InvalidArgument."""
        name = "main" if "main" in self._samples else next(iter(self._samples), "")
        state = self._samples.get(name)
        if state is None:
            state = self._unsampled = _SampleState()
        position = state.conversation.insert(_plain(messages, field), field)
        return state.conversation.messages(position.node), ChatRef(
            name, position.continues, position.prefix_len
        ) if position.continues else None

    def newest(self) -> ConversationStart:
        """The first sample's conversation up to its newest reply."""
        name, state = next(iter(self._samples.items()), ("", None))
        return _up_to(name, state.newest) if state and state.newest else ([], None)

    @property
    def turns(self) -> int:
        """How many chats its busiest sample asked for."""
        return max((state.chats for state in self._samples.values()), default=0)

    def tool_messages(self) -> Mapping[str, int]:
        """Returns how many tool messages of this run answer each call id, those of the request left out."""
        most: dict[str, int] = {}
        for state in (*self._samples.values(), self._unsampled):
            for call_id, count in state.conversation.tool_messages().items() if state else ():
                most[call_id] = max(count, most.get(call_id, 0))
        given: dict[str, int] = {}
        for message in self._record.init.request.messages if most else ():
            count_tool_message(message, given)
        return {call_id: max(0, count - given.get(call_id, 0)) for call_id, count in most.items()}

    def asked(self, sample: str) -> int:
        """The number of a sample's newest chat; 0 before the first."""
        state = self._samples.get(sample)
        return state.chats if state else 0

    def samples(self) -> dict[str, Sample]:
        """What was sampled, assembled; by reference where the peer keeps what it answered.

        Samples without a reply are left out.
        """
        made = {}
        for name, state in self._samples.items():
            if state.newest is not None:
                assembler, refer = state.assembler, self._record.peer.accepts_references
                reason = assembler.reason
                messages, begins = _up_to(name, state.newest)
                made[name] = Sample(
                    messages=messages,
                    begins=begins,
                    segments=assembler.references() if refer else assembler.segments(),
                    trainable=not reason,
                    not_trainable_reason=reason,
                )
        return made

    def close(self) -> None:
        """Refuse everything from now on, and give up the chats on their way."""
        self.open = False
        for call in list(self._record.calls):
            call.cancel()


def _assemble(
    assembler: Assembler, number: int, continues: int, response: ChatResponse, purpose: ChatPurpose
) -> int | None:
    """Take in a reply; returns how many ids its prompt has. Raises ReplyUnreadable when it contradicts itself."""
    try:
        return assembler.add(number, continues, response, purpose)
    except InvalidArgument as error:
        raise ReplyUnreadable(f"the trainer's reply cannot be used: {error}") from None


def _up_to(name: str, reply: Node) -> ConversationStart:
    messages = path(reply)
    return messages, ChatRef(name, reply.chat, len(messages))


def _called(reply: Message) -> tuple[str, ...]:
    """The names of the tools that a reply calls, as far as it names them."""
    calls = reply.get("tool_calls")
    functions = [call.get("function") for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    return tuple(clip(str(f.get("name")), 256) for f in functions[:8] if isinstance(f, dict))


_DICTS, _LISTS = {dict}, (list, tuple)


def _plain(messages: Any, field: str) -> list[Any]:
    """Messages as an agent has them, dicts or pydantic models, as dicts. Raises InvalidArgument."""
    if not isinstance(messages, _LISTS):
        raise InvalidArgument(field, f"is a {type(messages).__name__}, not a list")
    if set(map(type, messages)) <= _DICTS:
        return messages if isinstance(messages, list) else list(messages)
    return [dump_model(m) for m in messages]


def _agents_mistake(error: InvalidArgument) -> ValueError:
    """What cannot travel is the agent's mistake, told as a plain ValueError."""
    return ValueError(str(error))
