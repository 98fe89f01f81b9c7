"""The base class of agents, with the method names of the Agentic Rollout Library, and the Runnable that hosts one."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, ClassVar

from osmosis_grpc.agent.context import RolloutContext, get_rollout_context
from osmosis_grpc.agent.request import RolloutRequest, refuse_grader_timeout
from osmosis_grpc.agent.run_outcome import RunOutcome
from osmosis_grpc.agent.runnable import Runnable
from osmosis_grpc.compat.agentic.config import Count, Temperature, check
from osmosis_grpc.compat.agentic.llm import LLMFunction
from osmosis_grpc.compat.agentic.reply_formats import (
    FORMATS,
    Answer,
    Call,
    Part,
    ReplyFormat,
    Unreadable,
    parameters_of,
)
from osmosis_grpc.compat.agentic.tools import (
    MakeSandbox,
    Toolbox,
    as_tools,
    named_tools,
    open_stateful,
    opened_tools,
    run_calls,
)
from osmosis_grpc.compat.agentic.trajectory import COMPLETED, StepType, StopReason, Trajectory, TrajectoryStep
from osmosis_grpc.compat.agentic.view import BEGAN, OWN_STEPS, STOP_REASON, StepBuilder
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types.json_values import loggable
from osmosis_grpc.tools.sandbox import LocalSandbox

REPLIES = (StepType.THOUGHT, StepType.ACTION, StepType.FINAL_ANSWER)
"""The step types that come from replies of the model. Only these count towards max_steps."""


class BaseAgent(ABC):
    """An agent. One instance serves any number of rollouts at once, so it stores no state of a rollout.

    A subclass implements run_trajectory(). AgenticRollout and agent_runnable() run its rollouts on the engine.
    """

    reply_format: ClassVar[ReplyFormat] = FORMATS["react"]
    """How replies are parsed, and whether chat requests carry the schemas of the tools."""
    replayable: bool = False
    """Whether a second run with the same replies sends the same chats. See RolloutAgentLoop."""

    def __init__(
        self,
        max_steps: int = 10,
        max_tokens_per_step: int = 16000,
        temperature: float = 0.7,
        tools_config: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        check("max_steps", Count, max_steps)
        check("max_tokens_per_step", Count, max_tokens_per_step)
        check("temperature", Temperature, temperature)
        self.max_steps = max_steps
        self.max_tokens_per_step = max_tokens_per_step
        self.temperature = float(temperature)
        self._tools_config = tools_config
        self.toolbox = Toolbox(tools_config)
        self.own_tools: dict[str, Any] = {}
        """The tools that set_tools() got, by name. NamedTools are in `toolbox` instead."""
        self.make_sandbox: MakeSandbox = LocalSandbox
        """Makes the sandbox of a rollout. Called only if a configured tool needs one."""
        self.interactions: dict[str, Any] = {}
        self.on_trajectory: Callable[[Trajectory], Awaitable[None]] | None = None
        """Called with each trajectory before the run_trajectory() of a BuiltInAgent returns it."""

    def as_runnable(self) -> Runnable:
        """Return the Runnable that `serve` and `validate` host. See agent_runnable()."""
        return agent_runnable(self)

    def set_tools(self, tools: Mapping[str, Any] | Iterable[Any]) -> None:
        """Set tools in addition to tools_config: a dict by name, or a list, see as_tools(). Raises InvalidArgument."""
        named, others = named_tools(tools)
        self.own_tools = as_tools(others)
        self.toolbox = Toolbox(self._tools_config, named)

    @property
    def tools(self) -> dict[str, Any]:
        """All tools by name. Within a rollout, these are the rollout's own, which work in its sandbox."""
        return {**self.toolbox.tools, **self.own_tools, **(opened_tools.get() or {})}

    def set_interactions(self, interactions: Mapping[str, Any]) -> None:
        """Set the interactions by name. They react to a final answer, see episode.py."""
        for name, interaction in interactions.items():
            if not callable(getattr(interaction, "respond", None)):
                raise InvalidArgument(f"interactions.{name}", "has no method respond(messages, answer)")
        self.interactions = dict(interactions)

    @abstractmethod
    async def run_trajectory(
        self, prompt: Any, llm_generate_func: LLMFunction, request_id: str = "", **kwargs: Any
    ) -> Trajectory:
        """Run one rollout and return its trajectory."""

    def should_continue(self, trajectory: Trajectory) -> bool:
        """Return whether to ask the model again: there is no final answer, and max_steps is not reached."""
        if trajectory.is_completed or (trajectory.steps and trajectory.steps[-1].step_type is StepType.FINAL_ANSWER):
            return False
        return sum(step.step_type in REPLIES for step in trajectory.steps) < self.max_steps

    def create_system_prompt(self) -> str:
        """Return the system prompt. It describes the tools unless chat requests carry their schemas."""
        return self.reply_format.system_prompt(self.tool_schemas())

    def parse_llm_output(self, output: Any, expected_type: StepType | None = None) -> TrajectoryStep:
        """Turn a reply into one step: its first action, otherwise its final answer, otherwise a thought.

        `output` is a text or an assistant message. The content of an action or a thought is the whole reply, because
        format_messages_for_llm() sends it again. `expected_type` replaces the type of a thought.
        """
        message = output if isinstance(output, Mapping) else {"role": "assistant", "content": str(output)}
        text = message.get("content")
        parts = self.reply_format.read(dict(message), parameters_of(self.tool_schemas()), 1)
        for part in parts:
            if isinstance(part, Call):
                return TrajectoryStep(
                    step_type=StepType.ACTION,
                    content=text or part.text,
                    tool_name=part.name,
                    tool_args=part.arguments,
                    call_id=part.call_id,
                )
            if isinstance(part, Unreadable):
                why = {"success": False, "error": part.error}
                return TrajectoryStep(step_type=StepType.ACTION, content=text or part.text, metadata=why)
        for part in parts:
            if isinstance(part, Answer):
                return TrajectoryStep(step_type=StepType.FINAL_ANSWER, content=part.text)
        return TrajectoryStep(step_type=expected_type or StepType.THOUGHT, content=str(text or "") or _joined(parts))

    async def execute_tool_call(
        self, tool_name: str, tool_args: Mapping[str, Any] | None, trajectory: Trajectory | None = None
    ) -> TrajectoryStep:
        """Run a tool, and return its result as a step. If the tool is unknown or fails, the result is the error.

        Within a rollout of the engine, the call and its result are recorded as events.
        """
        steps = trajectory.steps if trajectory else ()
        call_id = next((s.call_id for s in reversed(steps) if s.step_type is StepType.ACTION and s.call_id), None)
        call_id = call_id or f"call_{len(steps)}"
        call = {"id": call_id, "type": "function", "function": {"name": tool_name, "arguments": dict(tool_args or {})}}
        [result] = await run_calls(self.tools, [call], get_rollout_context())
        made = Trajectory(request_id="")
        builder = StepBuilder(made)
        builder.returned(call_id, tool_name, result.message["content"], result.error)
        made.steps[0].tool_args = dict(tool_args or {})
        return made.steps[0]

    def format_messages_for_llm(self, trajectory: Trajectory) -> list[dict[str, Any]]:
        """Return the system prompt and the steps as messages. Consecutive steps of one role become one message."""
        prompt = self.create_system_prompt()
        messages: list[dict[str, Any]] = [{"role": "system", "content": prompt}] if prompt else []
        for step in trajectory.steps:
            message: dict[str, Any] = step.to_message()
            if step.step_type is StepType.ACTION_RESULT:
                message["content"] = f"Observation: {message['content']}"
            if messages and messages[-1]["role"] == message["role"]:
                messages[-1]["content"] += f"\n{message['content']}"
            else:
                messages.append(message)
        return messages

    def calculate_step_reward(self, step: TrajectoryStep, trajectory: Trajectory) -> float | None:
        """Return the reward of a step, or None for no reward. Called once for each step. The default is None."""
        return None

    def finalize_trajectory(self, trajectory: Trajectory) -> None:
        """Set is_completed. Also set the stop reason and the final reward if they are missing.

        The final reward is the sum of the rewards of the steps. It stays None if no step has one.
        """
        if trajectory.stop_reason is None:
            answered = any(step.step_type is StepType.FINAL_ANSWER for step in trajectory.steps)
            trajectory.stop_reason = StopReason.FINAL_ANSWER if answered else StopReason.MAX_STEPS
        trajectory.is_completed = trajectory.stop_reason in COMPLETED
        if trajectory.final_reward is None and any(step.reward_score is not None for step in trajectory.steps):
            trajectory.final_reward = trajectory.get_total_reward()

    def tool_schemas(self) -> Sequence[Mapping[str, Any]]:
        """Return the schemas of the tools in OpenAI's format."""
        return [tool.openai_schema() for tool in self.tools.values()]


