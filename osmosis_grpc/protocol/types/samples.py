"""Samples and segments: the data for training. Also the limits that cut replies and rollouts, see Sample.cut."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Literal, get_args

from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types.extras import Extra, Extras, check_extras, rows, spread
from osmosis_grpc.protocol.types.fast_init import fast_init
from osmosis_grpc.protocol.types.jsontext import NOTHING
from osmosis_grpc.protocol.types.messages import Message
from osmosis_grpc.protocol.types.tensors import ArrayEquality, BoolArray, np
from osmosis_grpc.protocol.types.tokens import Ids, Logprobs, TokenBlock, VersionSpan, check_logprobs

Cut = Literal["train", "mask", "skip"]
"""What to do with a sample that a limit has cut: train on it, mask all its tokens, or leave it out."""
Dropped = Literal["train", "skip"]
"""What to do with replies that the agent dropped: train on them, or leave their segments out."""

NATURAL = frozenset({"", "stop", "tool_calls", "function_call"})
"""The finish reasons of replies that ended by themselves."""
ABORTED = frozenset({"abort", "aborted"})
"""The finish reasons of replies on which the engine gave up, for example to load new weights."""
CUTS = {
    "length": "length",
    "max_tokens": "length",
    "model_context_window_exceeded": "context",
    **dict.fromkeys(ABORTED, "abort"),
}
"""The finish reasons of replies that were cut, with the limit that cut them."""
UNREAD_CALLS = "unread_tool_calls"
"""The key of a reply's `extra` with what is wrong with each tool call that could not be read."""
TOOL_CHOICE_UNMET = "tool_choice_unmet"
"""The key of a reply's `extra` that is true if the chat requires a tool call that the reply lacks."""
SYSTEM_FOLDED = "system_messages_folded"
"""The key of a reply's `extra` that is true if late system messages became parts of the user's messages."""
ROLLOUT_CUTS = {
    "length": "length",
    "max_turns": "max_turns",
    "max_steps": "max_turns",
    "max_tokens": "max_tokens",
    "token_budget": "max_tokens",
    "timeout": "time",
}
"""The finish reasons of rollouts that a limit has cut, and the limits."""


_CUT, _DROPPED = get_args(Cut), get_args(Dropped)


def check_choices(cut: Cut, dropped: Dropped) -> None:
    """Raise InvalidArgument for a value that is not one of the choices."""
    for name, value, known in (("cut", cut, _CUT), ("dropped", dropped, _DROPPED)):
        if value not in known:
            raise InvalidArgument(name, f"{value!r} is not one of {', '.join(known)}")


