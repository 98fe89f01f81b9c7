"""Replays every recorded rollout of a journal or a server, and reports which of them differ, and where.

At most `concurrency` rollouts are in memory at once.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from typing import Any

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.agent.loader import LoadError, load_agents
from osmosis_grpc.agent.runnable import Runnable
from osmosis_grpc.agent.validator import one_line
from osmosis_grpc.cli.daemon_thread import Interruptible
from osmosis_grpc.cli.list import chosen_filter
from osmosis_grpc.cli.options import AgentSources, SourceOptions
from osmosis_grpc.cli.replay import recorded_of
from osmosis_grpc.cli.source import Source, open_source
from osmosis_grpc.protocol.errors import OsmosisRolloutError
from osmosis_grpc.protocol.types import RolloutFilter, RolloutInfo
from osmosis_grpc.protocol.types.outcome import printable
from osmosis_grpc.records.reading.list_filter import ListOptions
from osmosis_grpc.records.reading.phrases import counted
from osmosis_grpc.records.reading.source_port import DamagedRollout, SourceError
from osmosis_grpc.serve.json_output import Records, records, say_error, usage_error
from osmosis_grpc.testing.replay import Difference, Row, compare

PAGE = 100
PROGRESS = 5.0
"""Progress is printed after this many seconds."""
STOPPING = 5.0
"""After Ctrl-C, the command waits at most this many seconds for the running agents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayAllOptions:
    """The options of replay --all."""

    modules: tuple[str, ...]
    agents: AgentSources
    chosen: ListOptions
    concurrency: int
    timeout: float
    json: bool


def run_replay_all(options: ReplayAllOptions, source: SourceOptions) -> int:
    """Replay the rollouts, print the differences, and return the exit code."""
    if not options.modules:
        usage_error("replay", "say where the agent loops are: -m MODULE:ATTR")
    where = chosen_filter("replay", options.chosen)
    with records(options.json) as out:
        try:
            loops = {loop.name: loop for loop in load_agents(list(options.modules), options.agents.sources())}
            run = _ReplayAll(options, open_source("replay", source), loops, out)
            running = Interruptible(lambda: run.run(where))
            try:
                running.run()
            except KeyboardInterrupt:
                running.stop(STOPPING)
                run.say_end("interrupted: ")
                return 130
        except (SourceError, LoadError) as error:
            usage_error("replay", printable(str(error)))
        if not run.replayed:
            usage_error("replay", run.nothing(where))
        run.say_end()
        return 1 if run.different else 0


class _ReplayAll:
    """One run of the command."""

    def __init__(
        self, options: ReplayAllOptions, source: Source, loops: dict[str, RolloutAgentLoop | Runnable], out: Records
    ) -> None:
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
            infos = self._chosen(where)

            async def work() -> None:
                async for info in _shared(infos, turn):
                    await self._replay(info)

            turn = asyncio.Lock()
            await asyncio.gather(*(work() for _ in range(self._options.concurrency)))

    async def _chosen(self, where: RolloutFilter) -> AsyncIterator[RolloutInfo]:
        """Yield the selected rollouts with a known agent loop, in the order of acceptance, or the newest first."""
        chosen, token, more, count = self._options.chosen, "", True, 0
        while more:
            page, token = await self._source.page(where, token, limit=PAGE, newest_first=not chosen.oldest)
            for info in page:
                if info.agent_loop not in self._loops:
                    self._others[info.agent_loop] += 1
                    continue
                yield info
                count += 1
                if count == chosen.limit:
                    return
            more = bool(token)

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
        none = "no rollout matches" if where != RolloutFilter() else "there are no rollouts yet"
        return f"{none} in {self._source.where}"

    def say_end(self, begins: str = "") -> None:
        """Print the sums."""
        others, same = sum(self._others.values()), self.replayed - self.different
        sums: dict[str, Any] = {"rollouts": self.replayed, "same": same, "different": self.different}
        self._out.write("replayed", **sums, other_agent_loops=others, damaged=self._damaged)
        parts = [f"{counted(self.replayed, 'rollout')} replayed: {same} equal, {self.different} different"]
        parts += [f"{others} of other agent loops left out"] * bool(others)
        parts += [f"{self._damaged} damaged"] * bool(self._damaged)
        self._out.say(begins + ", ".join(parts))


async def _shared(infos: AsyncIterator[RolloutInfo], turn: asyncio.Lock) -> AsyncIterator[RolloutInfo]:
    """Yield the values of an iterator that several tasks share. Each value goes to one task."""
    while True:
        async with turn:
            info = await anext(infos, None)
        if info is None:
            return
        yield info
