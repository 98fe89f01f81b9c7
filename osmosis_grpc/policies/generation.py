"""TokenGenerator: the interface of TokenPolicy to a model that takes and returns token ids.

Its implementations are in osmosis_grpc.policies.transformers and in osmosis_grpc.integrations.
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
    """`max_tokens` or the context of the model is used up."""
    ABORTED = "aborted"
    """The server stopped early, for example for new weights. The reply is not finished."""


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GenerateRequest(ArrayEquality):
    """One call of a generator."""

    request_id: str
    """A unique name of this call, for abort()."""
    session_id: str
    """ROLLOUT/SAMPLE, the same in all calls of a sample, so a router can find the replica that caches their prefix."""
    prompt_ids: Ids
    """uint32, shape (p,): the whole prompt. After an aborted call, it ends with the tokens sampled until then."""
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
    """The result of one call. After ABORTED, it has the tokens that were sampled until then."""

    token_ids: Ids
    """uint32, shape (n,): the sampled tokens, including the one that ended the turn, if any."""
    logprobs: Logprobs | None
    """float32, shape (n,): the logprobs at the sampling temperature; None if the server returns none."""
    finish_reason: FinishReason
    weight_version: str = ""
    """The version of the weights that sampled the tokens; empty if the server does not say."""
    versions: tuple[VersionSpan, ...] = ()
    """The version of each part of the tokens, if the server reports it. Replaces `weight_version`."""
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
"""After how many seconds a chat is asked again when the weights have lost their name."""


class WeightNames:
    """Reads the names of one server's weights, and notices when they lose their name. `server` is its address."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._last = ""
        self._first: str | None = None
        """The first name that was read: None until then, and empty once a name was lost."""

    def read(self, name: str) -> str:
        """Return the name of the weights, or an empty string if they have never had one.

        Raises Unavailable if they had one: the server was restarted, and has loaded the weights from its disk.
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

        A part without a name is accepted before the weights' first name. Before any other name, a restarted server has
        sampled it with the weights of its disk, so this raises Unavailable, as read() does.
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
