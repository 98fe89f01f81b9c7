"""The Osmosis SDK's osmosis_ai.rollout.tools."""

from osmosis_grpc.agent.tool_calls import (
    create_tool_error_result,
    create_tool_result,
    execute_tool_calls,
    get_tool_call_info,
    parse_tool_arguments,
    serialize_tool_result,
)
from osmosis_grpc.protocol.errors import ToolArgumentError, ToolExecutionError

__all__ = [
    "ToolArgumentError",
    "ToolExecutionError",
    "create_tool_error_result",
    "create_tool_result",
    "execute_tool_calls",
    "get_tool_call_info",
    "parse_tool_arguments",
    "serialize_tool_result",
]
