"""The tools of an MCP server as tools of an agent. Needs the extra `mcp`.

    class Agent(RolloutAgentLoop):
        name = "agent"
        tools = (add, mcp_tools(["python", "weather_server.py"]))

Here, all rollouts share one connection. For a connection of one rollout:

    async with mcp_tools("http://127.0.0.1:8000/mcp") as tools:
        reply = await ctx.chat(messages, tools=tools)
        messages += await ctx.run_tools(reply)
"""

import asyncio
import importlib
import json
import logging
import re
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

from osmosis_grpc.agent.context import RolloutContext
from osmosis_grpc.integrations._mcp_connection import (
    Connection,
    Session,
    list_tools,
    open_session,
    over_http,
    reason,
    without_secrets,
)
from osmosis_grpc.protocol.errors import MissingExtraError, ToolExecutionError
from osmosis_grpc.protocol.types import ToolDict
from osmosis_grpc.protocol.types.outcome import clip, describe
from osmosis_grpc.settings.process_environment import program_path

__all__ = ["mcp_tools"]

log = logging.getLogger(__name__)

TIMEOUT = 60.0
"""The default timeout of a call in seconds."""
CONNECT_TIMEOUT = 60.0
"""The default timeout for opening a connection in seconds."""
MAX_NAME_CHARS = 64
"""The longest name of a tool that all model servers accept."""


class McpTool:
    """One tool of an MCP server."""

    def __init__(self, server: "McpTools", listed: Mapping[str, Any], prefix: str) -> None:
        self.name = re.sub(r"[^a-zA-Z0-9_-]", "_", prefix + listed["name"])[:MAX_NAME_CHARS]
        """The name of the tool for the model."""
        self._called = str(listed["name"])
        self._server = server
        self._schema: ToolDict = {
            "type": "function",
            "function": {
                "name": self.name,
                "description": listed.get("description") or listed.get("title") or self.name,
                "parameters": listed.get("inputSchema") or {"type": "object", "properties": {}},
            },
        }

    def openai_schema(self) -> ToolDict:
        """Return the schema in OpenAI's function format."""
        return self._schema

    async def run(self, arguments: Mapping[str, Any], context: RolloutContext | None = None) -> str:
        """Call the tool, and return its result as a string.

        Raises ToolExecutionError if the tool fails or the server is lost, and TimeoutError.
        """
        return await self._server.call(self._called, arguments)


class McpTools:
    """The tools of an MCP server, created by mcp_tools().

    In the `tools` of an agent, it connects with the first rollout, and reconnects if the server was lost. With
    `async with`, it yields the list of tools, and does not reconnect, because a new server would lack the old state.
    """

    def __init__(
        self,
        connect: Callable[[AsyncExitStack], Awaitable[Session]],
        label: str,
        prefix: str,
        timeout: float,
        connect_timeout: float,
    ) -> None:
        self.label = label
        """The name of the server in errors and in the log."""
        self._connect = connect
        self._prefix = prefix
        self._timeout, self._connect_timeout = timeout, connect_timeout
        self._connection: Connection | None = None
        self._once = False
        """Whether the connection belongs to an `async with` block, which connects only once."""

    async def __aenter__(self) -> list[McpTool]:
        if self._connection is not None:
            raise RuntimeError(f"{self.label} is in use; call mcp_tools() again for each `async with`")
        self._once = True
        self._connection = self._new_connection()
        try:
            return await self.rollout_tools()
        except BaseException:
            await self.close()
            raise

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def rollout_tools(self) -> list[McpTool]:
        """Return the server's tools. Raises ToolExecutionError if the server cannot be reached."""
        connection = self._connected()
        session = await connection.session()
        try:
            async with asyncio.timeout(self._connect_timeout) as limit:
                listed = await list_tools(session)
        except Exception as error:
            await connection.close()
            why = f"no list of tools within {self._connect_timeout:g} s" if limit.expired() else reason(error)
            raise ToolExecutionError(f"{self.label} cannot be reached: {why}") from error
        tools = [McpTool(self, each, self._prefix) for each in listed]
        names = [tool.name for tool in tools]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ToolExecutionError(f"{self.label} has two tools with the name {twice[0]!r} after unusual characters")
        return tools

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Call a tool, and return its result as a string. Raises ToolExecutionError, TimeoutError."""
        connection = self._connected()
        session = await connection.session()
        try:
            async with asyncio.timeout(self._timeout) as limit:
                result = (await session.call_tool(name, dict(arguments))).model_dump(mode="json", by_alias=True)
        except TimeoutError as error:
            text = f"{name} took longer than {self._timeout:g} s" if limit.expired() else describe(error)
            raise TimeoutError(text) from None
        except Exception as error:
            if await connection.answers():
                raise ToolExecutionError(reason(error)) from error
            if connection.usable:  # log only once, though several calls fail
                log.warning("%s was lost: %s", self.label, reason(error))
            await connection.close()
            raise ToolExecutionError(f"{self.label} was lost: {reason(error)}") from error
        text = text_of(result)
        if result.get("isError"):
            raise ToolExecutionError(text or f"{name} failed")
        return text

    async def close(self) -> None:
        """Close the connection, and stop the server if it runs as a process."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    def _connected(self) -> "Connection":
        """Return the connection, or open one if there is none, it was lost, or it belongs to another event loop."""
        connection = self._connection
        if connection is not None and connection.usable:
            return connection
        if self._once:
            why = "is closed: its `async with` has ended" if connection is None else "was lost"
            raise ToolExecutionError(f"{self.label} {why}")
        self._connection = self._new_connection()
        return self._connection

    def _new_connection(self) -> "Connection":
        return Connection(self._connect, self.label, self._connect_timeout)


