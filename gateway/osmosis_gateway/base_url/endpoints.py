"""The endpoints of the running rollouts: each has a URL and a key, and asks the chats of its rollout."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from urllib.parse import quote

from osmosis_gateway.base_url.conversations import Conversations
from osmosis_gateway.base_url.requests import ModelRequest
from osmosis_gateway.rollout_keys import RolloutKeys
from osmosis_grpc.agent import CompletionsResult, RolloutContext
from osmosis_grpc.errors import CallError, NotFound, RolloutEndedError
from osmosis_grpc.supervise import OnFailure, child, job

ASK = job("gateway.ask_chat", OnFailure.RAISE)

POLICY = "policy"
"""The name of the model. `policy/NAME` is the trainer's policy NAME."""
GONE_INTERVAL = 0.25
"""Whether a client has disconnected is checked this often, in seconds."""

Gone = Callable[[], Awaitable[bool]]
"""Returns whether the client has disconnected."""


class Endpoint:
    """The base URL of one rollout. Its requests are chats of the rollout."""

    def __init__(self, context: RolloutContext, base_url: str, api_key: str) -> None:
        self.base_url = base_url
        """Ends with the rollout's id. A client of OpenAI adds /chat/completions, a client of Anthropic /v1/messages."""
        self.api_key = api_key
        """Valid until the end of the rollout."""
        self.failure: CallError | None = None
        """The error of the newest chat that ended; None if it got its reply."""
        self.rollout_id = context.request.rollout_id
        self._context = context
        self._conversations = Conversations()
        self._samples: set[str] = set()
        self._asking: set[asyncio.Task[CompletionsResult]] = set()
        self._closed = False

    async def ask(self, request: ModelRequest, *, sample: str = "", gone: Gone) -> CompletionsResult:
        """Return the reply to a request. `sample` names its conversation; without it, the history decides.

        Sampling parameters that the request does not have are the trainer's completion_params. If the client
        disconnects, the chat is cancelled. Raises CallError, ValueError for a history that cannot be sent, and
        RolloutEndedError.
        """
        if self._closed:
            raise RolloutEndedError("the rollout has ended")
        task = child(ASK, self._ask(request, sample))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)
        try:
            while not (await asyncio.wait({task}, timeout=GONE_INTERVAL))[0]:
                if await gone():
                    task.cancel()
        finally:
            task.cancel()
        if task.cancelled():
            raise RolloutEndedError("the rollout has ended, or the client has disconnected")
        return task.result()

    def close(self) -> None:
        """End every open request with RolloutEndedError."""
        self._closed = True
        for task in self._asking:
            task.cancel()

    async def _ask(self, request: ModelRequest, named: str) -> CompletionsResult:
        place = self._conversations.place(request.messages)
        sample = named or place.sample
        if not sample or sample not in self._samples:
            name = sample or (None if self._samples else "main")
            sample = self._context.add_sample(name, policy=_policy(request.model), parent=place.parent)
            self._samples.add(sample)
        try:
            params = {**self._context.request.completion_params, **request.params}
            result = await self._context.chat(place.messages, sample=sample, tools=request.tools, **params)
        except BaseException as error:
            self._conversations.failed(place, sample)
            self.failure = error if isinstance(error, CallError) else self.failure
            raise
        self.failure = None
        self._conversations.answered(place, sample, result.chat_number, result.message)
        return result


class Endpoints:
    """The endpoints of a server, by rollout. `address` returns the URL before the paths, for example http://HOST:PORT."""

    def __init__(self, address: Callable[[], str]) -> None:
        self._address = address
        self._keys = RolloutKeys()
        self._open: dict[str, Endpoint] = {}
        """The endpoints by key."""

    @contextmanager
    def open(self, context: RolloutContext) -> Iterator[Endpoint]:
        """Yield the endpoint of a running rollout. At the end of the block its key becomes invalid."""
        key = self._keys.make()
        path = f"/v1/rollouts/{quote(context.request.rollout_id, safe='')}"
        endpoint = Endpoint(context, self._address() + path, key)
        self._open[key] = endpoint
        try:
            yield endpoint
        finally:
            del self._open[key]
            endpoint.close()

    def find(self, rollout_id: str, key: str) -> Endpoint:
        """Return the endpoint of a key. Raises Unauthenticated, RolloutEndedError, and NotFound for another id."""
        self._keys.check(key)
        endpoint = self._open.get(key)
        if endpoint is None:
            raise RolloutEndedError(f"rollout {rollout_id} has ended")
        if rollout_id != endpoint.rollout_id:
            raise NotFound("the key belongs to another rollout", kind="rollout", name=rollout_id)
        return endpoint


def _policy(model: str) -> str:
    """Return the name of the trainer's policy that a model's name asks for; empty for the only policy."""
    return model.partition("/")[2] if model.startswith(f"{POLICY}/") else ""
