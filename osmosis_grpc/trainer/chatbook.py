"""What a trainer remembers of a rollout: its chats, each sampled once, and the samples they make.

The same chat again gets the same reply; while it is still being sampled, the second asker
joins the first. Nothing that asks can stop a sampling: only the rollout's end does.
"""

import asyncio
import inspect
import logging
from dataclasses import dataclass, replace
from typing import Any

from osmosis_grpc.agent.ports import ChatModel
from osmosis_grpc.errors import Aborted, AlreadyExists, CallError, FailedPrecondition, Internal, InvalidArgument
from osmosis_grpc.types import (
    ChatPurpose,
    ChatRequest,
    ChatResponse,
    Completion,
    Ids,
    Outcome,
    Sample,
    SampledChat,
    jsontext,
)
from osmosis_grpc.types.assembly import Assembler
from osmosis_grpc.types.completion import clip, describe, told
from osmosis_grpc.types.conversation import Conversation, Node, Place, path

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Chat:
    body: tuple[Node, str, str, ChatPurpose]
    """Where its history ends (equal histories end in the same node), parameters, tools, purpose."""
    task: "asyncio.Task[ChatResponse]"


class _Conversation:
    """One sample."""

    def __init__(self) -> None:
        self.tree = Conversation()
        self.assembler = Assembler()
        self.chats: dict[int, _Chat] = {}
        self.sampled: dict[int, SampledChat] = {}
        self.replies: dict[int, tuple[ChatResponse, ChatPurpose]] = {}

    def add(self, number: int, continues: int, response: ChatResponse, purpose: ChatPurpose) -> Ids | None:
        """Take in a reply; returns its whole prompt. Raises InvalidArgument when its parts do not agree."""
        prompt = self.assembler.prompt(continues, response)
        self.assembler.add(number, continues, response, purpose)
        whole = replace(response, prompt_ids=prompt, prompt_prefix=0)
        self.sampled[number] = SampledChat(
            number=number, continues=continues, prompt_ids=prompt, tokens=response.tokens
        )
        self.replies[number] = whole, purpose
        return prompt

    def sample(self, told: Sample, omitted: bool) -> Sample:
        """What to train on, from the trainer's own chats: those whose reply the agent received.

        A completion names them. As told where the trainer did not answer them all, or where the
        sample is not trainable.
        """
        chats = tuple(self.sampled[number] for number in sorted(self.sampled))
        named = {number for segment in told.segments for number in segment.chats}
        if told.not_trainable_reason or not named <= set(self.sampled):
            return replace(told, chats=chats)
        if omitted:
            named = set(self.sampled)
            if named != set(range(1, len(named) + 1)):
                reason = "its segments were left out for their size, and this trainer did not answer every chat"
                return replace(told, chats=chats, trainable=False, not_trainable_reason=reason)
        assembler = Assembler()
        for number in sorted(named):
            response, purpose = self.replies[number]
            assembler.add(number, self.sampled[number].continues, response, purpose)
        reason = assembler.reason
        return replace(
            told, segments=assembler.segments(), trainable=not reason, not_trainable_reason=reason, chats=chats
        )


