"""The replay command: runs the agents of recorded rollouts again on their recorded replies, and prints differences.

osmosis_grpc.testing.replay does the work. With --all, at most --concurrency rollouts are in memory at once.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any

from osmosis_grpc.agent.validator import one_line
from osmosis_grpc.cli.command_options import ReplayOptions
from osmosis_grpc.cli.daemon_thread import STOPPING, run_in_daemon_thread
from osmosis_grpc.cli.list import chosen_filter
from osmosis_grpc.cli.options import AgentSources, SourceOptions
from osmosis_grpc.cli.recorded import Loops, load_loops, loop_of, named, selected
from osmosis_grpc.cli.source import Source, nothing_in, open_source
from osmosis_grpc.protocol.errors import OsmosisRolloutError
from osmosis_grpc.protocol.types import RolloutFilter, RolloutInfo
from osmosis_grpc.protocol.types.outcome import printable
from osmosis_grpc.records.reading.list_filter import ListOptions
from osmosis_grpc.records.reading.phrases import counted, reward_text
from osmosis_grpc.records.reading.source_port import DamagedRollout, SourceError
from osmosis_grpc.serve.json_output import Records, records, say_error, usage_error
from osmosis_grpc.testing.replay import Comparison, Difference, Recorded, Row, compare

PROGRESS = 5.0
"""Seconds between two progress lines."""


def run_replay(options: ReplayOptions, agents: AgentSources, source: SourceOptions, *, json: bool) -> int:
    """Run one recorded rollout again, or with --all every selected one. Return the exit code."""
    if options.all:
        return _run_all(options, agents, source, json=json)
    if options.rollout is None:
        usage_error("replay", "name the rollout to replay, or pass --all")
    with records(json) as out:
        recorded = _recorded(open_source("replay", source), options.rollout, options.attempt or 0)
        name = recorded.agent_loop
        if not options.module:
            where = f"say where agent loop {name!r} is: -m MODULE:ATTR"
            usage_error("replay", f"{where}; a rollout of a program (serve --command) cannot be replayed")
        agent_loop = loop_of("replay", load_loops("replay", options.module, agents), name)
        request = recorded.request
        out.say(f"rollout {request.rollout_id}, attempt {request.attempt}, agent loop {name}")
        try:
            done = run_in_daemon_thread(
                lambda: compare(agent_loop, recorded, options.until_turn, lambda row: _say_chat(out, row))
            )
        except (OsmosisRolloutError, SystemExit) as error:
            say_error(f"replay: the agent loop did not start: {one_line(error)}")
            return 1
        _say_result(out, recorded, done)
        return 1 if any(done.differences()) else 0


def _recorded(source: Source, name: str, attempt: int) -> Recorded:
    """Read the record of a rollout. A missing or damaged record ends the command with exit code 2."""

    async def read() -> Recorded:
        async with source:
            return await recorded_of(source, await named(source, name, attempt))

    try:
        return run_in_daemon_thread(read)
    except SourceError as error:
        usage_error("replay", str(error))


async def recorded_of(source: Source, info: RolloutInfo) -> Recorded:
    """Return the record of a rollout from an open source. `info` has its outcome. Raises SourceError."""
    request, _ = await source.request(info.rollout_id, info.attempt)
    trajectory = [event async for event in source.events(info.rollout_id, info.attempt)]
    return Recorded(request, info.agent_loop, info.outcome, trajectory)


def _say_chat(out: Records, row: Row) -> None:
    out.write(
        "chat",
        sample=row.sample,
        number=row.chat_number,
        same=row.difference is None,
        difference=row.difference and asdict(row.difference),
        tools=row.tools,
    )
    tools = f"  then called {printable(', '.join(row.tools))}" if row.tools else ""
    out.say(f"  {row.sample} {row.chat_number}  {'different' if row.difference else 'same'}{tools}")
    if row.difference is not None:
        _say_difference(out, row.difference)


def _say_difference(out: Records, difference: Difference) -> None:
    for line in (difference.where, *difference.diff):
        out.say(f"      {line}")


def _say_result(out: Records, recorded: Recorded, done: Comparison) -> None:
    for sample, number in done.not_asked:
        out.say(f"  {sample} {number}  not asked")
    outcome = done.outcome
    if done.why_not:
        out.say(f"result not compared: {done.why_not}")
    elif done.result:
        out.say(f"result different: {', '.join(difference.where for difference in done.result)}")
    else:
        assert outcome is not None
        segments = [segment for sample in outcome.samples.values() for segment in sample.segments]
        out.say(
            f"result same: {outcome.status} ({printable(outcome.finish_reason)}), {reward_text(outcome)}, "
            f"{len(outcome.messages)} messages, {sum(len(segment.ids) for segment in segments)} tokens"
        )
    for difference in done.result:
        _say_difference(out, difference)
    out.write(
        "replayed",
        rollout_id=recorded.request.rollout_id,
        attempt=recorded.request.attempt,
        agent_loop=recorded.agent_loop,
        chats=len(done.rows),
        stopped=done.stopped or None,
        not_asked=[{"sample": sample, "number": number} for sample, number in done.not_asked],
        result={
            "compared": not done.why_not,
            "same": None if done.why_not else not done.result,
            "why_not": done.why_not or None,
            "differences": [asdict(difference) for difference in done.result],
        },
        same=not any(done.differences()),
    )


def _run_all(options: ReplayOptions, agents: AgentSources, source: SourceOptions, *, json: bool) -> int:
    """Replay the selected rollouts, print the differences, and return the exit code."""
    if options.rollout is not None or options.until_turn is not None or options.attempt is not None:
        usage_error("replay", "--all replays every rollout; leave out ROLLOUT, --attempt and --until-turn")
    if not options.module:
        usage_error("replay", "say where the agent loops are: -m MODULE:ATTR")
    named = {name: getattr(options, name) for name in ("agent", "group", "since", "before", "limit")}
    where = chosen_filter("replay", ListOptions(states=options.state, **named))
    with records(json) as out:
        run = _ReplayAll(options, open_source("replay", source), load_loops("replay", options.module, agents), out)
        try:
            run_in_daemon_thread(lambda: run.run(where), stopping=STOPPING)
        except KeyboardInterrupt:
            run.say_end("interrupted: ")
            return 130
        except SourceError as error:
            usage_error("replay", printable(str(error)))
        if not run.replayed:
            usage_error("replay", run.nothing(where))
        run.say_end()
        return 1 if run.different else 0


class _ReplayAll:
    """One run of replay --all."""

    def __init__(self, options: ReplayOptions, source: Source, loops: Loops, out: Records) -> None:
        self._options = options
        self._source = source
        self._loops = loops
        self._out = out
        self.replayed = self.different = 0
        self._others: Counter[str] = Counter()
        """The number of rollouts of each agent loop that -m does not name."""
        self._damaged = 0
        self._shown = time.monotonic()

    async def run(self, where: RolloutFilter) -> None:
        """Replay the rollouts that the filter selects. Raises SourceError."""
        async with self._source:
            infos, turn = self._known(where), asyncio.Lock()

            async def work() -> None:
                while True:
                    async with turn:  # an async generator serves one caller at a time
                        info = await anext(infos, None)
                    if info is None:
                        return
                    await self._replay(info)

            await asyncio.gather(*(work() for _ in range(self._options.concurrency)))

    async def _known(self, where: RolloutFilter) -> AsyncIterator[RolloutInfo]:
        """Yield the selected rollouts whose agent loop -m names, the newest first."""
        count = 0
        async for info in selected(self._source, where, newest_first=True):
            if info.agent_loop not in self._loops:
                self._others[info.agent_loop] += 1
                continue
            yield info
            count += 1
            if count == self._options.limit:
                return

    async def _replay(self, info: RolloutInfo) -> None:
        """Replay one rollout, and print how it differs."""
        chats, place, difference, why_not = 0, None, None, ""
        try:
            whole = await self._source.get(info.rollout_id, info.attempt)
            recorded = await recorded_of(self._source, whole)
            rows: list[Row] = []
            async with asyncio.timeout(self._options.timeout):
                done = await compare(self._loops[info.agent_loop], recorded, None, rows.append)
            place, difference = next(done.differences(), (None, None))
            why_not = "" if difference else done.why_not
            chats = len(rows)
        except DamagedRollout as error:
            self._damaged += 1
            say_error(printable(f"replay: {error}"))
            return
        except TimeoutError:
            chats = len(rows)
            difference = Difference(f"the agent did not end within {self._options.timeout:g} s", [])
        except (OsmosisRolloutError, SystemExit) as error:
            difference = Difference(f"the agent loop did not start: {one_line(error)}", [])
        self.replayed += 1
        self.different += difference is not None
        sample, number = place or (None, None)
        self._out.write(
            "rollout",
            rollout_id=info.rollout_id,
            attempt=info.attempt,
            agent_loop=info.agent_loop,
            same=difference is None,
            chats=chats,
            sample=sample,
            number=number,
            where=difference and difference.where,
            difference=asdict(difference) if difference and difference.diff else None,
            why_not=why_not or None,
        )
        if difference is not None:
            self._out.say(printable(f"{info.rollout_id}  {difference.where}"))
            for line in difference.diff:
                self._out.say(f"      {line}")
        if time.monotonic() - self._shown >= PROGRESS:
            self._shown = time.monotonic()
            say_error(f"{self.replayed:,} rollouts so far, {self.different:,} different")

    def nothing(self, where: RolloutFilter) -> str:
        """Return why there is nothing to replay."""
        if self._others:
            names = ", ".join(map(repr, sorted(self._others)))
            return f"the rollouts ran agent loop {names}; -m names {', '.join(sorted(self._loops)) or 'none'}"
        if self._damaged:
            return f"{counted(self._damaged, 'rollout')} in {self._source.where}, and the record of each is damaged"
        return nothing_in(self._source.where, where)

    def say_end(self, begins: str = "") -> None:
        """Print the totals."""
        others, same = sum(self._others.values()), self.replayed - self.different
        sums: dict[str, Any] = {"rollouts": self.replayed, "same": same, "different": self.different}
        self._out.write("replayed", **sums, other_agent_loops=others, damaged=self._damaged)
        parts = [f"{counted(self.replayed, 'rollout')} replayed: {same} equal, {self.different} different"]
        parts += [f"{others} of other agent loops left out"] * bool(others)
        parts += [f"{self._damaged} damaged"] * bool(self._damaged)
        self._out.say(begins + ", ".join(parts))
