"""Imports Ray, and connects this process to a cluster."""

import importlib
from typing import Any

from osmosis_grpc.protocol.errors import MissingExtraError

NAMESPACE = "osmosis"


def imported(what: str) -> Any:
    """Return the module `ray`. Raises MissingExtraError, in which `what` needs Ray."""
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise MissingExtraError(what, "ray") from None


def connect(ray: Any, *, start: bool) -> bool:
    """Connect this process to the running cluster, unless it is connected.

    The variable RAY_ADDRESS names the cluster. Without the variable it is the cluster that runs on this machine. If
    there is none, `start` starts one on this machine. Returns whether it was started. Raises ConnectionError.
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
    """Return the number of the agent server of an actor; None if the actor is another one."""
    number = actor.removeprefix(f"{name}-server-")
    return int(number) if number != actor and number.isdecimal() else None
