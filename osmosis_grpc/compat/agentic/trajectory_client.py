"""Trajectories of an agent server over gRPC: a thin view of RolloutClient."""

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path

from osmosis_grpc.agent.runnable import Runnable
from osmosis_grpc.compat.agentic.base_agent import BaseAgent, agent_runnable
from osmosis_grpc.compat.agentic.files import dump_trajectories
from osmosis_grpc.compat.agentic.trajectory import Statistics, Trajectory, TrajectoryStep, statistics_of
from osmosis_grpc.compat.agentic.view import TrajectoryView
from osmosis_grpc.protocol.errors import FailedPrecondition
from osmosis_grpc.protocol.types import RolloutInfo, TrajectoryEvent
from osmosis_grpc.protocol.types.events import Accepted
from osmosis_grpc.protocol.types.rollout_info import EVERY, RolloutFilter
from osmosis_grpc.supervise import SYSTEM
from osmosis_grpc.testing.replay import Difference, Recorded, compare
from osmosis_grpc.trainer.rollout_client import RolloutClient


class TrajectoryClient:
    """Reads the rollouts of a server, of any agent, as trajectories. The caller closes `client`.

    The steps have the tokens of each reply. Only the trainer gets the segments, in the outcome.
    """

    def __init__(self, client: RolloutClient) -> None:
        self._client = client

    async def list(
        self, where: RolloutFilter = EVERY, page_token: str = "", *, limit: int = 0
    ) -> tuple[list[RolloutInfo], str]:
        """Return a page of rollouts, and the token of the next page, which is empty after the last page.

        A page has at most `limit` rollouts; 0 means the server's default. `where` selects rollouts.
        """
        return await self._client.page(where, page_token, limit=limit)

    async def get(self, rollout_id: str, attempt: int = 0) -> Trajectory:
        """Return the trajectory of a rollout; if it still runs, the trajectory so far. Attempt 0 means the newest.

        Raises NotFound.
        """
        view = TrajectoryView(rollout_id)
        info = await self._client.get(rollout_id, attempt)
        async for event in self._recorded(info):
            view.add(event)
        if info.outcome is not None:
            view.end(info.outcome)
        return view.trajectory

    async def _recorded(self, info: RolloutInfo) -> AsyncIterator[TrajectoryEvent]:
        if not info.last_event_number:
            return
        async with aclosing(self._client.events(info.rollout_id, attempt=info.attempt)) as found:
            async for event in found:
                yield event
                if event.event_number >= info.last_event_number:
                    return

    async def stream(self, rollout_id: str, attempt: int = 0) -> AsyncIterator[TrajectoryStep]:
        """Yield the steps of a rollout while it runs, until its end. Raises NotFound and Unavailable."""
        view = TrajectoryView(rollout_id)
        async with aclosing(self._client.events(rollout_id, attempt=attempt)) as found:
            async for event in found:
                for step in view.add(event):
                    yield step

    async def all(self, where: RolloutFilter = EVERY) -> AsyncIterator[Trajectory]:
        """Yield the trajectories of the selected rollouts, page by page."""
        async for info in self._client.rollouts(where):
            yield await self.get(info.rollout_id, info.attempt)

    async def export(
        self,
        path: str | Path,
        where: RolloutFilter = EVERY,
        format: str = "jsonl",  # noqa: A002
        *,
        overwrite: bool = False,
    ) -> int:
        """Write the trajectories of the selected rollouts to a file, see dump_trajectories(). Return their number.

        Raises FileExistsError if the file exists, unless `overwrite` is true.
        """
        if not overwrite and await SYSTEM.run(Path(path).exists):
            raise FileExistsError(f"path: {path} exists; pass overwrite=True to replace it")
        made = [each async for each in self.all(where)]
        dump_trajectories(made, path, format)
        return len(made)

    async def stats(self, where: RolloutFilter = EVERY) -> Statistics:
        """Return the statistics of the selected rollouts."""
        return statistics_of([each async for each in self.all(where)])

    async def replay(self, rollout_id: str, agent: BaseAgent | Runnable, attempt: int = 0) -> Sequence[Difference]:
        """Run an agent in this process on the recorded replies of a rollout. Its tools run again.

        Returns where the agent differs from the record; an empty list if nowhere. Raises NotFound, and
        FailedPrecondition for a rollout that has not ended.
        """
        info = await self._client.get(rollout_id, attempt)
        if info.outcome is None:
            raise FailedPrecondition(f"rollout {rollout_id} has not ended; replay it after its end")
        found = [event async for event in self._recorded(info)]
        request = next(event.kind.init.request for event in found if isinstance(event.kind, Accepted))
        runnable = agent_runnable(agent) if isinstance(agent, BaseAgent) else agent
        comparison = await compare(runnable, Recorded(request, info.agent_loop, info.outcome, found))
        return [difference for _, difference in comparison.differences()]

    async def cancel(self, rollout_id: str, reason: str = "") -> None:
        """Cancel a running rollout. The stop reason of its trajectory is `cancelled`."""
        await self._client.cancel(rollout_id, reason=reason)
