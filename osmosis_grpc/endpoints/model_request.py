"""Requests for model replies, independent of the API.

Programs send more than a policy needs: hints for caches and billing, options of their own provider, tools that run on
the provider's servers. Such keys are ignored, and the rollout records their names. A request is refused only if
ignoring a key would change the meaning of the reply.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import uuid4

from osmosis_grpc.agent import CompletionsResult
from osmosis_grpc.agent.message_keys import History
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import Message

T = TypeVar("T")

PASSED = frozenset(
    {"temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids", "ignore_eos", "max_tokens"}
    | {"max_completion_tokens", "min_tokens", "presence_penalty", "frequency_penalty", "repetition_penalty"}
    | {"length_penalty", "logit_bias", "bad_words", "allowed_token_ids", "logprobs", "response_format", "tool_choice"}
    | {"parallel_tool_calls", "reasoning_effort", "verbosity", "chat_template_kwargs", "structured_outputs"}
    | {"guided_json", "guided_regex", "guided_choice", "guided_grammar", "regex", "grammar", "priority"}
    | {"best_of", "use_beam_search", "echo", "prompt_logprobs", "modalities", "audio"}
)
"""The parameters that are passed to the policy, under the names of OpenAI and vLLM. It may refuse some of them."""

_NAMES: dict[type, str] = {dict: "an object", list: "a list", str: "a string"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """A request for a reply, or for several."""

    messages: list[Message]
    params: dict[str, Any]
    tools: list[Any] | None = None
    """In OpenAI's function format; None if the request has none."""
    model: str = ""
    stream: bool = False
    stream_usage: bool = False
    """Whether a stream ends with the token counts."""
    echo: dict[str, Any] = field(default_factory=dict)
    """Keys of the request that the API repeats in its reply."""
    ignored: tuple[str, ...] = ()
    """The paths of the keys that are not passed to the policy."""
    kinds: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The tools of the request that are not functions, by the name of the function that each was converted to."""
    written: Callable[[CompletionsResult], Message] | None = None
    """Converts a reply to the form in which the program will send it back; None if the program sends it unchanged."""
    continues: str = ""
    """The id of the earlier reply that the request continues. The history of that reply comes before `messages`."""
    reply_id: str = field(default_factory=lambda: uuid4().hex)
    """The id of the reply, without the prefix of its API."""
    choices: int = 1
    """The number of replies."""
    stored: bool = False
    """Whether a later request may continue this one by naming the id of its reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request that a program has sent."""

    request: ModelRequest
    history: History
    sample: str
    """The sample that the program names. If it is empty, the history determines the sample."""
    digest: bytes
    """The digest of the body. A retry has the same digest."""
    retried: bool = False
    """Whether the client says that this is a retry, as the clients of OpenAI and Anthropic do."""


def typed(value: Any, kind: type[T], path: str) -> T:
    """Return the value if it has the type `kind`. Raises InvalidArgument with its path otherwise."""
    if not isinstance(value, kind):
        found = "missing" if value is None else f"a {type(value).__name__}"
        raise InvalidArgument(path, f"is {found}, not {_NAMES[kind]}")
    return value


def objects(value: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the path and the value of each object in a list. Raises InvalidArgument for anything else."""
    for index, each in enumerate(typed(value, list, path)):
        yield f"{path}[{index}]", typed(each, dict, f"{path}[{index}]")


def refuse(body: dict[str, Any], names: tuple[str, ...], why: str) -> None:
    """Raise InvalidArgument if a body has one of these keys with a value that is not empty."""
    for name in names:
        if body.get(name):
            raise InvalidArgument(name, f"is not served here: {why}")


def passed(body: Mapping[str, Any], own: frozenset[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the parameters for the policy, and the keys to ignore: those that are neither parameters nor in `own`."""
    known = {name: value for name, value in body.items() if name in PASSED and value is not None}
    return known, [name for name in body if name not in own and name not in PASSED and body[name]]


def reasoning_of(message: Message) -> str:
    """Return the reasoning of a reply, also under vLLM's name `reasoning`, or an empty string."""
    return str(message.get("reasoning_content") or message.get("reasoning") or "")


def cached_tokens(usage: Mapping[str, Any]) -> int:
    """Return how many prompt tokens came from the policy's cache, or 0 if it does not say."""
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, Mapping) else None
    return cached if isinstance(cached, int) else 0


def with_system_role(messages: list[Message]) -> list[Message]:
    """Rename developer messages to system messages, because few chat templates know the role developer."""
    return [{**each, "role": "system"} if each.get("role") == "developer" else each for each in messages]
