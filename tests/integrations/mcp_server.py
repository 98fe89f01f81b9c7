"""A small MCP server, written with the server class of the mcp package: `python mcp_server.py [PORT]`.

Without a port it speaks on stdin and stdout. The version of the package decides the name of the class.
"""

import asyncio
import os
import sys
from typing import Any

try:
    from mcp.server.mcpserver import Image, MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
except ImportError:  # version 1
    from mcp.server.fastmcp import FastMCP as MCPServer
    from mcp.server.fastmcp import Image
    from mcp.server.fastmcp.exceptions import ToolError

server = MCPServer("numbers")
counted = 0


@server.tool()
async def add(a: float, b: float) -> float:
    """Adds two numbers."""
    return a + b


@server.tool()
async def count() -> str:
    """Counts its calls."""
    global counted
    counted += 1
    return f"{os.getpid()} {counted}"


@server.tool()
async def fail(why: str) -> str:
    """Raises an error."""
    raise ToolError(why)


@server.tool()
async def slow() -> str:
    """Never returns."""
    await asyncio.Event().wait()
    return ""


@server.tool()
async def die() -> str:
    """Ends the server."""
    os._exit(1)


@server.tool(name="draw.dot")
async def draw() -> Image:
    """Draws a dot."""
    return Image(data=b"\x89PNG", format="png")


@server.tool()
async def variables() -> str:
    """Names the variables of the environment."""
    return " ".join(sorted(os.environ))


@server.tool()
async def point() -> dict[str, Any]:
    """Returns a point."""
    return {"x": 1, "y": [2]}


if __name__ == "__main__":
    if len(sys.argv) > 1:
        import uvicorn

        uvicorn.run(server.streamable_http_app(), host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
    else:
        server.run("stdio")
