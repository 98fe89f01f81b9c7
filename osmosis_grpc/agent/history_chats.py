"""Chats of one rollout, for programs and libraries that send their whole history with each request.

They may rewrite earlier messages. So each history is first changed back to the messages of the earlier chats
(conversations.py), so that the tokens stay in one segment.
"""

import inspect
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from osmosis_grpc.agent.context import RolloutContext
from osmosis_grpc.agent.conversations import Conversations
from osmosis_grpc.agent.message_keys import History
from osmosis_grpc.agent.results import CompletionsResult
from osmosis_grpc.agent.side_calls import side_call
from osmosis_grpc.protocol.errors import CallError, ContextLengthExceeded, InvalidArgument, RolloutEndedError
from osmosis_grpc.protocol.types import ChatRef, Message
from osmosis_grpc.protocol.types.requests import with_params

POLICY = "policy"
"""The name of the model. `policy/NAME` is the trainer's policy NAME."""
MOST_REFUSALS = 2
"""If the same history exceeds the context this many times, a limited rollout ends, because the program does not shorten
it."""
LEFT_OUT = "sample left out of training"
"""The event with the reason why a sample is not trained on."""
_RESERVED = frozenset(inspect.signature(RolloutContext.chat).parameters) - {"params"}
"""Arguments of ctx.chat, so no sampling parameter can have these names."""
_ABOUT_TOOLS = frozenset({"tool_choice", "parallel_tool_calls"})


@dataclass(slots=True)
class _Begun:
    model: str = ""
    """The name of the model in its first request."""
    tools: bool = False
    """Whether a request had tools."""
    length: int = 0
    """The number of messages in its longest history."""
    replies: int = 0
    unread: list[CompletionsResult] = field(default_factory=list)
    """The replies that no client has read."""

    def went_on(self, tools: Sequence[Any] | None, messages: Sequence[Message]) -> None:
        self.tools, self.length = self.tools or bool(tools), max(self.length, len(messages))
        self.replies += 1


