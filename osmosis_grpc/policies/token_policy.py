"""The policy that works on tokens: a Renderer makes the prompt, and a TokenGenerator samples the reply.

A reply has exactly the tokens that the generator sampled. Its text is never tokenized again.
"""

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any
from uuid import uuid4

import numpy as np

from osmosis_grpc.policies.generation import FinishReason, Generated, GenerateRequest, TokenGenerator
from osmosis_grpc.policies.media import media_of
from osmosis_grpc.policies.replies import Renderer, Reply
from osmosis_grpc.policies.sampling import Sampling, sampling_of, with_room_for
from osmosis_grpc.policies.system_messages import asked_folding
from osmosis_grpc.protocol.errors import (
    CallError,
    Cancelled,
    ContextLengthExceeded,
    DeadlineExceeded,
    Internal,
    InvalidArgument,
)
from osmosis_grpc.protocol.types import ChatRequest, ChatResponse, Extras, Ids, TokenBlock, VersionSpan
from osmosis_grpc.protocol.types.chat import call_prefix
from osmosis_grpc.protocol.types.extras import Part, join, rows
from osmosis_grpc.protocol.types.samples import TOOL_CHOICE_UNMET, UNREAD_CALLS
from osmosis_grpc.supervise import SYSTEM, Backoff, DaemonThreads, OnFailure, Supervisor, job

log = logging.getLogger(__name__)

ABORT = job("policies.abort", OnFailure.REPORT)
ABORT_SECONDS = 5.0
"""How many seconds an abort may take. The policy waits for open aborts when it closes."""
ERROR_PAUSES = 0.2, 5.0
ABORTED_PAUSES = 0.05, 1.0
"""The first and the longest pause, in seconds, before an aborted call is repeated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPolicyConfig:
    """Settings of a TokenPolicy."""

    max_tokens: int = 1024
    """The most tokens of a reply if the chat sets none."""
    context: int | None = None
    """The most tokens of a prompt and its reply together; None leaves the limit to the model server."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """Sampling parameters under OpenAI's names. Those of a chat override them."""
    priority: int = 0
    """The priority of chats that have no parameter `priority`. vLLM samples lower values first."""
    seed: int | None = None
    """A chat without a parameter `seed` gets one derived from this seed, its rollout id, attempt, sample and number, so
    that equal rollout ids get equal tokens. None leaves the seed to the model server."""
    version: str = ""
    """The version of the weights if the generator returns none; by default that of the trainer."""
    timeout: float = 600.0
    """How many seconds a reply may take, with all repeated calls."""
    retries: int = 3
    """How often a call is repeated after a transient error before the policy raises it."""


