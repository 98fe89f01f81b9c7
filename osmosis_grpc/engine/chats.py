"""The engine's side of a RolloutContext: the chat client and the trajectory of one run.

The chat client finds the earlier chat that the new messages continue, and gives the new chat a number. The client
writes the new chat to the log, and then sends the chat to the trainer. While the trainer is away, the client sends the
chat again and again under the same number.
"""

import asyncio
import contextlib
import dataclasses
import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from osmosis_grpc.agent.call_origins import CallOrigins
from osmosis_grpc.engine import failpoints
from osmosis_grpc.engine.context import EngineContext
from osmosis_grpc.engine.record import Peer, Record
from osmosis_grpc.engine.recorded_chats import Diverged, Reply
from osmosis_grpc.engine.samples import Samples, SampleState, plain
from osmosis_grpc.errors import (
    Aborted,
    AlreadyExists,
    CallError,
    DeadlineExceeded,
    InvalidArgument,
    RolloutEndedError,
    Unavailable,
)
from osmosis_grpc.supervise import Backoff, OnFailure, future, job
from osmosis_grpc.types import (
    AbandonReason,
    ChatPurpose,
    ChatRef,
    ChatRequest,
    ChatResponse,
    EventKind,
    Message,
    RolloutState,
    events,
    jsontext,
)
from osmosis_grpc.types.outcome import clip, describe
from osmosis_grpc.types.requests import check_id, check_policy_name, own_params
from osmosis_grpc.types.tool_dicts import tool_dicts

log = logging.getLogger(__name__)

CHAT = job("engine.chat", OnFailure.RAISE)

SILENT = 0.9
"""A part of `chat_silence`. A try has a timeout of at most `chat_silence` seconds.

A try to a trainer that is away fails sooner. A try that times out after at least SILENT * `chat_silence` seconds is
different: the trainer possibly still samples the reply. _ask() then does not count the trainer as away.
"""


