"""Shared by replay, fork and rescore: finds the recorded rollouts that options select, and their agent loops."""

from collections.abc import AsyncIterator, Sequence

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.agent.loader import LoadError, as_agents
from osmosis_grpc.agent.runnable import Runnable
from osmosis_grpc.cli.options import AgentSources
from osmosis_grpc.environments.loading import load_hosted
from osmosis_grpc.protocol.types import RolloutFilter, RolloutInfo
from osmosis_grpc.protocol.types.outcome import printable
from osmosis_grpc.records.reading.source_port import Source
from osmosis_grpc.serve.json_output import usage_error

PAGE = 100

Loops = dict[str, RolloutAgentLoop | Runnable]
"""Agent loops by name."""


def load_loops(command: str, modules: Sequence[str], agents: AgentSources) -> Loops:
    """Return the agent loops of -m. Those that cannot be loaded end the command with exit code 2."""
    try:
        return {loop.name: loop for loop in as_agents(load_hosted(modules, agents.sources()))}
    except LoadError as error:
        usage_error(command, printable(str(error)))


def loop_of(command: str, loops: Loops, name: str) -> RolloutAgentLoop | Runnable:
    """Return the agent loop that a rollout ran. If -m does not name it, the command ends with exit code 2."""
    if name not in loops:
        usage_error(command, f"the rollout ran agent loop {name!r}; -m names {', '.join(sorted(loops)) or 'none'}")
    return loops[name]


async def selected(source: Source, where: RolloutFilter, *, newest_first: bool = False) -> AsyncIterator[RolloutInfo]:
    """Yield the rollouts that a filter selects, in the order of acceptance, or the newest first."""
    token, more = "", True
    while more:
        page, token = await source.page(where, token, limit=PAGE, newest_first=newest_first)
        for info in page:
            yield info
        more = bool(token)
