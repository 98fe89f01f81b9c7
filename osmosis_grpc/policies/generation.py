"""TokenGenerator: the port to a model that takes token ids and returns token ids.

TokenPolicy calls it. Its implementations are in osmosis_grpc.policies.transformers and in osmosis_grpc.integrations.
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
    """The model sampled a token that ends its turn, or the text has a stop text."""
    LENGTH = "length"
    """`max_tokens` or the context of the model is used up."""
    ABORTED = "aborted"
    """The server stopped early, for example because new weights came. It is never the end of a reply."""


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GenerateRequest(ArrayEquality):
    """One call of a generator."""

    request_id: str
    """Names this call only. abort() takes it."""
    session_id: str
    """ROLLOUT/SAMPLE: equal in all calls of a sample, so that a router finds the replica that caches their prefix."""
    prompt_ids: Ids
    """uint32, shape (p,): the whole prompt. If an earlier call of the reply was aborted, its tokens are at the end."""
    sampling: Sampling
    priority: int = 0
    """vLLM samples requests with lower values first."""
    media: tuple[Media, ...] = ()
    """The media of the prompt, in the order of their places in it."""
    timeout: float | None = None
    """The result is wanted within this many seconds; None for no limit."""


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Generated(ArrayEquality):
    """The result of one call. With ABORTED, it has the tokens that were sampled until then."""

    token_ids: Ids
    """uint32, shape (n,): the sampled tokens, with the token that ended the turn if it was sampled."""
    logprobs: Logprobs | None
    """float32, shape (n,): the logprobs at the sampling temperature; None if the server returns none."""
    finish_reason: FinishReason
    weight_version: str = ""
    """The version of the weights that sampled the tokens; empty if the server does not say."""
    versions: tuple[VersionSpan, ...] = ()
    """The version of each part of the tokens, if the server says it exactly; then `weight_version` is not read."""
    extras: Extras = field(default_factory=lambda: NOTHING)
    """Further values by name, with one row for each sampled token."""
    prompt_extras: Extras = field(default_factory=lambda: NOTHING)
    """Further values by name, with one row for each token of the prompt."""
    prompt_ids: Ids | None = None
    """uint32, shape (p,): the prompt with the tokens of its media; None if it is `prompt_ids` of the request."""
    cached_tokens: int | None = None
    """The number of prompt tokens that came from the prefix cache; None if the server does not say."""


class TokenGenerator(Protocol):
    """Samples tokens.

    If it is an async context manager, TokenPolicy enters it at its start and exits it at its end.
    """

    async def generate(self, request: GenerateRequest, /) -> Generated:
        """Return the sampled tokens.

        Raises Unavailable, ResourceExhausted or DeadlineExceeded if the same call may succeed later, and any other
        CallError if not. If the call is cancelled, TokenPolicy calls abort().
        """
        ...

    async def abort(self, request_id: str, /) -> None:
        """Stop the sampling of a call, which may have ended. Does nothing for an unknown id."""
        ...


UNNAMED = "default"
"""What vLLM and SGLang call weights that nobody has named."""
RENAME_RETRY = 5.0
"""While the weights have lost their name, a chat is asked again after this many seconds."""


class WeightNames:
    """Reads the names of one server's weights. `server` is its address."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._last = ""
        self._first: str | None = None
        """The first name that was read. None before it, and empty once a name was lost."""

    def read(self, name: str) -> str:
        """Return the name of the weights; empty if nobody has named them.

        Raises Unavailable if they had a name before: the server was restarted and has loaded the weights from its disk.
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
        """Return the versions of the parts of a reply, of which the server gave the names and the numbers of tokens.

        A part without a name is fine if the weights got their first name while the reply was sampled. Before any other
        name it was sampled with the weights of a restarted server's disk. Raises what read() raises.
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
