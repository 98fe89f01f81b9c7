"""TokenGenerator: the interface through which TokenPolicy asks a model that takes and returns token ids.

osmosis_grpc.policies.transformers and osmosis_grpc.integrations implement it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Protocol

from osmosis_grpc.policies.media import Media
from osmosis_grpc.policies.sampling import Sampling
from osmosis_grpc.protocol.errors import Unavailable
from osmosis_grpc.protocol.types import Extras, Ids, VersionSpan
from osmosis_grpc.protocol.types.fast_init import fast_init
from osmosis_grpc.protocol.types.jsontext import NOTHING
from osmosis_grpc.protocol.types.tensors import ArrayEquality
from osmosis_grpc.protocol.types.tokens import Logprobs


class FinishReason(StrEnum):
    """Why the sampling ended."""

    STOP = "stop"
    """The model sampled a token that ends its turn, or a stop text."""
    LENGTH = "length"
    """The limit `max_tokens` or the model's context length was reached."""
    ABORTED = "aborted"
    """The server stopped early, for example for new weights. The reply is not finished."""


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GenerateRequest(ArrayEquality):
    """One call of a generator."""

    request_id: str
    """The unique id of this call, for abort()."""
    session_id: str
    """ROLLOUT/SAMPLE, by which a router picks the replica that caches the prefix of a sample's calls."""
    prompt_ids: Ids
    """uint32, shape (p,): the whole prompt. In a call after an aborted one, it ends with the tokens sampled so far."""
    sampling: Sampling
    priority: int = 0
    """vLLM samples requests with lower values first."""
    media: tuple[Media, ...] = ()
    """The media of the prompt, in the order in which they occur."""
    timeout: float | None = None
    """How many seconds the call may take; None for no limit."""


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Generated(ArrayEquality):
    """The result of one call. With ABORTED, it has the tokens that were sampled before the server stopped."""

    token_ids: Ids
    """uint32, shape (n,): the sampled tokens, including the one that ended the turn, if any."""
    logprobs: Logprobs | None
    """float32, shape (n,): the logprobs at the sampling temperature; None if the server returns none."""
    finish_reason: FinishReason
    weight_version: str = ""
    """The version of the weights that sampled the tokens; empty if the server does not say."""
    versions: tuple[VersionSpan, ...] = ()
    """The version of each part of the tokens, if the server reports it. Then `weight_version` is ignored."""
    extras: Extras = field(default_factory=lambda: NOTHING)
    """Further values by name, with one row for each sampled token."""
    prompt_extras: Extras = field(default_factory=lambda: NOTHING)
    """Further values by name, with one row for each token of the prompt."""
    prompt_ids: Ids | None = None
    """uint32, shape (p,): the prompt with the tokens of its media; None if the request's prompt_ids are unchanged."""
    cached_tokens: int | None = None
    """The number of prompt tokens that came from the prefix cache; None if the server does not say."""


class TokenGenerator(Protocol):
    """Samples tokens.

    If the generator is an async context manager, TokenPolicy enters it when the policy starts and exits it at the end.
    """

    async def generate(self, request: GenerateRequest, /) -> Generated:
        """Return the sampled tokens.

        Raise Unavailable, ResourceExhausted or DeadlineExceeded if the same call may succeed later, and any other
        CallError if not. If the call is cancelled, TokenPolicy calls abort().
        """
        ...

    async def abort(self, request_id: str, /) -> None:
        """Stop the sampling of a call. Do nothing if it has ended or the id is unknown."""
        ...


UNNAMED = "default"
"""The name that vLLM and SGLang report for weights without one."""
RENAME_RETRY = 5.0
"""A chat is retried after this many seconds if the weights have lost their name."""


class WeightNames:
    """Reads the names of one server's weights, and notices when they are lost. `server` is the server's address."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._last = ""
        self._first: str | None = None
        """The first name that was read; None if none was read yet, and empty once a name was lost."""

    def read(self, name: str) -> str:
        """Return the name of the weights, or an empty string if they have never had one.

        Raises Unavailable if they have lost their name, because a restarted server loads weights from its disk.
        """
        if name and name != UNNAMED:
            self._last = name
            if self._first is None:
                self._first = name
            return name
        if self._last and name:
            raise self._lost()
        return ""

    def spans(self, named: Sequence[tuple[str, int]]) -> tuple[VersionSpan, ...]:
        """Return the versions of the parts of a reply, from the name and the number of tokens of each part.

        An unnamed part may come before a part with the first name of the weights. An unnamed part before any other name
        means that a restarted server sampled it with the weights from its disk. This raises Unavailable, as in read().
        """
        for (name, _), (later, _) in pairwise(named):
            if name == UNNAMED and self._last and later != self._first:
                raise self._lost()
        if named:
            self.read(named[-1][0])
        return tuple(VersionSpan("" if name == UNNAMED else name, tokens) for name, tokens in named if tokens)

    def _lost(self) -> Unavailable:
        self._first = ""
        return Unavailable(
            f"the weights of the model server {self._server} were named {self._last!r} and have lost their name: "
            "it was restarted and has loaded the weights from its disk. Load the current weights and name them",
            retry_after=RENAME_RETRY,
        )
