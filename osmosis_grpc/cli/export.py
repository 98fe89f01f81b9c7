"""The export command: writes recorded rollouts in a format that trainers or tools read.

Rollouts are read page by page and written one by one, so memory does not grow with their number.
"""

import asyncio
import os
import sys
import time
from typing import cast, get_args

from osmosis_grpc.cli.command_options import ExportChoices
from osmosis_grpc.cli.list import chosen_filter
from osmosis_grpc.cli.options import SourceOptions
from osmosis_grpc.cli.source import Source, nothing_in, open_source
from osmosis_grpc.protocol.errors import InvalidArgument, MissingExtraError
from osmosis_grpc.protocol.types import RolloutFilter, RolloutInfo
from osmosis_grpc.protocol.types.samples import Cut, Dropped
from osmosis_grpc.records.export import Export, ExportCounts, ExportOptions, RecordedRollout, VerlConfig
from osmosis_grpc.records.export.files import Format
from osmosis_grpc.records.export.verl_rows import TooLong
from osmosis_grpc.records.reading.list_filter import ListOptions
from osmosis_grpc.records.reading.phrases import counted
from osmosis_grpc.records.reading.source_port import DamagedRollout, SourceError
from osmosis_grpc.serve.json_output import Records, records, say_error, usage_error

PAGE = 200
PROGRESS = 5.0
"""Seconds between two progress lines."""
OUTPUTS = {
    "messages": "messages.jsonl",
    "atif": "atif",
    "parquet": "parquet",
    "verl": "verl.jsonl",
    "verl-batch": "verl-batch",
    "verl-records": "verl-records.jsonl",
}
"""The formats, and the default of --output for each."""
_ROWS = {"messages": "line", "atif": "file"}
"""The word for a row of a format. For the others, it is a segment."""
_OPTIONS = {
    'untrainable="skip"': "--skip-untrainable",
    'too_long="skip"': "--too-long skip",
    "components=False": "--no-reward-components",
    "inputs_of=": "osmosis_grpc.records.export.verl_records(inputs_of=) in Python",
}
"""Maps the Python spelling of an option, as in errors, to its spelling on the command line."""
_NOT_ROLLOUTS = {"output", "pad_id", "prompt_length", "response_length", "global_steps", "too_long"}
"""Fields of InvalidArgument that concern an option instead of a rollout."""


class _Refused(Exception):
    """Wraps an InvalidArgument about a rollout or an option, so that the source does not treat it as its own error."""


def run_export(choices: ExportChoices, options: SourceOptions, *, json: bool) -> int:
    """Export the selected rollouts, and return the exit code."""
    to = choices.to
    if to not in OUTPUTS:
        usage_error("export", f"--to: {to!r} is not a format; the formats are {', '.join(OUTPUTS)}")
    for name, known in (("too_long", TooLong), ("cut", Cut), ("dropped", Dropped)):
        value = getattr(choices, name)
        if value not in get_args(known):
            usage_error("export", f"--{name.replace('_', '-')}: {value!r} is not one of {', '.join(get_args(known))}")
    output = choices.output or OUTPUTS[to]
    if output == "-" and json:
        usage_error("export", "--json writes records to stdout, and so does --output -; leave one of them out")
    given = ListOptions(
        states=tuple(choices.state or ()),
        agent=choices.agent,
        group=choices.group,
        min_reward=choices.min_reward,
        max_reward=choices.max_reward,
    )
    where = chosen_filter("export", given)
    with records(json) as out:
        source = open_source("export", options)
        try:
            made = Export(output, cast("Format", to), _options(choices), overwrite=choices.overwrite)
            left = asyncio.run(_exported(source, where, choices, made))
        except (InvalidArgument, _Refused) as error:
            cause = error if isinstance(error, InvalidArgument) else error.__cause__
            assert isinstance(cause, InvalidArgument)
            return _refused(cause)
        except (SourceError, MissingExtraError) as error:
            usage_error("export", str(error))
        except BrokenPipeError:  # the reader of stdout, such as head, has closed the pipe
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            return 0
        except OSError as error:
            usage_error("export", f"--output: {output} cannot be written: {error.strerror}")
        except KeyboardInterrupt:
            return 130
        _report(out, to, output, made.counts, left)
    return 0


