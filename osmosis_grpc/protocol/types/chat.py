"""A chat: the request for one model reply, and the reply.

The ids of tool calls distinguish equal conversations of one rollout, for example of two sub-agents. If a call has no
id, the trainer and the agent server make the same one, so that both have the same history.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from hashlib import blake2b
from operator import is_
from typing import Any

from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types.extras import Extras, check_extras
from osmosis_grpc.protocol.types.fast_init import fast_init
from osmosis_grpc.protocol.types.jsontext import NOTHING
from osmosis_grpc.protocol.types.messages import Message
from osmosis_grpc.protocol.types.tensors import ArrayEquality
from osmosis_grpc.protocol.types.tokens import Ids, TokenBlock, VersionSpan


class ChatPurpose(StrEnum):
    """The purpose of a reply."""

    POLICY = "policy"
    """A reply of the policy in training."""
    JUDGE = "judge"
    """A reply for a grader. It is never trained on."""


class AbandonReason(StrEnum):
    """Why open chats are abandoned."""

    CANCELLED = "CANCELLED"
    """The rollout was cancelled."""
    SUPERSEDED = "SUPERSEDED"
    """A higher attempt of the rollout has replaced the attempt."""
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    """A time limit of the rollout ended."""
    ENDED = "ENDED"
    """The rollout ended in another way, or its agent no longer waits for the reply."""


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChatRequest(ArrayEquality):
    """The request for one reply. It is the argument of a policy, and a policy must not change it.

    `messages` is the whole history, and `tools` are the tools to offer. Both are in OpenAI's format. `params` are the
    sampling parameters, under OpenAI's names. `rollout_id`, `attempt`, `sample` and `chat_number` name the chat.
    `parent_chat` is the number of an earlier chat. The first `prefix_len` messages are the messages of the earlier chat
    and its reply. `known_ids` are the tokens of the earlier chat.
    """

    rollout_id: str
    attempt: int = 1
    sample: str = "main"
    chat_number: int = 1
    """The number of the chat, from 1 within the sample."""
    messages: Sequence[Message]
    params: Mapping[str, Any] = field(default_factory=dict)
    tools: Sequence[Mapping[str, Any]] | None = None
    """The tools to offer; None for the tools of the rollout."""
    tools_overridden: bool = True
    """Whether this chat has its own tools, which differ from the rollout's tools."""
    purpose: ChatPurpose = ChatPurpose.POLICY
    policy: str = ""
    """The name of the policy to sample from; empty for the trainer's only policy."""
    parent_chat: int = 0
    """The number of the answered chat that the history continues; 0 for none."""
    prefix_len: int = 0
    """The number of leading messages that come from the chat `parent_chat`, its reply included. The others are new.

    If it is 0 and `parent_chat` is not 0, the sender left out the old messages, and `messages` has only the new ones.
    If `parent_chat` is 0, these messages come from a recorded chat of the rollout that this rollout forks from.
    """
    known_ids: Ids | None = None
    """uint32, shape (k,): the tokens of the chat that the history continues, prompt and reply; None if they are
    unknown."""
    known_reply: int = 0
    """How many of the last ids of `known_ids` are the earlier chat's reply; 0 if this is unknown."""
    state: bytes = b""
    """The `state` of the rollout's callback."""
    credential: str = field(default="", repr=False)
    """The bearer token of the network call that sent the chat. The repr does not show it."""
    timeout: float | None = None
    """The caller waits this many seconds for the reply; None for no limit."""
    version: str = ""
    """The policy version that was passed to resume(); empty if there was none."""
    wire: bytes = field(default=b"", repr=False, compare=False)
    """The serialized chat, if the receiver keeps it; otherwise empty."""


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChatResponse(ArrayEquality):
    """One reply. It is the result of a policy.

    `message` is an assistant message in OpenAI's format. A sample is trainable only if every reply has `tokens` and
    `prompt_ids`. TokenBlock.of(ids, logprobs) makes `tokens`. `prompt_ids` are the ids of the whole prompt, as uint32.
    The agent gets `finish_reason`, `usage`, `versions` and `extra`. They are stored with the reply.
    """

    message: Message
    finish_reason: str = "stop"
    usage: Mapping[str, Any] | None = None
    """Token counts under OpenAI's names."""
    tokens: TokenBlock | None = None
    """The sampled tokens; None if the sampler does not return them."""
    prompt_ids: Ids | None = None
    """uint32, shape (p,): the prompt without its first `prompt_prefix` ids; None if the sampler does not return it."""
    prompt_prefix: int = 0
    """The number of leading ids that `prompt_ids` leaves out. They are the first tokens of the chat `parent_chat`."""
    prompt_extras: Extras = field(default_factory=lambda: NOTHING)
    """Further values of the prompt by name, with one row for each id of `prompt_ids`. TokenBlock.extras is for the
    sampled tokens."""
    versions: tuple[VersionSpan, ...] = ()
    """The policy versions that sampled the tokens, in order. A single span counts for all tokens."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    size: int = 0
    """The size of the reply on the wire, in bytes; 0 if the reply did not come over the network."""
    wire: bytes = field(default=b"", repr=False, compare=False)
    """The serialized reply, if the receiver keeps it; otherwise empty."""

    def check(self, *, arrays: bool = True) -> None:
        """Raise InvalidArgument if parts of the reply contradict each other. Checks the arrays only if `arrays`."""
        if not isinstance(self.message, dict):
            raise InvalidArgument("message", f"is a {type(self.message).__name__}, not a dict with a role")
        if self.tokens is not None and not isinstance(self.tokens, TokenBlock):
            raise InvalidArgument("tokens", f"is a {type(self.tokens).__name__}; use TokenBlock.of(ids, logprobs)")
        if self.prompt_ids is not None and getattr(self.prompt_ids, "dtype", None) != "uint32":
            raise InvalidArgument("prompt_ids", "is not an array of uint32; use TokenBlock.of(ids).ids")
        if self.prompt_extras and arrays:
            if self.prompt_ids is None:
                raise InvalidArgument("prompt_extras", "is set without prompt_ids")
            check_extras(self.prompt_extras, len(self.prompt_ids), "prompt_extras")
        if self.message.get("role") != "assistant":
            raise InvalidArgument("message.role", f"a reply's role is assistant, not {self.message.get('role')!r}")
        if self.tokens is not None:
            if arrays:
                self.tokens.check("tokens")
            if len(self.versions) > 1 and sum(v.tokens for v in self.versions) != len(self.tokens.ids):
                raise InvalidArgument("versions", f"do not add up to {len(self.tokens.ids)} sampled ids")


def call_prefix(request: ChatRequest) -> str:
    """Return the prefix of the ids of the calls in a reply. `_INDEX` follows, with an index from 0."""
    name = f"{request.rollout_id}\0{request.sample}\0{request.chat_number}"
    return f"call_{blake2b(name.encode(), digest_size=12).hexdigest()}"


def with_call_ids(response: ChatResponse, request: ChatRequest) -> ChatResponse:
    """Return a reply in which each tool call has an id that no other call of the reply has."""
    message: object = response.message  # a policy may return anything
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    if not isinstance(calls, list) or not calls:
        return response
    made, seen = [], set()
    for index, call in enumerate(calls):
        if isinstance(call, dict):
            given = call.get("id")
            if not isinstance(given, str) or not given or given in seen:
                call = {**call, "id": f"{call_prefix(request)}_{index}"}
            seen.add(call["id"])
        made.append(call)
    if all(map(is_, made, calls)):
        return response
    return replace(response, message={**response.message, "tool_calls": made}, wire=b"")
