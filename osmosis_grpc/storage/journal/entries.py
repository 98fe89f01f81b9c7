"""Makes the entry of a rollout from its row and from two of its events: Accepted and Ended."""

from contextlib import suppress
from dataclasses import replace

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
from osmosis_grpc.protocol.wire.rollout import callback_from_bytes
from osmosis_grpc.storage.data_loss import data_loss
from osmosis_grpc.storage.journal.rows import RolloutRow


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
