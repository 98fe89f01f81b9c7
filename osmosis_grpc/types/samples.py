"""Samples and segments: what a trainer trains on."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from osmosis_grpc.errors import InvalidArgument
from osmosis_grpc.types.fast_init import fast_init
from osmosis_grpc.types.messages import Message
from osmosis_grpc.types.tokens import ArrayEquality, Ids, Logprobs, TokenBlock, VersionSpan, check_logprobs


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Segment(ArrayEquality):
    """A stretch of a sample whose tokens only grow. Made by assembly.Assembler."""

    ids: Ids
    """uint32, shape (n,): prompts and replies in order."""
    logprobs: Logprobs
    """float32, shape (number of ones in the mask,)."""
    mask_runs: tuple[int, ...]
    """Run lengths of the loss mask: zeros first, then ones, in turn."""
    versions: tuple[VersionSpan, ...] = ()
    """Policy versions of the tokens under mask 1; empty when none was told."""
    chats: tuple[int, ...] = ()
    """The chats whose replies are in it."""
    drift_index: int | None = None
    """Where a prompt parted from the tokens of the chat it continues, if that is why this began."""

    @property
    def referred(self) -> bool:
        """Whether its tokens were left out, because their receiver answered `chats` itself."""
        return not len(self.ids) and any(self.mask_runs)

    @property
    def sampled(self) -> int:
        """How many tokens are under mask 1."""
        return sum(self.mask_runs[1::2])

    def mask(self) -> NDArray[np.bool_]:
        """The loss mask, bool, shape (n,): `ids[mask]` are the tokens that the policy sampled."""
        values = np.arange(len(self.mask_runs)) % 2 == 1
        return np.repeat(values, self.mask_runs)

    def aligned_logprobs(self) -> Logprobs:
        """Returns the logprobs beside `ids`, float32, shape (n,): 0.0 where the mask is 0.

        0.0 and not NaN, because a loss multiplies by the mask, and NaN times 0 is NaN. Raises
        InvalidArgument for a segment whose tokens were left out.
        """
        if self.referred:
            numbers = ", ".join(map(str, self.chats))
            raise InvalidArgument("segment", f"its tokens were left out; they are those of its chats {numbers}")
        aligned = np.zeros(len(self.ids), dtype=np.float32)
        aligned[self.mask()] = self.logprobs
        return aligned

    def check(self, field_path: str) -> None:
        """Refuse a segment whose parts do not agree. Raises InvalidArgument."""
        if self.referred and not len(self.logprobs) and self.chats:
            return
        if sum(self.mask_runs) != len(self.ids):
            raise InvalidArgument(f"{field_path}.mask_runs", f"cover {sum(self.mask_runs)} of {len(self.ids)} ids")
        check_logprobs(self.logprobs, self.sampled, "sampled ids", field_path)
        if self.versions and sum(span.tokens for span in self.versions) != self.sampled:
            raise InvalidArgument(f"{field_path}.versions", f"do not add up to {self.sampled} sampled ids")


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampledChat(ArrayEquality):
    """The tokens of one chat, as the trainer's library keeps them."""

    number: int
    continues: int
    """The chat it continues; 0 for none."""
    prompt_ids: Ids | None
    """uint32, shape (p,): the whole prompt; None when the sampler did not tell it."""
    tokens: TokenBlock | None
    """The reply; None when the sampler did not tell it."""


@fast_init
@dataclass(frozen=True, slots=True)
class ChatRef:
    """The answered chat that a conversation begins with."""

    sample: str
    number: int
    prefix_len: int = 0
    """How many leading messages are that chat's, its reply included; 0 where they were left out."""


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One conversation of a rollout."""

    messages: Sequence[Message] = ()
    """The conversation as the agent left it."""
    begins: ChatRef | None = None
    """The answered chat that `messages` begin with, where they do."""
    segments: tuple[Segment, ...] = ()
    """Its tokens, also those of a rollout that failed; empty when not trainable. To train, use
    Completion.trainable_samples()."""
    reward: float | None = None
    trainable: bool = False
    """Whether its tokens are exact. It says nothing about how the rollout ended."""
    not_trainable_reason: str = ""
    chats: tuple[SampledChat, ...] = ()
    """Every chat's tokens, where the samples were assembled from the trainer's own chats."""
