"""Implements the engine's ports over HTTP: sends chats and outcomes to a trainer of a legacy contract.

A rollout started by /v1/rollout/init has an HttpTrainer. For rollouts started by /rollout, see rollout_trainers.py.
"""

from dataclasses import dataclass

from osmosis_gateway import chat_bodies, http_bodies
from osmosis_gateway.contracts import Terms
from osmosis_gateway.leases import Leases
from osmosis_gateway.outgoing_calls import Base, Calls, redacted
from osmosis_gateway.rollout_trainers import Answered, Channel, RolloutTrainer
from osmosis_grpc.engine import Peer
from osmosis_grpc.network.target_policy import TargetPolicy
from osmosis_grpc.protocol.errors import Internal, InvalidArgument, OsmosisValidationError
from osmosis_grpc.protocol.types import (
    Callback,
    ChatRequest,
    ChatResponse,
    InitRequest,
    Receipt,
    RolloutOutcome,
    TraceContext,
)
from osmosis_grpc.settings.settings import RolloutClientSettings


class HttpTrainers:
    """Makes Peers for callbacks whose target is a base URL. `calls` must be made with `checked_only`.

    `leases` delivers results that trainers poll for. A process that makes a RolloutTrainer for each call passes
    `answered`, which these trainers share.
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
    ) -> "HttpTrainer | RolloutTrainer":
        """Return the trainer of a callback after checking the addresses of its URLs.

        Raises InvalidArgument naming `field`, or for a rollout of /rollout, the key in its body.
        """
        terms = Terms.of(callback.state)
        field = field if terms is None else "chat_completions_url"
        base = Base.of(callback.target, field)
        address = await self._policy.check(base.authority, field, **caller)
        chats = Channel(self._calls, base, address, callback.credential, trace)
        if terms is None:
            return HttpTrainer(chats, self._settings)
        urls = {"completion_callback_url": terms.completion_url, "grader_callback_url": terms.grader_url}
        channels = [await self._channel(url, terms.key, name, **caller) for name, url in urls.items() if url]
        return RolloutTrainer(terms, chats, channels, self._settings, self._leases, self._answered)

    async def _channel(self, url: str, key: str, field: str, **caller: bool) -> Channel:
        base = Base.of(url, field, query=True)
        return Channel(self._calls, base, await self._policy.check(base.authority, field, **caller), key)


@dataclass(frozen=True, slots=True, eq=False)
class HttpTrainer:
    """The trainer of one rollout."""

    channel: Channel
    settings: RolloutClientSettings

    async def chat(self, request: ChatRequest, /) -> ChatResponse:
        body, retries = chat_bodies.chat_body(request), self.settings.max_retries
        raw = await self.channel.post(body, retries, chat_bodies.CHAT_PATH, answer=True)
        try:
            return chat_bodies.read_reply(raw)
        except Internal as error:
            raise Internal(redacted(str(error), self.channel.key)) from None

    async def complete(self, outcome: RolloutOutcome, /) -> Receipt:
        body, retries = http_bodies.result_body(outcome), self.settings.complete_rollout_retries
        try:
            await self.channel.post(body, retries, http_bodies.COMPLETED_PATH)
        except OsmosisValidationError as error:
            raise InvalidArgument("", str(error)) from None
        return Receipt.RECORDED
