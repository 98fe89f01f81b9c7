"""The base class of agent loops."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Sequence
from typing import Any, ClassVar

from osmosis_grpc.agent.request import RolloutRequest

MAX_NAME_CHARS = 256


class AgentNameError(TypeError):
    """A class has no usable name. `code` is the validator's code for the problem."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class RolloutAgentLoop(ABC):
    """An agent: its name, its tools, and its run.

    One instance serves all rollouts at once, so keep the state of a rollout in local variables of run.
    """

    name: ClassVar[str]
    """The name that trainers use. It has 1 to 256 characters and is unique on a server."""
    lists_tools_without_request: ClassVar[bool] = True
    """Whether the server can call get_tools without a rollout, to list the usual tools."""
    replayable: ClassVar[bool] = False
    """Whether run sends the same chats again if it gets the same replies.

    If True, a rollout continues after a restart of the server: run starts again and first gets the recorded replies.
    The tools run again.
    """

    tools: ClassVar[Sequence[Any]] = ()
    """The tools that the model may call: functions with `@tool`, dicts in OpenAI's format, or schema objects."""

    def get_tools(self, request: RolloutRequest) -> Sequence[Any] | Awaitable[Sequence[Any] | None] | None:
        """Return the tools of one rollout; without this method, `tools`.

        The server calls it once, before it accepts the rollout. The method can be async, with a limit of 10 s. An
        exception refuses the rollout. None means no tools.
        """
        return self.tools

    @abstractmethod
    def run(self, ctx: Any) -> Any:
        """Run a rollout: begin with ctx.request.messages, return ctx.complete(...) or ctx.error(...).

        `async def run(self, ctx: RolloutContext) -> RolloutResult` runs on the event loop. A plain `def run(self, ctx:
        SyncRolloutContext) -> RolloutResult` runs on a thread, and may block. Only append to the messages. After an
        exception, the status of the rollout is FAILED.
        """

    def ended(self, rollout_id: str, attempt: int) -> None:  # noqa: B027 - few agents need it
        """Release what get_tools reserved for a rollout. Called once after the rollout's end, even if run was not.

        Args:
            rollout_id: The rollout.
            attempt: Its attempt, from 1.
        """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        abstract = any(getattr(getattr(cls, m, None), "__isabstractmethod__", False) for m in dir(cls))
        without_tools = cls.get_tools is RolloutAgentLoop.get_tools and cls.tools is RolloutAgentLoop.tools
        base = abstract or (without_tools and not hasattr(cls, "name"))
        problem = None if base else name_problem(getattr(cls, "name", None))
        if problem:
            raise AgentNameError(problem[0], f"{cls.__name__}: {problem[1]}")


def name_problem(name: object) -> tuple[str, str] | None:
    """Return the problem of an agent loop's name as (code, text); None for a valid name."""
    if name is None:
        return "MISSING_NAME", "an agent loop must define a 'name' class attribute"
    if not isinstance(name, str):
        return "INVALID_NAME_TYPE", f"`name` is a str, not a {type(name).__name__}"
    if not name.strip():
        return "EMPTY_NAME", "an agent loop must define a 'name' class attribute that is not empty"
    if len(name) > MAX_NAME_CHARS:
        return "INVALID_NAME_TYPE", f"`name` has {len(name)} characters, more than {MAX_NAME_CHARS}"
    return None
