"""Answers Init, Cancel, StreamEvents and Annotate, for RPCs as for frames of an attachment."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from osmosis_grpc.engine import Engine, Record
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import control_pb2 as pb
from osmosis_grpc.protocol._gen.osmosis.rollout.v1.annotation_pb2 import AnnotateRequest, AnnotateResponse
from osmosis_grpc.protocol._gen.osmosis.rollout.v1.rollout_pb2 import InitResponse
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types.requests import check_id
from osmosis_grpc.protocol.wire import control
from osmosis_grpc.protocol.wire.event import annotation_from_wire, event_to_wire
from osmosis_grpc.protocol.wire.message import tool_to_wire
from osmosis_grpc.protocol.wire.outcome import EARLIER_RUN
from osmosis_grpc.protocol.wire.rollout import ACTIVITY


def cancel(engine: Engine, owner: str, request: pb.CancelRequest) -> pb.CancelResponse:
    """Cancel the selected rollouts. Send the response only after the log's barrier. Raises InvalidArgument."""
    rows = engine.cancel(owner, attempt=request.attempt, reason=request.reason, **control.selection_from_wire(request))
    return pb.CancelResponse(results=map(control.CANCEL_RESULT.to_wire, rows))


async def annotate(engine: Engine, owner: str, request: AnnotateRequest) -> AnnotateResponse:
    """Store an annotation, and return the response after the commit. Raises CallError."""
    check_id(request.rollout_id, "rollout_id")
    if not request.HasField("annotation"):
        raise InvalidArgument("annotation", "is unset")
    annotation = annotation_from_wire(request.annotation)
    number, created = await engine.annotations.add(owner, request.rollout_id, request.attempt, annotation)
    return AnnotateResponse(event_number=number, created=created)


def init_answer(record: Record, started: bool) -> InitResponse:
    """Return the response to an Init that has started a rollout, or found one that was already there."""
    outcome = record.delivery.outcome
    earlier = outcome.from_journal if outcome is not None and not started else None
    return InitResponse(
        rollout_id=record.rollout_id,
        attempt=record.attempt,
        tools=map(tool_to_wire, record.tools),
        created=started,
        from_journal=EARLIER_RUN.to_wire(earlier) if earlier else None,
    )


async def follow(
    engine: Engine, owner: str, request: pb.StreamEventsRequest, *, tokens: bool = True
) -> AsyncGenerator[pb.StreamEventsResponse, None]:
    """Yield events of one rollout or of all the owner's rollouts. Without `tokens`, replies have no token blocks."""
    control.check_stream(request)
    if request.rollout_id:
        record = engine.rollouts.get(owner, request.rollout_id, request.attempt)
        async with aclosing(engine.log.follow(record, request.after_event)) as trajectory:
            async for event in trajectory:
                if event is not None:
                    yield pb.StreamEventsResponse(event=event_to_wire(event, tokens=tokens))
                else:
                    idle = pb.Idle(
                        last_event_number=record.trail.last_event_number, activity=ACTIVITY.to_wire(record.activity())
                    )
                    yield pb.StreamEventsResponse(idle=idle)
        return
    async with aclosing(engine.rollouts.follow_all(owner, request.cursor, request.from_now)) as stream:
        async for position, event in stream:
            cursor = engine.log.cursor(position)
            if event is not None:
                yield pb.StreamEventsResponse(event=event_to_wire(event, tokens=tokens), cursor=cursor)
            else:
                yield pb.StreamEventsResponse(idle=pb.Idle(), cursor=cursor)
