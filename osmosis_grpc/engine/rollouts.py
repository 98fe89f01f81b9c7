"""What may be asked about rollouts. To everybody but its owner a rollout does not exist.

Nothing here changes one.
"""

from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

from osmosis_grpc.engine.context import EngineContext
from osmosis_grpc.engine.journal_port import RolloutFilter
from osmosis_grpc.engine.record import Record
from osmosis_grpc.engine.resolve_references import resolve_from_journal
from osmosis_grpc.errors import NotFound, Unavailable
from osmosis_grpc.types import RolloutInfo, RolloutState, TrajectoryEvent


class Rollouts:
    """The engine's rollouts, live or over, wherever they are kept."""

    def __init__(self, context: EngineContext) -> None:
        self._context = context

    def get(self, owner: str, rollout_id: str, attempt: int = 0) -> Record:
        """A rollout of the owner's. Raises NotFound."""
        record = self._context.table.find(rollout_id, attempt) if attempt else self._context.table.accepted(rollout_id)
        if record is None or record.owner != owner or not record.accepted.done():
            raise NotFound(
                f"there is no rollout {rollout_id}" + (f" attempt {attempt}" if attempt else ""),
                kind="rollout",
                name=rollout_id,
            )
        return record

    async def info(self, record: Record) -> RolloutInfo:
        """Where a rollout stands, with its completion once there is one."""
        info, completion = record.info(), record.delivery.completion
        if completion is None:
            return info
        bare = replace(completion, from_journal=None) if completion.from_journal else completion  # that is the asker's
        return replace(info, completion=await resolve_from_journal(bare, self._context.journal))

    async def page(
        self,
        owner: str,
        after: int = 0,
        limit: int = 100,
        *,
        states: Sequence[RolloutState] = (),
        group_id: str = "",
        undelivered: bool = False,
    ) -> tuple[list[RolloutInfo], int]:
        """The owner's rollouts accepted after a place, and the place to go on from; 0 after the last."""
        rows: list[RolloutInfo] = []
        place = 0
        where = RolloutFilter(states, group_id, unsettled=undelivered)
        async for record in self._context.table.after(after, owner, limit + 1, where):
            group = record.init.request.group
            if not record.accepted.done() or (states and record.state not in states):
                continue
            if (group_id and (group is None or group.id != group_id)) or (
                undelivered and not record.delivery.undelivered
            ):
                continue
            if len(rows) == limit:
                return rows, place
            rows.append(record.info())
            place = record.sequence
        return rows, 0

    def follow_all(
        self, owner: str, cursor: str, from_now: bool
    ) -> AsyncGenerator[tuple[int, TrajectoryEvent | None], None]:
        """All of the owner's events from a cursor onward."""
        start = self._context.journal.last_position if from_now else 0
        position = self._context.log.position(cursor) if cursor else start
        return self._context.log.follow_all(owner, position)

    def in_flight(self) -> Counter[str]:
        """Returns how many accepted rollouts have not ended, by agent loop."""
        return Counter(record.agent_loop for record in self._context.table.live() if record.accepted.done())

    def knows(self, owner: str, rollout_id: str, attempt: int) -> bool:
        """Whether an accepted attempt is the owner's, running or ended."""
        record = self._context.table.find(rollout_id, attempt)
        return record is not None and record.owner == owner and record.accepted.done()

    def was_asked(self, owner: str, rollout_id: str, attempt: int, sample: str, number: int) -> bool:
        """Whether this chat was ever asked; of an ended rollout nobody remembers, and so it was."""
        try:
            record = self._context.table.find(rollout_id, attempt)
        except Unavailable:  # the journal cannot be read: nobody can tell it from an ended one
            return True
        if record is None or record.owner != owner:
            return False
        return record.run.session is None or 0 < number <= record.run.session.asked(sample)

    def holds(self, owner: str, rollout_id: str, attempt: int) -> bool:
        """Whether an Init of this attempt adds no live rollout: it is known, or replaces a live one."""
        known = self._context.table.highest(rollout_id)
        return known is not None and known.owner == owner and (known.attempt >= attempt or known.live)
