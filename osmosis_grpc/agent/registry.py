"""Agent loops by name: a book of one's own, or the one that the whole process shares.

Servers do not read it; they are given the loops that they host.
"""

import threading
from typing import Any

from osmosis_grpc.agent.loop import AgentNameError, RolloutAgentLoop, name_problem
from osmosis_grpc.errors import AgentLoopNotFoundError


class AgentLoopRegistry:
    """Agent loops by name. May be used from several threads at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loops: dict[str, RolloutAgentLoop] = {}

    def register(self, loop: RolloutAgentLoop) -> None:
        """Keep an instance under the name that it has now.

        Raises ValueError when the name is taken, also by the same instance, and TypeError for
        what is no agent loop or has no usable name.
        """
        name = _name(loop)
        with self._lock:
            if name in self._loops:
                raise ValueError(f"an agent loop named {name!r} is registered already; unregister that one first")
            self._loops[name] = loop

    def unregister(self, name: str) -> bool:
        """Forget a name. False when it was not known."""
        with self._lock:
            return self._loops.pop(name, None) is not None

    def get(self, name: str) -> RolloutAgentLoop | None:
        """The loop of that name, None when there is none."""
        with self._lock:
            return self._loops.get(name)

    def list_names(self) -> list[str]:
        """All names, in the order of their registration."""
        with self._lock:
            return list(self._loops)

    def clear(self) -> None:
        """Forget all of them."""
        with self._lock:
            self._loops.clear()


_shared = AgentLoopRegistry()
"""The process's own."""


def register_agent_loop(loop: RolloutAgentLoop) -> None:
    """Make an instance known to the whole process; raises as AgentLoopRegistry.register does."""
    _shared.register(loop)


def unregister_agent_loop(name: str) -> bool:
    """Make the process forget a name. False when it was not known."""
    return _shared.unregister(name)


def get_agent_loop(name: str) -> RolloutAgentLoop:
    """The process's loop of that name. Raises AgentLoopNotFoundError, which names those there are."""
    loop = _shared.get(name)
    if loop is None:
        raise AgentLoopNotFoundError(name, _shared.list_names())
    return loop


def list_agent_loops() -> list[str]:
    """The names that the process knows, in the order of their registration."""
    return _shared.list_names()


def _name(loop: Any) -> str:
    """The name to keep a loop under."""
    if isinstance(loop, type) and issubclass(loop, RolloutAgentLoop):
        raise TypeError(f"register takes an instance: {loop.__name__}(), not the class")
    if not isinstance(loop, RolloutAgentLoop):
        raise TypeError(f"register takes an instance of a RolloutAgentLoop, not a {type(loop).__name__}")
    problem = name_problem(getattr(loop, "name", None))
    if problem:
        raise AgentNameError(problem[0], f"{type(loop).__name__}: {problem[1]}")
    return loop.name
