"""Sends the chats of one run to the trainer. While the trainer is away, a chat is sent again under the same number."""

import asyncio
import contextlib
import dataclasses
from typing import Any

from osmosis_grpc.engine import failpoints
from osmosis_grpc.engine.context import EngineContext
from osmosis_grpc.engine.record import Peer, Record
from osmosis_grpc.protocol.errors import CallError, DeadlineExceeded, RolloutEndedError, Unavailable
from osmosis_grpc.protocol.types import AbandonReason, ChatRequest, ChatResponse, RolloutState, events
from osmosis_grpc.protocol.types.outcome import clip, describe
from osmosis_grpc.supervise import Backoff, OnFailure, future, job

CHAT = job("engine.chat", OnFailure.RAISE)

SILENT = 0.9
"""A fraction of `chat_silence`, which is the longest timeout of a try.

A try fails sooner if the trainer is away. If a try times out only after at least SILENT * `chat_silence` seconds, the
trainer may still be sampling the reply, so ask() does not count it as away.
"""


class ChatCalls:
    """Sends the chats of one run to the trainer."""

    __slots__ = ("_context", "_record", "open")

    def __init__(self, record: Record, context: EngineContext) -> None:
        self._record = record
        self._context = context
        self.open = True

    def check_open(self) -> None:
        """Raise RolloutEndedError after close()."""
        if not self.open:
            raise RolloutEndedError(f"rollout {self._record.rollout_id} has ended, so its context accepts no calls")

    def close(self) -> None:
        """Send no more chats, and cancel the open ones."""
        self.open = False
        self._record.cancel_calls()

    def abandon(self, request: ChatRequest) -> None:
        """Tell the peer that a chat is abandoned, so that it stops sampling.

        A chat of a parked rollout is not abandoned, because the next process sends it again.
        """
        end, chat = self._record.run.termination, (request.sample, request.chat_number)
        if not self._record.run.parked:
            reason = end.abandon_reason if end is not None else AbandonReason.ENDED
            self._record.peer.abandon((request.rollout_id, request.attempt, *chat), reason)

    async def ask(self, request: ChatRequest) -> ChatResponse:
        """Send a chat and return the reply. After each retryable error, send the chat again.

        Raises the CallError of the trainer, and RolloutEndedError if the rollout ends before the reply.

        An error that is not retryable is raised at once. The first retryable error begins a grace period of
        `trainer_grace` seconds. If the next try would begin after the end of this period, the error is raised. An error
        with `reached` begins a new grace period, because the trainer was there during the try.

        If the rollout has moved to another peer, even an error that is not retryable is ignored. In this case, and if
        the trainer may still be sampling the reply (see SILENT), the chat is sent again at once, and the next retryable
        error begins a new grace period.
        """
        config, system = self._context.config, self._context.system
        backoff = Backoff(*config.retry_delay, system=system)
        away_since: float | None = None
        while True:
            peer, sent = self._record.peer, system.monotonic()
            try:
                return await self._try(peer, request)
            except CallError as error:
                now = system.monotonic()
                repointed = self._record.peer is not peer
                sampling = isinstance(error, DeadlineExceeded) and now - sent >= config.chat_silence * SILENT
                if not (repointed or error.retryable):
                    raise
                if repointed or sampling:
                    away_since = None
                else:
                    if error.reached:
                        backoff.reset()
                    away_since = now if away_since is None or error.reached else away_since
                    pause = error.retry_after if error.retry_after is not None else backoff.next()
                    if now + pause - away_since > config.trainer_grace:
                        raise
                    self._context.failed_chats.warn(
                        f"chat {request.chat_number} of rollout {request.rollout_id}: the trainer cannot answer now "
                        f"({clip(describe(error))}); retrying for up to {config.trainer_grace:g} s"
                    )
                    self.log_failed(request, error, will_retry=True)
            if away_since is not None:
                await self._pause(pause)
            request = dataclasses.replace(request, timeout=self.timeout(), state=self.state())

    async def _try(self, peer: Peer, request: ChatRequest) -> ChatResponse:
        asked: Any = peer.chat(request)
        call = asked if hasattr(asked, "cancel") else future(CHAT, asked)
        self._record.calls[call] = None
        failpoints.reach("chat.open")
        try:
            response: ChatResponse = await call
            self._context.destinations.reached(peer.destination_key)
            return response
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            self.check_open()
            why = (
                "the call was cancelled before the trainer answered the chat"
                if self._record.peer is peer
                else "the rollout moved to another peer before the trainer answered the chat"
            )
            raise Unavailable(why) from None
        finally:
            self._record.calls.pop(call, None)

    def timeout(self) -> float:
        """Return the timeout of one try, in seconds."""
        silence, deadline = self._context.config.chat_silence, self._record.run.deadline
        return silence if deadline is None else max(0.001, min(silence, deadline - self._context.system.monotonic()))

    def state(self) -> bytes:
        """Return the `state` of the rollout's callback."""
        callback = self._record.init.callback
        return callback.state if callback else b""

    async def _pause(self, seconds: float) -> None:
        """Wait until `seconds` have passed or the rollout moves to another peer.

        Raises RolloutEndedError if the rollout has ended.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._record.repointed().wait()
        self.check_open()

    def log_failed(self, request: ChatRequest, error: CallError, *, will_retry: bool) -> None:
        """If the rollout is running, append the failure of a chat to the event log."""
        if self.open and self._record.state is RolloutState.RUNNING:
            failed = events.ChatFailed(
                sample=request.sample,
                chat_number=request.chat_number,
                code=error.code,
                message=clip(str(error)),
                will_retry=will_retry,
            )
            self._context.log.append(self._record, failed)
