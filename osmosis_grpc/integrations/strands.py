"""Strands agents whose model is the policy of their rollout. Needs the extra `strands`.

    class SearchWorkflow(AgentWorkflow):
        async def run(self, ctx):
            model = OsmosisRolloutModel(params={"temperature": 1.0})
            agent = OsmosisStrandsAgent(name="search-agent", model=model, tools=[search], messages=ctx.prompt)
            await agent.invoke_async()

Each agent is a sample of the rollout. Its model calls become chats of the rollout directly, without HTTP requests.
"""

import asyncio
import copy
import json
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, NoReturn
from urllib.parse import quote

from osmosis_grpc.agent.context import RolloutContext, get_rollout_context
from osmosis_grpc.agent.history_chats import HistoryChats
from osmosis_grpc.agent.message_keys import History
from osmosis_grpc.agent.results import CompletionsResult
from osmosis_grpc.agent.sync_waits import may_wait, wait_in_task
from osmosis_grpc.agent.tool_calls import RunningToolCall
from osmosis_grpc.integrations._strands_messages import (
    in_short,
    is_native,
    reply_blocks,
    resent,
    stream_events,
    to_strands,
    without_thoughts,
)
from osmosis_grpc.policies.litellm import import_litellm
from osmosis_grpc.protocol.errors import MissingExtraError
from osmosis_grpc.protocol.types import Message
from osmosis_grpc.protocol.types.json_values import loggable

try:
    import_litellm("OsmosisStrandsAgent")
    from strands import Agent
    from strands.agent.conversation_manager import NullConversationManager
    from strands.hooks import (
        AfterInvocationEvent,
        AfterToolCallEvent,
        BeforeToolCallEvent,
        HookOrder,
        HookRegistry,
        MessageAddedEvent,
    )
    from strands.models.litellm import LiteLLMModel
    from strands.tools import convert_pydantic_to_tool_spec
except ImportError as error:
    raise MissingExtraError("OsmosisStrandsAgent", "strands") from error

__all__ = ["OsmosisRolloutModel", "OsmosisStrandsAgent"]

MODEL_ID = "openai/osmosis-rollout"
"""The name of the model. The trainer decides which policy answers."""
NO_KEY = "no-key"
"""The key in client_args if the context has none, because without a key LiteLLM would send the user's own."""
_NO_CONTEXT = (
    "OsmosisRolloutModel requires an active RolloutContext. "
    "Ensure the execution backend sets up the context before running the workflow."
)
_MANAGER_POSITION = 4
"""The position of conversation_manager among the parameters of Agent, after model and messages."""


