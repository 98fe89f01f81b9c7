"""Looks up the addresses of the agent servers of `serve --ray`, for a Trainer, which repeats it regularly."""

import importlib
from typing import Any

from osmosis_grpc.protocol.errors import MissingExtraError
from osmosis_grpc.supervise import SYSTEM

NAMESPACE = "osmosis"


def imported(what: str) -> Any:
    """Return the module `ray`. Raises MissingExtraError, which says that `what` needs it."""
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise MissingExtraError(what, "ray") from None


def connect(ray: Any, *, start: bool) -> bool:
    """Connect this process to a cluster, unless it is connected already. Return whether a cluster was started.

    The variable RAY_ADDRESS names the cluster. By default, it is the one that runs on this machine; if there is none,
    start one with `start`, and otherwise raise ConnectionError.
    """
    if ray.is_initialized():
        return False
    try:
        ray.init(address="auto", namespace=NAMESPACE, logging_level="warning")
    except ConnectionError:
        if not start:
            raise
        ray.init(address="local", namespace=NAMESPACE, logging_level="warning", include_dashboard=False)
        return True
    return False


def actor_name(name: str, number: int) -> str:
    """Return the name of the actor of one agent server."""
    return f"{name}-server-{number}"


def number_of(actor: str, name: str) -> int | None:
    """Return the number of an actor's agent server, or None if the actor is not one."""
    number = actor.removeprefix(f"{name}-server-")
    return int(number) if number != actor and number.isdecimal() else None


DEFAULT_NAME = "osmosis"
ANSWERS = 1.0
"""If a server does not answer within this many seconds, its last address is used as long as its node lives."""


class RayTargets:
    """A callable that returns the HOST:PORT of each server."""

    def __init__(self, name: str) -> None:
        self.__name__ = f"ray_targets({name!r})"
        self._name = name
        self._ray = imported("ray_targets()")
        self._known: dict[int, tuple[str, str]] = {}
        """The node and the address of each server, by number."""

    async def __call__(self) -> list[str]:
        """Return the addresses. Raises ConnectionError if there is no cluster."""
        return await SYSTEM.run(self.now)

    def now(self) -> list[str]:
        """Return the addresses, as __call__() does. It blocks."""
        ray = self._ray
        connect(ray, start=False)
        actors = ray.util.list_named_actors(all_namespaces=True)
        numbers = {
            number: row["name"]
            for row in actors
            if row["namespace"] == NAMESPACE and (number := number_of(row["name"], self._name)) is not None
        }
        self._known |= self._answers(numbers)
        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        self._known = {
            number: (node, address)
            for number, (node, address) in self._known.items()
            if number in numbers and node in alive
        }
        return [self._known[number][1] for number in sorted(self._known)]

    def _answers(self, numbers: dict[int, str]) -> dict[int, tuple[str, str]]:
        ray, asked = self._ray, {}
        for number, actor in numbers.items():
            try:
                asked[ray.get_actor(actor, namespace=NAMESPACE).where.remote()] = number
            except ValueError:  # the actor has ended meanwhile
                continue
        done, _ = ray.wait(list(asked), num_returns=len(asked), timeout=ANSWERS) if asked else ([], [])
        answers = {}
        for one in done:
            try:
                answers[asked[one]] = ray.get(one)
            except ray.exceptions.RayError:  # its process or its node has ended, and Ray is restarting it
                continue
        return answers


def ray_targets(name: str = DEFAULT_NAME) -> Any:
    """Return a source of servers for a Trainer: the agent servers of `serve --ray --ray-name NAME`.

        async with Trainer(ray_targets(), policy) as trainer:

    The trainer connects to the cluster that the variable RAY_ADDRESS names, or that runs on this machine, unless the
    process is already connected to one. Servers on dead nodes are left out. Raises MissingExtraError.
    """
    return RayTargets(name)
