"""Relays one rollout of a legacy agent. The agent's chats wait until the run begins, and its outcome ends the run."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from osmosis_gateway.http_bodies import CompletedBody
from osmosis_grpc.agent import CompletionsResult, RolloutContext
from osmosis_grpc.protocol.errors import CallError, OsmosisRolloutError, RolloutEndedError
from osmosis_grpc.protocol.types import jsontext
from osmosis_grpc.supervise import OnFailure, child, job

RELAY_CHAT = job("gateway.relay_chat", OnFailure.RAISE)

Gone = Callable[[], Awaitable[bool]]
"""Returns whether the caller has disconnected."""


class LegacyAgentLost(OsmosisRolloutError):
    """A legacy agent was silent for too long."""

    boundary = "server"
    retryable = True


@dataclass(slots=True, eq=False)
class _PendingChat:
    """A chat request and the connection that waits for its reply."""

    body: str
    gone: Gone
    task: "asyncio.Task[CompletionsResult]"


class Relay:
    """Relays the calls of one run. A relay exists from get_tools to the end of the rollout.

    The contract does not number chats. So if an equal chat arrives after the first one's connection is lost, it counts
    as a retry and gets the reply to the first one. If it arrives while the first connection still waits, it counts as
    another chat.
    """

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._context: asyncio.Future[RolloutContext] = loop.create_future()
        self._completed: asyncio.Future[CompletedBody] = loop.create_future()
        self.pending: list[_PendingChat] = []
        """Chats whose reply the agent has not received yet."""
        self._heard = asyncio.Event()
        self._closed = False
        self.tool_messages = 0
        """The largest number of tool messages in any chat so far."""
        self.failure: CallError | None = None
        """The error of the last chat, if it failed."""

    def begin(self, context: RolloutContext) -> None:
        """Begin the run. Chats that wait are sent now."""
        self._context.set_result(context)

    async def chat(self, messages: list[dict[str, Any]], params: dict[str, Any], gone: Gone) -> CompletionsResult:
        """Return the reply to a legacy agent's chat. Raises CallError, ValueError, RolloutEndedError."""
        body = jsontext.canonical([messages, params])
        pending = await self._abandoned(body, gone)
        if self._closed:
            raise RolloutEndedError("the rollout has ended")
        if pending is None:
            self.tool_messages = max(self.tool_messages, count_tool_messages(messages))
            pending = _PendingChat(body, gone, child(RELAY_CHAT, self._ask(messages, params)))
            self.pending.append(pending)
        self._heard.set()
        await asyncio.wait({pending.task})
        failed = pending.task.cancelled() or pending.task.exception() is not None
        if failed or not await pending.gone():  # a reply without a receiver is kept for a retry
            with contextlib.suppress(ValueError):
                self.pending.remove(pending)
        self._heard.set()
        if pending.task.cancelled():
            raise RolloutEndedError("the rollout has ended")
        return pending.task.result()

    async def completed(self, silence: float) -> CompletedBody:
        """Wait for the outcome.

        Raises LegacyAgentLost when no call arrives for `silence` seconds and no chat is open.
        """
        while not self._completed.done():
            self._heard.clear()
            busy = any(not pending.task.done() for pending in self.pending)
            try:
                async with asyncio.timeout(None if busy else silence):
                    await self._heard.wait()
            except TimeoutError:
                raise LegacyAgentLost(f"the legacy agent was silent for {silence:g} s") from None
        return self._completed.result()

    def complete(self, body: CompletedBody) -> None:
        """Record the legacy agent's outcome. Later outcomes are ignored."""
        if not self._completed.done():
            self._completed.set_result(body)
        self._heard.set()

    def close(self) -> None:
        """End the rollout. Every waiting chat raises RolloutEndedError."""
        self._closed = True
        self._context.cancel()
        for pending in self.pending:
            pending.task.cancel()

    async def _abandoned(self, body: str, gone: Gone) -> _PendingChat | None:
        """Return an equal chat whose caller has disconnected, and hand it to the new caller. Return None without one.

        `gone` returns whether the new caller has disconnected.
        """
        for pending in [pending for pending in self.pending if pending.body == body]:
            before = pending.gone
            if await before() and pending.gone is before:
                pending.gone = gone
                return pending
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
    """Return the number of tool messages in a history."""
    return sum(message.get("role") == "tool" for message in messages)
