"""One rollout of an agent: its hooks, its counts and rewards, and the interactions that react to its answers.

An interaction reacts to a final answer as a user would: it ends the rollout, or sends the agent back to work.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from osmosis_grpc.agent.context import RolloutContext
from osmosis_grpc.agent.results import CompletionsResult
from osmosis_grpc.agent.reward_decorator import reward_of
from osmosis_grpc.compat.agentic.reply_formats import Call, Unreadable
from osmosis_grpc.compat.agentic.tools import ToolResult
from osmosis_grpc.compat.agentic.trajectory import Trajectory
from osmosis_grpc.compat.agentic.view import StepBuilder
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import Message

if TYPE_CHECKING:
    from osmosis_grpc.compat.agentic.base_agent import BaseAgent

RunCalls = Callable[[], Awaitable[list[ToolResult]]]


@dataclass(frozen=True, slots=True)
class Report:
    """What an agent reports at the end of a rollout."""

    reward: float | None = None
    """Is added to the rewards of steps and interactions. None adds nothing."""
    extra_fields: dict[str, Any] = field(default_factory=dict)
    """Are added to the extra_fields of the outcome."""


class Episode:
    """Hooks that a BuiltInAgent calls during one rollout. Those of this class add nothing."""

    async def begin(self) -> None:
        """Prepare the rollout. Called before its first chat."""

    async def asking(self, number: int) -> None:
        """Prepare for a chat. Called before each chat with its number."""

    async def act(self, number: int, reply: Message, calls: Sequence[Any], run: RunCalls) -> list[ToolResult]:
        """Return the results of a reply's calls, which are in OpenAI's format. `run()` runs them."""
        return await run()

    def acted(self, calls: Sequence[Call | Unreadable], results: Sequence[ToolResult]) -> None:
        """Note the calls of a reply and their results."""

    async def end(self) -> Report:
        """Return the report. Called after the last reply, while the sandbox is still open."""
        return Report()


class Progress:
    """The steps and rewards of one rollout so far. calculate_step_reward() gets the steps."""

    def __init__(self, agent: "BaseAgent", context: RolloutContext, parameters: Mapping[str, list[str]]) -> None:
        self._agent, self._context = agent, context
        self.parameters = dict(parameters)
        self.sampled = 0
        """The number of tokens sampled so far, from the usage of each reply or else from its token ids."""
        self.reward: float | None = None
        """The sum of the rewards so far; None without any."""
        self._trajectory = Trajectory(request_id=context.rollout_id)
        self._builder = StepBuilder(self._trajectory)
        self._builder.begin(agent.reply_format.name, self.parameters, getattr(agent, "finish_tools", ()))
        self._asked = 0
        self._chat = 0

    def answered(self, reply: CompletionsResult, messages: Sequence[Message]) -> None:
        """Add the new messages and the reply to them."""
        usage = reply.usage.get("completion_tokens")
        self.sampled += usage if isinstance(usage, int) else len(reply.token_ids)
        self._chat = reply.chat_number
        before = len(self._trajectory.steps)
        self._builder.asked(messages[self._asked :], reply.chat_number)
        self._asked = len(messages) + 1
        self._builder.answered(reply.message, reply.chat_number, {})
        self._score(before)

    def returned(self, calls: Sequence[Call | Unreadable], results: Sequence[ToolResult]) -> None:
        """Add the results of a reply's calls."""
        before = len(self._trajectory.steps)
        for call, result in zip(calls, results, strict=True):
            self._builder.returned(call.call_id, call.name, result.message["content"], result.error)
        self._score(before)

    def _score(self, before: int) -> None:
        for step in self._trajectory.steps[before:]:
            score = self._agent.calculate_step_reward(step, self._trajectory)
            if score is not None:
                step.reward_score = reward_of(score)
                self.add(step.reward_score)
                chat = step.metadata.get("chat_number")
                of_chat = [
                    s.reward_score or 0.0 for s in self._trajectory.steps if s.metadata.get("chat_number") == chat
                ]
                self._context.set_reward(sum(of_chat), chat=self._chat)

    def add(self, score: float | None) -> None:
        """Add a score to the reward. None adds nothing."""
        if score is not None:
            self.reward = (self.reward or 0.0) + reward_of(score)

    async def interact(self, messages: Sequence[Message], answer: str) -> Message | None:
        """Let the interactions react to a final answer. Return a message to continue with; None ends the rollout."""
        for interaction in self._agent.interactions.values():
            reaction: Any = await interaction.respond([dict(message) for message in messages], answer)
            self.add(reaction.reward)
            if reaction.message is not None:
                return {"role": "user", "content": reaction.message}
        return None


@dataclass(frozen=True, slots=True)
class Reaction:
    """The reaction to an answer."""

    message: str | None = None
    """The user message with which the agent continues; None if nothing is left to do."""
    reward: float | None = None
    """Is added to the rollout's reward. None adds nothing."""


class Interaction(Protocol):
    """Something that reacts to answers. One instance serves all rollouts at once."""

    async def respond(self, messages: Sequence[Message], answer: str) -> Reaction:
        """Return the reaction to an answer. `messages` is the conversation up to and including the answer."""


class CheckAnswer:
    """Compares the answer with the expected one. A wrong answer gets a hint, at most `tries` times."""

    def __init__(self, expected: str, hint: str = "That is not right. Try again.", tries: int = 1) -> None:
        self._expected, self._hint, self._tries = expected.strip(), hint, tries

    async def respond(self, messages: Sequence[Message], answer: str) -> Reaction:
        """Return the reward 1.0 for the expected answer. Otherwise return a hint, or 0.0 when no try is left."""
        if answer.strip() == self._expected:
            return Reaction(reward=1.0)
        hints = sum(message.get("role") == "user" and message.get("content") == self._hint for message in messages)
        return Reaction(message=self._hint) if hints < self._tries else Reaction(reward=0.0)


_kinds: dict[str, Callable[..., Interaction]] = {"check_answer": CheckAnswer}


def register_interaction(name: str, make: Callable[..., Interaction]) -> None:
    """Register a kind of interaction. `make` gets the options of the configuration.

    Raises ValueError if the name is already registered.
    """
    if name in _kinds:
        raise ValueError(f"name: the interaction {name!r} is registered already")
    _kinds[name] = make


def make_interactions(config: Mapping[str, Any] | None) -> dict[str, Interaction]:
    """Make the interactions of a configuration, which maps names to options.

    Raises InvalidArgument, which names the interaction.
    """
    made = {}
    for name, options in (config or {}).items():
        field = f"interactions_config.{name}"
        if name not in _kinds:
            raise InvalidArgument(field, f"is not an interaction; the interactions are {', '.join(sorted(_kinds))}")
        if not isinstance(options, Mapping):
            raise InvalidArgument(field, f"is a {type(options).__name__}, not an object of options")
        try:
            made[name] = _kinds[name](**options)
        except TypeError as error:
            raise InvalidArgument(field, str(error)) from None
    return made