class TokenPolicy:
    """Answers chats with the tokens of a generator.

    The session id of a call is ROLLOUT/SAMPLE. If the generator returns ABORTED, for example for new weights, the
    policy appends the tokens sampled so far to the prompt and calls it again. The reply then has the weight version of
    each part. Calls that fail with Unavailable, ResourceExhausted or DeadlineExceeded are retried. If a reply is no
    longer needed, the policy aborts its call.

    A trainer enters and exits the policy; without a trainer, use `async with`. A chat raises the generator's errors,
    and InvalidArgument for messages and parameters that are not supported.

    Args:
        renderer: Makes the prompts, and reads the replies.
        generator: Samples the tokens.
        config: Further settings.
    """

    def __init__(
        self, renderer: Renderer, generator: TokenGenerator, config: TokenPolicyConfig = TokenPolicyConfig()
    ) -> None:
        _check(renderer, "renderer", ("prompt_ids", "reply"), "ChatRenderer(tokenizer)")
        _check(generator, "generator", ("generate", "abort"), "a TokenGenerator")
        self._renderer = renderer
        self._generator = generator
        self._config = config
        self._threads = DaemonThreads()
        self._sent = SentPrompts()
        self._running: dict[str, ChatRequest] = {}
        self._supervisor: Supervisor | None = None
        self._aborts: set[asyncio.Task[None]] = set()
        self._users = 0

    async def __aenter__(self) -> "TokenPolicy":
        self._users += 1
        if self._users == 1 and isinstance(self._generator, AbstractAsyncContextManager):
            await self._generator.__aenter__()
        return self

    async def __aexit__(self, *exc: Any) -> None:
        self._users -= 1
        if self._users:
            return
        await asyncio.gather(*self._aborts, return_exceptions=True)
        self._threads.close()
        self._supervisor = None
        if isinstance(self._generator, AbstractAsyncContextManager):
            await self._generator.__aexit__(*exc)

    async def __call__(self, request: ChatRequest, /) -> ChatResponse:
        return await asked_folding(request, self._ask)

    async def _ask(self, request: ChatRequest) -> ChatResponse:
        sampling = self._sampling(request)
        media = media_of(request.messages)
        known_media = media_of(request.messages[: request.prefix_len])
        shown = self._sent.without_media(request) if known_media else request
        prompt = await self._threads.run(lambda: self._renderer.prompt_ids(shown))
        first = GenerateRequest(
            request_id="",
            session_id=f"{request.rollout_id}/{request.sample}",
            prompt_ids=prompt.ids,
            sampling=self._within_context(sampling, len(prompt.ids)),
            priority=self._priority(request),
            media=media,
            timeout=min(self._config.timeout, request.timeout or self._config.timeout),
        )
        pieces = await self._generate(request, first)
        ids = np.concatenate([piece.token_ids for piece in pieces]).astype("<u4", copy=False)
        if media:
            self._sent.add(request, prompt.ids, ids)
        whole = pieces[0].prompt_ids
        return await self._reply(request, prompt.ids if whole is None else whole, pieces, ids, sampling.stop)

    def cancel(self, request: ChatRequest) -> None:
        """Abort the calls of a chat whose reply is no longer needed. Does not block."""
        for request_id, running in list(self._running.items()):
            if _chat(running) == _chat(request):
                self._abort(request_id)

    # The parts of a chat.

    def _sampling(self, request: ChatRequest) -> Sampling:
        own = {name: value for name, value in request.params.items() if value is not None}
        sampling = sampling_of({**self._config.params, **own}, self._config.max_tokens)
        ends = [each for each in self._renderer.stop_ids if each not in sampling.stop_token_ids]
        sampling = replace(sampling, stop_token_ids=(*sampling.stop_token_ids, *ends)) if ends else sampling
        if sampling.seed is None and self._config.seed is not None:
            name = repr((self._config.seed, *_chat(request))).encode()
            return replace(sampling, seed=int.from_bytes(hashlib.blake2b(name, digest_size=6).digest()))
        return sampling

    def _priority(self, request: ChatRequest) -> int:
        given = request.params.get("priority")
        if given is not None and (isinstance(given, bool) or not isinstance(given, int)):
            raise InvalidArgument("params.priority", f"is {given!r:.80}, not a whole number")
        return self._config.priority if given is None else given

    def _within_context(self, sampling: Sampling, prompt: int) -> Sampling:
        context = self._config.context
        if context is None:
            return sampling
        if prompt >= context:
            raise ContextLengthExceeded(prompt, context)
        return with_room_for(sampling, context - prompt)

    async def _generate(self, chat: ChatRequest, first: GenerateRequest) -> list[Generated]:
        """Return the parts of a reply. All but the last end with ABORTED."""
        pieces: list[Generated] = []
        errors, aborts = Backoff(*ERROR_PAUSES, system=SYSTEM), Backoff(*ABORTED_PAUSES, system=SYSTEM)
        left, asked = self._config.retries, first
        try:
            async with asyncio.timeout(first.timeout) as limit:
                while True:
                    try:
                        piece = await self._once(chat, asked)
                    except CallError as error:
                        if not error.retryable or not left:
                            raise
                        left -= 1
                        await asyncio.sleep(errors.next() if error.retry_after is None else error.retry_after)
                        continue
                    pieces.append(piece)
                    if piece.finish_reason is not FinishReason.ABORTED:
                        return pieces
                    asked = _continued(first, pieces)
                    if asked.sampling.max_tokens < 1:
                        return pieces
                    await asyncio.sleep(aborts.next())
        except TimeoutError:
            if not limit.expired():
                raise
            raise DeadlineExceeded(f"the model server gave no reply within {first.timeout:g} s") from None

    async def _once(self, chat: ChatRequest, asked: GenerateRequest) -> Generated:
        """Call the generator. Abort the call if it raises or is cancelled, since the server may still be sampling."""
        request_id = f"{asked.session_id}/{chat.attempt}/{chat.chat_number}/{uuid4().hex[:12]}"
        self._running[request_id] = chat
        try:
            generated = await self._generator.generate(replace(asked, request_id=request_id))
        except BaseException:
            self._abort(request_id)
            raise
        if self._running.pop(request_id, None) is None:
            raise Cancelled("the reply to the chat is no longer wanted")
        return _checked(generated)

    async def _reply(
        self, request: ChatRequest, prompt: Ids, pieces: list[Generated], ids: Ids, stop: tuple[str, ...]
    ) -> ChatResponse:
        tools = None if request.params.get("tool_choice") == "none" else request.tools

        def read() -> Reply:
            return self._renderer.reply(ids, prompt=prompt, tools=tools, stop=stop, call_prefix=call_prefix(request))

        reply = await self._threads.run(read)
        try:
            return self._response(request, prompt, pieces, ids, reply)
        except InvalidArgument as error:  # not the fault of the chat
            raise Internal(f"the generator's result cannot be used: {error}") from None

    def _response(
        self, request: ChatRequest, prompt: Ids, pieces: list[Generated], ids: Ids, reply: Reply
    ) -> ChatResponse:
        finish_reason = FinishReason.LENGTH.value
        if pieces[-1].finish_reason is FinishReason.STOP:
            finish_reason = "tool_calls" if reply.message.get("tool_calls") else FinishReason.STOP.value
        response = ChatResponse(
            message=reply.message,
            finish_reason=finish_reason,
            usage=_usage(len(prompt), len(ids), pieces[0].cached_tokens),
            tokens=TokenBlock.of(ids, _logprobs(pieces), _extras(pieces)),
            prompt_ids=prompt,
            prompt_extras=_prompt_extras(pieces[-1], len(prompt)),
            versions=self._versions(request, pieces),
            extra=_about(reply) | _unmet(request, reply),
        )
        response.check()
        return response

    def _versions(self, request: ChatRequest, pieces: list[Generated]) -> tuple[VersionSpan, ...]:
        spans: list[VersionSpan] = []
        for given, count in chain.from_iterable(map(_spans, pieces)):
            version = given or self._config.version or request.version
            if spans and spans[-1].version == version:
                spans[-1] = VersionSpan(version, spans[-1].tokens + count)
            elif count:
                spans.append(VersionSpan(version, count))
        return tuple(spans) if any(span.version for span in spans) else ()

    # Aborts.

    def _abort(self, request_id: str) -> None:
        if self._running.pop(request_id, None) is None:
            return
        if self._supervisor is None:
            self._supervisor = Supervisor("policy")
        task = self._supervisor.start(ABORT, lambda: self._aborted(request_id), report=lambda error: None)
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)

    async def _aborted(self, request_id: str) -> None:
        try:
            async with asyncio.timeout(ABORT_SECONDS):
                await self._generator.abort(request_id)
        except (CallError, TimeoutError, OSError) as error:
            log.info("the call %s could not be aborted: %s", request_id, error)


