"""The context of a running agent loop: its request, its model, and its results."""

import asyncio
import copy
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from osmosis_grpc.agent.loop_calls import LoopCalls, OtherThreadSession, running_loop
from osmosis_grpc.agent.model_client import ModelClient, ModelSession, NoSession
from osmosis_grpc.agent.ports import RolloutFolders, Session
from osmosis_grpc.agent.request import RolloutRequest
from osmosis_grpc.agent.results import CompletionsResult, RolloutResult, ask_again
from osmosis_grpc.agent.reward_decorator import reward_of
from osmosis_grpc.agent.rollout_scope import RolloutScope, current_rollout
from osmosis_grpc.agent.tool_attributes import tool_schema
from osmosis_grpc.agent.tool_calls import (
    RunnableTool,
    RunningToolCall,
    answer_tool_calls,
    create_tool_error_result,
    create_tool_result,
    get_tool_call_info,
    note_error,
    refuse_cut_call,
    tool_text,
)
from osmosis_grpc.protocol.types import ChatPurpose, ChatRef, Message, events, jsontext, requests
from osmosis_grpc.protocol.types.json_values import loggable
from osmosis_grpc.protocol.types.messages import dump_model
from osmosis_grpc.protocol.types.samples import CUTS

MAX_LATENCY_MS = 365 * 24 * 3600 * 1000.0
"""The longest latency of a tool call that can be recorded: a year."""


