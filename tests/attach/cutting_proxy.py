"""A TCP proxy between a trainer and its agent server, to be cut, held up and pointed elsewhere.

"up" is from whoever dialled, "down" towards it.
"""

import asyncio
from typing import Literal

Direction = Literal["up", "down"]


class Connection:
    """One connection: two pumps, and what they hold back."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.to: dict[Direction, asyncio.StreamWriter] = {"up": server, "down": client}
        self.held: dict[Direction, bytearray] = {"up": bytearray(), "down": bytearray()}
        self.holding: set[Direction] = set()
        self.moved = asyncio.get_running_loop().time()
        """When a byte last passed, in either direction."""

    async def pump(self, reader: asyncio.StreamReader, direction: Direction) -> None:
        while data := await reader.read(65536):
            self.moved = asyncio.get_running_loop().time()
            if direction in self.holding:
                self.held[direction] += data
            else:
                self.to[direction].write(data)
                await self.to[direction].drain()

    async def idle(self, limit: float) -> None:
        """Wait until nothing has passed for `limit` seconds."""
        while (rest := self.moved + limit - asyncio.get_running_loop().time()) > 0:
            await asyncio.sleep(rest)  # what was moved takes effect

    def release(self, direction: Direction) -> None:
        self.holding.discard(direction)
        self.to[direction].write(bytes(self.held[direction]))
        self.held[direction].clear()

    def abort(self) -> None:
        """Both sides get a reset; what is on its way is lost."""
        for writer in self.to.values():
            writer.transport.abort()


class CuttingProxy:
    """Used as `async with CuttingProxy("127.0.0.1:50051") as proxy`; dial `proxy.address`.

    With an `idle_limit` it does what load balancers do: a connection on which no byte passed for so
    many seconds is cut.
    """

    def __init__(self, target: str, idle_limit: float | None = None) -> None:
        self.target = target
        self.idle_limit = idle_limit
        self.cut_when_idle = 0
        """How many connections were cut for that."""
        self.address = ""
        self.connections: set[Connection] = set()
        self.accepted = 0
        """How many connections there were so far."""
        self.refusing = False
        """Whether new connections are refused."""
        self._holding_new: set[Direction] = set()
        self._server: asyncio.Server
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "CuttingProxy":
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> int:
        """Cut every connection. How many those were."""
        cut = len(self.connections)
        for connection in self.connections:
            connection.abort()
        self.connections.clear()
        return cut

    def hold(self, *directions: Direction, new: bool = False) -> None:
        """Keep the connections, but hold back what comes; with `new` on future ones, too."""
        for connection in self.connections:
            connection.holding.update(directions)
        if new:
            self._holding_new.update(directions)

    def release(self, *directions: Direction) -> None:
        """Let through what was held back, and what comes."""
        self._holding_new.difference_update(directions)
        for connection in self.connections:
            for direction in directions:
                connection.release(direction)

    def holds(self, direction: Direction, text: str | bytes) -> bool:
        """Whether these bytes lie here, held back."""
        raw = text.encode() if isinstance(text, str) else text
        return any(raw in connection.held[direction] for connection in self.connections)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            await self._carry(reader, writer)
        except (OSError, asyncio.CancelledError):  # a task that asyncio made itself: cancelled, it has just ended
            pass
        finally:
            writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refusing:
            return
        host, _, port = self.target.rpartition(":")
        other, onward = await asyncio.open_connection(host, int(port))
        connection = Connection(writer, onward)
        connection.holding |= self._holding_new
        self.connections.add(connection)
        self.accepted += 1
        pumps = [
            asyncio.create_task(connection.pump(reader, "up")),
            asyncio.create_task(connection.pump(other, "down")),
        ]
        if self.idle_limit is not None:
            pumps.append(asyncio.create_task(self._cut_when_idle(connection, self.idle_limit)))
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.connections.discard(connection)
            connection.abort()
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _cut_when_idle(self, connection: Connection, limit: float) -> None:
        await connection.idle(limit)
        self.cut_when_idle += 1
        connection.abort()