def _check(given: object, name: str, methods: tuple[str, ...], wanted: str) -> None:
    missing = [method for method in methods if not callable(getattr(given, method, None))]
    if missing:
        raise TypeError(f"{name}: a {type(given).__name__} has no {missing[0]}(); pass {wanted}")


def _checked(generated: object) -> Generated:
    """Return a generator's result with a FinishReason. Raises Internal if it is not a Generated."""
    if not isinstance(generated, Generated):
        raise Internal(f"the generator returned a {type(generated).__name__}, not a Generated")
    if not isinstance(generated.weight_version, str):
        raise Internal(f"the generator's weight_version is {generated.weight_version!r:.80}, not a str")
    if generated.versions and sum(span.tokens for span in generated.versions) != len(generated.token_ids):
        raise Internal(f"the generator's versions do not cover exactly its {len(generated.token_ids)} tokens")
    if isinstance(generated.finish_reason, FinishReason):
        return generated
    try:
        return replace(generated, finish_reason=FinishReason(generated.finish_reason))
    except ValueError:
        known = ", ".join(FinishReason)
        raise Internal(
            f"the generator's finish_reason is {generated.finish_reason!r:.80}, not one of {known}"
        ) from None


def _spans(generated: Generated) -> Iterable[tuple[str, int]]:
    """Yield the versions of a result, each with its number of tokens."""
    if generated.versions:
        return [(span.version, span.tokens) for span in generated.versions]
    return [(generated.weight_version, len(generated.token_ids))]


