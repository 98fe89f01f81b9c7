"""Implements the engine's ports over HTTP: sends chats and outcomes to a trainer of a legacy contract.

The trainer of a rollout of /v1/rollout/init is an HttpTrainer. For a rollout of /rollout, see rollout_trainers.py.
"""

from dataclasses import dataclass
from typing import Any, Protocol

from osmosis_gateway import chat_bodies, http_bodies
from osmosis_gateway.contracts import Terms
from osmosis_gateway.leases import Leases
from osmosis_gateway.outgoing_calls import Base, Calls, redacted
from osmosis_gateway.rollout_trainers import Answered, Channel, RolloutTrainer
from osmosis_grpc.engine import Peer
from osmosis_grpc.network.target_policy import Address, TargetPolicy
from osmosis_grpc.protocol.errors import Internal, InvalidArgument, OsmosisValidationError
from osmosis_grpc.protocol.types import (
    Callback,
    ChatRequest,
    ChatResponse,
    InitRequest,
    Receipt,
    RolloutOutcome,
    TraceContext,
    jsontext,
)
from osmosis_grpc.settings.settings import RolloutClientSettings


class Trainer(Protocol):
    """The trainer of one rollout, over HTTP."""

    async def chat(self, request: ChatRequest, /) -> ChatResponse:
        """Return the reply to a chat. Raises CallError."""

    async def complete(self, outcome: RolloutOutcome, /) -> Receipt:
        """Deliver the outcome. Raises CallError."""


class HttpTrainers:
    """Makes Peers for callbacks whose target is a base URL. `calls` must be made with `checked_only`.

    `leases` has the results that trainers ask for. `answered` is given to every trainer of /rollout, for a process that
    makes a trainer for each call.
    """

    def __init__(
        self,
        calls: Calls,
        policy: TargetPolicy,
        settings: RolloutClientSettings,
        leases: Leases | None = None,
        answered: Answered | None = None,
    ) -> None:
        self._calls = calls
        self._policy = policy
        self._settings = settings
        self._leases = leases
        self._answered = answered

    async def peer(self, init: InitRequest, *, field: str = "callback.target", **caller: bool) -> Peer:
        """Return the Peer that receives a rollout's calls. Raises InvalidArgument naming `field`."""
        callback = init.callback
        if callback is None:
            raise InvalidArgument(field, "is missing: set it to the URL that receives chats and the result")
        trainer = await self.trainer(callback, init.trace, field=field, **caller)
        key = (callback.target, callback.credential, callback.state)
        return Peer(trainer.chat, trainer.complete, key, destination_key=callback.target, any_role=True)

    async def trainer(
        self, callback: Callback, trace: TraceContext | None = None, *, field: str, **caller: bool
    ) -> Trainer:
        """Return the trainer of a callback after checking the addresses of its URLs.

        Raises InvalidArgument naming `field`, or the key of the body of /rollout.
        """
        terms = Terms.of(callback.state)
        field = field if terms is None else "chat_completions_url"
        base = Base.of(callback.target, field)
        address = await self._policy.check(base.authority, field, **caller)
        if terms is None:
            return HttpTrainer(self._calls, self._settings, base, address, callback.credential, trace)
        urls = {"completion_callback_url": terms.completion_url, "grader_callback_url": terms.grader_url}
        channels = [await self._channel(url, terms.key, name, **caller) for name, url in urls.items() if url]
        chats = Channel(self._calls, base, address, callback.credential, trace)
        return RolloutTrainer(terms, chats, channels, self._settings, self._leases, self._answered)

    async def _channel(self, url: str, key: str, field: str, **caller: bool) -> Channel:
        base = Base.of(url, field, query=True)
        return Channel(self._calls, base, await self._policy.check(base.authority, field, **caller), key)


@dataclass(frozen=True, slots=True, eq=False)
class HttpTrainer:
    """The trainer of one rollout."""

    calls: Calls
    settings: RolloutClientSettings
    base: Base
    address: Address
    api_key: str
    trace: TraceContext | None

    async def chat(self, request: ChatRequest, /) -> ChatResponse:
        raw = await self._post(chat_bodies.CHAT_PATH, chat_bodies.chat_body(request), self.settings.max_retries)
        try:
            return chat_bodies.read_reply(raw)
        except Internal as error:
            raise Internal(redacted(str(error), self.api_key)) from None

    async def complete(self, outcome: RolloutOutcome, /) -> Receipt:
        body, retries = http_bodies.result_body(outcome), self.settings.complete_rollout_retries
        try:
            await self._post(http_bodies.COMPLETED_PATH, body, retries, answer=False)
        except OsmosisValidationError as error:
            raise InvalidArgument("", str(error)) from None
        return Receipt.RECORDED

    async def _post(self, path: str, body: dict[str, Any], retries: int, *, answer: bool = True) -> bytes:
        headers = {}
        if self.trace is not None:
            headers = {"traceparent": self.trace.traceparent, "tracestate": self.trace.tracestate}
        return await self.calls.post(
            self.base.join(path),
            jsontext.render(body).encode(),
            key=self.api_key,
            retries=retries,
            headers={name: value for name, value in headers.items() if value},
            address=self.address,
            answer=answer,
        )
