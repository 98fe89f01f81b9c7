"""The Osmosis SDK's osmosis_ai.rollout.core.exceptions."""

from osmosis_grpc.protocol.errors import (
    AgentLoopNotFoundError,
    OsmosisRolloutError,
    OsmosisServerError,
    OsmosisTimeoutError,
    OsmosisTransportError,
    OsmosisValidationError,
    ToolArgumentError,
    ToolExecutionError,
)

__all__ = [
    "AgentLoopNotFoundError",
    "OsmosisRolloutError",
    "OsmosisServerError",
    "OsmosisTimeoutError",
    "OsmosisTransportError",
    "OsmosisValidationError",
    "ToolArgumentError",
    "ToolExecutionError",
]
