"""The ReAct agent, the tool agent, and the base class with their loop, which works for every reply format."""

import logging
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, ClassVar

from osmosis_grpc.agent.context import RolloutContext
from osmosis_grpc.agent.run_outcome import RunOutcome
from osmosis_grpc.compat.agentic.base_agent import BaseAgent
from osmosis_grpc.compat.agentic.config import Count, check
from osmosis_grpc.compat.agentic.episode import Episode, Progress
from osmosis_grpc.compat.agentic.llm import LLMFunction
from osmosis_grpc.compat.agentic.local_engine import LocalEngine, request_fields
from osmosis_grpc.compat.agentic.reply_formats import FORMATS, Answer, Call, Unreadable, parameters_of
from osmosis_grpc.compat.agentic.tools import ToolResult, open_stateful, run_calls
from osmosis_grpc.compat.agentic.trajectory import StopReason, Trajectory
from osmosis_grpc.compat.agentic.view import BEGAN, STOP_REASON
from osmosis_grpc.protocol.types import Message
from osmosis_grpc.protocol.types.samples import CUTS
from osmosis_grpc.tools.sandbox import Sandbox

log = logging.getLogger(__name__)

GO_ON = "The reply has no action and no final answer. Give one of them."
"""The message to the model after a reply with neither an action nor an answer."""


