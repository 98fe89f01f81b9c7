"""The result of a chat, also in the form of OpenAI's Chat Completions, and the result of a run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from osmosis_grpc.protocol.types import ChatResponse, Message, jsontext
from osmosis_grpc.protocol.types.fast_init import fast_init
from osmosis_grpc.protocol.types.samples import CUTS, UNREAD_CALLS

T = TypeVar("T", int, float)


class TokenList(list[T], Generic[T]):
    """A list of token ids or of logprobs. It is empty if the trainer sent none."""

    __slots__ = ("_array",)

    def __init__(self, values: Any = ()) -> None:
        self._array = values if isinstance(values, np.ndarray) else None
        super().__init__(values if self._array is None else self._array.tolist())

    @property
    def array(self) -> NDArray[Any]:
        """The same values as an array: uint32 for token ids, float32 for logprobs.

        It is the array that the trainer sent, so later changes of this list are not in it.
        """
        if self._array is None:
            self._array = np.asarray(list(self), "<f4" if any(isinstance(x, float) for x in self) else "<u4")
        return self._array


def as_list(values: Any) -> TokenList[Any]:
    """Return values as a TokenList. `values` is an array, a list or None."""
    return values if type(values) is TokenList else TokenList(() if values is None else values)


@fast_init
@dataclass(frozen=True, slots=True)
class CompletionsResult:
    """One model reply, as ctx.chat returns it."""

    message: Message
    """The reply in OpenAI's format; append it to the history as it is."""
    token_ids: TokenList[int] = field(default_factory=TokenList)
    """The sampled tokens; empty if the trainer did not send them. `token_ids.array` is an array of uint32."""
    logprobs: TokenList[float] = field(default_factory=TokenList)
    """One logprob per token, NaN for an unknown logprob; empty if all are unknown. `logprobs.array` is float32."""
    usage: dict[str, Any] = field(default_factory=dict)
    """prompt_tokens, completion_tokens, total_tokens; empty if the trainer did not send them."""
    finish_reason: str | None = None
    """Why sampling stopped, such as stop, length or tool_calls."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the sampler's reply."""
    chat_number: int = 0
    """The number of the chat within its sample, for ctx.set_reward(chat=...) and ctx.add_sample(parent=...)."""
    sample: str = ""
    """The sample of the chat."""

    @classmethod
    def of(cls, response: ChatResponse, sample: str, chat_number: int) -> "CompletionsResult":
        """Return the result of a chat. Its message belongs to the agent.

        Args:
            response: The trainer's reply.
            sample: The sample of the chat.
            chat_number: Its number within the sample.
        """
        tokens: Any = response.tokens
        return cls(
            message=jsontext.copy(response.message, "message"),
            token_ids=tokens and tokens.ids,
            logprobs=tokens and tokens.logprobs,
            usage=dict(response.usage or {}),
            finish_reason=response.finish_reason or None,
            extra=response.extra,
            chat_number=chat_number,
            sample=sample,
        )

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        """The tool calls of the reply; empty for none."""
        return self.message.get("tool_calls") or []

    @property
    def has_tool_calls(self) -> bool:
        """Whether the reply has tool calls."""
        return bool(self.message.get("tool_calls"))

    @property
    def unread_calls(self) -> list[str]:
        """What is wrong with each tool call that a token policy could not read, such as `unclosed_block`."""
        return self.extra.get(UNREAD_CALLS) or []

    @property
    def content(self) -> Any:
        """The reply's content, usually text; it may be None."""
        return self.message.get("content")

    if not TYPE_CHECKING:  # without these methods a type checker reports unknown attributes

        def __getattr__(self, name: str) -> NoReturn:
            """Raise an AttributeError. For an attribute of another library, the text has our name for it."""
            use = f"; {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
            raise AttributeError(f"a chat's result has no attribute {name!r}{use}", name=name, obj=self)

        def __getitem__(self, key: object) -> NoReturn:
            usual = "use result.message, result.content or result.tool_calls"
            raise TypeError(f"a chat's result is neither a dict nor a list; {_ELSEWHERE.get(str(key), usual)}")


_ELSEWHERE = {
    "choices": "use result.message: a result has one reply",
    "output": "use result.message",
    "outcome": "use result.message",
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
"""Attributes of other client libraries, with the names to use here."""


def _listed(name: str) -> property:
    """Return the property of a field whose slot has an array, a list or None. The first read makes the list."""
    slot = CompletionsResult.__dict__[name]

    def read(result: CompletionsResult) -> TokenList[Any]:
        value = slot.__get__(result)
        if type(value) is not TokenList:
            value = as_list(value)
            slot.__set__(result, value)
        return value

    return property(read, slot.__set__)


for _name in ("token_ids", "logprobs"):
    setattr(CompletionsResult, _name, _listed(_name))


@dataclass(slots=True)
class RolloutResult:
    """The result of run. ctx.complete and ctx.error make it."""

    status: str
    """"COMPLETED" or "ERROR"."""
    final_messages: Sequence[Message] | None = ()
    """None means the newest conversation that was sampled."""
    finish_reason: str | None = None
    error_message: str | None = None
    metrics: Any = None
    """The RolloutMetrics until the result was made. The server ignores them, because it measures the metrics itself."""
    reward: float | None = None
    """None means that the agent does not compute the reward; it is not zero."""
    extra_fields: Mapping[str, Any] | None = None
    """More data for the trainer."""


def finish_reason_of(result: CompletionsResult) -> str:
    """Return the policy's finish reason, `length` for any reply that was cut. Without one, derive it from the reply."""
    if result.finish_reason in CUTS:
        return "length"
    return result.finish_reason or ("tool_calls" if result.has_tool_calls else "stop")


def usage_of(result: CompletionsResult) -> dict[str, Any]:
    """Return the token counts; 0 for those that the policy did not give."""
    return {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0} | dict(result.usage)


def logprobs_of(result: CompletionsResult) -> dict[str, Any] | None:
    """Return the logprobs; None if they are unknown.

    The texts of the tokens are unknown here, so `token` is token_id:ID, as vLLM writes it.
    """
    if not (result.token_ids and result.logprobs):
        return None
    pairs = zip(result.token_ids, result.logprobs, strict=True)
    keys: dict[str, Any] = {"bytes": None, "top_logprobs": []}
    return {"content": [{"token": f"token_id:{token}", "logprob": value} | keys for token, value in pairs]}


def ask_again(reply: CompletionsResult) -> Message:
    """Return the message for the model about its tool calls that could not be read."""
    problems = ", ".join(reply.unread_calls)
    return {"role": "user", "content": f"The tool call could not be read ({problems}). Write it again."}
