"""The base class of environments. It implements Runnable: it finds the task, plays it, and checks the score."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from importlib import metadata
from typing import Any, ClassVar

from osmosis_grpc.agent.context import RolloutContext
from osmosis_grpc.agent.request import RolloutRequest
from osmosis_grpc.agent.run_outcome import RunOutcome, outcome_of
from osmosis_grpc.environments.episode import Episode
from osmosis_grpc.environments.leftovers import end_with_server
from osmosis_grpc.environments.port import TASK_ID, EnvironmentFault, EnvironmentTask, Score, finite
from osmosis_grpc.environments.spec import EnvironmentSpec
from osmosis_grpc.protocol.errors import InvalidArgument, OsmosisRolloutError
from osmosis_grpc.protocol.types import Failure, FailureReason, Message
from osmosis_grpc.protocol.types.json_values import loggable
from osmosis_grpc.protocol.types.outcome import clip, with_type

SECONDS = 300.0
"""Default of the option `seconds`: the time limit of one call to a library. 0 means no limit."""
TASKS = 100
"""Default of the option `tasks`: the number of tasks of an environment whose tasks are seeds."""


class Environment(ABC):
    """An environment of another library. One instance serves all rollouts at once.

    Args:
        spec: The name and the options of the environment. The constructors of the adapters raise ValueError for an
            unknown option.
    """

    distribution: ClassVar[str] = ""
    """The package whose version determines the tasks."""
    replayable: ClassVar[bool] = True
    """Whether an episode sends the same chats again when it gets the same replies."""
    lists_tools_without_request: ClassVar[bool] = False

    def __init__(self, spec: EnvironmentSpec) -> None:
        self.spec = spec
        self.options = dict(spec.options)
        """The options that no constructor has read yet."""
        self.seconds = self.number("seconds", SECONDS)

    @property
    def name(self) -> str:
        """The name of its agent: KIND:NAME."""
        return self.spec.agent_name

    @property
    def source(self) -> "Environment":
        """The environment itself."""
        return self

    @property
    def version(self) -> str:
        """The package and its version, or "" if no package is named or installed."""
        try:
            return f"{self.distribution} {metadata.version(self.distribution)}" if self.distribution else ""
        except metadata.PackageNotFoundError:
            return ""

    @abstractmethod
    def keys(self) -> Iterator[str]:
        """Yield the keys of the tasks, in their order."""

    @abstractmethod
    def task(self, key: str) -> EnvironmentTask:
        """Return the task with this key. Raises LookupError if there is none."""

    @abstractmethod
    async def play(self, task: EnvironmentTask, episode: "Episode") -> Score:
        """Play one episode on the event loop, and return its score.

        Call every library function that may take long with episode.call().

        Args:
            task: The return value of task().
            episode: Asks the model, and calls the library.
        """

    def task_id(self, key: str) -> str:
        """Return the id of the task with a key."""
        return f"{self.spec}#{key}"

    def number(self, name: str, default: float) -> float:
        """Remove an option and return its value, a number from 0. Raises ValueError for another value.

        Args:
            name: The option.
            default: The value if the option is missing.
        """
        value = self.options.pop(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise ValueError(f"{self.spec.agent_name}: {name} is {value!r}, not a number from 0")
        return value

    def tools(self, request: RolloutRequest) -> Sequence[Any]:
        """Return no tools: each chat names its own. Raises InvalidArgument if the request has no task."""
        self._key(request)
        return ()

    def accepted(self, request: RolloutRequest, owner: str) -> None:  # noqa: B027 - no adapter needs it
        """Do nothing: episodes do not know each other.

        Args:
            request: A rollout of a group.
            owner: Its trainer.
        """

    def ended(self, rollout_id: str, attempt: int) -> None:  # noqa: B027 - no adapter needs it
        """Do nothing: run() has closed its episode.

        Args:
            rollout_id: The rollout.
            attempt: Its attempt.
        """

    async def run(self, context: RolloutContext) -> RunOutcome:
        """Play one episode. A failure of the environment names the environment and the task."""
        key = self._key(context.request)
        episode = Episode(context, self.seconds)
        try:
            task = await episode.call(self._found, key)
            return self._outcome(await self.play(task, episode), episode)
        except OsmosisRolloutError:  # a chat failed, or the rollout was ended
            raise
        except EnvironmentFault as fault:
            return self._failed(key, str(fault), fault.__cause__)
        except (Exception, SystemExit) as error:  # SystemExit would end the server
            return self._failed(key, with_type(error), error)
        finally:
            await episode.end()

    def _found(self, key: str) -> EnvironmentTask:
        end_with_server()
        try:
            return self.task(key)
        except LookupError:
            raise EnvironmentFault("there is no such task") from None

    def _key(self, request: RolloutRequest) -> str:
        """Return the key of the rollout's task. Raises InvalidArgument."""
        field, given = f"metadata.{TASK_ID}", request.metadata.get(TASK_ID)
        if not isinstance(given, str):
            raise InvalidArgument(field, f"has to name a task of {self.spec}, as its dataset does")
        spec, mark, key = given.rpartition("#")
        if not mark or spec != str(self.spec):
            raise InvalidArgument(field, f"{given[:200]!r} is a task of {spec[:200] or '?'}; here is {self.spec}")
        return key

    def _outcome(self, score: Score, episode: Episode) -> RunOutcome:
        reward = None if score.reward is None else finite("reward", score.reward)
        if reward is None and not score.samples:
            raise EnvironmentFault("it gave no reward")
        context = episode.context
        for name, value in score.samples.items():
            context.set_reward(finite(f"reward of {name}", value), sample=name)
        for name, value in score.parts.items():
            context.set_reward(finite(f"reward part {name}", value), sample="", name=name)
        return outcome_of(
            context.complete(
                episode.conversations.get("main"),
                finish_reason=score.finish_reason,
                reward=reward,
                extra_fields=loggable(dict(score.facts)) if score.facts else None,
            )
        )

    def _failed(self, key: str, problem: str, cause: BaseException | None) -> RunOutcome:
        reason = FailureReason.AGENT_ERROR
        failure = Failure("agent", clip(f"{self.task_id(key)}: {problem}"), False, reason=reason)
        return RunOutcome(failure=failure if cause is None else failure.raised_at(cause))


class SeededEnvironment(Environment):
    """An environment whose tasks are seeds. The options are `seed`, the first one, and `tasks`, their number."""

    opening: Sequence[Message] = ()
    """The first messages of every task."""

    def __init__(self, spec: EnvironmentSpec) -> None:
        super().__init__(spec)
        first = int(self.number("seed", 0))
        self._seeds = range(first, first + int(self.number("tasks", TASKS)))

    def keys(self) -> Iterator[str]:
        """Yield the seeds."""
        return map(str, self._seeds)

    def task(self, key: str) -> EnvironmentTask:
        """Return the task of a seed. Its data is the seed."""
        if not (key.isascii() and key.isdecimal()) or int(key) not in self._seeds:
            raise LookupError(key)
        return EnvironmentTask(key=key, messages=self.opening, data=int(key))
