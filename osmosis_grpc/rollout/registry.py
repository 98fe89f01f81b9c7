"""The Osmosis SDK's osmosis_ai.rollout.registry."""

from osmosis_grpc.compat.sdk_functions import (
    AgentLoopRegistry,
    get_agent_loop,
    list_agent_loops,
    register_agent_loop,
    unregister_agent_loop,
)

__all__ = ["AgentLoopRegistry", "get_agent_loop", "list_agent_loops", "register_agent_loop", "unregister_agent_loop"]
