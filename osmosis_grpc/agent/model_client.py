"""The model of a context, with the methods of the Osmosis SDK's client. Sessions of contexts without a server."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from osmosis_grpc.agent.ports import RolloutFolders, Session
from osmosis_grpc.agent.tool_runs import CallOrigins
from osmosis_grpc.protocol.types import ChatPurpose, ChatRef, ChatResponse, EventKind, Message

if TYPE_CHECKING:
    from osmosis_grpc.agent.request_model import RolloutMetrics
    from osmosis_grpc.agent.results import CompletionsResult


@runtime_checkable
class LLMClientProtocol(Protocol):
    """A model for a RolloutContext: ctx.llm, an OsmosisLLMClient, or the mock of a unit test."""

    async def chat_completions(self, messages: list[dict[str, Any]], **kwargs: Any) -> "CompletionsResult":
        """Return the reply to the whole history.

        Args:
            messages: The history, in OpenAI's format.
            **kwargs: Sampling parameters under OpenAI's names.
        """

    def get_metrics(self) -> "RolloutMetrics":
        """Return the latency and token counts of the chats so far."""


POSITIONAL = ("temperature", "top_p", "max_tokens", "stop", "logprobs")
"""The sampling parameters that chat_completions takes by position, in their order."""


def with_positional(values: Sequence[Any], params: Mapping[str, Any]) -> dict[str, Any]:
    """Return sampling parameters, of which some were given by position. Raises TypeError as Python does."""
    if len(values) > len(POSITIONAL):
        raise TypeError(f"chat_completions takes at most {len(POSITIONAL)} sampling parameters by position")
    given = dict(zip(POSITIONAL, values, strict=False))
    twice = sorted(given.keys() & params.keys())
    if twice:
        raise TypeError(f"chat_completions got two values for {twice[0]}")
    return given | dict(params)


class ModelClient:
    """The model of a context, with the method names of the Osmosis SDK's client."""

    def __init__(self, context: Any, session: Session) -> None:
        self._context, self._session = context, session

    def get_metrics(self) -> "RolloutMetrics":
        """Return the latency and token counts of the chats so far."""
        from osmosis_grpc.agent.request_model import RolloutMetrics

        return RolloutMetrics.model_validate(self._session.metrics())

    @property
    def rollout_id(self) -> str:
        """The rollout's id."""
        rollout_id: str = self._context.request.rollout_id
        return rollout_id

    @property
    def server_url(self) -> str:
        """The trainer's address, if the trainer speaks HTTP; otherwise empty."""
        server_url: str = self._context.request.server_url
        return server_url

    async def chat_completions(
        self, messages: Sequence[Mapping[str, Any]], *values: Any, **params: Any
    ) -> "CompletionsResult":
        """Return the reply of RolloutContext.chat.

        `values` are temperature, top_p, max_tokens, stop and logprobs, in this order. Each can be left out.
        """
        reply: CompletionsResult = await self._context.chat(messages, **with_positional(values, params))
        return reply


class NoSession:
    """The session of a context that belongs to no rollout and has no model."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("this RolloutContext belongs to no rollout, so it has no model")


class ModelSession:
    """The session of a context that code makes with a model, for example with the mock of a unit test.

    It keeps the rewards and the events, and sends nothing. Its context does not end, and nothing is trained on.
    """

    debug_enabled = False

    def __init__(self, model: Any) -> None:
        self.model = model
        self.calls = CallOrigins()
        self.rewards: dict[tuple[str, int, str], float] = {}
        """The rewards by sample, chat and name."""
        self.events: list[EventKind] = []
        self._samples: dict[str, list[Message]] = {}
        self._tool_calls, self._tool_latency_ms = 0, 0.0

    async def ask(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        sample: str,
        purpose: ChatPurpose,
        tools: Sequence[Any] | None,
        params: Mapping[str, Any],
    ) -> Any:
        """Return what the model's chat_completions returns. Only what differs from the defaults of chat() is passed."""
        arguments = dict(params)
        if sample != "main":
            arguments["sample"] = sample
        if purpose is not ChatPurpose.POLICY:
            arguments["purpose"] = purpose
        if tools is not None:
            arguments["tools"] = tools
        result = await self.model.chat_completions(messages, **arguments)
        reply = getattr(result, "message", None)
        self._samples[sample] = [*map(dict, messages), *([reply] if isinstance(reply, dict) else [])]
        return result

    async def chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> tuple[int, ChatResponse]:
        """Raise RuntimeError, because ask() replaces this method."""
        raise RuntimeError("this RolloutContext has a model of its own")

    def add_sample(self, name: str | None, *, policy: str, parent: ChatRef | None, train: bool | None) -> str:
        """Note a sample, and return its name."""
        made = name or f"sample-{len(self._samples) + 1}"
        if made in self._samples:
            raise ValueError(f"the rollout already has a sample named {made!r}; choose another name")
        self._samples[made] = []
        return made

    def _nothing(self, *args: Any) -> None:
        pass

    check_open = begin_grading = train = drop = limit = _nothing

    def waiting(self, what: str) -> "nullcontext[None]":
        """Return a context manager that does nothing: there are no slots."""
        return nullcontext()

    async def ended_before(self) -> tuple[int, ...]:
        """Return nothing: there is no server."""
        return ()

    def folders(self) -> RolloutFolders:
        """Return no folder: there is no record."""
        return RolloutFolders(None)

    def sample_names(self) -> tuple[str, ...]:
        """Return the names of the samples that have begun."""
        return tuple(self._samples)

    def sample_messages(self, name: str) -> Sequence[Message] | None:
        """Return the newest conversation of a sample; None without a reply."""
        return self._samples.get(name) or None

    def set_reward(self, value: float, *, sample: str, chat: int, name: str) -> None:
        """Keep a reward."""
        self.rewards[sample, chat, name] = value

    def newest_chat(self, sample: str) -> int:
        """Return 0, because a model numbers no chats."""
        return 0

    def record(self, kind: EventKind) -> None:
        """Keep an event."""
        self.events.append(kind)

    def count_tool_call(self, latency_ms: float) -> None:
        """Count a tool call."""
        self._tool_calls += 1
        self._tool_latency_ms += latency_ms

    def tool_running(self, name: str) -> Callable[[str], float]:
        """Return a function that returns 0 s, because the agent records its calls itself."""
        return lambda call_id: 0.0

    def metrics(self) -> "RolloutMetrics":
        """Return the counts of the model, and the tool calls that the agent recorded."""
        from osmosis_grpc.agent.request_model import RolloutMetrics

        asked = getattr(self.model, "get_metrics", RolloutMetrics)()
        of_model = asked if isinstance(asked, RolloutMetrics) else RolloutMetrics()
        tools = {"num_tool_calls": self._tool_calls, "tool_latency_ms": self._tool_latency_ms}
        return of_model.model_copy(update=tools)
