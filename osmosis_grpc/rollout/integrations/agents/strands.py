"""The Osmosis SDK's osmosis_ai.rollout.integrations.agents.strands. Its names are not built yet; using one says so."""

from typing import Any

from osmosis_grpc.rollout._lazy import lookup


def __getattr__(name: str) -> Any:
    return lookup(__name__, {}, name)
