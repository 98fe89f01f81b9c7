"""What may be asked of the engine both by an RPC and over an attachment: events, and cancels."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from osmosis_grpc._gen.osmosis.rollout.v1 import control_pb2 as pb
from osmosis_grpc._gen.osmosis.rollout.v1.rollout_pb2 import InitResponse
from osmosis_grpc.engine import Engine, Record
from osmosis_grpc.wire import control
from osmosis_grpc.wire.earlier_run import earlier_to_wire
from osmosis_grpc.wire.event import event_to_wire
from osmosis_grpc.wire.message import tool_to_wire
from osmosis_grpc.wire.rollout import activity_to_wire


def cancel(engine: Engine, owner: str, request: pb.CancelRequest) -> pb.CancelResponse:
    """Cancel what is selected; to be told once the log's barrier is passed. Raises InvalidArgument naming the field."""
    selection = control.selection_from_wire(request)
    rows = engine.cancel(owner, attempt=request.attempt, reason=request.reason, **selection)
    return pb.CancelResponse(results=map(control.cancelled_to_wire, rows))


def init_answer(record: Record, started: bool) -> InitResponse:
    """The answer to an Init that was accepted, or that found its rollout."""
    completion = record.delivery.completion
    earlier = completion.from_journal if completion is not None and not started else None
    return InitResponse(
        rollout_id=record.rollout_id,
        attempt=record.attempt,
        tools=map(tool_to_wire, record.tools),
        started=started,
        from_journal=earlier_to_wire(earlier),
    )


async def follow(
    engine: Engine, owner: str, request: pb.StreamEventsRequest, *, tokens: bool = True
) -> AsyncGenerator[pb.StreamEventsResponse, None]:
    """One rollout's events or all of the owner's; without `tokens` replies come without their token blocks."""
    control.check_stream(request)
    stream = _one(engine, owner, request, tokens) if request.rollout_id else _all(engine, owner, request, tokens)
    async with aclosing(stream):
        async for response in stream:
            yield response


async def _one(
    engine: Engine, owner: str, request: pb.StreamEventsRequest, tokens: bool
) -> AsyncGenerator[pb.StreamEventsResponse, None]:
    record = engine.rollouts.get(owner, request.rollout_id, request.attempt)
    async with aclosing(engine.log.follow(record, request.after)) as stream:
        async for event in stream:
            if event is not None:
                yield pb.StreamEventsResponse(event=event_to_wire(event, tokens=tokens))
            else:
                idle = pb.Idle(last_number=record.trail.last_number, activity=activity_to_wire(record.activity()))
                yield pb.StreamEventsResponse(idle=idle)


async def _all(
    engine: Engine, owner: str, request: pb.StreamEventsRequest, tokens: bool
) -> AsyncGenerator[pb.StreamEventsResponse, None]:
    async with aclosing(engine.rollouts.follow_all(owner, request.cursor, request.from_now)) as stream:
        async for position, event in stream:
            cursor = engine.log.cursor(position)
            if event is not None:
                yield pb.StreamEventsResponse(event=event_to_wire(event, tokens=tokens), cursor=cursor)
            else:
                yield pb.StreamEventsResponse(idle=pb.Idle(), cursor=cursor)
