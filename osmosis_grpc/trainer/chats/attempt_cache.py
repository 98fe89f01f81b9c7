"""AttemptCache: the chats and the result of one attempt of a rollout. Each chat is sampled once.

Theory of operation. A chat is in one of these states. The right column shows the fields that tell:

    sampling     its policy call runs                                                 task, done is open
    unwritten    its reply is kept, but the ledger has not committed it yet           unwritten
    answered     its reply is kept; `written` has the bytes until they are sent       done
    failed       it is removed from `asked`, so that the next request samples it      done has the error

An attempt is in one of these states:

    live         it accepts chats
    committing   its outcome is being committed; further reports wait for that        committing
    over         it has a result, and its chats are dropped                           result_id
    ended        it ends without an outcome from its server                           ended
    replaced     a higher attempt has replaced it                                     replaced

Rules that every change must keep:

- A reply is sent only after its commit. Otherwise, after a crash, another process would sample a chat again whose
  first reply an agent has already seen.
- A repeated chat waits for the running sampling, or gets the kept reply. The same number with another body is refused.
- A policy call belongs to the attempt, not to the request. It continues when the requester leaves, and stops when the
  reply is no longer needed: after abandon(), end() and close().
- Nothing is written after the end, because a late reply in the ledger would start the rollout again.
- This module does not depend on servers, streams or clocks.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from osmosis_grpc.engine.failpoints import reach
from osmosis_grpc.network.channel_options import MAX_REPLY_BYTES
from osmosis_grpc.protocol.errors import (
    AlreadyExists,
    Cancelled,
    FailedPrecondition,
    Internal,
    LedgerError,
    Unavailable,
    UnknownChat,
)
from osmosis_grpc.protocol.types import (
    ChatRequest,
    ChatResponse,
    RolloutOutcome,
    ToolDict,
    TrajectoryEvent,
    events,
    jsontext,
)
from osmosis_grpc.protocol.types.chat import with_call_ids
from osmosis_grpc.protocol.types.outcome import describe
from osmosis_grpc.protocol.types.samples import ABORTED
from osmosis_grpc.protocol.wire.chat import reply_bytes
from osmosis_grpc.storage.ledger import ChatRow, SqliteLedger
from osmosis_grpc.trainer.chats.ledger_codec import kept_chat, question_of
from osmosis_grpc.trainer.chats.policy_errors import ChatKey, PolicyErrors, key_of
from osmosis_grpc.trainer.chats.sample_state import PendingChat, SampleState, tools_digest
from osmosis_grpc.trainer.chats.sampler import Sampler, versioned

ABORTED_RETRY = 1.0
"""If the inference engine aborted a reply, the server sends the chat again after this many seconds."""
UNWRITTEN_RETRY = 1.0
"""If the ledger cannot be written, a server retries after this many seconds."""


class AttemptCache:
    """The chats and the result of one attempt."""

    def __init__(self, attempt: int, ledger: SqliteLedger | None = None) -> None:
        self.attempt = attempt
        self.result_id: str | None = None
        self.ended = False
        """Whether the attempt has ended without an outcome from its server."""
        self.reserved = False
        """Whether the next request runs as this attempt, even if it asks for a lower one, because no caller has the
        outcome of a lower one."""
        self.follows = False
        """Whether a server may have run a lower attempt, of which no caller waits for an outcome any more."""
        self.entered = False
        """Whether the ledger knows this attempt."""
        self.replaces = False
        """Whether the ledger has a lower attempt but not yet this one. If the trainer crashed now, the lower one would
        continue."""
        self.replaced = False
        """Whether a higher attempt has replaced this attempt."""
        self.restored = False
        """Whether the attempt comes from the ledger of an earlier process."""
        self.committing: list[Callable[[], None]] | None = None
        """Functions to call after the running commit of the outcome; None if no commit runs."""
        self.last_used = 0.0
        self.tools: Sequence[ToolDict] | None = None
        """The tools of chats that do not name their own; None if unknown."""
        self._tools_digest: str | None = None
        self.samples: dict[str, SampleState] = {}
        self._ledger = ledger

    def chat(self, request: ChatRequest, sampler: Sampler) -> PendingChat:
        """Return the chat of a request. Start sampling it unless that was done before.

        Raises AlreadyExists if its number was used with another body, UnknownChat if it is a delta on an unknown chat,
        InvalidArgument for an unknown policy, and FailedPrecondition after the rollout has ended.
        """
        if self.result_id is not None or self.ended:
            raise FailedPrecondition(
                f"rollout {request.rollout_id} has ended", kind="ENDED", subject=request.rollout_id
            )
        sample = self.samples.get(request.sample)
        if sample is None:
            sample = self.samples[request.sample] = SampleState(request.sample)
        position = None
        if request.parent_chat:
            position = sample.tree.insert_after(request.parent_chat, request.messages[request.prefix_len :])
        if position is None and request.parent_chat and not request.prefix_len:
            raise UnknownChat(request.sample, request.parent_chat)
        if position is None:  # a full history that continues no chat, or one that an earlier process answered
            position = sample.tree.insert(request.messages)
        params = jsontext.canonical(dict(request.params)) if request.params else "{}"
        body = (position.node, params, self._tools_of(request), request.purpose, request.policy)
        known = sample.asked.get(request.chat_number)
        if known is not None:
            if known.body != body:
                raise AlreadyExists(
                    f"chat {request.chat_number} of sample {request.sample} was asked with another body",
                    rollout_id=request.rollout_id,
                    attempt=self.attempt,
                    reason="CHAT_DIFFERS",
                )
            if known.unwritten is not None and known.done.done():
                known.done = asyncio.get_running_loop().create_future()
                self._write(known, known.unwritten)
            return known
        tokens, prompt = sample.assembler.tokens(position.parent_chat), sample.assembler.prompt(position.parent_chat)
        forked_prefix = 0 if request.parent_chat or position.parent_chat else request.prefix_len
        full = ChatRequest(
            rollout_id=request.rollout_id,
            attempt=request.attempt,
            sample=request.sample,
            chat_number=request.chat_number,
            messages=sample.tree.messages(position.node),
            params=request.params,
            tools=self.tools if request.tools is None else request.tools,
            tools_overridden=request.tools_overridden,
            purpose=request.purpose,
            policy=request.policy,
            parent_chat=position.parent_chat,
            prefix_len=position.prefix_len or forked_prefix,
            known_ids=tokens if len(tokens) else request.known_ids if forked_prefix else None,
            known_reply=0 if prompt is None else len(tokens) - len(prompt),
            state=request.state,
            credential=request.credential,
            timeout=request.timeout,
            version=sampler.version,
            wire=question_of(request, position.parent_chat),
        )
        asked = sample.asked[request.chat_number] = PendingChat(sample, request.chat_number, body, position.parent_chat)
        try:
            asked.task = sampler.sample(full, partial(self._sampled, asked, full, sampler.errors))
        except BaseException:  # without the entry, the next request samples the chat
            del sample.asked[request.chat_number]
            raise
        return asked

    def end(self) -> None:
        """Stop all policy calls, and refuse further chats. Keep the answered chats.

        Otherwise a late reply would be written to the ledger, and would stay there.
        """
        self.ended, self.entered = True, False
        self.abandon("", 0)

    def abandon(self, sample: str, chat_number: int) -> None:
        """Stop the policy calls of chats. If the server sends such a chat again, the policy is called again.

        An empty `sample` means all samples, and chat number 0 means all chats.
        """
        for name, state in self.samples.items():
            for number, asked in list(state.asked.items()):
                if asked.task is not None and names(sample, chat_number, name, number):
                    asked.task.cancel()

    def _sampled(self, asked: PendingChat, request: ChatRequest, errors: PolicyErrors, reply: object) -> bool:
        """Keep the reply or the exception of a policy call. Return whether the chat is answered."""
        task, cancelled = asked.task, isinstance(reply, asyncio.CancelledError)
        stopped = task.cancelling() > 0 if isinstance(task, asyncio.Task) else cancelled
        if stopped and isinstance(reply, BaseException):
            name = f"chat {request.chat_number} of rollout {request.rollout_id}"
            if self.replaced:  # the answer to the next try shows whether the attempt is over
                asked.fail(Unavailable(f"the sampling of {name} was stopped by a higher attempt", retry_after=0.0))
            else:
                asked.fail(Cancelled(f"the sampling of {name} was stopped, because no reply is needed any more"))
            return False
        if (raised := _error_of(reply)) is not None:
            if not asked.done.done():
                asked.fail(errors.raised(request, raised))
            return False
        try:
            if not isinstance(reply, ChatResponse):
                raise TypeError(f"the policy returned a {type(reply).__name__}; return ChatResponse(message=...)")
            reply = with_call_ids(versioned(reply, request.version), request)
            if self._ledger is None:
                asked.answer(reply)
                errors.answered(request)
                return True
            if self.result_id is not None or self.ended:  # in the ledger, the reply would start the rollout again
                asked.fail(FailedPrecondition(f"rollout {request.rollout_id} has ended", kind="ENDED"))
                return False
            asked.keep(reply)
        except Exception as error:
            asked.fail(errors.failed(key_of(request), request.policy, error))
            return False
        errors.answered(request)
        self._commit(asked, request)
        return True

    def _commit(self, asked: PendingChat, request: ChatRequest) -> None:
        reach("ledger.reply.before")
        try:
            kept = kept_chat(request, asked)
        except Exception:
            kept = None
        if kept is None or len(kept.reply) > MAX_REPLY_BYTES:  # reply_of() raises the error
            asked.done.set_result(None)
            return
        self._write(asked, kept)

    def _write(self, asked: PendingChat, chat: ChatRow) -> None:
        assert self._ledger is not None
        asked.unwritten = chat

        def committed(_: Any, error: LedgerError | None) -> None:
            if error is not None:
                asked.done.set_exception(unwritten())
                asked.done.exception()  # no error is logged if the caller has left
                return
            reach("ledger.reply.committed")
            self.entered = True
            asked.unwritten, asked.written = None, chat.reply
            asked.done.set_result(None)

        self._ledger.chat(chat, committed, enter=not self.entered)

    def _tools_of(self, request: ChatRequest) -> str:
        if request.tools is not None:
            return tools_digest(request.tools)
        if self._tools_digest is None and self.tools is not None:
            self._tools_digest = tools_digest(self.tools)
        return self._tools_digest or ""

    def lacks(self, outcome: RolloutOutcome) -> bool:
        """Return whether the rollout's events are needed to record an outcome."""
        left_out = any(name.endswith("messages") for name in outcome.omitted)
        return left_out or self.refers_beyond(outcome)

    def refers_beyond(self, outcome: RolloutOutcome) -> bool:
        """Return whether an outcome refers to chats that are not in the cache."""
        for ref in (sample.begins for sample in outcome.samples.values()):
            if ref is not None and not ref.prefix_len:
                kept = self.samples.get(ref.sample)
                if kept is None or kept.tree.reply(ref.chat_number) is None:
                    return True
        for name, sample in outcome.samples.items():
            numbers = {n for segment in sample.segments if segment.referred for n in segment.chats}
            if numbers and (name not in self.samples or not self.samples[name].holds(numbers)):
                return True
        return False

    def restore(self, trajectory: Iterable[TrajectoryEvent]) -> None:
        """Add the chats that another process answered, from the rollout's events."""
        requested: dict[tuple[str, int], events.ChatRequested] = {}
        for event in trajectory:
            kind = event.kind
            if isinstance(kind, events.Resumed):
                requested.clear()
            elif isinstance(kind, events.ChatRequested):
                requested[kind.sample, kind.chat_number] = kind
            elif isinstance(kind, events.ChatAnswered) and (kind.sample, kind.chat_number) in requested:
                sample = self.samples.setdefault(kind.sample, SampleState(kind.sample))
                sample.restore(requested[kind.sample, kind.chat_number], kind.response, forked=kind.forked)
        for name, sample in self.samples.items():
            sample.reassemble({number: asked.parent_chat for (of, number), asked in requested.items() if of == name})

    def complete(self, outcome: RolloutOutcome) -> RolloutOutcome:
        """Set the result. Return the outcome with resolved references and assembled samples."""
        self.result_id = outcome.result_id
        samples = {
            name: self.samples.setdefault(name, SampleState(name)).report(reported)
            for name, reported in outcome.samples.items()
        }
        return replace(outcome, samples=samples)

    def close(self) -> None:
        """Stop all policy calls, and drop the chats."""
        self.abandon("", 0)
        for sample in self.samples.values():
            sample.release()
        self.samples.clear()


