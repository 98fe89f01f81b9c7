"""Reads rollouts. An owner sees only its own rollouts."""

from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import replace

from osmosis_grpc.engine.context import EngineContext
from osmosis_grpc.engine.record import Record
from osmosis_grpc.engine.recorded_chats import resolve_from_journal
from osmosis_grpc.protocol.errors import NotFound, Unavailable
from osmosis_grpc.protocol.types import RolloutFilter, RolloutInfo, TrajectoryEvent
from osmosis_grpc.protocol.types.rollout_info import EVERY


class Rollouts:
    """Read-only access to the rollouts in memory and in the journal."""

    def __init__(self, context: EngineContext) -> None:
        self._context = context

    def get(self, owner: str, rollout_id: str, attempt: int = 0) -> Record:
        """Return an attempt of the owner's rollout; attempt 0 means the newest. Raises NotFound."""
        record = self._context.table.find(rollout_id, attempt) if attempt else self._context.table.accepted(rollout_id)
        if record is None or record.owner != owner or not record.accepted.done():
            raise NotFound(
                f"there is no rollout {rollout_id}" + (f" attempt {attempt}" if attempt else ""),
                kind="rollout",
                name=rollout_id,
            )
        return record

    async def info(self, record: Record) -> RolloutInfo:
        """Return the state of a rollout. After the end, the state includes the outcome."""
        info, outcome = record.info(), record.delivery.outcome
        if outcome is None:
            return info
        bare = replace(outcome, from_journal=None) if outcome.from_journal else outcome  # it is for one caller only
        return replace(info, outcome=await resolve_from_journal(bare, self._context.journal))

    async def page(
        self, owner: str, after: int = 0, limit: int = 100, where: RolloutFilter = EVERY, *, newest_first: bool = False
    ) -> tuple[list[RolloutInfo], int]:
        """Return a page of the owner's rollouts after a sequence number, and the `after` of the next page.

        The rows are in the order of acceptance, or with `newest_first` in the reverse order. Pass `after` 0 for the
        first page. The returned `after` is 0 if there is no next page.
        """
        rows, more = await self.numbered_page(owner, after, limit, where, newest_first=newest_first)
        return [row for _, row in rows], rows[-1][0] if more else 0

    async def numbered_page(
        self, owner: str, after: int = 0, limit: int = 100, where: RolloutFilter = EVERY, *, newest_first: bool = False
    ) -> tuple[list[tuple[int, RolloutInfo]], bool]:
        """Return a page as page() does, with the sequence number of each row, and whether there are more rows."""
        rows: list[tuple[int, RolloutInfo]] = []
        now = self._context.system.time()
        async for record in self._context.table.after(after, owner, limit + 1, where, newest_first=newest_first):
            if not record.accepted.done() or not where.matches(info := record.info(), now):
                continue
            if len(rows) == limit:
                return rows, True
            rows.append((record.sequence, info))
        return rows, False

    def follow_all(
        self, owner: str, cursor: str, from_now: bool
    ) -> AsyncGenerator[tuple[int, TrajectoryEvent | None], None]:
        """Yield the owner's events from a cursor on, each with its position."""
        start = self._context.journal.last_position if from_now else 0
        position = self._context.log.position(cursor) if cursor else start
        return self._context.log.follow_all(owner, position)

    def in_flight(self) -> Counter[str]:
        """Return, for each agent, how many accepted rollouts have not ended."""
        return Counter(record.agent_loop for record in self._context.table.live() if record.accepted.done())

    def superseded(self, owner: str, rollout_id: str, attempt: int) -> bool:
        """Return whether this attempt of the owner has ended, and a higher attempt of the rollout was accepted."""
        record = self._context.table.find(rollout_id, attempt)
        if record is None or record.owner != owner or record.live:
            return False
        newest = self._context.table.accepted(rollout_id)
        return newest is not None and newest.attempt > attempt

    def was_asked(self, owner: str, rollout_id: str, attempt: int, sample: str, number: int) -> bool:
        """Return whether this chat was ever sent.

        For an ended rollout, return True, because it does not keep its chats.
        """
        try:
            record = self._context.table.find(rollout_id, attempt)
        except Unavailable:  # the journal cannot be read, so the rollout may have ended
            return True
        if record is None or record.owner != owner:
            return False
        if record.run.session is None:
            return True
        state = record.run.session.samples.get(sample)
        return state is not None and 0 < number <= state.chats

    def holds(self, owner: str, rollout_id: str, attempt: int) -> bool:
        """Return whether an Init of this attempt would leave the number of live rollouts unchanged.

        That is so if the attempt is known, or if it replaces a live attempt.
        """
        known = self._context.table.highest(rollout_id)
        return known is not None and known.owner == owner and (known.attempt >= attempt or known.live)
