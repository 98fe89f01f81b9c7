"""Makes the JSON of the origin of a fork. Imports no NumPy, because lists do not need it."""

from typing import Any

from osmosis_grpc.protocol.types import Fork


def origin(fork: Fork | None) -> dict[str, Any] | None:
    """Return the origin of a fork; None for other rollouts."""
    if fork is None:
        return None
    chat = {"sample": fork.sample, "chat_number": fork.chat_number}
    return {"rollout_id": fork.rollout_id, "attempt": fork.attempt, **chat}
