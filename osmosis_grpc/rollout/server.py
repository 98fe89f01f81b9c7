"""The Osmosis SDK's osmosis_ai.rollout.server, looked up when first used: it needs the extra "server"."""

from typing import TYPE_CHECKING, Any

from osmosis_grpc.rollout._lazy import lookup

if TYPE_CHECKING:
    from osmosis_gateway.app import create_app as create_app
    from osmosis_gateway.app import serve_agent_loop as serve_agent_loop

__all__ = ["create_app", "serve_agent_loop"]
_WHERE = {"osmosis_gateway.app": __all__}


def __getattr__(name: str) -> Any:
    return lookup(__name__, _WHERE, name)


def __dir__() -> list[str]:
    return __all__
