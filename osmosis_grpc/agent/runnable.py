"""The Runnable port, which the engine hosts and runs. Each kind of agent has an adapter to this port.

`AgentLoopRunnable` adapts the agent loops of this package; the gateway adapts legacy HTTP agent servers.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from typing import Any, Protocol

from osmosis_grpc.agent.context import RolloutContext
from osmosis_grpc.agent.loop import AgentNameError, RolloutAgentLoop, name_problem
from osmosis_grpc.agent.request import RolloutRequest, refuse_grader_timeout
from osmosis_grpc.agent.run_outcome import RunOutcome, outcome_of
from osmosis_grpc.agent.sync_context import is_async, run_on_thread
from osmosis_grpc.agent.tool_calls import RunnableTool
from osmosis_grpc.supervise import OnFailure, child, job

GET_TOOLS = job("agent.get_tools", OnFailure.RAISE)


class Runnable(Protocol):
    """Something that runs rollouts. One instance serves all rollouts at once."""

    @property
    def name(self) -> str:
        """The name that trainers use. It is unique on a server."""

    @property
    def lists_tools_without_request(self) -> bool:
        """Whether the server can call tools() without a rollout, to list the usual tools."""

    @property
    def replayable(self) -> bool:
        """Whether run() sends the same chats again if it gets the same replies."""

    @property
    def source(self) -> object:
        """The object whose class and imports make up the agent's version."""

    def tools(self, request: RolloutRequest) -> Sequence[Any] | Awaitable[Sequence[Any] | None] | None:
        """Return the tools for a rollout, or an awaitable of the tools. Called once, before the rollout is accepted.

        An exception refuses the rollout. None means no tools.
        """

    def accepted(self, request: RolloutRequest, owner: str) -> None:
        """Prepare for a rollout of a group. Called before tools(), and again after a restart.

        Only called for rollouts of a group. `owner` is the trainer to which the rollout belongs.
        """

    async def run(self, context: RolloutContext) -> RunOutcome:
        """Run a rollout. After an exception, the status of the rollout is FAILED."""

    def ended(self, rollout_id: str, attempt: int) -> None:
        """Release what tools() reserved for a rollout. Called once after the rollout's end, even if run() was not."""


class _AwaitableTools:
    """An awaitable that makes its coroutine when it is awaited. It can be dropped without a warning."""

    def __init__(self, make: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self._make = make

    def __await__(self) -> Generator[Any, None, Any]:
        return self._make().__await__()


class AgentLoopRunnable:
    """The adapter for agent loops. It keeps the tools of a rollout until its end, for run_tools()."""

    def __init__(self, loop: RolloutAgentLoop) -> None:
        problem = name_problem(getattr(loop, "name", None))
        if problem:
            raise AgentNameError(problem[0], f"{type(loop).__name__}: {problem[1]}")
        self.source = loop
        self.name = loop.name
        self.replayable = loop.replayable
        self.lists_tools_without_request = loop.lists_tools_without_request
        self._tools: dict[tuple[str, int], Sequence[Any]] = {}

    def tools(self, request: RolloutRequest) -> Sequence[Any] | Awaitable[Sequence[Any] | None] | None:
        """Return what get_tools returns. Raises InvalidArgument for a grader's time limit."""
        refuse_grader_timeout(self.name, request)
        found: Any = self.source.get_tools(request)
        return (
            _AwaitableTools(lambda: self._kept_later(request, found))
            if must_wait(found)
            else self._kept(request, found)
        )

    async def _kept_later(self, request: RolloutRequest, found: Any) -> Sequence[Any] | None:
        return self._kept(request, await expanded(found))

    def _kept(self, request: RolloutRequest, found: Sequence[Any] | None) -> Sequence[Any] | None:
        known = found if isinstance(found, list | tuple) else ()
        if known:
            runnable = any(isinstance(tool, RunnableTool) for tool in known)
            self._tools[request.rollout_id, request.attempt] = known if runnable else ()
        return found

    def accepted(self, request: RolloutRequest, owner: str) -> None:
        """Do nothing, because an agent loop does not use the other rollouts of a group."""

    async def run(self, context: RolloutContext) -> RunOutcome:
        """Run the agent loop, and check its result."""
        await self.bind(context)
        return outcome_of(await self.call(context))

    def call(self, context: RolloutContext) -> Awaitable[Any]:
        """Call the method run. If the method is not async, it runs on a thread."""
        run: Any = self.source.run
        called: Awaitable[Any] = run(context) if is_async(run) else run_on_thread(run, context)
        return called

    async def bind(self, context: RolloutContext) -> None:
        """Give the context the tools of its rollout. After a restart, call get_tools again."""
        key = context.request.rollout_id, context.request.attempt
        found: Any = self._tools.get(key)
        if found is None and context.tools:
            found = await expanded(self.source.get_tools(context.request))
        if isinstance(found, list | tuple):
            context.bind_tools(found)

    def ended(self, rollout_id: str, attempt: int) -> None:
        """Forget the tools of a rollout, and inform the agent loop of its end."""
        self._tools.pop((rollout_id, attempt), None)
        self.source.ended(rollout_id, attempt)


def must_wait(found: Any) -> bool:
    """Return whether the result of get_tools must be awaited, or has a source of tools."""
    sources = isinstance(found, list | tuple) and any(hasattr(tool, "rollout_tools") for tool in found)
    return sources or inspect.isawaitable(found)


async def expanded(found: Any) -> Any:
    """Return the result of get_tools, with the tools of each source in its place.

    A source has an async method rollout_tools() that returns tools. The tools of an MCP server are a source.
    """
    tools = await found if inspect.isawaitable(found) else found
    if not must_wait(tools):
        return tools
    made: list[Any] = []
    for tool in tools:
        made += await tool.rollout_tools() if hasattr(tool, "rollout_tools") else [tool]
    return made


def as_runnable(agent: RolloutAgentLoop | Runnable | type) -> Runnable:
    """Return the agent itself, or the adapter for an agent loop or for the class of a workflow.

    An object with a method as_runnable() makes its adapter itself.
    """
    own: Any = getattr(agent, "as_runnable", None)
    if own is not None and not isinstance(agent, type):
        made: Runnable = own()
        return made
    if isinstance(agent, type):
        from osmosis_grpc.agent.workflow_runnable import WorkflowRunnable

        return WorkflowRunnable(agent)
    return AgentLoopRunnable(agent) if isinstance(agent, RolloutAgentLoop) else agent


async def await_tools(tools: Any, seconds: float) -> Any:
    """Return the result of an async get_tools, with the tools of each source.

    get_tools is the agent's code, so it runs in its own task. Raises the exception of get_tools. Raises TimeoutError
    after `seconds`, and RuntimeError if get_tools cancels its own task.
    """
    task = child(GET_TOOLS, _settled(tools))
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    finally:
        task.cancel()
    if not done:
        raise TimeoutError(f"it took longer than {seconds:g} s")
    if task.cancelled():
        raise RuntimeError("it cancelled itself")
    result, error = task.result()
    if error is not None:
        raise error
    return result


async def _settled(tools: Any) -> tuple[Any, BaseException | None]:
    """Return the result or the exception. This catches SystemExit, which would end the event loop."""
    try:
        return await expanded(tools), None
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        return None, error
