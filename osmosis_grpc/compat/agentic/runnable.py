"""Adapts the agents of this package to the Runnable port, which the engine and `serve` host."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

from osmosis_grpc.agent.context import RolloutContext
from osmosis_grpc.agent.request import RolloutRequest, refuse_grader_timeout
from osmosis_grpc.agent.run_outcome import RunOutcome
from osmosis_grpc.compat.agentic.tools import open_stateful, opened_tools
from osmosis_grpc.compat.agentic.trajectory import StopReason, Trajectory
from osmosis_grpc.compat.agentic.view import BEGAN, OWN_STEPS, STOP_REASON
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types.json_values import loggable


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
