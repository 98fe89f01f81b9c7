"""Finds recorded rollouts by the name that a user gives or by a filter, and loads their agent loops."""

from collections.abc import AsyncIterator, Sequence

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.agent.loader import LoadError, as_agents
from osmosis_grpc.agent.runnable import Runnable
from osmosis_grpc.cli.options import AgentSources
from osmosis_grpc.environments.loading import load_hosted
from osmosis_grpc.protocol.types import RolloutFilter, RolloutInfo
from osmosis_grpc.protocol.types.outcome import printable
from osmosis_grpc.records.reading.source_port import NoRollout, Source, SourceError
from osmosis_grpc.serve.json_output import usage_error

PAGE = 100
MOST_SEARCHED = 20_000
"""A row number or a prefix is searched for in the ids of this many of the newest rollouts."""
MOST_NAMES = 10
"""An error lists at most this many rollouts."""

Loops = dict[str, RolloutAgentLoop | Runnable]
"""Agent loops by name."""


def load_loops(command: str, modules: Sequence[str], agents: AgentSources) -> Loops:
    """Load the agent loops that -m names. If one cannot be loaded, the command ends with exit code 2."""
    try:
        return {loop.name: loop for loop in as_agents(load_hosted(modules, agents.sources()))}
    except LoadError as error:
        usage_error(command, printable(str(error)))


def loop_of(command: str, loops: Loops, name: str) -> RolloutAgentLoop | Runnable:
    """Return the agent loop that a rollout ran. If -m does not name it, the command ends with exit code 2."""
    if name not in loops:
        usage_error(command, f"the rollout ran agent loop {name!r}; -m names {', '.join(sorted(loops)) or 'none'}")
    return loops[name]


async def named(source: Source, name: str, attempt: int = 0) -> RolloutInfo:
    """Return the rollout that a user names, with its outcome if it has ended.

    Args:
        source: An open source.
        name: The rollout's id. If no rollout has this id, the number of its row, such as 3 or 3.0, with which its id
            ends, or else a prefix of its id.
        attempt: The attempt; 0 means the newest.

    Raises:
        SourceError: There is no such rollout, or there are several.
    """
    try:
        return await source.get(name, attempt)
    except NoRollout:
        found = await _ids(source, name)
        if not found or found == [name]:
            raise
    if len(found) > 1:
        more = f" and {len(found) - MOST_NAMES} more" if len(found) > MOST_NAMES else ""
        raise SourceError(f"{name} can be {', '.join(found[:MOST_NAMES])}{more} in {source.where}; name one of them")
    return await source.get(found[0], attempt)


async def _ids(source: Source, name: str) -> list[str]:
    """Return the ids that a row number or a prefix matches, the newest first."""
    rows, _ = await source.headers(RolloutFilter(), limit=MOST_SEARCHED, newest_first=True)
    known = list(dict.fromkeys(info.rollout_id for info in rows))
    if name.replace(".", "", 1).isdecimal() and name.isascii():
        ends = {each: each.rpartition("-")[2] for each in known if "-" in each}
        numbered = [each for each, end in ends.items() if end == name]
        numbered = numbered or [each for each, end in ends.items() if end.partition(".")[0] == name]
        if numbered:
            return numbered
    return [each for each in known if name and each.startswith(name)]


async def selected(source: Source, where: RolloutFilter, *, newest_first: bool = False) -> AsyncIterator[RolloutInfo]:
    """Yield the rollouts that a filter selects, in the order of acceptance, or the newest first."""
    token, more = "", True
    while more:
        page, token = await source.page(where, token, limit=PAGE, newest_first=newest_first)
        for info in page:
            yield info
        more = bool(token)