def mcp_tools(
    server: str | Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    headers: Mapping[str, str] | None = None,
    prefix: str = "",
    timeout: float = TIMEOUT,
    connect_timeout: float = CONNECT_TIMEOUT,
) -> McpTools:
    """Return the tools of an MCP server, for the `tools` of an agent or for `async with`.

    Args:
        server: The URL of a server with streamable HTTP, or a command that speaks MCP on stdin and stdout, as a list or
            as a string, which is split as a shell does.
        env: Variables for the command, in addition to HOME, PATH and a few more.
        cwd: The working folder of the command.
        headers: HTTP headers, for a URL.
        prefix: A prefix for the names of the tools.
        timeout: How many seconds a call may take.
        connect_timeout: How many seconds connecting and listing the tools may take.

    Raises:
        MissingExtraError: The mcp package is not installed.
        ValueError: The command is empty.
    """
    try:
        mcp: Any = importlib.import_module("mcp")
    except ModuleNotFoundError as error:
        raise MissingExtraError("mcp_tools", "mcp") from error
    if isinstance(server, str) and server.startswith(("http://", "https://")):
        transport, label = over_http(server, headers), without_secrets(server)
    else:
        argv = shlex.split(server) if isinstance(server, str) else list(server)
        if not argv:
            raise ValueError("server: is an empty command")
        variables = {"PATH": program_path(), **(env or {})}
        given = mcp.StdioServerParameters(command=argv[0], args=argv[1:], env=variables, cwd=cwd)
        transport, label = (lambda stack: mcp.stdio_client(given)), _program_label(argv, cwd)

    async def connect(stack: AsyncExitStack) -> Session:
        return await open_session(mcp, stack, transport(stack))

    return McpTools(connect, clip(f"the MCP server {label}", 200), prefix, timeout, connect_timeout)


def _program_label(argv: Sequence[str], cwd: str | None) -> str:
    """Return the name of a program and of its script or module, without other arguments, which may be secrets."""
    name, second = Path(argv[0]).name, argv[1] if len(argv) > 1 else ""
    if second == "-m" and len(argv) > 2:
        return f"{name} -m {argv[2]}"
    with suppress(OSError):
        if second and (Path(cwd or "") / second).is_file():
            return f"{name} {Path(second).name}"
    return name


def text_of(result: Mapping[str, Any]) -> str:
    """Return the result of a tool as a string, with the type and the size of images, audio and other data."""
    texts = [_block_text(block) for block in result.get("content") or ()]
    if not texts and result.get("structuredContent") is not None:
        return json.dumps(result["structuredContent"], ensure_ascii=False)
    return "\n".join(texts)


def _block_text(block: Mapping[str, Any]) -> str:
    kind = block.get("type")
    if kind == "text":
        return str(block.get("text") or "")
    if kind == "resource_link":
        return f"[resource: {block.get('uri')}]"
    inner = block.get("resource") if kind == "resource" else block
    inner = inner if isinstance(inner, Mapping) else {}
    if "text" in inner:
        return str(inner["text"])
    data = str(inner.get("data") or inner.get("blob") or "")
    size = len(data) * 3 // 4 - data[-2:].count("=")  # base64
    about = inner.get("uri") or inner.get("mimeType") or "unknown type"
    return f"[{kind}: {about}, {size} bytes]"
