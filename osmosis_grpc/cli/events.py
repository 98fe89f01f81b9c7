"""The events command: prints the events of one rollout or of all rollouts, one line each, and follows new ones."""

import time
from contextlib import aclosing

from osmosis_grpc.cli.options import SourceOptions
from osmosis_grpc.cli.recorded import named
from osmosis_grpc.cli.screen import Screen
from osmosis_grpc.cli.source import Source, read_source, stopped_text
from osmosis_grpc.protocol.types import OutcomeStatus, TrajectoryEvent, events
from osmosis_grpc.records.reading.event_text import event_record, name_of, one_line
from osmosis_grpc.serve.json_output import Records, say_error, usage_error

KINDS: dict[type, str] = {events.Delivered: "note", events.ChatFailed: "error", events.ToolCalled: "call"}
"""Maps the type of an event to the kind of its line."""


def run_events(rollout: str | None, attempt: int | None, options: SourceOptions, *, follow: bool, json: bool) -> int:
    """Print events, and return the exit code."""
    if rollout is None and not follow:
        usage_error("events", "name a rollout, or follow all rollouts with -f")

    async def read(source: Source, out: Records) -> int:
        screen = Screen.of(out)
        as_of = await source.as_of() if follow else None
        if as_of is not None:
            say_error(f"events: {stopped_text(source.where, as_of)}; new events come when a server uses it")
        if rollout is None:
            trail = source.all_events()
        else:
            info = await named(source, rollout, attempt or 0)
            trail = source.events(info.rollout_id, info.attempt, follow=follow)
        async with aclosing(trail) as found:
            async for event in found:
                out.write(name_of(event.kind), **event_record(event))
                screen.say(screen.fitted(_line(event, named=rollout is None)), _kind(event))
        return 0

    return read_source("events", options, read, json=json)


def _line(event: TrajectoryEvent, *, named: bool) -> str:
    clock = time.strftime("%H:%M:%S", time.gmtime(event.time))
    attempt = f"/{event.attempt}" if event.attempt > 1 else ""
    who = f"{event.rollout_id}{attempt} " if named else ""
    return f"{clock}.{int(event.time % 1 * 1000):03d} {who}{event.event_number:>3} {one_line(event.kind)}"


def _kind(event: TrajectoryEvent) -> str:
    if isinstance(event.kind, events.Ended):
        return "good" if event.kind.outcome.status is OutcomeStatus.COMPLETED else "bad"
    if isinstance(event.kind, events.ToolReturned) and event.kind.error:
        return "error"
    return KINDS.get(type(event.kind), "")
