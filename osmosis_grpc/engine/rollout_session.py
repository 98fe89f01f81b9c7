"""The engine's side of a RolloutContext: the chat client and the trajectory of one run.

The chat client finds the earlier chat that the new messages continue, gives the new chat a number, writes it to the
log, and then sends it to the trainer (chat_calls.py).
"""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from osmosis_grpc.agent.ports import RolloutFolders
from osmosis_grpc.agent.tool_runs import CallOrigins
from osmosis_grpc.engine.chat_calls import ChatCalls
from osmosis_grpc.engine.context import EngineContext
from osmosis_grpc.engine.record import Record, Run
from osmosis_grpc.engine.recorded_chats import Diverged, Reply, assembler_from_journal
from osmosis_grpc.engine.run_samples import Samples
from osmosis_grpc.engine.running_sample import RunningSample, form_of, insert
from osmosis_grpc.protocol.errors import (
    Aborted,
    AlreadyExists,
    CallError,
    InvalidArgument,
    RolloutEndedError,
    Unavailable,
)
from osmosis_grpc.protocol.types import (
    ChatPurpose,
    ChatRef,
    ChatRequest,
    ChatResponse,
    EventKind,
    Message,
    RolloutMetrics,
    events,
    jsontext,
)
from osmosis_grpc.protocol.types.chat import with_call_ids
from osmosis_grpc.protocol.types.messages import ToolDict, copy_messages, tool_dicts
from osmosis_grpc.protocol.types.outcome import clip
from osmosis_grpc.protocol.types.requests import check_id, check_policy_name, own_params, pinned_params, with_params
from osmosis_grpc.supervise.system import System

log = logging.getLogger(__name__)


class RunControl(Protocol):
    """The methods of the runner that a session uses."""

    def supersede(self, record: Record) -> None:
        """End a rollout because the trainer has a higher attempt of it."""

    def diverge(self, record: Record, why: str) -> None:
        """End a rollout whose agent runs again and sends a different chat than in its earlier run."""

    def begin_grading(self, record: Record) -> None:
        """End the agent's time limit, and start the grader's."""

    def free_slot(self, record: Record) -> None:
        """Give the slot of a rollout to another one. Idempotent."""


class _Running:
    """A chat or a tool that is running. It is in `Run.doing` until its end."""

    __slots__ = ("_began", "_run", "_system", "_words")

    def __init__(self, run: Run, system: System, *words: object) -> None:
        self._run, self._system, self._words, self._began = run, system, words, system.monotonic()
        run.meter.count_open(str(words[0]), 1, self._began)
        run.doing[self] = words, system.time()

    def end(self) -> float:
        """Record the end. Return the duration in seconds."""
        now = self._system.monotonic()
        self._run.meter.count_open(str(self._words[0]), -1, now)
        self._run.doing.pop(self, None)
        self._run.did = self._words
        return now - self._began


