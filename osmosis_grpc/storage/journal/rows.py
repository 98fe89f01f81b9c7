"""Makes the rows of rollouts and events, reads entries from them, and detects damaged rows."""

from array import array
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from osmosis_grpc.protocol.types import (
    Callback,
    EndedBy,
    EventKind,
    InitRequest,
    JournaledRollout,
    OutcomeSummary,
    RolloutRequest,
    RolloutState,
    events,
)
from osmosis_grpc.protocol.types.failure_reasons import DATA_LOSS
from osmosis_grpc.protocol.wire.event import kind_from_bytes
from osmosis_grpc.protocol.wire.rollout import callback_from_bytes, callback_to_bytes
from osmosis_grpc.storage.data_loss import data_loss
from osmosis_grpc.storage.journal import schema
from osmosis_grpc.storage.journal.open_rollouts import End, OpenRollout
from osmosis_grpc.storage.sqlite.file_schema import event_sum, row_sum, with_sum

EVENT_BYTES = 48
"""About how many bytes an event takes in the file in addition to its body."""


class EventRow(NamedTuple):
    """A row of the table of events."""

    position: int
    sequence: int
    event_number: int
    time: float
    kind: int
    body: bytes
    checksum: int

    @property
    def sound(self) -> bool:
        """Whether the row matches its checksum."""
        try:
            return event_sum(*self[:6]) == self.checksum
        except Exception:  # a damaged value can have any type
            return False

    def read(self) -> EventKind:
        """Decode the event."""
        return kind_from_bytes(self.kind, self.body)


class RolloutRow(NamedTuple):
    """A row of the table of rollouts."""

    sequence: int
    rollout_id: str
    attempt: int
    owner: str
    attachment_id: str
    callback: bytes | None
    group_id: str | None
    forked_from: str | None
    agent_loop: str
    idempotency_key: str | None
    digest: bytes
    accept_time: float
    start_time: float | None
    end_time: float | None
    state: str
    reward: float | None
    failure_reason: str | None
    failure_summary: str | None
    chats: int | None
    response_tokens: int | None
    prompt_tokens: int | None
    finish_reason: str | None
    accepted: int
    ended: int | None
    positions: bytes | None
    last_event_number: int
    size: int
    settled: int
    accepted_at: float
    ended_at: float | None
    deaths: int
    accept_sum: int
    end_sum: int
    deaths_sum: int

    @property
    def end(self) -> End:
        """The columns that describe the end."""
        return End._make(getattr(self, name) for name in End._fields)

    @property
    def summary(self) -> OutcomeSummary:
        """The summary of the outcome; the default before the end."""
        return OutcomeSummary(
            reward=self.reward,
            failure_reason=self.failure_reason or "",
            failure_summary=self.failure_summary or "",
            chats=self.chats or 0,
            response_tokens=self.response_tokens or 0,
            prompt_tokens=self.prompt_tokens or 0,
            finish_reason=self.finish_reason or "",
        )

    def wrong(self) -> str:
        """Describe the first checksum that does not match. Return an empty text if all checksums match."""
        found = schema.JOURNAL.tables["rollouts"].wrong(self)
        return f"{found} does not match in its row of rollouts" if found else ""

    def usable(self) -> "RolloutRow":
        """Return the row with defaults in place of values of a wrong type. A damaged row can have such values."""
        return RolloutRow._make(schema.JOURNAL.tables["rollouts"].usable(self))


class Dropped(NamedTuple):
    """A rollout to delete."""

    sequence: int
    rollout_id: str
    attempt: int
    positions: bytes | None
    """The positions of the rollout's events, or None if the rollout has not ended."""
    size: int


class Trail:
    """The positions of a rollout's events, in the order of the events' numbers. A lost event has the position 0."""

    def __init__(self) -> None:
        self.positions: array[int] = array("Q")
        self.size = 0
        self._problem = ""

    def add(self, row: EventRow) -> None:
        """Add the next event. Call it in the order of the events' positions."""
        if row.sound:
            self.put(row.position, row.event_number, len(row.body))
            return
        self._problem = (
            self._problem or f"event {len(self.positions) + 1} (row {row.position}) does not match its checksum"
        )
        self.positions.append(row.position)
        self.size += EVENT_BYTES

    def put(self, position: int, number: int, size: int = 0) -> None:
        """Add the next event without its row. Does not check its checksum."""
        expected = len(self.positions) + 1
        if number != expected:
            self._problem = self._problem or f"event {expected} is missing"
            if not expected <= number < expected + 100_000:
                return
            self.positions.extend([0] * (number - expected))
        self.positions.append(position)
        self.size += EVENT_BYTES + size

    def wrong(self, row: RolloutRow) -> str:
        """Describe the damage in the events of a rollout. Return an empty text if there is no damage."""
        if self._problem:
            return self._problem
        if not self.positions or self.positions[0] != row.accepted:
            return "its first event is missing"
        if row.positions is not None and row.positions != self.positions.tobytes():
            return "its last event is missing"
        if row.ended and row.ended not in self.positions:
            return "its end is missing"
        return ""


