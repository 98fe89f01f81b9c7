"""The engine's side of a RolloutContext: the chat client and the trajectory of one run.

The chat client keeps frozen copies of what was sent and received, finds which earlier chat a
history continues, numbers the chats, and asks again under the same number while the trainer
is away. What it sends, it has written to the log before.
"""

import asyncio
import contextlib
import dataclasses
import itertools
import logging
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from osmosis_grpc.agent.ports import Clock
from osmosis_grpc.engine.config import EngineConfig
from osmosis_grpc.engine.eventlog import EventLog
from osmosis_grpc.engine.record import Peer, Record
from osmosis_grpc.errors import Aborted, CallError, DeadlineExceeded, InvalidArgument, RolloutEndedError, Unavailable
from osmosis_grpc.types import ChatPurpose, ChatRequest, ChatResponse, EventKind, Message, RolloutState, Sample, events
from osmosis_grpc.types.assembly import Assembler
from osmosis_grpc.types.completion import clip, describe
from osmosis_grpc.types.conversation import Conversation, Node, path
from osmosis_grpc.types.requests import check_id, own_params
from osmosis_grpc.types.tools import tool_dicts

log = logging.getLogger(__name__)


class _SampleState:
    __slots__ = ("assembler", "chats", "conversation", "newest")

    def __init__(self) -> None:
        self.conversation = Conversation()
        self.assembler = Assembler()
        self.chats = 0
        self.newest: Node | None = None