def _joined(parts: Sequence[Part]) -> str:
    return "\n".join(part.text for part in parts)


class AgentRunnable:
    """The Runnable of one BaseAgent. Calls the agent's run(context), or else its run_trajectory()."""

    lists_tools_without_request = True

    def __init__(self, agent: Any, name: str = "") -> None:
        self.source = self.agent = agent
        self.name = name or getattr(agent, "agent_type", type(agent).__name__)
        self.replayable = agent.replayable

    def tools(self, request: RolloutRequest) -> Sequence[Any]:
        """Return the tool schemas for chat requests. Raises InvalidArgument if the request sets a grader's timeout."""
        refuse_grader_timeout(self.name, request)
        return self.get_tools(request)

    def get_tools(self, request: RolloutRequest) -> list[Any]:
        """Return the tool schemas for chat requests. `validate` calls this, too."""
        return list(self.agent.tool_schemas()) if self.agent.reply_format.offers_tools else []

    def accepted(self, request: RolloutRequest, owner: str) -> None:
        """Do nothing: an agent does not know the other rollouts of a group."""

    async def run(self, context: RolloutContext) -> RunOutcome:
        """Run the agent."""
        own_run: Any = getattr(self.agent, "run", None)
        outcome: RunOutcome = await (own_run(context) if own_run else self._run_trajectory(context))
        return outcome

    async def _run_trajectory(self, context: RolloutContext) -> RunOutcome:
        agent, request = self.agent, context.request
        defaults = {"max_tokens": agent.max_tokens_per_step, "temperature": agent.temperature}
        context.log_event(
            BEGAN, agent_type=self.name, format=agent.reply_format.name, parameters={}, finish_tools=[]
        )  # fmt: skip

        async def ask(messages: Sequence[dict[str, Any]], **params: Any) -> Any:
            reply = await context.chat(messages, **(defaults | dict(request.completion_params) | params))
            return reply.message if reply.has_tool_calls else reply.content or ""

        given = [dict(message) for message in request.messages]
        prompt = {"content": given[-1].get("content", ""), "messages": given} if given else {"content": ""}
        async with AsyncExitStack() as stack:
            opened, _ = await agent.toolbox.open(stack, agent.make_sandbox)
            stateful = await open_stateful({**opened, **agent.own_tools}, context.rollout_id, stack)
            opened_tools.set(
                {**opened, **(stateful.tools if stateful else {})}
            )  # this task runs only this rollout, so no other one sees the variable
            made = await agent.run_trajectory(prompt=prompt, llm_generate_func=ask, request_id=context.rollout_id)
        if not isinstance(made, Trajectory):
            raise TypeError(f"run_trajectory of {type(agent).__name__} returned a {type(made).__name__}")
        context.log_event(OWN_STEPS, steps=[step.to_dict() for step in made.steps])
        stop = made.stop_reason or (StopReason.FINAL_ANSWER if made.is_completed else StopReason.MAX_STEPS)
        more = loggable(made.metadata, objects=True)
        return RunOutcome(
            finish_reason=stop, messages=None, reward=made.final_reward, extra_fields={**more, STOP_REASON: stop.value}
        )

    def ended(self, rollout_id: str, attempt: int) -> None:
        """Do nothing: tools() reserves nothing."""


def agent_runnable(agent: Any, name: str = "") -> AgentRunnable:
    """Return the Runnable of a BaseAgent, for `serve -m MODULE:ATTRIBUTE`.

    `name` is by default the agent_type or the name of the class. Raises InvalidArgument if `agent` is no agent.
    """
    if isinstance(agent, type) or not hasattr(agent, "run_trajectory"):
        what = f"a class; pass an agent, such as {agent.__name__}()" if isinstance(agent, type) else "not a BaseAgent"
        raise InvalidArgument("agent", f"is {what}")
    return AgentRunnable(agent, name)