class HistoryChats:
    """The chats of one rollout. Its conversations are found by their histories, or named.

    If they are `limited`, a conversation has at most the `max_turns` of the trainer's request, and all of them together
    have at most its `max_tokens_total`.
    """

    def __init__(self, context: RolloutContext, *, limited: bool = False) -> None:
        self.failure: CallError | None = None
        """The error of the newest chat that ended; None if it got its reply."""
        self.limit = ""
        """The limit that a chat has reached, as a finish reason; empty for none."""
        self._limited = limited
        self._side_calls: dict[str, str] = {}
        """The kinds of the samples that seem to be side calls."""
        self._too_long: Counter[bytes] = Counter()
        """How often each history did not fit into the context of the model."""
        self._sampled = 0
        """The number of tokens that the policy has sampled."""
        self.conversations = Conversations()
        self._context = context
        self._policies: dict[str, str] = {}
        """The policies of the samples that began here."""
        self._begun: dict[str, _Begun] = {}
        """The samples that have a reply."""
        self._unused: dict[tuple[str, ChatRef | None], str] = {}
        """Samples without a chat, because their request was refused, by policy and parent. Another request uses
        them."""

    async def ask(
        self,
        history: History,
        *,
        tools: Sequence[Any] | None,
        params: Mapping[str, Any],
        model: str = POLICY,
        sample: str = "",
        written: Callable[[CompletionsResult], Message] | None = None,
        wanted: Callable[[], Awaitable[Any]] | None = None,
    ) -> CompletionsResult:
        """Return the reply to a history. Without `sample`, the history and the policy decide which sample it continues.

        `written` returns the reply as the program is going to write it in later histories. Without it, the tree finds a
        reply that has the same text and the same tool calls. The reply becomes part of the rollout when `wanted`
        returns; see Session.chat.

        Sampling parameters that are not in `params` are the trainer's completion_params. Raises InvalidArgument for a
        history that cannot be sent, and what RolloutContext.chat raises.
        """
        has_tools = bool(self._context.tools if tools is None else tools)
        if not has_tools and params.get("tool_choice", "auto") not in ("auto", "none", None):
            raise InvalidArgument("tool_choice", "requires a tool call, but the request has no tools")
        params = with_params(self._context.request.completion_params, params)
        for name in sorted(_RESERVED & params.keys()):
            raise InvalidArgument(name, "is not a sampling parameter")
        if not has_tools:  # without tools, model servers refuse parameters about tools
            params = {name: value for name, value in params.items() if name not in _ABOUT_TOOLS}
        policy = self._policies.get(sample, _policy(model))
        if _policy(model) not in ("", policy):
            raise InvalidArgument(
                "model", f"is {model!r:.80}, and the sample {sample!r:.80} has the policy {policy!r:.80}"
            )
        place = self.conversations.place(history, sample, policy)
        begins = policy, place.parent
        name, begun = place.sample or self._unused.pop(begins, ""), self._context.samples
        if self._limited and not self.limit:
            self.limit = self._met(place.sample, history)
        if self.limit:
            self.conversations.refused(place)
            raise RolloutEndedError(f"the rollout has met its limit {self.limit}")
        try:
            if not name or name not in begun:
                side = "" if name else side_call(place.messages, tools)
                new = name or self._new_name(side)
                name = self._context.add_sample(new, policy=begins[0], parent=begins[1])
                self._policies[name] = policy
                if side:
                    self._side_calls[name] = side
            result = await self._context.ask(place.messages, sample=name, tools=tools, params=params, wanted=wanted)
        except ValueError as error:
            self.conversations.refused(place)
            if name and not place.sample:
                self._unused[begins] = name
            raise InvalidArgument("", str(error)) from None
        except BaseException as error:
            self.conversations.failed(place, name)
            self.failure = error if isinstance(error, CallError) else self.failure
            if isinstance(error, ContextLengthExceeded):
                self._too_long[history.digest] += 1
            raise
        self.failure = None
        rewritten = None if written is None else written(result)
        self.conversations.answered(place, name, result.chat_number, result.message, rewritten)
        self._begun.setdefault(name, _Begun(model)).went_on(tools, place.messages)
        self._sampled += len(result.token_ids or ()) or result.usage.get("completion_tokens", 0)
        return result

    def _new_name(self, side: str) -> str | None:
        """Return the name of a new sample; None for the next number. `side` is the kind of a side call."""
        begun = self._context.samples
        if not side:
            return None if "main" in begun else "main"
        numbered = (f"{side}-{number}" for number in itertools.count(2))
        return next(name for name in itertools.chain([side], numbered) if name not in begun)

    def _met(self, sample: str, history: History) -> str:
        """Return the limit that the next chat of a sample would exceed; empty for none."""
        if self._too_long[history.digest] >= MOST_REFUSALS:
            return "length"
        request = self._context.request
        if sample in self._begun and self._begun[sample].replies >= request.max_turns:
            return "max_turns"
        return "max_tokens" if self._sampled >= request.max_tokens_total else ""

    def unread(self, reply: CompletionsResult) -> None:
        """Note that no client has read a reply."""
        self._begun[reply.sample].unread.append(reply)

    def leave_out(self) -> None:
        """At the end of the program, exclude from training what the reward is not about.

        A reply that no client has read and that no chat continues is dropped, and a sample with only such replies is
        left out. Side calls are left out, too, and so are samples with another model than that of the main sample:
        programs use small models for titles and quotas, and the policy answers these requests, too. The main sample is
        the longest one with tools or, if none has tools, the longest one that is not a side call.
        """
        for name, begun in self._begun.items():
            unread = [reply for reply in begun.unread if not self.conversations.continued(name, reply.chat_number)]
            if unread and len(unread) == begun.replies:
                self._leave_out(name, "the program has read none of its replies")
                continue
            for reply in unread:
                with suppress(RolloutEndedError):
                    self._context.drop(reply)
        main = max(
            self._begun.items(),
            key=lambda item: (item[1].tools, item[0] not in self._side_calls, item[1].length),
            default=("", _Begun()),
        )
        for name, begun in self._begun.items():
            asks_policy = begun.model in ("", POLICY) or _policy(begun.model)
            if name in self._side_calls and name != main[0]:
                self._leave_out(name, f"it is a side call: {self._side_calls[name]}")
            elif begun.model != main[1].model and not asks_policy:
                self._leave_out(
                    name, f"its model is {begun.model!r:.120}, and the main model is {main[1].model!r:.120}"
                )

    def _leave_out(self, sample: str, why: str) -> None:
        with suppress(RolloutEndedError):
            self._context.set_train(False, sample=sample)
            self._context.log_event(LEFT_OUT, sample=sample, reason=why)


def _policy(model: str) -> str:
    return model.partition("/")[2] if model.startswith(f"{POLICY}/") else ""