class RolloutSession:
    """One run of one rollout. Refuses everything once the rollout has ended."""

    def __init__(
        self, record: Record, log: EventLog, config: EngineConfig, clock: Clock,
        on_superseded: Callable[[Record], None],
    ) -> None:  # fmt: skip
        self._record = record
        self._on_superseded = on_superseded
        self._log = log
        self._config = config
        self._clock = clock
        self._samples: dict[str, _SampleState] = {}
        self.open = True

    def check_open(self) -> None:
        if not self.open:
            raise RolloutEndedError(f"rollout {self._record.rollout_id} has ended; its context is of no more use")

    def record(self, kind: EventKind) -> None:
        self.check_open()
        self._log.append(self._record, kind)

    def count_tool_call(self, latency_ms: float) -> None:
        self.check_open()
        self._record.meter.tool_recorded(latency_ms)

    def tool_running(self, name: str) -> Callable[[], None]:
        self.check_open()
        record, clock = self._record, self._clock
        record.meter.tool_opened(clock.monotonic())
        over = record.begin(f"tool {name}", clock.time())

        def done() -> None:
            over()
            record.meter.tool_closed(clock.monotonic())

        return done

    def add_sample(self, name: str | None) -> str:
        self.check_open()
        if name is None:
            numbers = itertools.count(len(self._samples) + 1)
            name = next(made for n in numbers if (made := f"sample-{n}") not in self._samples)
        with _agents_mistake():
            check_id(name, "sample")
        if name in self._samples:
            raise ValueError(f"there is a sample named {name!r} already")
        self._samples[name] = _SampleState()
        self._log.append(self._record, events.SampleAdded(name))
        return name

    async def chat(
        self, messages: Sequence[Mapping[str, Any]], *, sample: str, purpose: ChatPurpose,
        tools: Sequence[Any] | None, params: Mapping[str, Any],
    ) -> ChatResponse:  # fmt: skip
        self.check_open()
        if sample not in self._samples:
            self.add_sample(sample)
        state, record = self._samples[sample], self._record
        with _agents_mistake():
            place = state.conversation.place(_plain(messages, "messages"))
            chat_tools = None if tools is None else tool_dicts(tools)
            params = own_params(params, "params")
        state.chats += 1
        number = state.chats
        history = path(place.node)
        known = state.assembler.tokens(place.continues)
        request = ChatRequest(
            rollout_id=record.rollout_id, attempt=record.attempt, sample=sample, number=number, messages=history,
            params=params, tools=record.tools if chat_tools is None else chat_tools,
            own_tools=chat_tools is not None, purpose=purpose, continues=place.continues, covered=place.covered,
            known_ids=known if len(known) else None,
        )  # fmt: skip
        self._log.append(record, events.ChatRequested(
            sample=sample, number=number, continues=place.continues, messages=history[place.covered :],
            params=params, tools=chat_tools, purpose=purpose,
        ))  # fmt: skip
        began = self._clock.monotonic()
        record.meter.chat_opened(began)
        over = record.begin(f"chat {sample} {number}", self._clock.time())
        try:
            response = await self._ask(request)
            self.check_open()
            prompt = state.assembler.prompt(place.continues, response)
            state.assembler.add(number, place.continues, response, purpose)
        except CallError as error:
            self._failed(request, error, will_retry=False)
            if isinstance(error, Aborted):
                self._on_superseded(record)
            raise
        finally:
            over()
            ended = self._clock.monotonic()
            record.meter.chat_closed(ended)
        reply = state.conversation.answer(place.node, response.message, number)
        if purpose is ChatPurpose.POLICY:  # what a judge said is no sample
            state.newest = reply
        record.meter.answered(response, 0 if prompt is None else len(prompt), ended - began)
        self._log.append(record, events.ChatAnswered(
            sample=sample, number=number, response=response, latency=ended - began
        ))  # fmt: skip
        return response

    async def _ask(self, request: ChatRequest) -> ChatResponse:
        """Ask until there is an answer, under the same number, while the trainer may come back."""
        delay, longest = self._config.retry_delay
        away_since: float | None = None
        while True:
            peer, asked = self._record.peer, self._clock.monotonic()
            try:
                return await self._try(peer, request)
            except CallError as error:
                now = self._clock.monotonic()
                if self._record.peer is not peer:
                    away_since = None
                    continue
                if not error.retryable:
                    raise
                if isinstance(error, DeadlineExceeded) and now - asked >= self._config.chat_silence * 0.9:
                    away_since = None  # silent, but there: it is still sampling
                    continue
                first = away_since is None
                away_since = now if away_since is None else away_since
                pause = error.retry_after if error.retry_after is not None else delay * random.uniform(0.5, 1.0)
                if now + pause - away_since > self._config.trainer_grace:
                    raise
                if first:
                    log.warning(
                        "chat %d of rollout %s: the trainer cannot answer now (%s); asking again for up to %g s",
                        request.number, request.rollout_id, clip(describe(error)), self._config.trainer_grace,
                    )  # fmt: skip
                self._failed(request, error, will_retry=True)
                delay = min(longest, delay * 2)
            await self._pause(pause)

    async def _try(self, peer: Peer, request: ChatRequest) -> ChatResponse:
        timeout = self._config.chat_silence
        if self._record.deadline is not None:
            timeout = max(0.001, min(timeout, self._record.deadline - self._clock.monotonic()))
        callback = self._record.init.callback
        timed = dataclasses.replace(request, timeout=timeout, state=callback.state if callback else b"")
        call: asyncio.Future[ChatResponse] = asyncio.ensure_future(peer.chat(timed))
        self._record.calls.add(call)
        try:
            return await call
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

    async def _pause(self, seconds: float) -> None:
        """Wait, but not past a re-pointing."""
        self._record.repointed.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._record.repointed.wait()
        except TimeoutError:
            pass
        self.check_open()

    def _failed(self, request: ChatRequest, error: CallError, *, will_retry: bool) -> None:
        if self.open and self._record.state is RolloutState.RUNNING:
            self._log.append(self._record, events.ChatFailed(
                sample=request.sample, number=request.number, code=error.code, message=clip(str(error)),
                will_retry=will_retry,
            ))  # fmt: skip

    def frozen(self, messages: Sequence[Any], field: str) -> list[Message]:
        """Messages as this run's own copies. Raises InvalidArgument."""
        state = self._samples.get("main") or next(iter(self._samples.values()), None) or _SampleState()
        return path(state.conversation.place(_plain(messages, field), field).node)

    def newest_messages(self) -> list[Message]:
        """The first sample's conversation up to its newest reply."""
        state = next(iter(self._samples.values()), None)
        return path(state.newest) if state and state.newest else []

    def samples(self) -> dict[str, Sample]:
        """What was sampled, assembled; samples without a reply are left out."""
        made = {}
        for name, state in self._samples.items():
            if state.newest is not None:
                reason = state.assembler.reason
                made[name] = Sample(
                    messages=path(state.newest), segments=state.assembler.segments(), trainable=not reason,
                    not_trainable_reason=reason,
                )  # fmt: skip
        return made

    def close(self) -> None:
        """Refuse everything from now on, and give up the chats on their way."""
        self.open = False
        for call in list(self._record.calls):
            call.cancel()


def _plain(messages: Any, field: str) -> list[Any]:
    """Messages as an agent has them, dicts or pydantic models, as dicts. Raises InvalidArgument."""
    if not isinstance(messages, list | tuple):
        raise InvalidArgument(field, f"is a {type(messages).__name__}, not a list")
    return [m.model_dump(exclude_none=True) if isinstance(m, BaseModel) else m for m in messages]


@contextlib.contextmanager
def _agents_mistake() -> Iterator[None]:
    """What cannot travel is the agent's mistake, told as a plain ValueError."""
    try:
        yield
    except InvalidArgument as error:
        raise ValueError(str(error)) from error
