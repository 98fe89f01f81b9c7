"""Connections to MCP servers, over stdio or streamable HTTP, each opened and closed by one task."""

import asyncio
import contextvars
import importlib
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any

from osmosis_grpc.protocol.errors import ToolExecutionError
from osmosis_grpc.protocol.types.outcome import clip, describe
from osmosis_grpc.supervise import OnFailure, child, job

CONNECTION = job("integrations.mcp_connection", OnFailure.RAISE)

CHECK_TIMEOUT = 5.0
"""A server that does not list its tools within this many seconds after a failed call counts as lost."""
MAX_PAGES = 100
"""How many pages of a server's list of tools are read."""

Session = Any


class Connection:
    """A session with an MCP server. One task opens and closes it, because the mcp package requires this."""

    def __init__(self, connect: Callable[[AsyncExitStack], Awaitable[Session]], label: str, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[Session] = self._loop.create_future()
        self._closing = asyncio.Event()
        # An empty context, because the connection outlives the rollout that opens it.
        self._task = child(CONNECTION, self._live(connect, seconds), context=contextvars.Context())
        self._task.add_done_callback(lambda task: task.cancelled() or task.exception())
        self._label = label

    @property
    def usable(self) -> bool:
        """Whether the connection is open or being opened, and belongs to the running event loop."""
        return not self._task.done() and not self._closing.is_set() and self._loop is asyncio.get_running_loop()

    async def session(self) -> Session:
        """Return the session when it is open. Raises ToolExecutionError if it cannot be opened."""
        await asyncio.wait({self._opened, self._task}, return_when=asyncio.FIRST_COMPLETED)
        if self._opened.done():
            return self._opened.result()
        error = None if self._task.cancelled() else self._task.exception()
        raise ToolExecutionError(f"{self._label} cannot be reached: {reason(error)}") from error

    async def answers(self) -> bool:
        """Return whether the server answers."""
        try:
            async with asyncio.timeout(CHECK_TIMEOUT):
                await (await self.session()).list_tools()
        except Exception:
            return False
        return self.usable

    async def close(self) -> None:
        """End the session, or stop opening it."""
        self._closing.set()
        if not self._opened.done():
            self._task.cancel()
        await asyncio.wait({self._task})

    async def _live(self, connect: Callable[[AsyncExitStack], Awaitable[Session]], seconds: float) -> None:
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(seconds) as limit:
                    session = await connect(stack)
            except TimeoutError as error:
                raise TimeoutError(f"no answer within {seconds:g} s" if limit.expired() else str(error)) from None
            self._opened.set_result(session)
            await self._closing.wait()


async def open_session(mcp: Any, stack: AsyncExitStack, transport: Any) -> Session:
    """Open a session over a transport, with the client of version 2 or of version 1 of the package."""
    if hasattr(mcp, "Client"):
        return (await stack.enter_async_context(mcp.Client(transport))).session
    streams = await stack.enter_async_context(transport)
    session = await stack.enter_async_context(mcp.ClientSession(streams[0], streams[1]))
    await session.initialize()
    return session


def over_http(url: str, headers: Mapping[str, str] | None) -> Callable[[AsyncExitStack], Any]:
    """Return a function that makes the transport to a URL."""
    module: Any = importlib.import_module("mcp.client.streamable_http")
    sent = dict(headers or {})
    if not hasattr(module, "streamable_http_client"):  # version 1
        return lambda stack: module.streamablehttp_client(url, headers=sent)
    clients: Any = importlib.import_module("mcp.shared._httpx_utils")
    return lambda stack: _HttpTransport(module.streamable_http_client, clients.create_mcp_http_client, url, sent)


class _HttpTransport:
    """A transport of version 2 whose HTTP client sends additional headers."""

    def __init__(self, transport: Any, client: Any, url: str, headers: dict[str, str]) -> None:
        self._transport, self._client = transport, client
        self._url, self._headers = url, headers
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Any:
        http = await self._stack.enter_async_context(self._client(headers=self._headers))
        return await self._stack.enter_async_context(self._transport(self._url, http_client=http))

    async def __aexit__(self, *exc: Any) -> Any:
        return await self._stack.__aexit__(*exc)


async def list_tools(session: Session) -> list[dict[str, Any]]:
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
    if cursor is None:
        return {}
    types: Any = importlib.import_module("mcp.types")
    return {"params": types.PaginatedRequestParams(cursor=cursor)}


def without_secrets(text: str) -> str:
    """Return a text without the users, passwords and queries of the URLs in it."""
    return re.sub(r"(https?://)(?:[^/\s'\"]*@)?([^\s'\"?#]*)(?:[?#][^\s'\"]*)?", r"\1\2", text)


def reason(error: BaseException | None) -> str:
    """Return the text of an error, or of the first error in an error group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return clip(without_secrets(describe(error))) if error is not None else "it was cancelled"
