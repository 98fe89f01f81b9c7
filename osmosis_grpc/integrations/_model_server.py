"""Shared by generators that call a model server over gRPC: the connection, neutral sampling values, the result."""

from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Self, TypeVar
from urllib.parse import quote

import grpc
import numpy as np

from osmosis_grpc.network import grpc_variables  # noqa: F401 - before anything imports grpc
from osmosis_grpc.network.channel_options import client_options
from osmosis_grpc.network.client_calls import Metadata
from osmosis_grpc.network.connection_errors import explained
from osmosis_grpc.network.credentials import Credentials, channel
from osmosis_grpc.policies.generation import FinishReason, Generated, GenerateRequest
from osmosis_grpc.policies.sampling import Sampling
from osmosis_grpc.protocol.errors import (
    CallError,
    DeadlineExceeded,
    Internal,
    PermissionDenied,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
    Unimplemented,
)
from osmosis_grpc.protocol.types import Extras, Ids, Tensor
from osmosis_grpc.protocol.types.tokens import Logprobs
from osmosis_grpc.supervise import ForkGuard

Reply = TypeVar("Reply")

SESSION_KEY = "x-session-id"
NO_CREDENTIALS = Credentials()
MOST_SAID = 500

_TOO_LARGE = "message larger than max"
"""Part of gRPC's error text for a message above the channel's limit."""
_KINDS: Mapping[grpc.StatusCode, type[CallError]] = {
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.INTERNAL: Unavailable,
    grpc.StatusCode.UNKNOWN: Unavailable,
    grpc.StatusCode.CANCELLED: Unavailable,
    grpc.StatusCode.ABORTED: Unavailable,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ResourceExhausted,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDenied,
}
"""The error for each status. Other statuses become Internal, because a retry would fail again."""
_ADVICE: Mapping[grpc.StatusCode, str] = {
    grpc.StatusCode.UNAUTHENTICATED: "; check the token",
    grpc.StatusCode.PERMISSION_DENIED: "; check the token",
    grpc.StatusCode.NOT_FOUND: "; check the name of the model",
    grpc.StatusCode.OUT_OF_RANGE: "; perhaps the message is larger than the server allows",
    grpc.StatusCode.UNIMPLEMENTED: "; this is another service, or an older release",
}


class ModelClient:
    """A client of a model server at HOST:PORT. The last exit of `async with` closes its connection."""

    def __init__(self, target: str, credentials: Credentials) -> None:
        self._server = ModelChannel(target, credentials)
        self._users = 0

    async def __aenter__(self) -> Self:
        self._users += 1
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._users -= 1
        if not self._users:
            await self._server.close()


class ModelChannel:
    """One connection to a model server at HOST:PORT, opened by the first call.

    Raises ValueError for a target that is not HOST:PORT, and for a token that would leave this machine in plain text.
    """

    def __init__(self, target: str, credentials: Credentials) -> None:
        host, colon, port = target.rpartition(":")
        if not host or not colon or not port.isdecimal() or not 0 < int(port) < 65536 or "/" in target:
            raise ValueError(f"target: {target!r} is not HOST:PORT, for example 127.0.0.1:50051")
        credentials.check_target(target)
        self.target = target
        self._credentials = credentials
        self._channel: grpc.aio.Channel | None = None
        self._guard: ForkGuard

    async def close(self) -> None:
        opened, self._channel = self._channel, None
        if opened is not None:
            self._guard.close()
            await opened.close()

    def open(self) -> grpc.aio.Channel:
        """Return the channel. TokenPolicy retries calls, so the channel does not."""
        if self._channel is None:
            self._guard = ForkGuard(f"the channel to {self.target}")
            self._channel = channel(self.target, self._credentials.tls, client_options(grpc__enable_retries=0))
        self._guard.check()
        return self._channel

    def metadata(self, session_id: str = "") -> Metadata:
        """Return the metadata of a call: the bearer token and the session id, if set."""
        session = ((SESSION_KEY, quote(session_id)),) if session_id else ()
        return (*self._credentials.metadata, *session)

    async def answer(self, call: Awaitable[Reply]) -> Reply:
        """Await the reply of a call.

        Raises Unavailable, ResourceExhausted or DeadlineExceeded if a retry may help, and another CallError if not.
        """
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            raise await self.error_of(error) from None

    async def error_of(self, error: grpc.aio.AioRpcError) -> CallError:
        """Return the error for a failed call. Its text contains the server's address, but not the token."""
        code, said = error.code(), (error.details() or "")[:MOST_SAID]
        if self._credentials.token:
            said = said.replace(self._credentials.token, "[token]")
        if code is grpc.StatusCode.UNAVAILABLE:
            return await self._unreachable(said)
        kind = Internal if _TOO_LARGE in said else _KINDS.get(code, Internal)
        return kind(f"the model server {self.target} answered {code.name}: {said}{_ADVICE.get(code, '')}")

    async def _unreachable(self, said: str) -> CallError:
        found = await explained(self.target, self._credentials, Unavailable(said))
        if isinstance(found, Unimplemented):
            return Internal(f"the model server {self.target} answers in HTTP/1 and not in gRPC: name its gRPC port")
        return type(found)(f"the model server {self.target} cannot be reached: {found}")


