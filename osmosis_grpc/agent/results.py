"""What an agent loop gets from a chat, and what it returns in the end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

from osmosis_grpc.types import Ids, Logprobs, Message, RolloutMetrics
from osmosis_grpc.types.fast_init import fast_init


@fast_init
@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionsResult:
    """One model reply, as ctx.chat returns it."""

    message: Message
    """The reply in OpenAI's format; append it to the history as it is."""
    token_ids: Ids | None = None
    """uint32, shape (n,): the sampled tokens; None when the trainer did not tell them."""
    logprobs: Logprobs | None = None
    """float32, shape (n,): one per token, NaN where missing; None when none is known."""
    usage: dict[str, Any] = field(default_factory=dict)
    """prompt_tokens, completion_tokens, total_tokens; empty when the trainer did not tell them."""
    finish_reason: str | None = None
    """Why sampling stopped: stop, length, tool_calls."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Whatever else the sampler said."""

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        """The tool calls that the reply asks for; empty for none."""
        return self.message.get("tool_calls") or []

    @property
    def has_tool_calls(self) -> bool:
        """Whether the reply asks for tools."""
        return bool(self.message.get("tool_calls"))

    @property
    def content(self) -> Any:
        """The reply's content: usually text, perhaps None."""
        return self.message.get("content")

    if not TYPE_CHECKING:  # a type checker knows which attributes there are

        def __getattr__(self, name: str) -> NoReturn:
            """Raises an AttributeError that names what is meant, for the names of other libraries."""
            raise AttributeError(_missing(name), name=name, obj=self)

        def __getitem__(self, key: object) -> NoReturn:
            """Raises a TypeError that names what is meant."""
            raise TypeError(f"a chat's result is no dict and no list; {_meant(str(key))}")


_ELSEWHERE = {
    "choices": "use result.message: a result has one reply",
    "output": "use result.message",
    "completion": "use result.message",
    "delta": "use result.message: replies are not streamed",
    "output_text": "use result.content",
    "text": "use result.content",
    "role": 'use result.message["role"]',
    "function_call": "use result.tool_calls",
    "stop_reason": "use result.finish_reason",
    "get": "use result.message, which is a dict",
    "model_dump": "use result.message, which is a dict",
    "to_dict": "use result.message, which is a dict",
    "dict": "use result.message, which is a dict",
}
"""What to use instead, by the name that another client library has for it."""


def _missing(name: str) -> str:
    return f"a chat's result has no attribute {name!r}" + (f"; {_ELSEWHERE[name]}" if name in _ELSEWHERE else "")


def _meant(name: str) -> str:
    return _ELSEWHERE.get(name, "use result.message, result.content or result.tool_calls")


@dataclass(slots=True, kw_only=True)
class RolloutResult:
    """What run returns. Made by ctx.complete and ctx.error."""

    status: str
    """"COMPLETED" or "ERROR"."""
    final_messages: Sequence[Message] = ()
    finish_reason: str | None = None
    error_message: str | None = None
    reward: float | None = None
    """None is not zero: it means that somebody else computes the reward."""
    metrics: RolloutMetrics | None = None
    """Not needed: the server keeps its own."""
    extra_fields: Mapping[str, Any] | None = None
    """Whatever else is to reach the trainer."""
