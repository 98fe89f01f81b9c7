"""Tools for agents. `@tool` turns a typed function into a tool; the other functions make the tools of this package."""

from osmosis_grpc.agent.tool_decorator import Tool, tool
from osmosis_grpc.tools.base_tool import BaseTool, ToolRegistry
from osmosis_grpc.tools.calculator import calculator_tool
from osmosis_grpc.tools.file_editor import file_editor_tool
from osmosis_grpc.tools.library import finish_tool, make_tool
from osmosis_grpc.tools.search import search_tool
from osmosis_grpc.tools.shell_tools import bash_tool, python_tool

__all__ = [
    "BaseTool",
    "Tool",
    "ToolRegistry",
    "bash_tool",
    "calculator_tool",
    "file_editor_tool",
    "finish_tool",
    "make_tool",
    "python_tool",
    "search_tool",
    "tool",
]