def _options(choices: ExportChoices) -> ExportOptions:
    verl = VerlConfig(
        prompt_length=choices.prompt_length,
        response_length=choices.response_length,
        too_long=cast("TooLong", choices.too_long),
        untrainable="skip" if choices.skip_untrainable else "raise",
        cut=cast("Cut", choices.cut),
        dropped=cast("Dropped", choices.dropped),
        extras=tuple(choices.extra or ()),
        components=not choices.no_reward_components,
    )
    return ExportOptions(
        verl=verl,
        pad_id=choices.pad_id,
        batch_size=choices.batch_size,
        global_steps=choices.global_steps,
        tokens=not choices.no_tokens,
    )


async def _exported(source: Source, where: RolloutFilter, choices: ExportChoices, made: Export) -> int:
    """Write the rollouts. Return the number of rollouts without an outcome.

    Raises:
        SourceError: There is nothing to write, or the source cannot be read.
        _Refused: A rollout cannot be written.
    """
    left, said, token, more = 0, time.monotonic(), "", True
    async with source:
        with made:
            while more and not 0 < choices.limit <= made.counts.rollouts:
                found, token = await source.page(where, token, limit=PAGE)
                more = bool(token)
                with source.snapshot():
                    for info in found:
                        if 0 < choices.limit <= made.counts.rollouts:
                            break
                        rollout = await _rollout(source, info, skip=choices.skip_untrainable)
                        if rollout is None:
                            left += 1
                            continue
                        try:
                            made.add(rollout)
                        except InvalidArgument as error:
                            raise _Refused from error
                        if time.monotonic() - said >= PROGRESS:
                            said = time.monotonic()
                            say_error(f"{made.counts.rollouts:,} rollouts so far")
            counts = made.counts
            if not (counts.rollouts if made.to == "parquet" else counts.rows):
                raise SourceError(_why_nothing(counts, left, where, source.where))
    return left


async def _rollout(source: Source, info: RolloutInfo, *, skip: bool) -> RecordedRollout | None:
    """Return a rollout. Return None if it has no outcome, or if it is damaged and `skip` is set."""
    try:
        whole = await source.get(info.rollout_id, info.attempt)
        if whole.outcome is None:
            return None
        request, tools = await source.request(info.rollout_id, info.attempt)
    except DamagedRollout as error:
        if not skip:
            raise SourceError(f"{error}. --skip-untrainable leaves it out") from None
        return None
    return RecordedRollout(
        outcome=whole.outcome,
        agent_loop=whole.agent_loop,
        tools=tools,
        messages=request.messages,
        label=request.label,
        metadata=request.metadata,
        fork=request.fork,
        accept_time=whole.accept_time,
        end_time=whole.end_time,
    )


def _why_nothing(counts: ExportCounts, left: int, where: RolloutFilter, place: str) -> str:
    if counts.rollouts:
        read = f"{counted(counts.rollouts, 'rollout')} read, {counts.skipped} skipped"
        return f"nothing to write: {read}. Without the option that skips, the command says why"
    if left:
        return f"{counted(left, 'rollout')} in {place} without an outcome, and no other one"
    return nothing_in(place, where)


def _refused(error: InvalidArgument) -> int:
    field, problem = error.violations[0]
    for name, option in _OPTIONS.items():
        problem = problem.replace(f"pass {name}", f"use {option}").replace(f"Pass {name}", f"Use {option}")
    problem = problem.replace(": overwrite=True", " with --overwrite")
    if field in _NOT_ROLLOUTS:
        usage_error("export", f"--{field.replace('_', '-')}: {problem}")
    say_error(f"export: {problem}. Nothing was written")
    return 1


def _report(out: Records, to: str, output: str, counts: ExportCounts, left: int) -> None:
    numbers = {"rollouts": counts.rollouts, "rows": counts.rows, "skipped": counts.skipped}
    out.write("exported", format=to, output=output, **numbers, truncated=counts.truncated, without_outcome=left)
    rows = counted(counts.rows, _ROWS.get(to, "segment"))
    parts = [f"{counted(counts.rollouts, 'rollout')} read, {rows} written"]
    parts += [f"{counts.skipped} skipped"] * bool(counts.skipped)
    parts += [f"{counts.truncated} truncated"] * bool(counts.truncated)
    parts += [f"{left} without an outcome left out"] * bool(left)
    text = ", ".join(parts)
    if output == "-":
        print(text, file=sys.stderr)
    else:
        out.say(f"{text}: {output}")
