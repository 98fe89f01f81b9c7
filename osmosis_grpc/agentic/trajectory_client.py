"""Trajectories of an agent server over gRPC: a thin view of RolloutClient."""

from collections.abc import AsyncIterator
from pathlib import Path

from osmosis_grpc.agentic.files import dump_trajectories
from osmosis_grpc.agentic.statistics import Statistics, statistics_of
from osmosis_grpc.agentic.trajectory import Trajectory, TrajectoryStep
from osmosis_grpc.agentic.view import TrajectoryView
from osmosis_grpc.supervise import SYSTEM
from osmosis_grpc.trainer.rollout_client import RolloutClient
from osmosis_grpc.types import RolloutInfo
from osmosis_grpc.types.rollout_filter import EVERY, RolloutFilter


class TrajectoryClient:
    """Reads the rollouts of a server as trajectories. `client` stays the caller's, who closes it.

    The rollouts of every agent can be read. A trajectory over gRPC has the tokens of each reply. The segments are in
    the outcome, which the trainer gets.
    """

    def __init__(self, client: RolloutClient) -> None:
        self._client = client

    async def list(
        self, where: RolloutFilter = EVERY, page_token: str = "", *, limit: int = 0
    ) -> tuple[list[RolloutInfo], str]:
        """Return a page of rollouts, and the token of the next page; empty after the last page.

        A page has at most `limit` rows; 0 means the server's default. `where` selects rollouts.
        """
        return await self._client.page(where, page_token, limit=limit)

    async def get(self, rollout_id: str, attempt: int = 0) -> Trajectory:
        """Return the trajectory of a rollout that has ended, or so far. Attempt 0 is the newest.

        Raises NotFound.
        """
        view = TrajectoryView(rollout_id)
        info = await self._client.get(rollout_id, attempt)
        if info.last_event_number:
            events = self._client.events(rollout_id, attempt=info.attempt)
            try:
                async for event in events:
                    view.add(event)
                    if event.event_number >= info.last_event_number:
                        break
            finally:
                await events.aclose()
        if info.outcome is not None:
            view.end(info.outcome)
        return view.trajectory

    async def stream(self, rollout_id: str, attempt: int = 0) -> AsyncIterator[TrajectoryStep]:
        """Yield the steps of a rollout while it runs, until its end. Raises NotFound and Unavailable."""
        view = TrajectoryView(rollout_id)
        events = self._client.events(rollout_id, attempt=attempt)
        try:
            async for event in events:
                for step in view.add(event):
                    yield step
        finally:
            await events.aclose()

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

    async def cancel(self, rollout_id: str, reason: str = "") -> None:
        """End a running rollout. Its trajectory has the stop reason cancelled."""
        await self._client.cancel(rollout_id, reason=reason)