def accepted_columns(entry: JournaledRollout, accepted: int, accepted_at: float) -> tuple[Any, ...]:
    """Return the values that a rollout's acceptance writes. A new destination writes them again.

    The last value is the checksum of the other values.
    """
    init, request = entry.init, entry.init.request
    row = (
        entry.sequence,
        request.rollout_id,
        request.attempt,
        entry.owner,
        entry.attachment_id,
        None if init.callback is None else callback_to_bytes(init.callback, secrets=False),
        request.group.id if request.group is not None else None,
        request.fork.rollout_id if request.fork is not None else None,
        entry.agent_loop,
        request.idempotency_key,
        init.digest,
        entry.accept_time,
        accepted,
        accepted_at,
    )
    return with_sum(b"rollouts.accept_sum", row)


def accept_row(entry: JournaledRollout, accepted: int, accepted_at: float) -> tuple[Any, ...]:
    """Return the values of schema.ACCEPT for a rollout that has only its first event."""
    end = End()
    rest = end.state, 1, 0, 0
    end_sum = row_sum(b"rollouts.end_sum", (entry.sequence, *end, None, *rest[1:]))
    deaths = 0, schema.deaths_sum(entry.sequence, 0)
    return *accepted_columns(entry, accepted, accepted_at), *rest, end_sum, *deaths


def end_row(rollout: OpenRollout, number: int) -> tuple[Any, ...]:
    """Return the values of schema.END. `number` is the number of the event that has ended or settled the rollout."""
    written = rollout.positions.tobytes(), number, rollout.size, int(rollout.settled)
    return with_sum(b"rollouts.end_sum", (rollout.sequence, *rollout.end, *written))


def settle_row(rollout: OpenRollout, number: int) -> tuple[Any, ...]:
    """Return the values of schema.SETTLE."""
    row = end_row(rollout, number)
    return row[0], *row[-5:-2], row[-1]


def entry_of(
    row: RolloutRow, first: EventKind | None, last: EventKind | None, damage: str, *, outcome: bool = True
) -> JournaledRollout:
    """Return the entry of a rollout.

    Args:
        row: Its row, with values of the right types.
        first: Its first event. None or another kind means that the event is damaged.
        last: The event of its end, if it has ended and the event was read.
        damage: What is damaged, or empty. A settled rollout with damage is FAILED (DATA_LOSS).
        outcome: Whether the entry has the outcome.
    """
    accepted = first if isinstance(first, events.Accepted) else None
    ended = last if isinstance(last, events.Ended) else None
    if ended is not None and ended.outcome.finish_reason == DATA_LOSS:  # the end already reports the damage
        damage = ""
    entry = JournaledRollout(
        init=_init(row, accepted),
        tools=accepted.tools if accepted else (),
        owner=row.owner,
        attachment_id=row.attachment_id,
        sequence=row.sequence,
        agent_loop=row.agent_loop,
        accept_time=row.accept_time,
        settled=bool(row.settled),
        last_event_number=row.last_event_number,
        accepted_at=row.accepted_at,
        deaths=row.deaths,
        damage=damage,
    )
    if not damage:
        return replace(
            entry,
            start_time=row.start_time,
            end_time=row.end_time,
            state=RolloutState(row.state),
            outcome=ended.outcome if ended is not None and outcome else None,
            summary=row.summary,
            ended_by=ended.by if ended is not None else EndedBy(),
        )
    if not row.settled:
        return entry
    request = entry.init.request
    lost = data_loss("journal", request.rollout_id, request.attempt, damage)
    return replace(
        entry,
        start_time=row.accept_time,
        end_time=row.accept_time,
        state=RolloutState.FAILED,
        summary=OutcomeSummary.of(lost),
        outcome=replace(lost, group=request.group, evaluation=request.evaluation) if outcome else None,
    )


def _init(row: RolloutRow, first: events.Accepted | None) -> InitRequest:
    """Return a rollout's Init without secrets. If its event Accepted is damaged, the Init has only the row's values."""
    callback: Callback | None = None
    if row.callback is not None:
        with suppress(Exception):  # the bytes are damaged, and the row's checksum reports this
            callback = callback_from_bytes(row.callback)
    if first is not None:
        return replace(first.init, callback=callback, digest=row.digest)
    request = RolloutRequest(rollout_id=row.rollout_id, attempt=row.attempt or 1, messages=[])
    return InitRequest(request=request, callback=callback, digest=row.digest)
