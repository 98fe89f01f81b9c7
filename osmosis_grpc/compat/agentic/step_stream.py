"""The steps of a running rollout, one by one."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Self

from osmosis_grpc.compat.agentic.local_engine import LocalEngine
from osmosis_grpc.compat.agentic.trajectory import Trajectory, TrajectoryStep
from osmosis_grpc.supervise import OnFailure, child, job

Save = Callable[[Trajectory], Awaitable[None]]
STREAM = job("agentic.stream", OnFailure.RAISE)


class StepStream:
    """Runs a rollout and yields its steps in their order. When the `async with` is left, a running rollout ends.

    async with rollout.stream("What is 2 + 3?") as stream:
        async for step in stream:
            print(step.content)
    print(stream.trajectory.stop_reason)
    """

    def __init__(self, engine: LocalEngine, prompt: Any, request_id: str, request: dict[str, Any], save: Save) -> None:
        self._engine, self._prompt, self._request, self._save = engine, prompt, request, save
        self.request_id = request_id
        self.trajectory: Trajectory | None = None
        """The trajectory, once the last step was yielded."""
        self._steps: list[TrajectoryStep] = []
        self._changed = asyncio.Event()
        self._task: asyncio.Task[Trajectory] | None = None

    async def __aenter__(self) -> Self:
        await self._engine.__aenter__()
        self._task = child(STREAM, self._run())
        self._task.add_done_callback(lambda _: self._changed.set())
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._task is not None and not self._task.done():
            self.cancel()
            await asyncio.wait({self._task})
        await self._engine.__aexit__(*exc)

    async def _run(self) -> Trajectory:
        trajectory = await self._engine.run(self._prompt, self.request_id, on_step=self._on_step, **self._request)
        await self._save(trajectory)
        return trajectory

    def cancel(self) -> None:
        """End the rollout. The last steps follow, and the trajectory has the stop reason cancelled."""
        self._engine.cancel(self.request_id)

    def _on_step(self, step: TrajectoryStep) -> None:
        self._steps.append(step)
        self._changed.set()

    async def __aiter__(self) -> AsyncIterator[TrajectoryStep]:
        assert self._task is not None, "use `async with`"
        index = 0
        while True:
            self._changed.clear()
            while index < len(self._steps):
                yield self._steps[index]
                index += 1
            if self._task.done():
                self.trajectory = self._task.result()
                return
            await self._changed.wait()
