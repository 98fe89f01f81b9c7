"""The show command: prints one rollout as a person wants to read it, or as records.

history.py rebuilds the rollout from its events. rollout_text.py and rollout_record.py format it.
"""

import time

from osmosis_grpc.cli.rollout_text import RolloutText, Wanted
from osmosis_grpc.cli.screen import Screen, wrapped
from osmosis_grpc.cli.source import Source, read_source, stopped_text
from osmosis_grpc.cli.source_options import SourceOptions
from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.records.reading.history import history_of
from osmosis_grpc.records.reading.rollout_record import rollout_record, turn_record
from osmosis_grpc.serve.json_output import Records
from osmosis_grpc.serve.startup import usage_error

BAD = (OutcomeStatus.FAILED, OutcomeStatus.DEADLINE_EXCEEDED)
"""The ends for which the command exits with 1."""


def run_show(rollout: str, attempt: int | None, wanted: Wanted, options: SourceOptions, *, json: bool) -> int:
    """Print a rollout, and return the exit code."""

    async def read(source: Source, out: Records) -> int:
        info = await source.get(rollout, attempt or 0)
        history = await history_of(source.events(rollout, info.attempt))
        as_of = await source.as_of()
        screen = Screen.of(out)
        shown = RolloutText(info, history, wanted, screen, now=time.time() if as_of is None else as_of)
        if problem := shown.problem():
            usage_error("show", problem)
        if wanted.turn is None:
            out.write("rollout", **rollout_record(info, history, shown.samples, as_of=as_of, tokens=wanted.tokens))
        for chat in shown.turns():
            out.write("turn", **turn_record(info, history, chat, tokens=wanted.tokens))
        for line in shown.lines():
            screen.say(line)
        if as_of is not None and (info.end_time is None or info.undelivered):
            for piece in wrapped(stopped_text(source.where, as_of), screen.width):
                screen.say(piece, "note")
        return int(info.outcome is not None and info.outcome.status in BAD)

    return read_source("show", options, read, json=json)