class SplitReason(StrEnum):
    """Why a chat began a segment instead of extending one."""

    HISTORY_CHANGED = "history_changed"
    """Its history continues no earlier chat: the agent has changed or left out earlier messages."""
    BRANCH = "branch"
    """Its history continues a chat that another chat continues already."""
    TOKENS_DIFFER = "tokens_differ"
    """Its prompt does not repeat the tokens of the chat that it continues; `drift_index` has the position."""
    RECORDED = "recorded"
    """It continues a recorded chat of the rollout from which this rollout forks."""
    JUDGE = "judge"
    """It continues a chat of a judge."""
    NO_TOKENS = "no_tokens"
    """The tokens of the chat that it continues are not known."""


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Segment(ArrayEquality):
    """A part of a sample. Each prompt in it begins with all tokens of the prompts and replies before it.

    segment_builder.SegmentBuilder makes segments.
    """

    ids: Ids
    """uint32, shape (n,): prompts and replies in order."""
    logprobs: Logprobs
    """float32, one logprob for each token with mask 1."""
    mask_runs: tuple[int, ...]
    """The loss mask as run lengths. Runs of zeros and runs of ones alternate; the first run is zeros."""
    versions: tuple[VersionSpan, ...] = ()
    """Policy versions of the tokens with mask 1; empty if they are unknown."""
    chats: tuple[int, ...] = ()
    """The numbers of the chats whose replies are in the segment."""
    drift_index: int | None = None
    """The index at which the first prompt differs from the tokens of the earlier chat. None if it does not differ."""
    split: SplitReason | None = None
    """Why the segment began; None for the first segment of the sample."""
    sampled_extras: Extras = field(default_factory=lambda: NOTHING)
    """Extras of the replies by name, with one row for each token with mask 1."""
    token_extras: Extras = field(default_factory=lambda: NOTHING)
    """Extras of the prompts and the replies by name, with one row for each token."""
    incomplete_extras: tuple[str, ...] = ()
    """The names of extras that were left out, sorted. A reply lacks the extra, or has it with another type or shape."""
    dropped: bool = False
    """Whether the agent dropped the replies: it sent the chat again, and the conversation continues with another
    reply."""

    @property
    def referred(self) -> bool:
        """Whether the segment's tokens were left out, because the receiver answered `chats` itself."""
        return not len(self.ids) and any(self.mask_runs)

    @property
    def sampled(self) -> int:
        """The number of tokens with mask 1."""
        return sum(self.mask_runs[1::2])

    def mask(self) -> BoolArray:
        """Return the loss mask, bool, shape (n,). `ids[mask]` are the tokens that the policy sampled."""
        values = np.arange(len(self.mask_runs)) % 2 == 1
        return np.repeat(values, self.mask_runs)

    def aligned_logprobs(self) -> Logprobs:
        """Return the logprobs aligned with `ids`, float32, shape (n,). They are 0.0 where the mask is 0.

        NaN would not work there: a loss multiplies by the mask, and NaN times 0 is NaN. Raises InvalidArgument for a
        segment without its tokens.
        """
        if self.referred:
            numbers = ", ".join(map(str, self.chats))
            raise InvalidArgument("segment", f"its tokens were left out; they are those of its chats {numbers}")
        aligned = np.zeros(len(self.ids), dtype=np.float32)
        aligned[self.mask()] = self.logprobs
        return aligned

    def aligned_extra(self, name: str) -> Extra:
        """Return an extra aligned with `ids`: a tensor or a ragged tensor with n rows.

        An extra of the replies only has zeros, or empty rows, where the mask is 0. Raises InvalidArgument if the
        segment does not have the extra.
        """
        if name in self.token_extras:
            return self.token_extras[name]
        if name in self.sampled_extras:
            return spread(self.sampled_extras[name], self.mask())
        why = "a reply or its prompt lacks it" if name in self.incomplete_extras else "no reply has it"
        raise InvalidArgument(f"extras[{name}]", f"is not in the segment: {why}")

    def masked(self) -> "Segment":
        """Return the segment with mask 0 for all tokens, so that none of it is trained on."""
        return replace(
            self,
            mask_runs=(len(self.ids),),
            logprobs=self.logprobs[:0],
            versions=(),
            sampled_extras=rows(self.sampled_extras, 0, 0),
        )

    @property
    def nbytes(self) -> int:
        """The bytes of all arrays."""
        extras = (*self.sampled_extras.values(), *self.token_extras.values())
        return self.ids.nbytes + self.logprobs.nbytes + sum(extra.nbytes for extra in extras)

    def check(self, field_path: str) -> None:
        """Raise InvalidArgument for a segment whose parts do not agree."""
        if self.referred and not len(self.logprobs) and not self.versions and self.chats:
            if self.sampled_extras or self.token_extras:
                raise InvalidArgument(f"{field_path}.ids", "are empty, so the segment has no extras")
            return
        if sum(self.mask_runs) != len(self.ids):
            raise InvalidArgument(f"{field_path}.mask_runs", f"cover {sum(self.mask_runs)} of {len(self.ids)} ids")
        check_logprobs(self.logprobs, self.sampled, "sampled ids", field_path)
        covered = sum(span.tokens for span in self.versions)
        if self.versions and covered != self.sampled:
            raise InvalidArgument(f"{field_path}.versions", f"cover {covered} of {self.sampled} sampled ids")
        if self.sampled_extras:
            check_extras(self.sampled_extras, self.sampled, f"{field_path}.sampled_extras")
        if self.token_extras:
            check_extras(self.token_extras, len(self.ids), f"{field_path}.token_extras")


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampledChat(ArrayEquality):
    """The tokens of one chat, as the trainer's library keeps them."""

    chat_number: int
    parent_chat: int
    """The earlier chat that this chat continues; 0 for none."""
    prompt_ids: Ids | None
    """uint32, shape (p,): the whole prompt; None if the sampler did not return it."""
    tokens: TokenBlock | None
    """The tokens of the reply; None if the sampler did not return them."""
    params: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    """The sampling parameters of the chat, under OpenAI's names."""


@dataclass(frozen=True, slots=True)
class ChatRef:
    """The name of a chat within a rollout."""

    sample: str
    chat_number: int = 0
    """The number of the chat within the sample; 0 for the beginning of the sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatReward:
    """The reward of one chat."""

    chat_number: int
    reward: float | None = None
    reward_components: Mapping[str, float] = field(default_factory=dict)
    """Named parts of the reward."""


@fast_init
@dataclass(frozen=True, slots=True)
class PrefixChat:
    """An answered chat. A conversation begins with its messages and its reply."""

    sample: str
    chat_number: int
    prefix_len: int = 0
    """The number of leading messages that come from this chat, its reply included; 0 if they were left out."""


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One conversation of a rollout."""

    messages: Sequence[Message] = ()
    """The conversation as the agent left it, with replies as the policy sent them."""
    begins: PrefixChat | None = None
    """The newest answered chat whose messages and reply are the beginning of `messages`; None if there is none."""
    segments: tuple[Segment, ...] = ()
    """The tokens of the sample; empty if the sample is not trainable. A failed rollout can have segments, too, so use
    RolloutOutcome.trainable_samples() for training."""
    reward: float | None = None
    reward_components: Mapping[str, float] = field(default_factory=dict)
    """Named parts of the reward. They explain the reward and need not add up to it."""
    chat_rewards: tuple[ChatReward, ...] = ()
    """The rewards of single chats, in the order of their numbers."""
    trainable: bool = False
    """Whether the tokens are exact. It does not depend on how the rollout ended."""
    not_trainable_reason: str = ""
    policy: str = ""
    """The name of the policy that answers the chats of the sample; empty for the trainer's only policy."""
    parent: ChatRef | None = None
    """The chat from which the agent branched or called this sample; None if there is none."""
    train: bool | None = None
    """Whether the agent's author wants the trainer to train on the sample. None means yes."""
    cut: str = ""
    """What cut the conversation: "length", "context" or "abort" (of its last reply), "max_turns", "max_tokens" (the
    token budget of the rollout) or "time". Empty if nothing did. A newer server may send other values."""
    chats: tuple[SampledChat, ...] = ()
    """The tokens of every chat, if the trainer assembled the sample from its own chats; otherwise empty."""

    @property
    def dropped_chats(self) -> frozenset[int]:
        """The numbers of the chats whose replies the agent dropped, as marked by its server."""
        return frozenset(number for segment in self.segments if segment.dropped for number in segment.chats)
