"""The replay command: runs a recorded rollout's agent again on its recorded replies.

osmosis_grpc.testing.replay runs the agent and compares.
"""

from dataclasses import asdict

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.agent.loader import LoadError, load_agents
from osmosis_grpc.agent.runnable import Runnable
from osmosis_grpc.agent.validator import one_line
from osmosis_grpc.cli.daemon_thread import run_in_daemon_thread
from osmosis_grpc.cli.options import AgentSources, SourceOptions
from osmosis_grpc.cli.source import Source, open_source
from osmosis_grpc.protocol.errors import OsmosisRolloutError
from osmosis_grpc.protocol.types import RolloutInfo
from osmosis_grpc.protocol.types.outcome import printable
from osmosis_grpc.records.reading.phrases import reward_text
from osmosis_grpc.records.reading.source_port import SourceError
from osmosis_grpc.serve.json_output import Records, records, say_error, usage_error
from osmosis_grpc.testing.replay import Comparison, Difference, Recorded, Row, compare


def run_replay(
    rollout: str | None,
    specs: list[str],
    given: AgentSources,
    until_turn: int | None,
    attempt: int | None,
    source: SourceOptions,
    *,
    json: bool,
) -> int:
    """Run a recorded rollout again, print the differences, and return the exit code."""
    if rollout is None:
        usage_error("replay", "name the rollout to replay, or pass --all")
    with records(json) as out:
        recorded = _recorded(source, rollout, attempt)
        return _Report(out, recorded).run(_agent_loop(specs, given, recorded.agent_loop), until_turn)


def _recorded(options: SourceOptions, rollout_id: str, attempt: int | None) -> Recorded:
    """Return the record of the rollout. A missing or damaged record ends the command with exit code 2."""
    source = open_source("replay", options)
    try:
        return run_in_daemon_thread(lambda: read_recorded(source, rollout_id, attempt or 0))
    except SourceError as error:
        usage_error("replay", str(error))


async def read_recorded(source: Source, rollout_id: str, attempt: int) -> Recorded:
    """Return the record of a rollout. Raises SourceError."""
    async with source:
        info = await source.get(rollout_id, attempt)
        return await recorded_of(source, info)


async def recorded_of(source: Source, info: RolloutInfo) -> Recorded:
    """Return the record of a rollout from an open source. `info` has its outcome. Raises SourceError."""
    request, _ = await source.request(info.rollout_id, info.attempt)
    trajectory = [event async for event in source.events(info.rollout_id, info.attempt)]
    return Recorded(request, info.agent_loop, info.outcome, trajectory)


def _agent_loop(specs: list[str], given: AgentSources, name: str) -> RolloutAgentLoop | Runnable:
    """Return the agent loop with which the rollout was recorded."""
    if not specs:
        where = f"say where agent loop {name!r} is: -m MODULE:ATTR"
        usage_error("replay", f"{where}; a rollout of a program (serve --command) cannot be replayed")
    try:
        loops = {loop.name: loop for loop in load_agents(specs, given.sources())}
    except LoadError as error:
        usage_error("replay", str(error))
    if name not in loops:
        usage_error("replay", f"the rollout ran agent loop {name!r}; -m names {', '.join(sorted(loops)) or 'none'}")
    return loops[name]


class _Report:
    """Runs the rollout and prints each chat as a record or as text."""

    def __init__(self, out: Records, recorded: Recorded) -> None:
        self._out = out
        self._recorded = recorded

    def run(self, agent_loop: RolloutAgentLoop | Runnable, until_turn: int | None) -> int:
        """Run the rollout and return the exit code."""
        request = self._recorded.request
        name = self._recorded.agent_loop
        self._out.say(f"rollout {request.rollout_id}, attempt {request.attempt}, agent loop {name}")
        try:
            done = run_in_daemon_thread(lambda: compare(agent_loop, self._recorded, until_turn, self._chat))
        except (OsmosisRolloutError, SystemExit) as error:
            say_error(f"replay: the agent loop did not start: {one_line(error)}")
            return 1
        self._end(done)
        return 1 if any(done.differences()) else 0

    def _chat(self, row: Row) -> None:
        self._out.write(
            "chat",
            sample=row.sample,
            number=row.chat_number,
            same=row.difference is None,
            difference=row.difference and asdict(row.difference),
            tools=row.tools,
        )
        tools = f"  then called {printable(', '.join(row.tools))}" if row.tools else ""
        self._out.say(f"  {row.sample} {row.chat_number}  {'different' if row.difference else 'same'}{tools}")
        self._differs(row.difference)

    def _end(self, done: Comparison) -> None:
        recorded, outcome = self._recorded, done.outcome
        for sample, number in done.not_asked:
            self._out.say(f"  {sample} {number}  not asked")
        if done.why_not:
            self._out.say(f"result not compared: {done.why_not}")
        elif done.result:
            self._out.say(f"result different: {', '.join(difference.where for difference in done.result)}")
        else:
            assert outcome is not None
            segments = [segment for sample in outcome.samples.values() for segment in sample.segments]
            self._out.say(
                f"result same: {outcome.status} ({printable(outcome.finish_reason)}), {reward_text(outcome)}, "
                f"{len(outcome.messages)} messages, {sum(len(segment.ids) for segment in segments)} tokens"
            )
        for difference in done.result:
            self._differs(difference)
        self._out.write(
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

    def _differs(self, difference: Difference | None) -> None:
        if difference is not None:
            for line in (difference.where, *difference.diff):
                self._out.say(f"      {line}")
