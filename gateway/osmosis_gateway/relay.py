"""One rollout of a legacy agent: its chats, held until our run begins, and its completion."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from osmosis_gateway.contract import CompletedBody
from osmosis_grpc.agent import CompletionsResult, RolloutContext
from osmosis_grpc.errors import CallError, OsmosisRolloutError, RolloutEndedError
from osmosis_grpc.supervise import OnFailure, child, job
from osmosis_grpc.types import jsontext

RELAY_CHAT = job("gateway.relay_chat", OnFailure.RAISE)

Gone = Callable[[], Awaitable[bool]]
"""Whether the one who asked has hung up."""


class LegacyAgentLost(OsmosisRolloutError):
    """A legacy agent was silent for too long."""

    boundary = "server"
    retryable = True


class _Asked:
    """A chat that was asked, and who waits for it."""

    def __init__(self, body: str, gone: Gone, task: "asyncio.Task[CompletionsResult]") -> None:
        self.body = body
        self.gone = gone
        self.task = task


class Relay:
    """Lives from get_tools to the rollout's end.

    The contract has no chat numbers. The same chat asked again by one whose first connection is
    gone joins the first; asked beside one that still waits it is another chat.
    """

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._context: asyncio.Future[RolloutContext] = loop.create_future()
        self._completed: asyncio.Future[CompletedBody] = loop.create_future()
        self._asked: list[_Asked] = []
        self._heard = asyncio.Event()
        self._closed = False
        self.tool_messages = 0
        """The most tool messages that a chat's history had."""
        self.failure: CallError | None = None
        """Why the last chat failed, if it did."""

    def begin(self, context: RolloutContext) -> None:
        """Our run began: chats may go out."""
        self._context.set_result(context)

    async def chat(self, messages: list[dict[str, Any]], params: dict[str, Any], gone: Gone) -> CompletionsResult:
        """A reply to a legacy agent's chat. Raises CallError, ValueError, RolloutEndedError."""
        body = jsontext.canonical([messages, params])
        asked = await self._abandoned(body, gone)
        if self._closed:
            raise RolloutEndedError("the rollout has ended")
        if asked is None:
            self.tool_messages = max(self.tool_messages, count_tool_messages(messages))
            asked = _Asked(body, gone, child(RELAY_CHAT, self._ask(messages, params)))
            self._asked.append(asked)
        self._heard.set()
        await asyncio.wait({asked.task})
        failed = asked.task.cancelled() or asked.task.exception() is not None
        if failed or not await asked.gone():  # a reply that nobody took is kept for who asks again
            with contextlib.suppress(ValueError):
                self._asked.remove(asked)
        self._heard.set()
        if asked.task.cancelled():
            raise RolloutEndedError("the rollout has ended")
        return asked.task.result()

    async def completed(self, silence: float) -> CompletedBody:
        """Wait for the completion. Raises LegacyAgentLost after so many seconds without any word or open chat."""
        while not self._completed.done():
            self._heard.clear()
            busy = any(not asked.task.done() for asked in self._asked)
            try:
                async with asyncio.timeout(None if busy else silence):
                    await self._heard.wait()
            except TimeoutError:
                raise LegacyAgentLost(f"the legacy agent was silent for {silence:g} s") from None
        return self._completed.result()

    def complete(self, body: CompletedBody) -> None:
        """The legacy agent's completion came. The first one stands."""
        if not self._completed.done():
            self._completed.set_result(body)
        self._heard.set()

    def close(self) -> None:
        """The rollout is over: whoever waits is sent away."""
        self._closed = True
        self._context.cancel()
        for asked in self._asked:
            asked.task.cancel()

    async def _abandoned(self, body: str, gone: Gone) -> _Asked | None:
        """The same chat, whose asker has hung up; from now on it is asked by this one."""
        for asked in [asked for asked in self._asked if asked.body == body]:
            before = asked.gone
            if await before() and asked.gone is before:
                asked.gone = gone
                return asked
        return None

    async def _ask(self, messages: list[dict[str, Any]], params: dict[str, Any]) -> CompletionsResult:
        context = await asyncio.shield(self._context)
        self.failure = None
        try:
            return await context.chat(messages, **params)
        except CallError as error:
            self.failure = error
            raise


def count_tool_messages(messages: Sequence[Mapping[str, Any]]) -> int:
    """How many tool calls a history shows."""
    return sum(message.get("role") == "tool" for message in messages)
