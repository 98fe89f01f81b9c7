"""Tools for agents. `@tool` makes a tool of a typed function."""

from osmosis_grpc.tools.tool import Tool, tool

__all__ = ["Tool", "tool"]
