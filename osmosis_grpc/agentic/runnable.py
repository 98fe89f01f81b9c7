"""Adapts the agents of this package to the Runnable port, which the engine and `serve` host."""

import dataclasses
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

from osmosis_grpc.agent.context import RolloutContext
from osmosis_grpc.agent.grader_limit import refuse_grader_timeout
from osmosis_grpc.agent.request import RolloutRequest
from osmosis_grpc.agent.result_check import RunOutcome
from osmosis_grpc.agentic.base_agent import BaseAgent, opened_tools
from osmosis_grpc.agentic.duck_tools import open_stateful
from osmosis_grpc.agentic.trajectory import COMPLETED, StopReason, Trajectory
from osmosis_grpc.agentic.view import BEGAN, STOP_REASON


class AgentRunnable:
    """A Runnable of one agent. An agent whose author wrote run_trajectory() gets an LLM function of the context."""

    lists_tools_without_request = True

    def __init__(self, agent: BaseAgent, name: str = "") -> None:
        self.source = self.agent = agent
        self.name = name or getattr(agent, "agent_type", type(agent).__name__)
        self.replayable = agent.replayable
        self.trajectories: dict[str, Trajectory] = {}
        """The trajectories of authors' run_trajectory(), by rollout id, until take() is called."""
        self.keeps = False
        """Whether a caller in this process takes them."""

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
        """Run the author's run_trajectory() with the model of the rollout."""
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
        if self.keeps:
            self.trajectories[context.rollout_id] = made
        stop = made.stop_reason or (StopReason.FINAL_ANSWER if made.is_completed else StopReason.MAX_STEPS)
        return RunOutcome(
            finish_reason=stop, messages=None, reward=made.final_reward, extra_fields={STOP_REASON: stop.value}
        )

    def ended(self, rollout_id: str, attempt: int) -> None:
        """Forget nothing: a caller in this process takes its trajectory."""

    def take(self, viewed: Trajectory) -> Trajectory:
        """Return the trajectory of a rollout: the author's own one with the end of the view, or the view itself."""
        own = self.trajectories.pop(viewed.request_id, None)
        if own is None:
            return viewed
        viewed_end = ("stop_reason", "error", "messages", "segments", "total_tokens")
        changes = {name: getattr(viewed, name) for name in viewed_end}
        reward = own.final_reward if own.final_reward is not None else viewed.final_reward
        complete = viewed.stop_reason in COMPLETED
        return dataclasses.replace(own, **changes, final_reward=reward, is_completed=complete)


def agent_runnable(agent: BaseAgent, name: str = "") -> AgentRunnable:
    """Return the Runnable of an agent, for `serve -m MODULE:ATTRIBUTE`."""
    return AgentRunnable(agent, name)
