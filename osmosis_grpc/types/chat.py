"""A chat: the request for one model reply, and the reply. In these values a history is always full."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from osmosis_grpc.errors import InvalidArgument
from osmosis_grpc.types.fast_init import fast_init
from osmosis_grpc.types.messages import Message
from osmosis_grpc.types.tokens import ArrayEquality, Ids, TokenBlock, VersionSpan


class ChatPurpose(StrEnum):
    """The purpose of a reply."""

    POLICY = "policy"
    """A reply of the policy in training."""
    JUDGE = "judge"
    """A reply for a grader; it is never trained on."""


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChatRequest(ArrayEquality):
    """Asks for one reply. A policy is called with it.

    `messages` is the whole history and `tools` the tools to offer, both in OpenAI's format;
    `params` are the sampling parameters, under OpenAI's names. `rollout_id`, `attempt`, `sample` and `number` name the
    chat. The first `prefix_len` messages are known from chat `continues`; `known_ids` are that
    chat's tokens, prompt and reply. A policy must not change any of it.
    """

    rollout_id: str
    attempt: int = 1
    sample: str = "main"
    number: int = 1
    """From 1 within the sample."""
    messages: Sequence[Message]
    params: Mapping[str, Any] = field(default_factory=dict)
    tools: Sequence[Mapping[str, Any]] | None = None
    """The tools to offer; None for the tools of the rollout."""
    tools_overridden: bool = True
    """Whether the tools were chosen for this chat and differ from the rollout's."""
    purpose: ChatPurpose = ChatPurpose.POLICY
    continues: int = 0
    """The answered chat that the history continues; 0 for none."""
    prefix_len: int = 0
    """How many leading messages that chat covers, its reply included; the rest is new.

    0 with a `continues`: the sender left them out, and `messages` are only the new ones.
    """
    known_ids: Ids | None = None
    """uint32, shape (k,): the tokens of that chat, prompt and reply; None if they are unknown."""
    state: bytes = b""
    """The state of the rollout's callback."""
    credential: str = field(default="", repr=False)
    """The bearer token that the chat came with over the network. Never shown."""
    timeout: float | None = None
    """Seconds that the caller waits for this attempt; None for no limit."""
    version: str = ""
    """The policy version that the trainer was resumed with; empty if it got none."""


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChatResponse(ArrayEquality):
    """One reply. A policy returns it.

    `message` is an assistant message in OpenAI's format. A sample can be trained on only if
    every reply has `tokens`, from TokenBlock.of(ids, logprobs), and `prompt_ids`, the ids of its
    whole prompt as uint32. The agent gets `finish_reason`, `usage`, `versions` and `extra`, and
    they are stored with the reply.
    """

    message: Message
    finish_reason: str = "stop"
    usage: Mapping[str, Any] | None = None
    """Token counts under OpenAI's names."""
    tokens: TokenBlock | None = None
    """The sampled tokens; None if the sampler does not return them."""
    prompt_ids: Ids | None = None
    """uint32, shape (p,): the prompt from `prompt_prefix` on; None if the sampler does not return it."""
    prompt_prefix: int = 0
    """How many leading ids are left out, because they are those of the chat that this one continues."""
    versions: tuple[VersionSpan, ...] = ()
    """Which policy version sampled which tokens; a single span counts for all."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    size: int = 0
    """Its bytes on the wire; 0 if it did not come over the network."""
    wire: bytes = field(default=b"", repr=False, compare=False)
    """Its serialized form, if the receiver asked to keep it."""

    def check(self, *, arrays: bool = True) -> None:
        """Raises InvalidArgument for a reply whose parts do not agree. `arrays`: check the arrays, too."""
        if not isinstance(self.message, dict):
            raise InvalidArgument("message", f"is a {type(self.message).__name__}, not a dict with a role")
        if self.tokens is not None and not isinstance(self.tokens, TokenBlock):
            raise InvalidArgument("tokens", f"is a {type(self.tokens).__name__}; use TokenBlock.of(ids, logprobs)")
        if self.prompt_ids is not None and getattr(self.prompt_ids, "dtype", None) != "uint32":
            raise InvalidArgument("prompt_ids", "is not an array of uint32; use TokenBlock.of(ids).ids")
        if self.message.get("role") != "assistant":
            raise InvalidArgument("message.role", f"a reply's role is assistant, not {self.message.get('role')!r}")
        if self.tokens is not None:
            if arrays:
                self.tokens.check("tokens")
            if len(self.versions) > 1 and sum(v.tokens for v in self.versions) != len(self.tokens.ids):
                raise InvalidArgument("versions", f"do not add up to {len(self.tokens.ids)} sampled ids")
