"""Functions of the Osmosis SDK for authors: a registry of agent loops, readers of messages, keys of servers,
and the result and the errors of rubrics, for graders that ask their own judge.

Servers do not read the registry: you pass them the loops to host. The readers of messages accept every message that a
model server sends; osmosis_grpc.protocol.types.messages checks which messages can be sent.
"""

import secrets
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from osmosis_grpc.agent.loop import AgentNameError, RolloutAgentLoop, name_problem
from osmosis_grpc.protocol.errors import AgentLoopNotFoundError

API_KEY_PREFIX = "osm_rollout_"
"""The prefix of a generated key."""


class AgentLoopRegistry:
    """Holds agent loops by name. Several threads can use it at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loops: dict[str, RolloutAgentLoop] = {}

    def register(self, loop: RolloutAgentLoop) -> None:
        """Register an instance under its current name.

        Raises ValueError if the name is registered already, and TypeError for an object that is not an agent loop or
        has no usable name.
        """
        if isinstance(loop, type) and issubclass(loop, RolloutAgentLoop):
            raise TypeError(f"register takes an instance: {loop.__name__}(), not the class")
        if not isinstance(loop, RolloutAgentLoop):
            raise TypeError(f"register takes an instance of a RolloutAgentLoop, not a {type(loop).__name__}")
        problem = name_problem(getattr(loop, "name", None))
        if problem:
            raise AgentNameError(problem[0], f"{type(loop).__name__}: {problem[1]}")
        with self._lock:
            if loop.name in self._loops:
                raise ValueError(f"an agent loop named {loop.name!r} is already registered; unregister that one first")
            self._loops[loop.name] = loop

    def unregister(self, name: str) -> bool:
        """Remove a name. Return False if the name is not registered."""
        return self._loops.pop(name, None) is not None

    def get(self, name: str) -> RolloutAgentLoop | None:
        """Return the loop with this name; None if there is none."""
        return self._loops.get(name)

    def list_names(self) -> list[str]:
        """Return all names in the order of their registration."""
        return list(self._loops)

    def clear(self) -> None:
        """Remove all names."""
        self._loops.clear()


_shared = AgentLoopRegistry()
register_agent_loop = _shared.register
unregister_agent_loop = _shared.unregister
list_agent_loops = _shared.list_names


def get_agent_loop(name: str) -> RolloutAgentLoop:
    """Return the registered loop with this name. Raises AgentLoopNotFoundError, which lists the known names."""
    loop = _shared.get(name)
    if loop is None:
        raise AgentLoopNotFoundError(name, _shared.list_names())
    return loop


def parse_tool_calls(assistant_message: Mapping[str, Any]) -> list[Any]:
    """Return the tool calls of a reply; an empty list if they are not a list."""
    calls = assistant_message.get("tool_calls")
    return list(calls) if isinstance(calls, list) else []


def normalize_stop(stop: Any) -> list[str] | None:
    """Return stop sequences as a list. `stop` is one text or a list. Return None for any other value."""
    if isinstance(stop, str):
        return [stop]
    return [str(text) for text in stop] if isinstance(stop, list) else None


def get_message_content(message: Mapping[str, Any]) -> str:
    """Return a message's text; an empty text if the content is anything else, such as a list of parts."""
    content = message.get("content")
    return content if isinstance(content, str) else ""


def get_message_role(message: Mapping[str, Any]) -> str:
    """Return a message's role; "unknown" if it has none."""
    role = message.get("role")
    return role if isinstance(role, str) else "unknown"


def is_assistant_message(message: Mapping[str, Any]) -> bool:
    """Return whether the message is the model's."""
    return get_message_role(message) == "assistant"


def is_tool_message(message: Mapping[str, Any]) -> bool:
    """Return whether the message is a tool's result."""
    return get_message_role(message) == "tool"


def is_user_message(message: Mapping[str, Any]) -> bool:
    """Return whether the message is the user's."""
    return get_message_role(message) == "user"


def count_messages_by_role(messages: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return the number of messages by role."""
    return dict(Counter(map(get_message_role, messages)))


def generate_api_key() -> str:
    """Return a new key for create_app(api_key=)."""
    return API_KEY_PREFIX + secrets.token_urlsafe(32)


def validate_api_key(provided_key: str | None, expected_key: str) -> bool:
    """Compare a key with the expected one in constant time. Return whether they are equal."""
    return provided_key is not None and secrets.compare_digest(provided_key.encode(), expected_key.encode())


@dataclass
class RubricResult:
    """The judgement of a judge."""

    score: float
    explanation: str


class MissingAPIKeyError(RuntimeError):
    """The judge's provider needs a key."""


class ProviderRequestError(RuntimeError):
    """The judge's provider refused a request.

    Args:
        provider: The provider.
        model: The model that was asked.
        detail: Why.
    """

    def __init__(self, provider: str, model: str, detail: str) -> None:
        self.provider, self.model = provider, model
        self.detail = detail.strip() or "the provider gave no reason"
        super().__init__(f"{provider} refused a request for {model}: {self.detail}")


class ModelNotFoundError(ProviderRequestError):
    """The judge's provider has no such model."""
