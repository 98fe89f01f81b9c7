"""Samples and segments: the data for training."""

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
    """A part of a sample in which each prompt begins with all tokens before it. assembly.Assembler makes it."""

    ids: Ids
    """uint32, shape (n,): prompts and replies in order."""
    logprobs: Logprobs
    """float32, one for each token with mask 1."""
    mask_runs: tuple[int, ...]
    """Run lengths of the loss mask: zeros and ones alternate, zeros first."""
    versions: tuple[VersionSpan, ...] = ()
    """Policy versions of the tokens with mask 1; empty if they are unknown."""
    chats: tuple[int, ...] = ()
    """The numbers of the chats whose replies are in it."""
    drift_index: int | None = None
    """The index at which a prompt differs from the chat it continues, if the segment began because of that."""

    @property
    def referred(self) -> bool:
        """Whether its tokens were left out, because the receiver answered `chats` itself."""
        return not len(self.ids) and any(self.mask_runs)

    @property
    def sampled(self) -> int:
        """How many tokens have mask 1."""
        return sum(self.mask_runs[1::2])

    def mask(self) -> NDArray[np.bool_]:
        """Returns the loss mask, bool, shape (n,): `ids[mask]` are the tokens that the policy sampled."""
        values = np.arange(len(self.mask_runs)) % 2 == 1
        return np.repeat(values, self.mask_runs)

    def aligned_logprobs(self) -> Logprobs:
        """Returns the logprobs aligned with `ids`, float32, shape (n,): 0.0 where the mask is 0.

        It is 0.0 and not NaN, because a loss multiplies by the mask, and NaN times 0 is NaN. Raises
        InvalidArgument for a segment whose tokens were left out.
        """
        if self.referred:
            numbers = ", ".join(map(str, self.chats))
            raise InvalidArgument("segment", f"its tokens were left out; they are those of its chats {numbers}")
        aligned = np.zeros(len(self.ids), dtype=np.float32)
        aligned[self.mask()] = self.logprobs
        return aligned

    def check(self, field_path: str) -> None:
        """Raises InvalidArgument for a segment whose parts do not agree."""
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
    """uint32, shape (p,): the whole prompt; None if the sampler did not return it."""
    tokens: TokenBlock | None
    """The tokens of the reply; None if the sampler did not return them."""


@fast_init
@dataclass(frozen=True, slots=True)
class ChatRef:
    """The answered chat that a conversation begins with."""

    sample: str
    number: int
    prefix_len: int = 0
    """How many leading messages that chat covers, its reply included; 0 if they were left out."""


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One conversation of a rollout."""

    messages: Sequence[Message] = ()
    """The conversation as the agent left it."""
    begins: ChatRef | None = None
    """The answered chat that `messages` begin with; None if they begin with none."""
    segments: tuple[Segment, ...] = ()
    """Its tokens, also of a rollout that failed; empty if it is not trainable. To train, use
    Completion.trainable_samples()."""
    reward: float | None = None
    trainable: bool = False
    """Whether its tokens are exact. It does not depend on how the rollout ended."""
    not_trainable_reason: str = ""
    chats: tuple[SampledChat, ...] = ()
    """Every chat's tokens, if the trainer assembled the sample from its own chats."""
