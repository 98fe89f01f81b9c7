"""Limits the total bytes of open requests. Requests beyond the limit wait."""

import asyncio
from collections import deque


class ByteBudget:
    """A number of bytes that requests share. Waiting requests are served in order of arrival."""

    def __init__(self, limit: int) -> None:
        self._limit = self._free = limit
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, size: int) -> int:
        """Wait for `size` free bytes, take them, and return their number. Take at most the limit."""
        size = min(size, self._limit)
        if not self._waiting and size <= self._free:
            self._free -= size
            return size
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give(size)
            else:
                turn.cancel()
                self.give(0)
            raise
        return size

    def give(self, size: int) -> None:
        """Release bytes that take() has returned."""
        self._free += size
        while self._waiting:
            wanted, turn = self._waiting[0]
            if turn.cancelled():
                self._waiting.popleft()
            elif wanted <= self._free:
                self._waiting.popleft()
                self._free -= wanted
                turn.set_result(None)
            else:
                return