class RolloutContext(RolloutScope):
    """The agent's view of one rollout. After the end of the rollout every method raises RolloutEndedError.

    The server makes it. A unit test can make one, too.

    Args:
        request: The trainer's request.
        tools: The tools that get_tools returned.
        llm: A model that answers the chats, such as a mock. Without one, the context can only register agents.
        session: The engine's side of the rollout.
        rollout_id: The id of the rollout, for a context without a request.
        chat_completions_url: The base URL, for a context outside of a server.
        api_key: The key for the base URL.
    """

    def __init__(
        self,
        request: requests.RolloutRequest | None = None,
        tools: Sequence[Any] = (),
        llm: Any = None,
        *,
        session: Session | None = None,
        rollout_id: str = "",
        chat_completions_url: str = "",
        api_key: str | None = None,
    ) -> None:
        super().__init__(
            rollout_id=rollout_id or (request.rollout_id if request else ""),
            chat_completions_url=chat_completions_url,
            api_key=api_key,
        )
        self.request = RolloutRequest.of(request or requests.RolloutRequest(rollout_id=self.rollout_id))
        """The trainer's request."""
        self._tools, self._tools_read = tools, False
        self._own = None if llm is None else ModelSession(llm)
        self._loop_session: Session = session or self._own or _NO_SESSION
        self._loop = None if session is None else running_loop()
        self._runnable_tools: dict[str, RunnableTool] = {}
        self._purpose: ChatPurpose | None = None

    @property
    def _session(self) -> Session:
        if self._loop is None or self._loop is running_loop():
            return self._loop_session
        return OtherThreadSession(self._loop_session, self.loop_calls)

    def for_grader(self) -> "RolloutContext":
        """Return a context of the same rollout whose chats are all for judging. They are never trained on."""
        made = copy.copy(self)
        made.separate()
        made._purpose = ChatPurpose.JUDGE
        return made

    @property
    def loop_calls(self) -> LoopCalls:
        """Calls to the event loop of the rollout, for code on other threads and in other event loops."""
        return LoopCalls(self._loop or asyncio.get_running_loop())

    def bind_tools(self, tools: Sequence[Any]) -> None:
        """Let run_tools() run these tools, too. Schemas without a function are left out."""
        self._runnable_tools |= {t.name: t for t in tools if type(t) is not dict and isinstance(t, RunnableTool)}

    @property
    def tools(self) -> list[Any]:
        """The tools that get_tools returned. They are dicts whose keys are also attributes: tool.function.name."""
        if not self._tools_read:
            self._tools, self._tools_read = [tool_schema(tool) for tool in self._tools], True
        return self._tools  # type: ignore[return-value]

    @tools.setter
    def tools(self, tools: Sequence[Any]) -> None:
        self._tools, self._tools_read = list(tools), True

    @property
    def llm(self) -> Any:
        """The model, for code that uses the Osmosis SDK's client: a ModelClient, or the `llm` of the constructor."""
        return ModelClient(self, self._session) if self._own is None else self._own.model

    @property
    def folders(self) -> RolloutFolders:
        """The folders for files that outlive the process, and are deleted with the record of the rollout."""
        return self._session.folders()

    @property
    def samples(self) -> tuple[str, ...]:
        """The names of the samples that have begun, in the order in which they began."""
        return self._session.sample_names()

    async def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        sample: str = "main",
        purpose: ChatPurpose = ChatPurpose.POLICY,
        tools: Sequence[Any] | None = None,
        **params: Any,
    ) -> CompletionsResult:
        """Ask the model for a reply to the whole history.

        Args:
            messages: The history, in OpenAI's format. A reply in it may be spelled differently, for example as parts or
                without its reasoning; the model still gets the original.
            sample: The conversation of the chat.
            purpose: Chats for judging are never trained on.
            tools: Replace the rollout's tools for this chat. run_tools() runs these, too.
            **params: Sampling parameters under OpenAI's names. Unknown ones are forwarded, and those that the trainer
                pins replace them.

        Raises:
            CallError: The trainer refuses the chat, or cannot be reached.
            ValueError: The history cannot be sent.
            RolloutEndedError: The rollout has ended.
        """
        return await self.ask(messages, sample=sample, purpose=purpose, tools=tools, params=params)

    async def ask(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        sample: str,
        purpose: ChatPurpose = ChatPurpose.POLICY,
        tools: Sequence[Any] | None,
        params: Mapping[str, Any],
        wanted: Callable[[], Awaitable[Any]] | None = None,
    ) -> CompletionsResult:
        """Do the same as chat(). The reply becomes part of the rollout when `wanted` returns; see Session.chat."""
        if isinstance(tools, list | tuple):
            self.bind_tools(tools)
        if self._own is not None:
            made: CompletionsResult = await self._own.ask(
                messages, sample=sample, purpose=self._purpose or purpose, tools=tools, params=params
            )
            return made
        session = self._session
        number, response = await session.chat(
            messages, sample=sample, purpose=self._purpose or purpose, tools=tools, params=params, wanted=wanted
        )
        result = CompletionsResult.of(response, sample, number)
        session.calls.add(result.message, sample, number)
        return result

    def add_sample(
        self,
        name: str | None = None,
        *,
        policy: str = "",
        parent: ChatRef | tuple[str, int] | None = None,
        train: bool | None = None,
    ) -> str:
        """Begin another conversation and return its name.

        Call add_sample("main", policy=...) before the first chat to choose the policy of `main`.

        Args:
            name: The name; without one it is sample-2, sample-3 and so on.
            policy: The policy of the trainer that answers the chats of the sample; empty for its only policy.
            parent: The sample and the chat from which this sample is branched or called, for example
                ("main", reply.chat_number). Chat 0 is the beginning of the sample.
            train: False asks the trainer not to train on the sample.

        Raises:
            ValueError: The name is in use or cannot be used, or the parent does not exist.
        """
        if train is not None and not isinstance(train, bool):
            raise ValueError(f"train: is a {type(train).__name__}, not a bool")
        return self._session.add_sample(name, policy=policy, parent=_ref(parent), train=train)

    def set_reward(self, value: float, *, sample: str = "main", chat: int = 0, name: str = "") -> None:
        """Set a reward of a sample, of one of its chats, or of the whole rollout. Setting it again replaces it.

        If the rollout has one sample, the sample and the rollout have the same reward. A rollout that fails has no
        rewards.

        Args:
            value: The reward.
            sample: The name of the sample; empty for the whole rollout.
            chat: The number of an answered chat of the sample (reply.chat_number); 0 for the whole sample.
            name: A part of the reward, for example "format": 1 to 64 printable characters, at most 64 names. Parts
                explain the reward and are not added to it. An empty name sets the reward itself.

        Raises:
            BadRewardError: The value is not a finite number. It is a ValueError.
            ValueError: The sample or the chat does not exist.
        """
        self._session.check_open()
        self._session.set_reward(reward_of(value), sample=sample, chat=chat, name=name)

    def set_train(self, wish: bool, *, sample: str = "main") -> None:
        """Ask the trainer to train on a sample, or not to.

        Args:
            wish: False for a sample that is not to be trained on.
            sample: The name of the sample.

        Raises:
            ValueError: The sample does not exist, or `wish` is not a bool.
        """
        if not isinstance(wish, bool):
            raise ValueError(f"wish: is a {type(wish).__name__}, not a bool")
        self._session.train(sample, wish)

    def drop(self, reply: CompletionsResult) -> None:
        """Say that the conversation goes on without a reply. By default, trainers do not train on such a reply."""
        self._session.drop(reply.sample, reply.chat_number)
        self.log_event("reply dropped", sample=reply.sample, chat=reply.chat_number)

    def complete(
        self,
        final_messages: Sequence[Message] | None = None,
        finish_reason: str = "stop",
        reward: float | None = None,
        extra_fields: Mapping[str, Any] | None = None,
    ) -> RolloutResult:
        """Make the result of a successful rollout. The agent returns this result from run.

        Args:
            final_messages: The conversation; without it, the trainer gets the one up to the last reply.
            finish_reason: Why the agent ended. If the last reply was cut or tool_loop() ran out of turns, the outcome
                says so instead of "stop".
            reward: The reward of the rollout; None if the agent computes none.
            extra_fields: More data for the trainer, as JSON.

        Raises:
            BadRewardError: The reward is not a finite number. It is a ValueError.
        """
        self._session.check_open()
        reward = None if reward is None else reward_of(reward)
        return RolloutResult(
            status="COMPLETED",
            final_messages=final_messages,
            finish_reason=finish_reason,
            metrics=self._session.metrics(),
            reward=reward,
            extra_fields=extra_fields,
        )

    def error(self, error_message: str, final_messages: Sequence[Message] | None = None) -> RolloutResult:
        """Make the result of a rollout that the agent gives up. The agent returns this result from run.

        Args:
            error_message: Why, for the outcome.
            final_messages: The conversation; without it, the trainer gets the one up to the last reply.
        """
        self._session.check_open()
        return RolloutResult(
            status="ERROR",
            final_messages=final_messages or [],
            finish_reason="error",
            error_message=error_message,
            metrics=self._session.metrics(),
        )

    async def run_tools(self, reply: Any) -> list[Message]:
        """Run the tool calls of a reply at the same time, and return their messages in the order of the calls.

        `reply` is the result of chat(), its message, or a message of the openai package. The agent's tools with a
        function run, for example those of `@tool`. A call can fail: the tool is unknown, the arguments are wrong, the
        function raises, or the time runs out. The message of such a call has the error. If `reply` is the result of
        chat() and was cut by its token limit, no call runs, because the last one may be incomplete.
        """
        self._session.check_open()
        held = getattr(reply, "message", None)
        message = held if isinstance(held, dict) else dump_model(reply)
        calls = message.get("tool_calls") or ()
        run = refuse_cut_call if getattr(reply, "finish_reason", None) in CUTS else self._run_tool
        return await answer_tool_calls(calls, run)

    async def tool_loop(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        sample: str = "main",
        max_turns: int | None = None,
        **params: Any,
    ) -> list[Message]:
        """Ask the model and run its tools, until a reply calls no tool. Return the conversation with all replies.

        A reply that was cut by its token limit ends the loop, and its tools do not run. If a token policy could not
        read a tool call, the model is told so and asked again. Raises what chat() raises.

        Args:
            messages: The history to begin with.
            sample: As in chat().
            max_turns: The most chats; by default as many as the trainer's request permits.
            **params: As in chat().
        """
        conversation: list[Message] = [dict(message) for message in messages]
        for _ in range(self.request.max_turns if max_turns is None else max_turns):
            reply = await self.chat(conversation, sample=sample, **params)
            conversation.append(reply.message)
            if reply.finish_reason in CUTS or not (reply.has_tool_calls or reply.unread_calls):
                return conversation
            conversation += await self.run_tools(reply) if reply.has_tool_calls else [ask_again(reply)]
        self._session.limit(sample, "max_turns")
        return conversation

    async def _run_tool(self, call: Any) -> Message:
        call_id, name, arguments = get_tool_call_info(call, blank={})
        tool = self._runnable_tools.get(name)
        if tool is None:
            known = ", ".join(self._runnable_tools) or "none"
            return create_tool_error_result(call_id, f"there is no tool {name!r}; the tools are: {known}")
        return create_tool_result(call_id, tool_text(await tool.run(arguments, self), name))

    def record_tool_call(self, latency_ms: float = 0.0) -> None:
        """Count a tool call and its latency in the rollout's metrics.

        The server also counts the calls that execute_tool_calls runs, and the tool messages in the chats, and takes the
        larger count. Raises ValueError for a latency below 0, above a year, or NaN.
        """
        self._session.check_open()
        latency = float(latency_ms)
        if not 0 <= latency <= MAX_LATENCY_MS:
            raise ValueError(f"latency_ms is {latency!r}; it has to be from 0 to {MAX_LATENCY_MS:.0f}")
        self._session.count_tool_call(latency)
        if sys.exception() is not None:
            note_error("")

    def start_tool_call(self, call: Mapping[str, Any], *, sample: str = "") -> RunningToolCall:
        """Record that a tool begins, for code that runs its tools itself. The metrics count and time the call.

        At the end of the tool, call returned(message) of the result.

        Args:
            call: The tool call, in OpenAI's format.
            sample: The sample whose reply asked for it.
        """
        return RunningToolCall(self._session, call, sample=sample)

    @property
    def debug_enabled(self) -> bool:
        """Whether the server also writes the events of log_event to a file: `--log DIR`, or `debug_dir`."""
        return self._session.debug_enabled

    def log_event(self, event_type: str = "", /, **data: Any) -> None:
        """Add an event to the trajectory.

        Args:
            event_type: The name of the event. It can be given by name, too.
            **data: The values. One that is not JSON is logged as its repr. With the key `sample`, the event belongs to
                the newest chat of the sample.
        """
        name = event_type or data.pop("event_type", "")
        logged = loggable(data)
        sample = named if isinstance(named := logged.get("sample"), str) else ""
        number = self._session.newest_chat(sample)
        self._session.record(events.Logged(jsontext.repaired(str(name)), logged, sample if number else "", number))


def get_rollout_context() -> RolloutContext | None:
    """Return the context of the rollout of the running code, also in its tools, tasks and threads; None elsewhere."""
    context: RolloutContext | None = current_rollout.get()
    return context


_NO_SESSION: Any = NoSession()


def _ref(parent: Any) -> ChatRef | None:
    if parent is None or isinstance(parent, ChatRef):
        return parent
    if not isinstance(parent, tuple) or len(parent) != 2:
        raise ValueError(f'parent: {parent!r:.80} is not (SAMPLE, CHAT), for example ("main", reply.chat_number)')
    return ChatRef(*parent)
