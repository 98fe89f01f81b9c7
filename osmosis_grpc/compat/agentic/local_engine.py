"""Runs rollouts on an engine in this process, without sockets. An LLM function answers the chats."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import fields
from typing import Any, Self

from osmosis_grpc.compat.agentic.base_agent import AgentRunnable, BaseAgent
from osmosis_grpc.compat.agentic.config import no_field
from osmosis_grpc.compat.agentic.llm import LLMFunction, policy_of
from osmosis_grpc.compat.agentic.trajectory import Trajectory, TrajectoryStep
from osmosis_grpc.compat.agentic.view import TrajectoryView
from osmosis_grpc.engine import EngineConfig
from osmosis_grpc.protocol.errors import FailedPrecondition, InvalidArgument
from osmosis_grpc.protocol.types import ChatRequest, ChatResponse, Message, RolloutRequest, TrajectoryEvent
from osmosis_grpc.protocol.types.outcome import with_type
from osmosis_grpc.records.local_host import LocalHost
from osmosis_grpc.supervise import SYSTEM, OnFailure, child, job

OnStep = Callable[[TrajectoryStep], None]
MOST_QUEUED = 1_000_000
LONGEST_CHAT = 7 * 86_400.0
"""The engine's time limit for a chat, in seconds. It is long because the LLM function has its own limits."""
KEPT = 10.0
"""The engine forgets a rollout this many seconds after its end."""
NO_BUDGET = 2**31 - 1
"""The max_tokens_total of a rollout whose caller sets none."""
Save = Callable[[Trajectory], Awaitable[None]]
STREAM = job("agentic.stream", OnFailure.RAISE)


class LocalEngine:
    """Runs rollouts of one agent, at most `concurrency` at once. Use it with `async with`."""

    def __init__(self, agent: BaseAgent, llm: LLMFunction, concurrency: int = 1) -> None:
        self._agent = agent
        self._policy = policy_of(llm)
        config = EngineConfig(
            max_concurrent=concurrency,
            max_queued=MOST_QUEUED,
            agent_timeout=None,
            chat_silence=LONGEST_CHAT,
            record_ttl=KEPT,
            sweep_interval=KEPT / 4,
            stop_again_after=(0.2, 0.5),
        )
        self._views: dict[str, tuple[TrajectoryView, OnStep | None]] = {}
        self._host = LocalHost(AgentRunnable(agent), self._chat, config, sinks=[self._event])

    async def __aenter__(self) -> "LocalEngine":
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._policy)
            await stack.enter_async_context(self._host)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self._stack.aclose()

    def _event(self, event: TrajectoryEvent) -> None:
        found = self._views.get(event.rollout_id)
        if found is not None:
            view, on_step = found
            for step in view.add(event):
                if on_step is not None:
                    on_step(step)

    async def run(
        self, prompt: Any, request_id: str = "", *, on_step: OnStep | None = None, **request: Any
    ) -> Trajectory:
        """Run one rollout, and return its trajectory. `request` are further fields of RolloutRequest.

        If the caller is cancelled, the rollout's chat and tools stop, too. Raises InvalidArgument.
        """
        check_request(request)
        rollout_id = request_id or f"agentic-{SYSTEM.new_id()}"
        if rollout_id in self._views:
            raise InvalidArgument("request_id", f"{rollout_id!r} runs already")
        request = {"max_turns": self._agent.max_steps, "max_tokens_total": NO_BUDGET} | request
        rollout = RolloutRequest(rollout_id=rollout_id, messages=messages_of(prompt), **request)
        view = TrajectoryView(rollout_id)
        self._views[rollout_id] = view, on_step
        try:
            view.end(await self._host.run(rollout))
            return view.trajectory
        finally:
            if not view.ended:  # the caller was cancelled, or the Init was refused
                self.cancel(rollout_id)
            del self._views[rollout_id]

    def cancel(self, request_id: str) -> None:
        """Cancel a running rollout. The stop reason of its trajectory is `cancelled`."""
        self._host.engine.cancel("", rollout_id=request_id, reason="cancelled by the caller")

    async def _chat(self, request: ChatRequest, /) -> ChatResponse:
        """Ask the LLM function. The engine does not retry its errors, because it has its own retries."""
        try:
            return await self._policy(request)
        except Exception as error:
            raise FailedPrecondition(with_type(error)) from error


def request_fields() -> list[str]:
    """Return the names of the fields of RolloutRequest that a caller may set."""
    return [each.name for each in fields(RolloutRequest) if each.name not in _SET_HERE]


def check_request(request: Mapping[str, Any]) -> None:
    """Raise InvalidArgument for a field that RolloutRequest does not have, or that a caller may not set."""
    known = request_fields()
    for name in request:
        if name not in known:
            raise InvalidArgument(f"request.{name}", no_field(name, known))


_SET_HERE = ("rollout_id", "messages", "attempt", "fork")
"""The fields of RolloutRequest that a caller may not set."""


def messages_of(prompt: Any) -> list[Message]:
    """Convert a prompt to messages. Raises InvalidArgument if it is not a prompt.

    A prompt is a text, a message, a list of messages, or an object with `messages`, `content` or `prompt`.
    """
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    if isinstance(prompt, Mapping):
        if prompt.get("role") is not None:
            return [dict(prompt)]
        for key in ("messages", "content", "prompt"):
            if prompt.get(key) is not None:
                return messages_of(prompt[key])
    elif isinstance(prompt, Sequence) or hasattr(prompt, "tolist"):  # a row of verl's raw_prompt is an array
        rows = list(prompt)
        if rows and all(isinstance(row, Mapping) and row.get("role") for row in rows):
            return [dict(row) for row in rows]
    why = 'is not a text, a list of messages, or an object with "messages", "content" or "prompt"'
    raise InvalidArgument("prompt", f"{prompt!r:.60} {why}")


class StepStream:
    """Runs a rollout and yields its steps in order. Leaving the `async with` cancels a rollout that still runs.

    async with rollout.stream("What is 2 + 3?") as stream:
        async for step in stream:
            print(step.content)
    print(stream.trajectory.stop_reason)
    """

    def __init__(self, engine: LocalEngine, prompt: Any, request_id: str, request: dict[str, Any], save: Save) -> None:
        self._engine, self._prompt, self._request, self._save = engine, prompt, request, save
        self.request_id = request_id
        self.trajectory: Trajectory | None = None
        """The trajectory; None until the last step was yielded."""
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
        """Cancel the rollout. Its last steps are still yielded, and its stop reason is `cancelled`."""
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
