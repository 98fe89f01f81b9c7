"""The parts of a model request that every API has."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from osmosis_grpc.agent.message_keys import History
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import Message

T = TypeVar("T")

_NAMES: dict[type, str] = {dict: "an object", list: "a list", str: "a string"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """A request for one reply."""

    messages: list[Message]
    params: dict[str, Any]
    tools: list[Any] | None = None
    """In OpenAI's function format; None if the request has none."""
    model: str = ""
    stream: bool = False
    stream_usage: bool = False
    """Whether a stream ends with the token counts."""
    echo: dict[str, Any] = field(default_factory=dict)
    """Keys of the request that its API repeats in the reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request that a program has sent."""

    request: ModelRequest
    history: History
    sample: str
    """The sample that the program names; empty if the history decides."""
    digest: bytes
    """Equal for a request and its retry."""
    retried: bool = False
    """Whether the client says that it repeats an earlier request, as the clients of OpenAI and Anthropic do."""


def typed(value: Any, kind: type[T], path: str) -> T:
    """Return a value of a JSON type. Raises InvalidArgument with the path of the value."""
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


def refuse_beginning(messages: list[Message], path: str) -> None:
    """Raise InvalidArgument for a history that ends with the beginning of a reply: the policy writes whole replies."""
    if messages and messages[-1].get("role") == "assistant":
        problem = (
            "ends with an assistant message, and assistant prefill is not served here; end with a user or tool message"
        )
        raise InvalidArgument(path, problem)
