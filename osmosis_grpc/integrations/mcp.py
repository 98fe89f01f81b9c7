"""The tools of an MCP server as tools of an agent. Needs the extra `mcp`.

    class Agent(RolloutAgentLoop):
        name = "agent"
        tools = (add, mcp_tools(["python", "weather_server.py"]))

One connection then serves all rollouts. For a connection that belongs to one rollout:

    async with mcp_tools("http://127.0.0.1:8000/mcp") as tools:
        reply = await ctx.chat(messages, tools=tools)
        messages += await ctx.run_tools(reply)
"""

import asyncio
import contextvars
import importlib
import json
import logging
import re
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

from osmosis_grpc.agent.context import RolloutContext
from osmosis_grpc.errors import MissingExtraError, ToolExecutionError
from osmosis_grpc.supervise import OnFailure, child, job
from osmosis_grpc.types import ToolDict
from osmosis_grpc.types.outcome import clip, describe

log = logging.getLogger(__name__)

CONNECTION = job("integrations.mcp_connection", OnFailure.RAISE)

TIMEOUT = 60.0
"""The seconds after which a call fails, unless mcp_tools() gets another timeout."""
CHECK_TIMEOUT = 5.0
"""After an error of a call, a server that does not list its tools within this many seconds counts as lost."""
MAX_PAGES = 100
"""At most this many pages of a server's list of tools are read."""
MAX_NAME_CHARS = 64
"""The most characters of a tool's name that all model servers accept."""

Session = Any
"""A ClientSession of the mcp package."""


class McpTool:
    """One tool of an MCP server."""

    def __init__(self, server: "McpTools", listed: Mapping[str, Any], prefix: str) -> None:
        self.name = re.sub(r"[^a-zA-Z0-9_-]", "_", prefix + listed["name"])[:MAX_NAME_CHARS]
        """The name by which the model calls the tool."""
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
        """Call the tool, and return its result as a text.

        Raises ToolExecutionError for an error of the tool and for a lost server, and TimeoutError.
        """
        return await self._server.call(self._called, arguments)


class McpTools:
    """The tools of an MCP server. mcp_tools() makes it.

    As one of an agent's `tools` it connects with the first rollout, and connects again after the server was lost.
    Used with `async with`, it yields the list of tools, and does not connect again: a new server has lost its state.
    """

    def __init__(
        self, connect: Callable[[AsyncExitStack], Awaitable[Session]], label: str, prefix: str, timeout: float
    ) -> None:
        self.label = label
        """Names the server in errors and in the log."""
        self._connect = connect
        self._prefix = prefix
        self._timeout = timeout
        self._connection: _Connection | None = None
        self._once = False
        """Whether a lost connection stays lost."""

    async def __aenter__(self) -> list[McpTool]:
        self._once = True
        try:
            return await self.rollout_tools()
        except BaseException:
            await self.close()
            raise

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def rollout_tools(self) -> list[McpTool]:
        """Return the server's tools. Raises ToolExecutionError if the server cannot be reached."""
        connection = await self._connected()
        session = await connection.session()
        try:
            listed = await _listed(session)
        except Exception as error:
            await self._lost(connection)
            raise ToolExecutionError(f"{self.label}: {_reason(error)}") from error
        tools = [McpTool(self, each, self._prefix) for each in listed]
        names = [tool.name for tool in tools]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ToolExecutionError(f"{self.label}: two tools have the name {twice[0]!r} after unusual characters")
        return tools

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Call a tool, and return its result as a text. Raises ToolExecutionError, TimeoutError."""
        connection = await self._connected()
        session = await connection.session()
        try:
            async with asyncio.timeout(self._timeout) as limit:
                result = (await session.call_tool(name, dict(arguments))).model_dump(mode="json", by_alias=True)
        except TimeoutError as error:
            text = f"{name} took longer than {self._timeout:g} s" if limit.expired() else describe(error)
            raise TimeoutError(text) from None
        except Exception as error:
            if await connection.answers():
                raise ToolExecutionError(_reason(error)) from error
            await self._lost(connection)
            raise ToolExecutionError(f"{self.label}: the server was lost: {_reason(error)}") from error
        text = text_of(result)
        if result.get("isError"):
            raise ToolExecutionError(text or f"{name} failed")
        return text

    async def close(self) -> None:
        """End the connection, and a server that runs as a process."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _connected(self) -> "_Connection":
        """Return the connection. Make one if there is none, if it was lost, or if it belongs to another event loop."""
        connection = self._connection
        if connection is not None and connection.usable:
            return connection
        if connection is not None and self._once:
            raise ToolExecutionError(f"{self.label}: the server was lost")
        self._connection = _Connection(self._connect, self.label)
        return self._connection

    async def _lost(self, connection: "_Connection") -> None:
        log.warning("%s: the MCP server was lost", self.label)
        await connection.close()