def names(sample: str, chat_number: int, of_sample: str, of_number: int) -> bool:
    """Return whether an AbandonChatRequest for `sample` and `chat_number` includes chat `of_number` of `of_sample`."""
    return sample in ("", of_sample) and chat_number in (0, of_number)


def reply_of(asked: PendingChat, key: ChatKey, parent_chat: int, errors: PolicyErrors) -> bytes:
    """Return the reply of an answered chat as bytes to send. Its prompt omits the tokens of `parent_chat`.

    Raises the CallError of a failed policy call, and Internal for a reply that cannot be sent.
    """
    asked.done.result()
    written, asked.written = asked.written, None
    try:
        reply = written if written is not None and asked.as_kept(parent_chat) else reply_bytes(asked.reply(parent_chat))
    except Exception as problem:  # the policy may have put anything into the reply
        error = TypeError(f"the policy's reply cannot be sent: {describe(problem)}")
        raise errors.failed(key, asked.body[-1], error) from problem
    if len(reply) > MAX_REPLY_BYTES:
        raise Internal(f"the reply to chat {asked.chat_number} has {len(reply)} bytes, more than {MAX_REPLY_BYTES}")
    return reply


def _error_of(reply: object) -> BaseException | None:
    """Return the exception of a policy call that the trainer did not stop; None for a reply."""
    if isinstance(reply, ChatResponse):
        aborted = reply.finish_reason in ABORTED
        return Unavailable("the engine aborted the reply", retry_after=ABORTED_RETRY) if aborted else None
    if isinstance(reply, asyncio.CancelledError):  # raised by what the policy awaits, such as a closed engine
        problem = RuntimeError("the policy's call was cancelled, but not by the trainer")
        problem.__cause__ = reply
        return problem
    if isinstance(reply, StopIteration | StopAsyncIteration):  # a generator that it passes through hides its origin
        return RuntimeError(f"the policy raised {reply!r}").with_traceback(reply.__traceback__)
    return reply if isinstance(reply, BaseException) else None


def unwritten() -> Unavailable:
    """Return the error to send to a server if the ledger cannot be written."""
    return Unavailable("the trainer's ledger cannot be written now", retry_after=UNWRITTEN_RETRY)