class RolloutSession:
    """One run of one rollout. After close(), every other method raises RolloutEndedError."""

    __slots__ = ("_chat_tools", "_chats", "_context", "_pinned", "_record", "_runner", "calls", "samples")

    def __init__(self, record: Record, context: EngineContext, runner: RunControl) -> None:
        self._record = record
        self._context = context
        self._runner = runner
        self._chats = ChatCalls(record, context)
        self._chat_tools: list[ToolDict] | None = None
        """The tools of the newest chat that named its own. An agent at a base URL sends the same tools in each chat."""
        self._pinned = pinned_params(record.init.request, context.config.pin_sampling)
        self.samples = Samples(record.peer.any_role)
        self.calls = CallOrigins()

    @property
    def debug_enabled(self) -> bool:
        return self._context.log.writes_files

    def check_open(self) -> None:
        self._chats.check_open()

    def metrics(self) -> RolloutMetrics:
        given = self._record.init.request.messages
        return self._record.run.meter.total(self._context.system.monotonic(), self.samples.tool_messages(given))

    def close(self) -> None:
        """Refuse every further call, and cancel the open chats."""
        self._chats.close()

    def release(self) -> None:
        """Free the conversations. Call it after close(), when the outcome is built."""
        self.samples.release()

    def newest_chat(self, sample: str) -> int:
        self.check_open()
        return self.samples[sample].chats if sample in self.samples else 0

    def sample_names(self) -> tuple[str, ...]:
        self.check_open()
        return tuple(self.samples)

    def sample_messages(self, name: str) -> Sequence[Message] | None:
        self.check_open()
        state = self.samples.get(name)
        if state is None or state.newest is None:
            return None
        return copy_messages(state.up_to_newest(name)[0], "messages", any_role=True)

    def record(self, kind: EventKind) -> None:
        self.check_open()
        self._context.log.append(self._record, kind)

    def count_tool_call(self, latency_ms: float) -> None:
        self.check_open()
        run = self._record.run
        run.meter.tool_recorded(latency_ms)
        run.progress, run.progress_time = self._context.system.monotonic(), self._context.system.time()

    def tool_running(self, name: str) -> Callable[[str], float]:
        self.check_open()
        running = _Running(self._record.run, self._context.system, "tool", name)

        def done(call_id: str) -> float:
            latency = running.end()
            self._record.run.meter.tool_ran(call_id, latency)
            return latency

        return done

    def begin_grading(self) -> None:
        self.check_open()
        self._runner.begin_grading(self._record)

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        self.check_open()
        self._runner.free_slot(self._record)
        doing, key = self._record.run.doing, object()
        doing[key] = (what,), self._context.system.time()
        try:
            yield
        finally:
            doing.pop(key, None)

    async def ended_before(self) -> Collection[int]:
        record, group = self._record, self._record.init.request.group
        self.check_open()
        if group is None or not record.run.left_over:
            return ()
        return await self._context.table.ended_members(group, record)

    def folders(self) -> RolloutFolders:
        self.check_open()
        record, original = self._record, self._record.run.original
        own = self._context.journal.rollout_folder(record.sequence)
        return RolloutFolders(own) if original is None else RolloutFolders(own, original.folder, not original.compares)

    def train(self, sample: str, wish: bool) -> None:
        self.check_open()
        self.samples.check_ref(sample, 0, ("sample", "chat"))
        self.samples[sample].train = wish

    def drop(self, sample: str, chat: int) -> None:
        self.check_open()
        self.samples.check_ref(sample, chat, ("sample", "chat"))
        self.samples[sample].dropped |= {chat}

    def limit(self, sample: str, limit: str) -> None:
        self.check_open()
        if sample in self.samples:
            self.samples[sample].limit = limit

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
        self.samples[name] = RunningSample(policy, parent, train, self.samples.any_role)
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
        wanted: Callable[[], Awaitable[Any]] | None = None,
    ) -> tuple[int, ChatResponse]:
        if not self._chats.open:
            await asyncio.sleep(0)  # an agent that ignores RolloutEndedError in a loop must not block the event loop
            self.check_open()
        if sample not in self.samples:
            self.add_sample(sample)
        state, record = self.samples[sample], self._record
        run = record.run
        try:
            position = insert(state.conversation, messages, "messages")
            chat_tools = None if tools is None else tool_dicts(tools)
            if chat_tools is not None and chat_tools == self._chat_tools:
                chat_tools = self._chat_tools  # the same object, so that it is encoded only once
            self._chat_tools = chat_tools or self._chat_tools
            passed = own_params(params, "params") if params else jsontext.NOTHING
        except InvalidArgument as error:  # the agent's arguments are wrong, so the agent gets a ValueError
            raise ValueError(str(error)) from error
        if position.parent_chat in state.forked or not record.peer.has_tokens:
            await self._read_ids(sample, position.parent_chat)
        state.chats += 1
        number = state.chats
        params = self._params(sample, number, passed, purpose)
        history = state.conversation.messages(position.node)
        forked = position.parent_chat in state.forked  # the trainer may not have answered the parent chat
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
            parent_chat=0 if forked else position.parent_chat,
            prefix_len=position.prefix_len,
            known_ids=state.known_ids(position.parent_chat) if forked or not record.peer.has_tokens else None,
            known_reply=state.known_reply(position.parent_chat) if forked or not record.peer.has_tokens else 0,
            state=self._chats.state(),
            timeout=self._chats.timeout(),
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
            passed=None if params == passed else passed,
        )
        recorded = self._recorded(asked)
        self._context.log.append(record, asked)
        running, latency = _Running(run, self._context.system, "chat", sample, number), 0.0
        run.called = ()
        response: ChatResponse | None = None
        beside = () if run.recording is None else run.recording.beside.get((sample, number), ())
        state.ask(number, position.node, form_of(chat_tools, params, purpose), beside)
        try:
            if isinstance(recorded, CallError):
                raise recorded
            reply = await self._chats.ask(request) if recorded is None else recorded.response
            if wanted is not None and recorded is None:
                await wanted()
            response = with_call_ids(reply, request)
            self.check_open()
            if state.lacks_ids(position.parent_chat, response):
                record.tenant.repeats_ids = True
                await self._read_ids(sample, position.parent_chat, response)
            forked = recorded is not None and recorded.forked
            prompt_length = state.assemble(
                number,
                position.parent_chat,
                response,
                purpose,
                refer=record.peer.accepts_references and record.trail.journaled and not forked,
                keep_ids=record.tenant.repeats_ids,
                forked=forked,
            )
        except (asyncio.CancelledError, RolloutEndedError):
            if response is None:
                self._chats.abandon(request)
            raise
        except CallError as error:
            self._chats.log_failed(request, error, will_retry=False)
            if isinstance(error, Aborted):
                self._runner.supersede(record)
            elif run.recording is not None and recorded is None and isinstance(error, AlreadyExists):
                self._runner.diverge(record, str(Diverged(asked)))
            raise
        finally:
            state.over(number)
            latency = running.end()
        state.answer(position.node, response, number, purpose)
        if not forked:
            run.meter.answered(response, prompt_length, latency)
        answered = events.ChatAnswered(
            sample=sample,
            chat_number=number,
            response=response,
            latency=latency,
            recorded_event=0 if recorded is None else recorded.event_number,
            forked=forked,
        )
        self._context.log.append(record, answered)
        run.called = _called(response.message)
        return number, response

    def _params(self, sample: str, number: int, passed: Mapping[str, Any], purpose: ChatPurpose) -> Mapping[str, Any]:
        """Return the parameters of a chat: those that the agent passed, replaced by the pinned ones.

        A chat that was sent before a restart keeps its parameters, because the trainer may be sampling its reply.
        """
        recording = self._record.run.recording
        if recording is not None and (sample, number) in recording.params:
            return recording.params[sample, number]
        pins = self._pinned if purpose is ChatPurpose.POLICY else None
        return with_params(passed, pins) if pins else passed

    async def _read_ids(self, sample: str, parent_chat: int, response: ChatResponse | None = None) -> None:
        """Read the tokens of a sample from the journal if state.lacks_ids(parent_chat, response).

        If the journal lacks them or cannot be read, the sample is not trainable, and the rollout continues.
        """
        record, state = self._record, self.samples[sample]
        while state.lacks_ids(parent_chat, response):
            answered = state.with_tokens()
            try:
                await self._context.log.flush()
                journal = self._context.journal
                assembler = await assembler_from_journal(record.rollout_id, record.attempt, sample, journal)
                if not answered <= assembler.chats:
                    raise Unavailable("the journal does not have all chats of the rollout")
            except Unavailable as error:
                log.warning("rollout %s: the tokens of earlier chats are lost: %s", record.rollout_id, error)
                break
            state.restore(assembler)
        self.check_open()

    def _recorded(self, asked: events.ChatRequested) -> Reply | CallError | None:
        """Return the reply that this chat got before the restart of the server, or in the original of a fork.

        For a chat that failed in the original, return the error. For a new chat, return None. Raises RolloutEndedError
        if this chat differs from the recorded one.
        """
        recording, original = self._record.run.recording, self._record.run.original
        try:
            known = recording.reply(asked) if recording is not None else None
            return original.reply(asked) if known is None and original is not None else known
        except Diverged as error:
            self._runner.diverge(self._record, str(error))
            raise RolloutEndedError(str(error)) from None


def _called(reply: Message) -> tuple[str, ...]:
    calls = reply.get("tool_calls")
    functions = [call.get("function") for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    return tuple(clip(str(f.get("name")), 256) for f in functions[:8] if isinstance(f, dict))