class BuiltInAgent(BaseAgent):
    """An agent whose rollouts run on the engine. Its trajectory is a view of the rollout's events."""

    agent_type: ClassVar[str]
    finish_tools: ClassVar[Sequence[str]] = ("finish",)
    """A successful call of one of these tools ends the rollout. Its argument `answer` is the final answer."""

    def __init__(
        self,
        max_steps: int = 10,
        max_tokens_per_step: int = 16000,
        temperature: float = 0.7,
        tools_config: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        max_parallel_calls: int = 8,
        max_parse_errors: int = 3,
        system_prompt: str = "",
    ) -> None:
        super().__init__(max_steps, max_tokens_per_step, temperature, tools_config)
        check("max_parallel_calls", Count, max_parallel_calls)
        check("max_parse_errors", Count, max_parse_errors)
        self.max_parallel_calls = max_parallel_calls
        """At most this many calls of one reply run at once."""
        self.max_parse_errors = max_parse_errors
        """The rollout ends after this many replies in a row with no readable action and no answer."""
        self.system_prompt = system_prompt
        """Is put before the prompt of the reply format."""

    async def run_trajectory(
        self, prompt: Any, llm_generate_func: LLMFunction, request_id: str = "", **kwargs: Any
    ) -> Trajectory:
        """Run one rollout on an engine in this process, and return its trajectory.

        `prompt` is a text, {"content": ...}, {"prompt": ...}, {"messages": [...]} or a list of messages. `kwargs` are
        further fields of RolloutRequest, such as `label`; other names are ignored, as in the library. Raises
        InvalidArgument for a wrong prompt or field.
        """
        known = {name: value for name, value in kwargs.items() if name in request_fields()}
        for name in kwargs.keys() - known.keys():
            log.debug("run_trajectory: %s is no field of a request, and is ignored", name)
        async with LocalEngine(self, llm_generate_func) as engine:
            trajectory = await engine.run(prompt, request_id, **known)
        if self.on_trajectory is not None:
            await self.on_trajectory(trajectory)
        return trajectory

    def create_system_prompt(self) -> str:
        """Return the agent's own prompt, followed by the prompt of the reply format."""
        return "\n\n".join(text for text in (self.system_prompt, super().create_system_prompt()) if text)

    def episode(self, context: RolloutContext, sandbox: Sandbox | None) -> Episode:
        """Return the hooks for one rollout. `sandbox` is None if no tool of the agent needs one."""
        return Episode()

    async def run(self, context: RolloutContext) -> RunOutcome:
        """Run one rollout to its end."""
        async with AsyncExitStack() as stack:
            opened, sandbox = await self.toolbox.open(stack, self.make_sandbox)
            tools = {**opened, **self.own_tools}
            stateful = await open_stateful(tools, context.rollout_id, stack)
            tools |= stateful.tools if stateful else {}
            episode = self.episode(context, sandbox)
            await episode.begin()
            schemas = [tool.openai_schema() for tool in tools.values()]
            parameters = parameters_of(schemas)
            context.log_event(
                BEGAN, agent_type=self.agent_type, format=self.reply_format.name, parameters=parameters,
                finish_tools=list(self.finish_tools),
            )  # fmt: skip
            messages = self._opening(context, schemas)
            progress = Progress(self, context, parameters)
            stop = await self._loop(context, tools, messages, progress, episode)
            report = await episode.end()
        for reward in (report.reward, *(stateful.rewards.values() if stateful else ())):
            progress.add(reward)
        return RunOutcome(
            finish_reason=stop,
            messages=messages,
            reward=progress.reward,
            extra_fields={STOP_REASON: stop.value, **report.extra_fields},
        )

    def _opening(self, context: RolloutContext, schemas: Sequence[Mapping[str, Any]]) -> list[Message]:
        asked = [dict(message) for message in context.request.messages]
        own = "\n\n".join(text for text in (self.system_prompt, self.reply_format.system_prompt(schemas)) if text)
        if not own:
            return asked
        if asked and asked[0].get("role") == "system" and isinstance(asked[0].get("content"), str):
            return [{**asked[0], "content": f"{own}\n\n{asked[0]['content']}"}, *asked[1:]]
        return [{"role": "system", "content": own}, *asked]

    async def _loop(
        self,
        context: RolloutContext,
        tools: Mapping[str, Any],
        messages: list[Message],
        progress: Progress,
        episode: Episode,
    ) -> StopReason:
        request = context.request
        params = {"max_tokens": self.max_tokens_per_step, "temperature": self.temperature} | dict(
            request.completion_params
        )
        unread = 0
        for number in range(1, 1 + min(self.max_steps, request.max_turns)):
            await episode.asking(number)
            reply = await context.chat(messages, **params)
            progress.answered(reply, messages)
            messages.append(reply.message)
            parts = self.reply_format.read(reply.message, progress.parameters, reply.chat_number)
            calls = [
                part for part in parts if isinstance(part, Call) or (isinstance(part, Unreadable) and part.call_id)
            ]
            if calls or any(isinstance(part, Unreadable) for part in parts):
                made = [_openai_call(call) for call in calls]
                run = partial(
                    run_calls, tools, made, context, most=self.max_parallel_calls, cut=reply.finish_reason in CUTS
                )
                results = await episode.act(number, reply.message, made, run)
                progress.returned(calls, results)
                episode.acted(calls, results)
                if self._finished(calls, results):
                    return StopReason.FINISH_TOOL
                messages += self.reply_format.results(parts, [result.message for result in results])
                unread = 0 if any(isinstance(part, Call) for part in parts) else unread + 1
            elif answers := [part.text for part in parts if isinstance(part, Answer)]:
                further = await progress.interact(messages, answers[-1])
                if further is None:
                    return StopReason.FINAL_ANSWER
                messages.append(further)
            else:
                messages.append({"role": "user", "content": GO_ON})
                unread += 1
            if unread >= self.max_parse_errors:
                return StopReason.PARSE_ERRORS
            if progress.sampled >= request.max_tokens_total:
                return StopReason.TOKEN_BUDGET
        return StopReason.MAX_STEPS

    def _finished(self, calls: Sequence[Call | Unreadable], results: Sequence[ToolResult]) -> bool:
        return any(
            call.name in self.finish_tools and not result.error for call, result in zip(calls, results, strict=True)
        )


def _openai_call(call: Call | Unreadable) -> dict[str, Any]:
    arguments: Any = call.arguments if isinstance(call, Call) else "{"  # not JSON, so run_calls() reports an error
    return {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


class ReActAgent(BuiltInAgent):
    """An agent for any model that writes text. Runs up to `max_parallel_calls` actions of a reply at once.

    A rollout ends after `max_parse_errors` replies in a row with no readable action and no answer. `system_prompt` is
    put before the prompt that describes the tools. ToolAgent takes the same arguments.
    """

    agent_type = "react"
    replayable = True


ReactAgent = ReActAgent
"""The library's other name for ReActAgent."""


class ToolAgent(BuiltInAgent):
    """An agent for models with native tool calls. A reply of text without a call is the final answer."""

    agent_type = "tool"
    reply_format = FORMATS["native"]
    replayable = True
