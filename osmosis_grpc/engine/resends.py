"""Sends a delivered completion again, after an equal Init for an ended rollout.

The delivery of such a rollout is settled, so nothing is recorded here. The trainer ignores a completion that it has.
"""

import asyncio
import logging
from collections.abc import Hashable
from functools import partial

from osmosis_grpc.engine.context import EngineContext
from osmosis_grpc.engine.outbox import FINAL
from osmosis_grpc.engine.record import Peer, Record
from osmosis_grpc.engine.resolve_references import resolve_from_journal
from osmosis_grpc.errors import CallError, ResourceExhausted
from osmosis_grpc.supervise import Backoff, OnFailure, job
from osmosis_grpc.types import Completion
from osmosis_grpc.types.completion import clip, describe

log = logging.getLogger(__name__)

RESEND = job("engine.resend", OnFailure.RESTART)

MAX_RESENDS = 1024
"""Completions that may be sent again at the same time."""


class Resends:
    """Owns one task for each completion that is sent again."""

    def __init__(self, context: EngineContext) -> None:
        self._context = context
        self._tasks: dict[Hashable, asyncio.Task[None]] = {}
        self._undelivered: set[Record] = set()
        """Rollouts with an equal Init during their first delivery: the trainer may have handled that one already."""

    def send(self, record: Record) -> None:
        """Send an ended rollout's completion to its peer, after its first delivery.

        Raises ResourceExhausted if too many completions are being sent.
        """
        if record.delivery.undelivered:
            self._undelivered.add(record)
        elif len(self._tasks) >= MAX_RESENDS:
            raise ResourceExhausted(f"{MAX_RESENDS} completions of ended rollouts are on their way", retry_after=1.0)
        else:
            self._begin(record)

    def delivered(self, record: Record) -> None:
        """Note the end of the first delivery of a rollout."""
        if record in self._undelivered:
            self._undelivered.discard(record)
            self._begin(record)

    async def close(self) -> None:
        """Cancel all sends."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, record: Record) -> None:
        assert record.delivery.completion is not None
        key = record.rollout_id, record.attempt, record.peer.key
        if key not in self._tasks:
            give_up = asyncio.get_running_loop().time() + self._context.config.trainer_grace
            send = partial(self._send, record.peer, record.delivery.completion, give_up)
            task = self._tasks[key] = self._context.supervisor.start(RESEND, send)
            task.add_done_callback(lambda _: self._tasks.pop(key, None))

    async def _send(self, peer: Peer, completion: Completion, give_up: float) -> None:
        """Retry until the trainer has answered or the grace period is over."""
        loop = asyncio.get_running_loop()
        backoff = Backoff(*self._context.config.outbox_delay)
        while True:
            try:
                if not peer.accepts_references:
                    completion = await resolve_from_journal(completion, self._context.journal)
                await peer.complete(completion)
                return
            except Exception as error:
                pause = backoff.next()
                if isinstance(error, CallError) and error.retry_after is not None:
                    pause = error.retry_after
                if isinstance(error, FINAL) or loop.time() + pause > give_up:
                    log.warning(
                        "the completion of rollout %s was asked for again and cannot be delivered: %s",
                        completion.rollout_id,
                        clip(describe(error)),
                    )
                    return
            await asyncio.sleep(pause)
