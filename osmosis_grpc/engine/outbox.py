"""Delivery: every completion at least once, until its receiver has settled it or its time is up."""

import asyncio
import logging
import random

from osmosis_grpc.agent.ports import Clock
from osmosis_grpc.engine.config import EngineConfig
from osmosis_grpc.engine.eventlog import EventLog
from osmosis_grpc.engine.record import Record
from osmosis_grpc.errors import Aborted, InvalidArgument, Unimplemented
from osmosis_grpc.types import events
from osmosis_grpc.types.completion import clip, describe

log = logging.getLogger(__name__)

FINAL = (InvalidArgument, Aborted, Unimplemented)
"""A receiver that answers so will never take this completion."""


class Outbox:
    """Counts what is undelivered, and delivers it."""

    def __init__(self, config: EngineConfig, log: EventLog, clock: Clock) -> None:
        self._config = config
        self._log = log
        self._clock = clock
        self.undelivered = 0
        self.expired = 0
        """Completions that were given up because their time was up."""

    def put(self, record: Record) -> None:
        """A rollout ended; deliver() is to follow."""
        record.undelivered = True
        self.undelivered += 1

    def drop(self, record: Record) -> None:
        """A higher attempt stands: what is undelivered of this one is of no more use."""
        if record.undelivered:
            record.dropped = True
            record.turn()

    async def deliver(self, record: Record) -> None:
        """Try until it is settled. Cancelled, it stays undelivered."""
        assert record.completion is not None
        assert record.ended is not None
        gives_up = record.ended + self._config.record_ttl
        delay, longest = self._config.outbox_delay
        tries = 0
        while True:
            if record.dropped:
                return self._settle(record, events.Delivered(None, "superseded", tries))
            tries += 1
            record.repointed.clear()
            call = asyncio.ensure_future(record.peer.complete(record.completion))
            record.calls.add(call)
            try:
                return self._settle(record, events.Delivered(await call, tries=tries))
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                pause = 0.0 if record.repointed.is_set() else delay
            except FINAL as error:
                log.warning("the completion of rollout %s was refused: %s", record.rollout_id, clip(describe(error)))
                return self._settle(record, events.Delivered(None, clip(f"refused: {describe(error)}"), tries))
            except Exception as error:
                retry_after = getattr(error, "retry_after", None)
                pause = delay * random.uniform(0.5, 1.0) if retry_after is None else min(retry_after, longest)
                if tries == 1:
                    log.warning(
                        "the completion of rollout %s did not reach its trainer (%s); trying again",
                        record.rollout_id, clip(describe(error)),
                    )  # fmt: skip
            finally:
                record.calls.discard(call)
            left = gives_up - self._clock.monotonic()
            if left <= 0:
                self.expired += 1
                log.error("the completion of rollout %s expired undelivered after %d tries", record.rollout_id, tries)
                return self._settle(record, events.Delivered(None, "expired", tries))
            delay = min(longest, delay * 2)
            await _wait(record.repointed, min(pause, left))

    def _settle(self, record: Record, kind: events.Delivered) -> None:
        record.undelivered = False
        record.settled = True
        self.undelivered -= 1
        self._log.append(record, kind)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