class _Connection:
    """A session with an MCP server. One task opens and closes it, because the mcp package requires this."""

    def __init__(self, connect: Callable[[AsyncExitStack], Awaitable[Session]], label: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[Session] = self._loop.create_future()
        self._closing = asyncio.Event()
        # The first rollout's variables do not belong to the connection.
        self._task = child(CONNECTION, self._live(connect), context=contextvars.Context())
        self._task.add_done_callback(lambda task: task.cancelled() or task.exception())
        self._label = label

    @property
    def usable(self) -> bool:
        """Whether the connection belongs to the running event loop, and has not ended."""
        return not self._task.done() and not self._closing.is_set() and self._loop is asyncio.get_running_loop()

    async def session(self) -> Session:
        """Return the session when it is open. Raises ToolExecutionError if it cannot be opened."""
        await asyncio.wait({self._opened, self._task}, return_when=asyncio.FIRST_COMPLETED)
        if self._opened.done():
            return self._opened.result()
        error = None if self._task.cancelled() else self._task.exception()
        raise ToolExecutionError(f"{self._label}: cannot be reached: {_reason(error)}") from error

    async def answers(self) -> bool:
        """Return whether the server still answers."""
        try:
            async with asyncio.timeout(CHECK_TIMEOUT):
                await (await self.session()).list_tools()
        except Exception:
            return False
        return self.usable

    async def close(self) -> None:
        """End the session. A session that is still being opened is given up."""
        self._closing.set()
        if not self._opened.done():
            self._task.cancel()
        await asyncio.wait({self._task})

    async def _live(self, connect: Callable[[AsyncExitStack], Awaitable[Session]]) -> None:
        async with AsyncExitStack() as stack:
            self._opened.set_result(await connect(stack))
            await self._closing.wait()


def mcp_tools(
    server: str | Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    headers: Mapping[str, str] | None = None,
    prefix: str = "",
    timeout: float = TIMEOUT,
) -> McpTools:
    """Return the tools of an MCP server, for the `tools` of an agent or for `async with`.

    `server` is the URL of a server with streamable HTTP, or a command that speaks MCP on its stdin and stdout: a list,
    or one text that is split as a shell does. A process gets only HOME, PATH and a few more variables, and `env`; it
    runs in `cwd`. `headers` are sent to a URL. Each tool's name begins with `prefix`. A call may take `timeout`
    seconds.

    Raises MissingExtraError without the mcp package, and ValueError for an empty command.
    """
    try:
        mcp: Any = importlib.import_module("mcp")
    except ModuleNotFoundError as error:
        raise MissingExtraError("mcp_tools", "mcp") from error
    if isinstance(server, str) and server.startswith(("http://", "https://")):
        transport, label = _over_http(server, headers), f"the MCP server {server.partition('?')[0]}"
    else:
        argv = shlex.split(server) if isinstance(server, str) else list(server)
        if not argv:
            raise ValueError("server: is an empty command")
        given = mcp.StdioServerParameters(command=argv[0], args=argv[1:], env=dict(env) if env else None, cwd=cwd)
        transport, label = (lambda stack: mcp.stdio_client(given)), f"the MCP server {shlex.join(argv)}"

    async def connect(stack: AsyncExitStack) -> Session:
        return await _session(mcp, stack, transport(stack))

    return McpTools(connect, clip(label, 200), prefix, timeout)


async def _session(mcp: Any, stack: AsyncExitStack, transport: Any) -> Session:
    """Return an open session over a transport, with a client of version 2 of the package or with one of version 1."""
    if hasattr(mcp, "Client"):
        return (await stack.enter_async_context(mcp.Client(transport))).session
    streams = await stack.enter_async_context(transport)
    session = await stack.enter_async_context(mcp.ClientSession(streams[0], streams[1]))
    await session.initialize()
    return session


def _over_http(url: str, headers: Mapping[str, str] | None) -> Callable[[AsyncExitStack], Any]:
    """Return a function that makes the transport to a URL."""
    module: Any = importlib.import_module("mcp.client.streamable_http")
    sent = dict(headers or {})
    if not hasattr(module, "streamable_http_client"):  # version 1
        return lambda stack: module.streamablehttp_client(url, headers=sent)
    clients: Any = importlib.import_module("mcp.shared._httpx_utils")
    return lambda stack: _HttpTransport(module.streamable_http_client, clients.create_mcp_http_client, url, sent)


class _HttpTransport:
    """A transport of version 2 whose HTTP client sends headers of its own."""

    def __init__(self, transport: Any, client: Any, url: str, headers: dict[str, str]) -> None:
        self._transport, self._client = transport, client
        self._url, self._headers = url, headers
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Any:
        http = await self._stack.enter_async_context(self._client(headers=self._headers))
        return await self._stack.enter_async_context(self._transport(self._url, http_client=http))

    async def __aexit__(self, *exc: Any) -> Any:
        return await self._stack.__aexit__(*exc)


async def _listed(session: Session) -> list[dict[str, Any]]:
    """Return all tools of a server, in the form of the protocol."""
    tools: list[dict[str, Any]] = []
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = (await session.list_tools(**_page(session, cursor))).model_dump(mode="json", by_alias=True)
        tools += page["tools"]
        cursor = page.get("nextCursor")
        if not cursor:
            break
    return tools


def _page(session: Session, cursor: str | None) -> dict[str, Any]:
    """Return the options of list_tools for a page."""
    if cursor is None:
        return {}
    types: Any = importlib.import_module("mcp.types")
    return {"params": types.PaginatedRequestParams(cursor=cursor)}


def text_of(result: Mapping[str, Any]) -> str:
    """Return the result of a tool as a text. Images, audio and other data are named with their size."""
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


def _reason(error: BaseException | None) -> str:
    """Return the text of an error. Of an error group, it is the text of its first error."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return clip(describe(error)) if error is not None else "it was cancelled"