class OsmosisRolloutModel(LiteLLMModel):
    """A placeholder for the policy, which OsmosisStrandsAgent replaces by the result of for_sample().

    Args:
        client_args: Refused: the model calls make no HTTP requests.
        **model_config: `params` are sampling parameters under OpenAI's names, for example {"temperature": 1.0}.
    """

    def __init__(self, client_args: Mapping[str, Any] | None = None, **model_config: Any) -> None:
        if "model_id" in model_config:
            raise TypeError("OsmosisRolloutModel takes no model_id: the trainer decides which policy answers")
        if client_args:
            raise TypeError("OsmosisRolloutModel takes no client_args: its model calls make no HTTP requests")
        super().__init__(**model_config)

    def for_sample(self, sample_id: str, rollout_ctx: RolloutContext) -> LiteLLMModel:
        """Return the model of a sample, whose calls are chats of the sample.

        Args:
            sample_id: The name of the sample.
            rollout_ctx: The context of the rollout.
        """
        return SampleModel(sample_id, rollout_ctx, self.config)

    def _unusable(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError("OsmosisRolloutModel is a placeholder: use the model that for_sample() returns")

    update_config: Any = _unusable
    get_config: Any = _unusable
    structured_output: Any = _unusable
    stream: Any = _unusable


class SampleModel(LiteLLMModel):
    """The policy as the model of one sample."""

    def __init__(self, sample: str, context: RolloutContext, config: Mapping[str, Any]) -> None:
        self.config = {**config, "model_id": MODEL_ID}
        self.before_chat: Callable[[], None] = lambda: None
        """Called before each chat."""
        self._sample = sample
        self._context = context
        self._chats = HistoryChats(context)
        self._start: tuple[list[Message], list[Message]] = [], []
        """The messages that the agent begins with, in Strands' format and in OpenAI's."""
        self._system: list[Message] | None = None
        """The system messages of the newest chat."""

    @property
    def client_args(self) -> dict[str, Any]:
        """The arguments of a client for the rollout's base URL, which this model itself does not use."""
        headers = {"x-sample-id": self._sample, "x-rollout-id": self._context.rollout_id}
        return {
            "api_base": self._context.chat_completions_url,
            "api_key": self._context.api_key or NO_KEY,
            "extra_headers": {name: quote(value, safe=" ~!@#$&*()+=:;,?'") for name, value in headers.items()},
        }

    def begin(self, messages: Sequence[Message], native: Sequence[Message]) -> None:
        """Remember the agent's first messages as they were written. `native` has them in the format of Strands."""
        written = self.written([resent(message) for message in native])
        if len(written) == len(messages):
            given = [own if is_native(message) else message for message, own in zip(messages, written, strict=True)]
            self._start = given, written

    async def stream(
        self,
        messages: Sequence[Message],
        tool_specs: Sequence[Any] | None = None,
        system_prompt: str | None = None,
        *,
        tool_choice: Any = None,
        system_prompt_content: Any = None,
        agent_metadata: Any = None,
        **kwargs: Any,
    ) -> AsyncIterator[Any]:
        """Yield the policy's reply as stream events. Raises what RolloutContext.chat raises."""
        self.before_chat()
        reply = await self._ask(messages, tool_specs, system_prompt, tool_choice, system_prompt_content, agent_metadata)
        for event in stream_events(reply):
            yield event

    async def structured_output(
        self, output_model: type[Any], prompt: Sequence[Message], system_prompt: str | None = None, **kwargs: Any
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield an instance of a pydantic model, whose fields the policy sets as the arguments of a tool call.

        Raises ValueError if the reply has no such call.
        """
        specs = [convert_pydantic_to_tool_spec(output_model)]
        reply = await self._ask(prompt, specs, system_prompt, {"any": {}}, None, None)
        calls = reply.message.get("tool_calls") or ()
        if not calls:
            raise ValueError(f"the reply has no tool call with the fields of {output_model.__name__}")
        yield {"output": output_model.model_validate(json.loads(calls[0]["function"]["arguments"]))}

    async def _ask(
        self,
        messages: Sequence[Message],
        tool_specs: Sequence[Any] | None,
        system_prompt: str | None,
        tool_choice: Any,
        system_prompt_content: Any,
        agent_metadata: Any,
    ) -> CompletionsResult:
        request = self.format_request(
            [],
            tool_specs,
            system_prompt,
            tool_choice,
            system_prompt_content=system_prompt_content,
            agent_metadata=agent_metadata,
        )
        system = [in_short(message) for message in request.pop("messages")]
        if system != self._system:
            self._system = system
            given, written = self._start
            self._chats.conversations.begin([*system, *given], [*system, *written])
        history = History.of([*system, *self.written(messages)])
        tools = request.pop("tools")
        params = {name: value for name, value in request.items() if name not in ("model", "stream", "stream_options")}
        return await self._context.loop_calls.ask(
            lambda: self._chats.ask(history, tools=tools, params=params, sample=self._sample, written=self._resent)
        )

    def written(self, messages: Sequence[Message]) -> list[Message]:
        """Convert messages of Strands to OpenAI's format, the same message always in the same way."""
        made: list[Message] = []
        for message in messages:
            formatted = self.format_request_messages([without_thoughts(message)])
            made += map(in_short, formatted or [{"role": message["role"], "content": ""}])
        return made

    def _resent(self, reply: CompletionsResult) -> Message:
        """Return a reply in the form that it will have in the agent's later requests."""
        message: Message = self.written([resent({"role": "assistant", "content": reply_blocks(reply)})])[0]
        return message


class OsmosisStrandsAgent(Agent):
    """A Strands Agent. If its model is an OsmosisRolloutModel, the agent is a sample of the active rollout.

    The sample is called `name`, or else `agent_id`, or else by a random name. By default, no conversation_manager
    removes messages from the history, so that the tokens of a sample stay in one segment.

    Args:
        model: An OsmosisRolloutModel, or any model of Strands.
        messages: The history to begin with, in the format of Strands or of OpenAI.
        *args: The other parameters of Agent.
        **kwargs: The other parameters of Agent.
    """

    message_format = "strands"
    """The format in which graders get the messages of a recorded rollout (see recorded_samples())."""

    def __init__(self, model: Any = None, messages: Sequence[Any] | None = None, *args: Any, **kwargs: Any) -> None:
        self._rollout: RolloutContext | None = None
        self._transcript = Transcript()
        native = None if messages is None else to_strands(messages)
        if not isinstance(model, OsmosisRolloutModel):
            super().__init__(model, native, *args, **kwargs)
            return
        context = get_rollout_context()
        if context is None:
            raise RuntimeError(_NO_CONTEXT)
        sample = str(kwargs.get("name") or kwargs.get("agent_id") or uuid.uuid4().hex)
        resolved: Any = model.for_sample(sample, context)
        resolved.begin(messages or (), native or ())
        resolved.before_chat = self._record
        managed = len(args) > _MANAGER_POSITION or kwargs.get("conversation_manager") or kwargs.get("context_manager")
        if not managed:
            kwargs["conversation_manager"] = NullConversationManager()
        super().__init__(resolved, native, *args, **kwargs)
        self._record()
        self.add_hook(lambda event: self._record(), MessageAddedEvent)
        self.hooks.add_hook(ToolRecorder(context, sample, resolved.written))
        context.register_agent(sample, self)
        self._rollout = context

    def rollout_messages(self) -> list[Message]:
        """Return all messages of the agent, including those that its conversation manager has removed."""
        self._record()
        return copy.deepcopy(self._transcript.messages)

    def __call__(self, prompt: Any = None, **kwargs: Any) -> Any:
        """Run the agent. In an async function, prefer `await agent.invoke_async()`, which needs no thread."""
        if self._on_loop():
            return wait_in_task(self._invoke_and_flush(prompt, **kwargs))
        return super().__call__(prompt, **kwargs)

    def structured_output(self, output_model: type[Any], prompt: Any = None) -> Any:
        """Return an instance of a pydantic model whose fields the policy sets.

        Args:
            output_model: The class of the pydantic model.
            prompt: A further message of the user.
        """
        if self._on_loop():
            return wait_in_task(self.structured_output_async(output_model, prompt))
        return super().structured_output(output_model, prompt)

    @property
    def tool(self) -> Any:
        """The tools as functions, `agent.tool.NAME(...)`, which don't block the event loop in run()."""
        return WaitingToolCaller(super().tool) if self._on_loop() and may_wait() else super().tool

    def _on_loop(self) -> bool:
        return self._rollout is not None and self._rollout.loop_calls.here

    async def _invoke_and_flush(self, prompt: Any, **kwargs: Any) -> Any:
        try:
            return await self.invoke_async(prompt, **kwargs)
        finally:
            if self.memory_manager is not None:
                await self.memory_manager.flush()

    def _record(self) -> None:
        self._transcript.add(self.messages)


class WaitingToolCaller:
    """Calls tools on a thread, because a tool may call the model, for which the event loop must be free."""

    def __init__(self, caller: Any) -> None:
        self._caller = caller

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call = getattr(self._caller, name)
        return lambda *args, **kwargs: wait_in_task(asyncio.to_thread(call, *args, **kwargs))


class Transcript:
    """All messages that an agent has had, including those that a conversation manager removed or shortened."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._known: dict[int, Message] = {}
        """The agent's message objects, by id()."""

    def add(self, messages: Sequence[Message]) -> None:
        """Add copies of the messages after the last known one."""
        new: list[Message] = []
        for message in reversed(messages):
            if id(message) in self._known:
                break
            new.append(message)
        for message in reversed(new):
            self._known[id(message)] = message
            self.messages.append(copy.deepcopy(message))


class ToolRecorder:
    """Records the tool calls of one agent with hooks, which run after other hooks to see final arguments and results.

    `written` converts messages of Strands to OpenAI's format.
    """

    def __init__(
        self, context: RolloutContext, sample: str, written: Callable[[Sequence[Message]], list[Message]]
    ) -> None:
        self._context = context
        self._sample = sample
        self._written = written
        self._running: dict[str, list[RunningToolCall]] = {}
        """The calls without a result, by call id. An interrupted call begins again with the same id."""

    def register_hooks(self, registry: HookRegistry, **kwargs: Any) -> None:
        """Add the hooks to an agent."""
        registry.add_callback(BeforeToolCallEvent, self._begins, order=HookOrder.SDK_LAST)
        registry.add_callback(AfterToolCallEvent, self._returned, order=HookOrder.SDK_LAST)
        registry.add_callback(AfterInvocationEvent, self._stopped)

    def _begins(self, event: Any) -> None:
        use = event.tool_use
        function = {"name": str(use["name"]), "arguments": _text(use.get("input"))}
        call_id = str(use["toolUseId"])
        call = {"id": call_id, "type": "function", "function": function}
        running = self._context.start_tool_call(call, sample=self._sample)
        self._running.setdefault(call_id, []).append(running)

    def _returned(self, event: Any) -> None:
        call_id = str(event.tool_use["toolUseId"])
        open_calls = self._running.get(call_id)
        if not open_calls:
            return
        running = open_calls.pop()
        if not open_calls:
            del self._running[call_id]
        result = {**event.result, "toolUseId": call_id}
        messages = self._written([{"role": "user", "content": [{"toolResult": result}]}])
        if result.get("status") == "error":
            running.run.error = event.exception
            running.run.error_text = _error_text(result)
        running.returned(messages[0] if messages else None)

    def _stopped(self, event: Any) -> None:
        """Stop the clock of calls without a result: an interrupted agent waits for an answer from outside."""
        for open_calls in self._running.values():
            for running in open_calls:
                running.end()


def _text(arguments: Any) -> str:
    """Return arguments as JSON. A text of the policy that is not JSON stays as it is."""
    return arguments if isinstance(arguments, str) else json.dumps(loggable(arguments), ensure_ascii=False)


def _error_text(result: Mapping[str, Any]) -> str:
    """Return the text of an error result without Strands' prefix."""
    text = " ".join(str(block["text"]) for block in result.get("content") or () if "text" in block)
    return text.removeprefix("Error: ") or "the tool failed"
