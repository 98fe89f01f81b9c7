"""The base URL of one rollout. Each request to it becomes a chat of the rollout."""

import asyncio
import json
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Any

from osmosis_grpc.agent import CompletionsResult, RolloutContext
from osmosis_grpc.agent.history_chats import HistoryChats
from osmosis_grpc.endpoints.byte_budget import ByteBudget
from osmosis_grpc.endpoints.model_request import Asked
from osmosis_grpc.endpoints.open_chats import OpenChats, OpenRequest, Replies, Waits, Wanted
from osmosis_grpc.endpoints.stored_replies import StoredReplies
from osmosis_grpc.network.http.connections import Connection
from osmosis_grpc.protocol.errors import CallError, ResourceExhausted, RolloutEndedError
from osmosis_grpc.supervise import OnFailure, child, job

CHOICE = job("gateway.ask_choice", OnFailure.RAISE)
IGNORED = "ignored in requests"
"""The name of the event that lists the ignored keys of a program's requests."""
OPEN_BYTES = 64 * 1024 * 1024
"""The most bytes of the open requests of one rollout."""


class Endpoint:
    """The base URL of one rollout."""

    def __init__(
        self, context: RolloutContext, base_url: str, api_key: str, waits: Waits, *, limited: bool = False
    ) -> None:
        self.base_url = base_url
        """The URL, ending with the rollout's id. Clients add /chat/completions (OpenAI) or /v1/messages (Anthropic)."""
        self.api_key = api_key
        """The key of the rollout, valid until its end."""
        self.rollout_id = context.request.rollout_id
        self.budget = ByteBudget(OPEN_BYTES)
        self.reading = asyncio.Semaphore(1)
        """Allows one long body at a time to be parsed."""
        self.waits = waits
        self.over = asyncio.Event()
        """Set when a request has reached a limit of the rollout."""
        self.replies = StoredReplies()
        self._token_bytes = 4.0
        """The estimated number of bytes in a request for each token of its prompt."""
        self._context = context
        self._ignored: dict[str, tuple[str, ...]] = {}
        """The ignored keys that were recorded last for each sample."""
        self._history_chats = HistoryChats(context, limited=limited)
        self._chats = OpenChats(waits, self._history_chats.unread)
        self._waiting = 0
        self._closed = False

    @property
    def failure(self) -> CallError | None:
        """The error of the newest chat that has ended, or None if it got its reply."""
        return self._history_chats.failure

    @property
    def limit(self) -> str:
        """The limit that a request has reached, as a finish reason, or an empty string."""
        return self._history_chats.limit

    def ask(self, asked: Asked, connection: Connection | None = None) -> OpenRequest:
        """Start waiting for the reply to a request. If the request ends without a response, pass the result to leave().

        Sampling parameters that the request lacks come from the trainer's completion_params. Raises RolloutEndedError.
        The returned object's result() raises CallError and RolloutEndedError.
        """
        if self._closed:
            raise RolloutEndedError("the rollout has ended")
        if self._waiting >= self.waits.most:
            raise ResourceExhausted(
                f"{self._waiting} requests of this rollout are already waiting for their replies; try again later",
                retry_after=1.0,
            )
        work = partial(self._ask, asked)
        request = self._chats.begin(asked.digest, work, retried=asked.retried, connection=connection)
        self._waiting += 1
        request.reply.add_done_callback(self._ended)
        return request

    def estimated_tokens(self, asked: Asked) -> int:
        """Estimate how many tokens the prompt of a request has, from the bytes per token of the newest prompt."""
        return round(_nbytes(asked) / self._token_bytes) or 1

    def leave(self, request: OpenRequest) -> None:
        """Keep the chat of a client that has disconnected, so that a retry gets its reply."""
        if not self._closed:
            self._chats.leave(request)

    def close(self) -> None:
        """End every open request with RolloutEndedError, and mark the samples that must not be trained on."""
        if not self._closed:
            self._closed = True
            self._chats.close()
            self._history_chats.leave_out()

    def _ended(self, reply: object) -> None:
        self._waiting -= 1

    async def _ask(self, asked: Asked, wanted: Wanted) -> Replies:
        """Return the replies to a request. Ask for the first one alone, as it determines the sample of the others."""
        request = asked.request
        try:
            first = await self._chat(asked, asked.sample, request.params, wanted)
            choices = [
                child(CHOICE, self._chat(asked, first.sample, _choice(request.params, number), wanted))
                for number in range(1, request.choices)
            ]
            try:
                more = await asyncio.gather(*choices)
            except BaseException:  # the client gets none of the replies, so mark those that arrived as unread
                for choice in choices:
                    choice.cancel()
                answered = await asyncio.gather(*choices, return_exceptions=True)
                for reply in (first, *(each for each in answered if isinstance(each, CompletionsResult))):
                    self._history_chats.unread(reply)
                raise
        finally:
            if self.limit:
                self.over.set()
        prompt_tokens = first.usage.get("prompt_tokens")
        if prompt_tokens:
            self._token_bytes = max(1.0, _nbytes(asked) / prompt_tokens)
        if request.stored:
            self.replies.add(request.reply_id, asked.history, first.message)
        if request.ignored and self._ignored.get(first.sample) != request.ignored:
            self._ignored[first.sample] = request.ignored
            self._context.log_event(IGNORED, sample=first.sample, keys=list(request.ignored))
        return first, *more

    def _chat(
        self, asked: Asked, sample: str, params: Mapping[str, Any], wanted: Wanted
    ) -> Coroutine[Any, Any, CompletionsResult]:
        request = asked.request
        return self._history_chats.ask(
            asked.history,
            tools=request.tools,
            params=params,
            model=request.model,
            sample=sample,
            written=request.written,
            wanted=wanted,
        )


def _choice(params: Mapping[str, Any], number: int) -> Mapping[str, Any]:
    """Return the parameters of a further choice. Change the seed, because an equal seed would give the same reply."""
    seed = params.get("seed")
    return params if not isinstance(seed, int) else {**params, "seed": seed + number}


def _nbytes(asked: Asked) -> int:
    """Return the size in bytes of the parts of a request that go into its prompt."""
    return sum(asked.history.sizes) + len(json.dumps(asked.request.tools or ()))