class RolloutSession:
    """One run of one rollout. After close(), every other method raises RolloutEndedError.

    `on_superseded` is called when the trainer answers a chat with the error that it has a higher attempt of the
    rollout. `on_diverged` is called when the agent runs again and asks a different question than in its earlier run.
    """

    __slots__ = ("_context", "_on_diverged", "_on_superseded", "_record", "calls", "open", "samples")

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
        self.samples = Samples()
        self.calls = CallOrigins()
        self.open = True

    def check_open(self) -> None:
        if not self.open:
            raise RolloutEndedError(f"rollout {self._record.rollout_id} has ended, so its context accepts no calls")

    def close(self) -> None:
        """Refuse every further call, and cancel the open chats."""
        self.open = False
        self._record.cancel_calls()

    def newest_chat(self, sample: str) -> int:
        self.check_open()
        return self.samples[sample].chats if sample in self.samples else 0

    def record(self, kind: EventKind) -> None:
        self.check_open()
        self._context.log.append(self._record, kind)

    def count_tool_call(self, latency_ms: float) -> None:
        self.check_open()
        run = self._record.run
        run.meter.tool_recorded(latency_ms)
        run.progress, run.progress_time = self._context.clock.monotonic(), self._context.clock.time()

    def tool_running(self, name: str) -> Callable[[str], float]:
        self.check_open()
        end = self._begin("tool", name)

        def done(call_id: str) -> float:
            latency = end()
            self._record.run.meter.tool_ran(call_id, latency)
            return latency

        return done

    def _begin(self, *words: object) -> Callable[[], float]:
        """Record the start of a chat or a tool. Returns a function that records its end.

        That function returns the duration in seconds.
        """
        run, clock = self._record.run, self._context.clock
        activity, kind, began = object(), str(words[0]), clock.monotonic()
        run.meter.count_open(kind, 1, began)
        run.doing[activity] = words, clock.time()

        def end() -> float:
            now = clock.monotonic()
            run.meter.count_open(kind, -1, now)
            run.doing.pop(activity, None)
            run.did = words
            return now - began

        return end

    def set_reward(self, value: float, *, sample: str, chat: int, name: str) -> None:
        self.check_open()
        if sample != "":
            self.samples.check_ref(sample, chat, ("sample", "chat"))
        elif chat != 0:
            raise ValueError(f"chat: {chat!r} needs a sample; the whole rollout has no chats of its own")
        self.samples.rewards.set(value, sample, chat, name)
        self._context.log.append(self._record, events.Graded(sample, value, chat, name))

    def add_sample(
        self, name: str | None, *, policy: str = "", parent: ChatRef | None = None, train: bool | None = None
    ) -> str:
        self.check_open()
        if name is None:
            numbers = itertools.count(len(self.samples) + 1)
            name = next(made for n in numbers if (made := f"sample-{n}") not in self.samples)
        try:
            check_id(name, "sample")
            check_policy_name(policy, "policy")
        except InvalidArgument as error:
            raise ValueError(str(error)) from error
        if name in self.samples:
            raise ValueError(f"the rollout already has a sample named {name!r}; choose another name")
        if parent is not None:
            self.samples.check_ref(parent.sample, parent.chat_number, ("parent", "parent"))
        self.samples[name] = SampleState(policy, parent, train)
        self._context.log.append(self._record, events.SampleAdded(name, policy, parent, train))
        return name

    async def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        sample: str,
        purpose: ChatPurpose,
        tools: Sequence[Any] | None,
        params: Mapping[str, Any],
    ) -> tuple[int, ChatResponse]:
        if not self.open:
            await asyncio.sleep(0)  # an agent that ignores RolloutEndedError in a loop must not block the event loop
        self.check_open()
        if sample not in self.samples:
            self.add_sample(sample)
        state, record = self.samples[sample], self._record
        run = record.run
        try:
            position = state.conversation.insert(plain(messages, "messages"))
            chat_tools = None if tools is None else tool_dicts(tools)
            params = own_params(params, "params") if params else jsontext.NOTHING
        except InvalidArgument as error:  # the agent's arguments are wrong, so the agent gets a ValueError
            raise ValueError(str(error)) from error
        state.chats += 1
        number = state.chats
        history = state.conversation.messages(position.node)
        request = ChatRequest(
            rollout_id=record.rollout_id,
            attempt=record.attempt,
            sample=sample,
            chat_number=number,
            messages=history,
            params=params,
            tools=record.tools if chat_tools is None else chat_tools,
            tools_overridden=chat_tools is not None,
            purpose=purpose,
            policy=state.policy,
            parent_chat=position.parent_chat,
            prefix_len=position.prefix_len,
            known_ids=None if record.peer.has_tokens else state.known_ids(position.parent_chat),
            state=self._callback_state(),
            timeout=self._timeout(),
        )
        asked = events.ChatRequested(
            sample=sample,
            chat_number=number,
            parent_chat=position.parent_chat,
            messages=history[position.prefix_len :],
            params=params,
            tools=chat_tools,
            purpose=purpose,
            policy=state.policy,
        )
        recorded = self._recorded(asked)
        self._context.log.append(record, asked)
        end, latency = self._begin("chat", sample, number), 0.0
        run.called = ()
        try:
            response = await self._ask_or_abandon(request) if recorded is None else recorded.response
            self.check_open()
            prompt_length = state.assemble(
                number, position.parent_chat, response, purpose, refer=record.peer.accepts_references
            )
        except CallError as error:
            self._log_failed(request, error, will_retry=False)
            if isinstance(error, Aborted):
                self._on_superseded(record)
            elif run.recording is not None and isinstance(error, AlreadyExists):
                self._on_diverged(record, str(Diverged(asked)))
            raise
        finally:
            latency = end()
        state.answer(position.node, response, number, purpose)
        run.meter.answered(response, prompt_length, latency)
        answered = events.ChatAnswered(
            sample=sample,
            chat_number=number,
            response=response,
            latency=latency,
            recorded_event=0 if recorded is None else recorded.chat_number,
        )
        self._context.log.append(record, answered)
        run.called = _called(response.message)
        return number, response

    def _recorded(self, asked: events.ChatRequested) -> Reply | None:
        """Return the reply that this chat got before the restart of the server; None for a new chat.

        Raises RolloutEndedError if the agent asked a different question before the restart.
        """
        if self._record.run.recording is None:
            return None
        try:
            return self._record.run.recording.reply(asked)
        except Diverged as error:
            self._on_diverged(self._record, str(error))
            raise RolloutEndedError(str(error)) from None

    async def _ask_or_abandon(self, request: ChatRequest) -> ChatResponse:
        """Return the reply of _ask(). If the reply is no longer wanted, tell the peer to stop its sampling.

        The reply of a parked rollout is still wanted, because the next process asks the same chat again.
        """
        try:
            return await self._ask(request)
        except (asyncio.CancelledError, RolloutEndedError):
            end, chat = self._record.run.termination, (request.sample, request.chat_number)
            if not self._record.run.parked:
                reason = end.abandon_reason if end is not None else AbandonReason.ENDED
                self._record.peer.abandon((request.rollout_id, request.attempt, *chat), reason)
            raise

    async def _ask(self, request: ChatRequest) -> ChatResponse:
        """Send a chat and return the reply. After each retryable error, send the chat again.

        An error that is not retryable is raised at once. The grace period of `trainer_grace` seconds begins with the
        first retryable error. If the next try would begin after the end of the grace period, the error is raised.

        In two cases, the chat is sent again at once, and the next retryable error begins a new grace period. The first
        case is that the rollout has moved to another peer. Then even an error that is not retryable is ignored. The
        second case is that the trainer possibly still samples the reply (see SILENT).
        """
        config, clock, backoff = self._context.config, self._context.clock, Backoff(*self._context.config.retry_delay)
        away_since: float | None = None
        while True:
            peer, sent = self._record.peer, clock.monotonic()
            try:
                return await self._try(peer, request)
            except CallError as error:
                now = clock.monotonic()
                repointed = self._record.peer is not peer
                sampling = isinstance(error, DeadlineExceeded) and now - sent >= config.chat_silence * SILENT
                if not (repointed or error.retryable):
                    raise
                if repointed or sampling:
                    away_since = None
                else:
                    first = away_since is None
                    away_since = now if away_since is None else away_since
                    pause = error.retry_after if error.retry_after is not None else backoff.next()
                    if now + pause - away_since > config.trainer_grace:
                        raise
                    if first:
                        log.warning(
                            "chat %d of rollout %s: the trainer cannot answer now (%s); retrying for up to %g s",
                            request.chat_number,
                            request.rollout_id,
                            clip(describe(error)),
                            config.trainer_grace,
                        )
                    self._log_failed(request, error, will_retry=True)
            if away_since is not None:
                await self._pause(pause)
            request = dataclasses.replace(request, timeout=self._timeout(), state=self._callback_state())

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
            self.check_open()
            why = (
                "the call was cancelled before the trainer answered the chat"
                if self._record.peer is peer
                else "the rollout moved to another peer before the trainer answered the chat"
            )
            raise Unavailable(why) from None
        finally:
            self._record.calls.discard(call)

    def _timeout(self) -> float:
        """Return the timeout of one try, in seconds."""
        silence, deadline = self._context.config.chat_silence, self._record.run.deadline
        return silence if deadline is None else max(0.001, min(silence, deadline - self._context.clock.monotonic()))

    def _callback_state(self) -> bytes:
        callback = self._record.init.callback
        return callback.state if callback else b""

    async def _pause(self, seconds: float) -> None:
        """Wait until `seconds` have passed or the rollout moves to another peer.

        Raises RolloutEndedError if the rollout has ended.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._record.repointed().wait()
        self.check_open()

    def _log_failed(self, request: ChatRequest, error: CallError, *, will_retry: bool) -> None:
        if self.open and self._record.state is RolloutState.RUNNING:
            failed = events.ChatFailed(
                sample=request.sample,
                chat_number=request.chat_number,
                code=error.code,
                message=clip(str(error)),
                will_retry=will_retry,
            )
            self._context.log.append(self._record, failed)


def _called(reply: Message) -> tuple[str, ...]:
    """Return the names of the first 8 tools that a reply calls."""
    calls = reply.get("tool_calls")
    functions = [call.get("function") for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    return tuple(clip(str(f.get("name")), 256) for f in functions[:8] if isinstance(f, dict))
