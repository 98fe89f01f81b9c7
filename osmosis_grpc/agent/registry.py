"""Registries of agent loops by name. The process has one shared registry. Callers can make more registries.

Servers do not read registries, because a server is given the loops that it hosts.
"""

import threading

from osmosis_grpc.agent.loop import AgentNameError, RolloutAgentLoop, name_problem
from osmosis_grpc.protocol.errors import AgentLoopNotFoundError


class AgentLoopRegistry:
    """Holds agent loops by name. Several threads can use it at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loops: dict[str, RolloutAgentLoop] = {}

    def register(self, loop: RolloutAgentLoop) -> None:
        """Register an instance under its present name.

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
                raise ValueError(f"an agent loop named {loop.name!r} is registered already; unregister that one first")
            self._loops[loop.name] = loop

    def unregister(self, name: str) -> bool:
        """Remove a name. Return False if the name is not registered."""
        with self._lock:
            return self._loops.pop(name, None) is not None

    def get(self, name: str) -> RolloutAgentLoop | None:
        """Return the loop with this name; None if there is none."""
        with self._lock:
            return self._loops.get(name)

    def list_names(self) -> list[str]:
        """Return all names in the order of their registration."""
        with self._lock:
            return list(self._loops)

    def clear(self) -> None:
        """Remove all names."""
        with self._lock:
            self._loops.clear()


_shared = AgentLoopRegistry()
register_agent_loop = _shared.register
unregister_agent_loop = _shared.unregister
list_agent_loops = _shared.list_names


def get_agent_loop(name: str) -> RolloutAgentLoop:
    """Return the process's loop with this name. Raises AgentLoopNotFoundError, which lists the known names."""
    loop = _shared.get(name)
    if loop is None:
        raise AgentLoopNotFoundError(name, _shared.list_names())
    return loop