def _chat(request: ChatRequest) -> tuple[str, int, str, int]:
    return request.rollout_id, request.attempt, request.sample, request.chat_number


def _about(reply: Reply) -> dict[str, Any]:
    """Return the stop text that ended a reply, and what is wrong with its malformed calls, for `extra`."""
    stop = {"stop_reason": reply.stop} if reply.stop else {}
    return {**stop, UNREAD_CALLS: list(reply.unread)} if reply.unread else stop


def _unmet(request: ChatRequest, reply: Reply) -> dict[str, Any]:
    """Return a mark if a reply does not call the tool that its chat requires, else {}."""
    choice = request.params.get("tool_choice")
    called = [call["function"]["name"] for call in reply.message.get("tool_calls") or ()]
    if isinstance(choice, Mapping):
        met = (choice.get("function") or {}).get("name") in called
    else:
        met = choice != "required" or bool(called)
    return {} if met else {TOOL_CHOICE_UNMET: True}


def _continued(first: GenerateRequest, pieces: list[Generated]) -> GenerateRequest:
    sampled = [piece.token_ids for piece in pieces]
    done, sampling = sum(map(len, sampled)), first.sampling
    seed = None if sampling.seed is None else (sampling.seed + done) % 2**63  # don't repeat the random numbers
    prompt: Ids = np.concatenate([first.prompt_ids, *sampled]).astype("<u4", copy=False)
    left = replace(
        sampling, max_tokens=sampling.max_tokens - done, min_tokens=max(0, sampling.min_tokens - done), seed=seed
    )
    return replace(first, prompt_ids=prompt, sampling=left)


def _logprobs(pieces: list[Generated]) -> Any:
    given = [piece.logprobs for piece in pieces if len(piece.token_ids)]
    known = [logprobs for logprobs in given if logprobs is not None]
    if len(known) < len(given):
        return None
    return np.concatenate(known) if known else np.empty(0, dtype="<f4")


def _extras(pieces: list[Generated]) -> Extras:
    return join([Part(piece.extras, 0, len(piece.token_ids), 1) for piece in pieces if len(piece.token_ids)])


def _prompt_extras(last: Generated, prompt: int) -> Extras:
    """Return the extras of the prompt, without the rows of tokens that were sampled before an abort."""
    return rows(last.prompt_extras, 0, prompt)


def _usage(prompt: int, sampled: int, cached: int | None) -> dict[str, Any]:
    usage: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}
    return usage if cached is None else {**usage, "prompt_tokens_details": {"cached_tokens": cached}}


MOST_SENT = 1024
"""This many chats are remembered. The least recently used one is dropped first."""


class SentPrompts:
    """The ids of chats with media as the policy sent them, before the model server added the tokens of media."""

    def __init__(self) -> None:
        self._sent: OrderedDict[tuple[str, int, str, int], Ids] = OrderedDict()

    def add(self, request: ChatRequest, prompt_ids: Ids, reply_ids: Ids) -> None:
        """Remember the prompt that was sent for a chat, and the tokens of its reply."""
        self._sent[request.rollout_id, request.attempt, request.sample, request.chat_number] = np.concatenate(
            [prompt_ids, reply_ids]
        )
        if len(self._sent) > MOST_SENT:
            self._sent.popitem(last=False)

    def without_media(self, request: ChatRequest) -> ChatRequest:
        """Return a chat whose `known_ids` lack the tokens that the model server added for media.

        `known_ids` is None if the chat to continue is not remembered. The prompt is then rendered anew.
        """
        key = request.rollout_id, request.attempt, request.sample, request.parent_chat
        if key in self._sent:
            self._sent.move_to_end(key)
        return replace(request, known_ids=self._sent.get(key))