class RolloutBook:
    """One attempt of one rollout."""

    def __init__(self, attempt: int) -> None:
        self.attempt = attempt
        self.result_id: str | None = None
        self.last_used = 0.0
        self._samples: dict[str, _Conversation] = {}

    def chat(self, request: ChatRequest, policy: ChatModel) -> "asyncio.Task[ChatResponse]":
        """The task that samples this chat, begun now or before. Raises AlreadyExists for another body."""
        if self.result_id is not None:
            raise FailedPrecondition(
                f"rollout {request.rollout_id} has ended", kind="ENDED", subject=request.rollout_id
            )
        sample = self._samples.setdefault(request.sample, _Conversation())
        place = sample.tree.place(request.messages)
        tools = "" if request.tools is None else jsontext.canonical(list(request.tools))
        known = sample.chats.get(request.number)
        body = (place.node, jsontext.canonical(dict(request.params)), tools, request.purpose)
        if known is not None:
            if known.body != body:
                raise AlreadyExists(
                    f"chat {request.number} of sample {request.sample} was asked with another body",
                    rollout_id=request.rollout_id, attempt=self.attempt,
                )  # fmt: skip
            return known.task
        task = asyncio.create_task(self._sample(sample, place, request, policy))
        task.add_done_callback(_retrieve)
        sample.chats[request.number] = _Chat(body, task)
        return task

    async def _sample(
        self, sample: _Conversation, place: Place, request: ChatRequest, policy: ChatModel
    ) -> ChatResponse:
        known = sample.assembler.tokens(place.continues)
        full = replace(
            request, messages=path(place.node), continues=place.continues, covered=place.covered,
            known_ids=known if len(known) else None,
        )  # fmt: skip
        try:
            response: Any = policy(full)
            if inspect.isawaitable(response):
                response = await response
            if not isinstance(response, ChatResponse):
                raise TypeError(f"it returned a {type(response).__name__}; return ChatResponse(message=...)")
            response.check()
            reply = jsontext.copy(response.message, "message")
            prompt = sample.add(request.number, place.continues, response, request.purpose)
        except BaseException as error:
            del sample.chats[request.number]  # nothing was sampled: the next one that asks begins anew
            if isinstance(error, CallError) and not isinstance(error, InvalidArgument):
                raise
            if isinstance(error, Exception):
                log.warning(
                    "the policy failed at chat %d of rollout %s\n%s", request.number, request.rollout_id, told(error)
                )
                text = clip(f"{type(error).__name__}: {describe(error)}")
                raise Internal(f"the policy failed: {text}") from error
            raise
        sample.tree.answer(place.node, reply, request.number)
        return replace(response, prompt_ids=prompt, prompt_prefix=0)

    def complete(self, completion: Completion) -> Completion:
        """The completion with its samples assembled from the trainer's own chats."""
        self.result_id = completion.result_id
        samples = {
            name: self._samples[name].sample(told, f"samples[{name}].segments" in completion.omitted)
            if name in self._samples
            else told
            for name, told in completion.samples.items()
        }
        return replace(completion, samples=samples)

    def close(self) -> None:
        """Stop what is being sampled and keep nothing but what came of it."""
        for sample in self._samples.values():
            for chat in list(sample.chats.values()):
                chat.task.cancel()
        self._samples.clear()


class ChatBook:
    """All rollouts of a trainer."""

    def __init__(self, policy: ChatModel) -> None:
        self._policy = policy
        self._rollouts: dict[str, RolloutBook] = {}

    def chat(self, request: ChatRequest, now: float) -> "asyncio.Task[ChatResponse]":
        """See RolloutBook.chat. Raises Aborted for an attempt that is no longer the newest."""
        return self._newest(request.rollout_id, request.attempt, now).chat(request, self._policy)

    def complete(self, completion: Completion, now: float) -> tuple[Outcome, Completion | None]:
        """What becomes of a completion, and the completion where it is recorded now."""
        book = self._newest(completion.rollout_id, completion.attempt, now)
        if book.result_id is not None:
            same = book.result_id == completion.result_id
            return (Outcome.ALREADY_RECORDED if same else Outcome.CONFLICT), None
        recorded = book.complete(completion)
        book.close()
        return Outcome.RECORDED, recorded

    def is_new(self, completion: Completion, now: float) -> bool:
        """Whether a rollout has no result yet. Raises Aborted for an attempt that is no longer the newest."""
        return self._newest(completion.rollout_id, completion.attempt, now).result_id is None

    def sweep(self, before: float) -> None:
        """Forget rollouts that were last heard of before a time."""
        for rollout_id, book in list(self._rollouts.items()):
            if book.last_used < before:
                book.close()
                del self._rollouts[rollout_id]

    def close(self) -> None:
        """Stop every sampling."""
        for book in self._rollouts.values():
            book.close()

    def _newest(self, rollout_id: str, attempt: int, now: float) -> RolloutBook:
        book = self._rollouts.get(rollout_id)
        if book is not None and attempt < book.attempt:
            raise Aborted(f"rollout {rollout_id} is at attempt {book.attempt}",
                          rollout_id=rollout_id, attempt=book.attempt)  # fmt: skip
        if book is None or attempt > book.attempt:
            if book is not None:
                book.close()
            book = self._rollouts[rollout_id] = RolloutBook(attempt)
        book.last_used = now
        return book


def _retrieve(task: "asyncio.Task[Any]") -> None:
    if not task.cancelled():
        task.exception()
