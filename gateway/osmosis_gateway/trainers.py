"""The engine's ports over HTTP: sends chats and completions to a trainer of the legacy contract."""

from osmosis_gateway import contract
from osmosis_gateway.calls import Base, Calls, redacted
from osmosis_grpc.engine import Peer
from osmosis_grpc.errors import Internal, InvalidArgument, OsmosisValidationError
from osmosis_grpc.link.target_policy import Address, TargetPolicy
from osmosis_grpc.settings import RolloutClientSettings
from osmosis_grpc.types import ChatRequest, ChatResponse, Completion, InitRequest, Outcome, TraceContext, jsontext


class HttpTrainers:
    """Makes Peers for callbacks whose target is a base URL. `calls` dials checked hosts only."""

    def __init__(self, calls: Calls, policy: TargetPolicy, settings: RolloutClientSettings) -> None:
        self._calls = calls
        self._policy = policy
        self._settings = settings

    async def peer(self, init: InitRequest, *, field: str = "callback.target", **caller: bool) -> Peer:
        """Return the Peer that receives a rollout's calls. Raises InvalidArgument naming `field`."""
        callback = init.callback
        if callback is None:
            raise InvalidArgument(field, "is missing: set it to the URL that receives chats and the result")
        trainer = await self.trainer(callback.target, callback.credential, init.trace, field=field, **caller)
        key = (callback.target, callback.credential, callback.state)
        return Peer(trainer.chat, trainer.complete, key, destination_key=callback.target)

    async def trainer(
        self, server_url: str, api_key: str, trace: TraceContext | None = None, *, field: str, **caller: bool
    ) -> "HttpTrainer":
        """Return the trainer at a URL after checking its address. Raises InvalidArgument naming `field`."""
        base = Base.of(server_url, field)
        address = await self._policy.check(base.authority, field, **caller)
        return HttpTrainer(self._calls, self._settings, base, address, api_key, trace)


class HttpTrainer:
    """One rollout's trainer."""

    def __init__(
        self,
        calls: Calls,
        settings: RolloutClientSettings,
        base: Base,
        address: Address,
        api_key: str,
        trace: TraceContext | None,
    ) -> None:
        self._calls = calls
        self._address = address
        self._chat_url = base.join(contract.CHAT_PATH)
        self._completed_url = base.join(contract.COMPLETED_PATH)
        self._settings = settings
        self._key = api_key
        self._headers = {}
        if trace is not None:
            self._headers = {"traceparent": trace.traceparent} | (
                {"tracestate": trace.tracestate} if trace.tracestate else {}
            )

    async def chat(self, request: ChatRequest, /) -> ChatResponse:
        body = jsontext.render(contract.chat_body(request)).encode()
        raw = await self._calls.post(
            self._chat_url,
            body,
            key=self._key,
            retries=self._settings.max_retries,
            headers=self._headers,
            address=self._address,
        )
        try:
            return contract.read_reply(raw)
        except Internal as error:
            raise Internal(redacted(str(error), self._key)) from None

    async def complete(self, completion: Completion, /) -> Outcome:
        body = jsontext.render(contract.completion_body(completion)).encode()
        try:
            await self._calls.post(
                self._completed_url,
                body,
                key=self._key,
                retries=self._settings.complete_rollout_retries,
                headers=self._headers,
                address=self._address,
                answer=False,
            )
        except OsmosisValidationError as error:
            raise InvalidArgument("", str(error)) from None
        return Outcome.RECORDED
