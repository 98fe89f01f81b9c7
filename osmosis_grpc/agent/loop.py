"""The base class of agent loops."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Sequence
from typing import Any, ClassVar

from osmosis_grpc.agent.context import RolloutContext
from osmosis_grpc.agent.results import RolloutResult
from osmosis_grpc.types import RolloutRequest

MAX_NAME_CHARS = 256


class AgentNameError(TypeError):
    """A class has no usable name. `code` is the validator's word for what is wrong."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class RolloutAgentLoop(ABC):
    """An agent: say its `name`, its tools, and how it runs.

    One instance serves all rollouts at once, so what belongs to one rollout stays in run's
    local variables.
    """

    name: ClassVar[str]
    """What trainers call it; 1 to 256 characters, unique on its server."""
    lists_tools_without_request: ClassVar[bool] = True
    """Whether get_tools may also be called without a rollout, to tell what tools there usually are."""
    replayable: ClassVar[bool] = False
    """Whether run asks the same when it is run again on the same replies.

    Then a rollout that a restart of the server interrupts goes on: run begins anew, the replies
    that are recorded are given to it first, and its tools run again.
    """

    @abstractmethod
    def get_tools(self, request: RolloutRequest) -> Sequence[Any] | Awaitable[Sequence[Any] | None] | None:
        """The tools this rollout's model may call: dicts in OpenAI's format, or schema objects.

        Called once, before the rollout is accepted; may be async (limit 10 s). Raising refuses
        the rollout. None means no tools.
        """

    @abstractmethod
    async def run(self, ctx: RolloutContext) -> RolloutResult:
        """The rollout itself: from ctx.request.messages to ctx.complete(...) or ctx.error(...).

        Messages are only ever appended. An exception that escapes ends the rollout FAILED.
        """

    def ended(self, rollout_id: str, attempt: int) -> None:  # noqa: B027 - few need it
        """Called once when a rollout is over, also one that never ran: let go of what get_tools took hold of."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        abstract = any(getattr(getattr(cls, m, None), "__isabstractmethod__", False) for m in dir(cls))
        problem = None if abstract else name_problem(getattr(cls, "name", None))
        if problem:
            raise AgentNameError(problem[0], f"{cls.__name__}: {problem[1]}")


def name_problem(name: object) -> tuple[str, str] | None:
    """What is wrong with an agent loop's name, as (code, text); None when it is fine."""
    if name is None:
        return "MISSING_NAME", "an agent loop needs a class attribute `name`"
    if not isinstance(name, str):
        return "INVALID_NAME_TYPE", f"`name` is a str, not a {type(name).__name__}"
    if not name.strip():
        return "EMPTY_NAME", "`name` is empty"
    if len(name) > MAX_NAME_CHARS:
        return "INVALID_NAME_TYPE", f"`name` has {len(name)} characters, more than {MAX_NAME_CHARS}"
    return None
