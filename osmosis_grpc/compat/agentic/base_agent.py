"""The base class of agents, with the method names of the Agentic Rollout Library, and how the engine hosts them."""

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
"""The kinds of steps that a reply makes."""


class BaseAgent(ABC):
    """An agent. One instance runs any number of rollouts at once, so it keeps nothing of a rollout in itself.

    A subclass writes run_trajectory(). With AgenticRollout or agent_runnable(), its rollouts run on the engine.
    """

    reply_format: ClassVar[ReplyFormat] = FORMATS["react"]
    """How the agent reads replies, and whether it offers its tools beside the messages."""
    replayable: bool = False
    """Whether the agent asks the same chats when it runs again with the same replies, see RolloutAgentLoop."""

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
        """The tools of set_tools()."""
        self.make_sandbox: MakeSandbox = LocalSandbox
        """Makes the sandbox of a rollout, if a tool of the configuration needs one."""
        self.interactions: dict[str, Any] = {}
        self.on_trajectory: Callable[[Trajectory], Awaitable[None]] | None = None
        """Called with each trajectory that run_trajectory() of an agent of this package makes."""

    def as_runnable(self) -> Runnable:
        """Return the agent as `serve` and `validate` host it. See agent_runnable()."""
        return agent_runnable(self)

    def set_tools(self, tools: Mapping[str, Any] | Iterable[Any]) -> None:
        """Set tools: by name, or a list. They join those of tools_config. See as_tools(). Raises InvalidArgument."""
        named, others = named_tools(tools)
        self.own_tools = as_tools(others)
        self.toolbox = Toolbox(self._tools_config, named)

    @property
    def tools(self) -> dict[str, Any]:
        """All tools by name. Within a rollout, those that work in its sandbox."""
        return {**self.toolbox.tools, **self.own_tools, **(opened_tools.get() or {})}

    def set_interactions(self, interactions: Mapping[str, Any]) -> None:
        """Set the interactions by name. Each is asked about a final answer, see episode.py."""
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
        """Return whether the agent asks the model again: it has no final answer, and replies are left."""
        if trajectory.is_completed or (trajectory.steps and trajectory.steps[-1].step_type is StepType.FINAL_ANSWER):
            return False
        return sum(step.step_type in REPLIES for step in trajectory.steps) < self.max_steps

    def create_system_prompt(self) -> str:
        """Return the system prompt, with the tools if the model does not get them in another way."""
        return self.reply_format.system_prompt(self.tool_schemas())

    def parse_llm_output(self, output: Any, expected_type: StepType | None = None) -> TrajectoryStep:
        """Return a reply as one step: its first action, else its final answer, else a thought.

        `output` is a text or an assistant message. The content of an action and of a thought is the whole reply, so
        that format_messages_for_llm() repeats it. `expected_type` is the type of a reply without labels.
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
        """Run a tool and return the step with its result. An unknown tool and an error are results, too.

        Within a rollout of the engine, the call and its result are events.
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
        """Return the system prompt and the steps as messages. Steps of one role in a row become one message."""
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
        """Return the reward of a step; None, the default, for no reward. Called once for each step."""
        return None

    def finalize_trajectory(self, trajectory: Trajectory) -> None:
        """Set what is not set yet: why the trajectory ended, whether it is complete, and its final reward.

        The final reward is the sum of the rewards of the steps, if a step has one.
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
    """A Runnable of one BaseAgent. If its author wrote run_trajectory(), it gets an LLM function of the context."""

    lists_tools_without_request = True

    def __init__(self, agent: Any, name: str = "") -> None:
        self.source = self.agent = agent
        self.name = name or getattr(agent, "agent_type", type(agent).__name__)
        self.replayable = agent.replayable

    def tools(self, request: RolloutRequest) -> Sequence[Any]:
        """Return the tools that travel beside the messages. Raises InvalidArgument for a grader's time limit."""
        refuse_grader_timeout(self.name, request)
        return self.get_tools(request)

    def get_tools(self, request: RolloutRequest) -> list[Any]:
        """Return the tools that travel beside the messages. The checks of `validate` call it, too."""
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
            )  # the runner's task is of this rollout alone
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
    """Return the Runnable of a BaseAgent, for `serve -m MODULE:ATTRIBUTE`. Its name is `name`, or that of the class.

    Raises InvalidArgument for what is not an agent.
    """
    if isinstance(agent, type) or not hasattr(agent, "run_trajectory"):
        what = f"a class; pass an agent, such as {agent.__name__}()" if isinstance(agent, type) else "not a BaseAgent"
        raise InvalidArgument("agent", f"is {what}")
    return AgentRunnable(agent, name)