def neutral(sampling: Sampling, *names: str) -> dict[str, Any]:
    """Return these parameters, with neutral values for those that the chat does not set.

    The services replace an absent number by 0 or by the model's default, either of which would silently change the
    distribution of the tokens.
    """
    ones = ("temperature", "top_p", "repetition_penalty")
    values = {name: getattr(sampling, name) for name in names}
    return {name: float(name in ones) if value is None else value for name, value in values.items()}


def top_k_of(sampling: Sampling, every: int) -> int:
    """Return the `top_k`, or `every` if it excludes no token."""
    return sampling.top_k if sampling.top_k is not None and sampling.top_k > 0 else every


def generated(
    request: GenerateRequest,
    finish_reason: FinishReason | None,
    said: Any,
    *,
    ids: Sequence[int],
    sampled: int,
    prompt_tokens: int,
    logprobs: Sequence[float],
    candidates: Sequence[Sequence[tuple[int, float]]],
    **fields: Any,
) -> Generated:
    """Return the result of a call. Raises Internal for a reply that contradicts the request or itself.

    Args:
        request: The call.
        finish_reason: Why the sampling ended; None if `said` is an unknown reason.
        said: The finish reason that the engine reports.
        ids: The sampled tokens.
        sampled: The number of sampled tokens that the engine reports.
        prompt_tokens: The length of the prompt that the engine reports; 0 if it does not.
        logprobs: The logprobs of `ids`; empty if the engine returned none.
        candidates: The ids and logprobs of the most likely tokens at each place.
        fields: Further fields of the result.
    """
    if finish_reason is None:
        raise Internal(f"the engine's reply has the finish reason {said!r:.80}, which is unknown")
    if prompt_tokens not in (0, len(request.prompt_ids)) and not request.media:
        raise Internal(f"the engine sampled from {prompt_tokens} tokens, and got {len(request.prompt_ids)}")
    if len(ids) < sampled:
        raise Internal(f"the engine's reply has {len(ids)} token ids for {sampled} tokens")
    if len(logprobs) not in (0, len(ids)):
        raise Internal(f"the engine's reply has {len(logprobs)} logprobs for {len(ids)} tokens")
    tokens = np.array(ids, dtype="<u4")
    values = np.array(logprobs, dtype="<f4") if len(logprobs) == len(ids) else None
    return Generated(
        token_ids=tokens,
        logprobs=values,
        finish_reason=finish_reason,
        extras=_top_logprobs(tokens, values, candidates, request.sampling.top_logprobs),
        **fields,
    )


def _top_logprobs(
    ids: Ids, logprobs: Logprobs | None, candidates: Sequence[Sequence[tuple[int, float]]], count: int
) -> Extras:
    """Return the `count` most likely tokens at each place and their logprobs, most likely first; both (n, count).

    The candidates need not include the sampled token. Return {} if the server returned too few.
    """
    if not count or logprobs is None or len(candidates) != len(ids):
        return {}
    rows = []
    for token, logprob, listed in zip(ids.tolist(), logprobs.tolist(), candidates, strict=True):
        row = sorted({token: logprob, **dict(listed)}.items(), key=lambda pair: -pair[1])[:count]
        if len(row) < count:
            return {}
        rows.append(row)
    shape = (len(rows), count)
    values = np.array([[value for _, value in row] for row in rows], dtype="<f4").reshape(shape)
    names = np.array([[name for name, _ in row] for row in rows], dtype="<u4").reshape(shape)
    return {"top_logprobs": Tensor.of(values), "top_logprob_ids": Tensor.of(names)}
