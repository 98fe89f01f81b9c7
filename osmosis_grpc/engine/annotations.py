"""Adds annotations to running or ended rollouts. An annotation becomes an event of the rollout."""

import asyncio
from dataclasses import dataclass, field, replace

from osmosis_grpc.engine.context import EngineContext
from osmosis_grpc.engine.record import Record
from osmosis_grpc.engine.rollout_queries import Rollouts
from osmosis_grpc.protocol.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    ResourceExhausted,
    Unavailable,
)
from osmosis_grpc.protocol.types.annotation import Annotation
from osmosis_grpc.protocol.types.events import Annotated

MAX_ANNOTATIONS = 1000
"""The largest number of annotations of one rollout."""
MAX_BYTES = 16 * 1024 * 1024
"""The largest size of one annotation, in bytes."""

Added = tuple[int, bool]
"""The number of an annotation's event, and whether the call has added it."""


@dataclass(slots=True, eq=False)
class _Uncommitted:
    """A rollout that has uncommitted annotations."""

    record: Record
    added: dict[str, tuple[Annotation, "asyncio.Future[int]"]] = field(default_factory=dict)
    """The uncommitted annotations by id. Each future gets the number of the event when it is committed."""


class Annotations:
    """Stores annotations. Each id is stored once for each attempt."""

    def __init__(self, context: EngineContext, rollouts: Rollouts) -> None:
        self._context = context
        self._rollouts = rollouts
        self._uncommitted: dict[tuple[str, int], _Uncommitted] = {}

    async def add(self, owner: str, rollout_id: str, attempt: int, annotation: Annotation) -> Added:
        """Store an annotation, and wait until it is committed. Attempt 0 means the newest attempt.

        Raises NotFound, AlreadyExists if the id has another annotation, FailedPrecondition if a running rollout has no
        segments yet, InvalidArgument if the annotation does not fit the outcome, ResourceExhausted if the rollout has
        too many annotations, and Unavailable if the journal cannot be read or written.
        """
        record = self._rollouts.get(owner, rollout_id, attempt)
        key = record.rollout_id, record.attempt
        waiting = self._uncommitted.get(key)
        if waiting is not None:
            record = waiting.record  # a record from the journal would lack the uncommitted events
            same = waiting.added.get(annotation.id)
            if same is not None:
                _check_same(annotation, same[0])
                return await asyncio.shield(same[1]), False
        known = self._context.journal.annotations(*key)
        for event in known:
            assert isinstance(event.kind, Annotated)
            if event.kind.annotation.id == annotation.id:
                _check_same(annotation, event.kind.annotation)
                return event.event_number, False
        if len(known) + (len(waiting.added) if waiting else 0) >= MAX_ANNOTATIONS:
            raise ResourceExhausted(f"rollout {rollout_id} has {MAX_ANNOTATIONS} annotations already")
        if annotation.nbytes > MAX_BYTES:
            raise InvalidArgument("annotation", f"has {annotation.nbytes} bytes, more than {MAX_BYTES}")
        self._check_fits(record, annotation)
        return await asyncio.shield(self._append(record, annotation)), True

    def _check_fits(self, record: Record, annotation: Annotation) -> None:
        outcome = record.delivery.outcome
        if outcome is not None:
            annotation.check_against(outcome.samples)
        elif annotation.segments or annotation.sample:
            raise FailedPrecondition(
                f"rollout {record.rollout_id} has no outcome yet, so it has no segments and no rewards",
                kind="NOT_ENDED",
                subject=record.rollout_id,
            )

    def _append(self, record: Record, annotation: Annotation) -> "asyncio.Future[int]":
        key = record.rollout_id, record.attempt
        waiting = self._uncommitted.setdefault(key, _Uncommitted(record))
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda done: done.cancelled() or done.exception())  # the caller may have left
        annotation = replace(annotation, time=self._context.system.time())

        def forget() -> None:
            waiting.added.pop(annotation.id, None)
            if not waiting.added and self._uncommitted.get(key) is waiting:
                del self._uncommitted[key]

        def committed(record: Record) -> None:
            forget()
            if record.trail.journaled:
                future.set_result(number)
                self._context.table.resized(record)
            else:
                problem = self._context.journal.problem or "an earlier event of the rollout is not on disk"
                future.set_exception(Unavailable(f"the journal cannot be written: {problem}", retry_after=5.0))

        number = record.trail.written + 1
        waiting.added[annotation.id] = annotation, future
        try:
            self._context.log.append(record, Annotated(annotation), committed)
        except BaseException:
            forget()
            raise
        return future


def _check_same(annotation: Annotation, known: Annotation) -> None:
    if not annotation.same_as(known):
        raise AlreadyExists(f"another annotation of this rollout has the id {annotation.id!r}")
