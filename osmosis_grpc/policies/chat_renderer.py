"""Renders chats to token ids with a chat template, and reads the model's replies.

The first prompt of a conversation is rendered whole. A later prompt starts with the tokens of the chat that it
continues (ChatRequest.known_ids), followed by the tokens that the template adds for the new messages. So sampled
tokens are never decoded and encoded again.

This only works if the template appends: the text of all messages must begin with the text of the old ones. The renderer
checks this for each continued chat. If the template changes or drops old messages, the renderer logs this once and
renders the whole prompt anew, which then differs from the known tokens (drift). A template that writes the current time
would always drift, so templates see the same time during a whole rollout (template_inputs.py).
"""

import logging
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np

from osmosis_grpc.policies.replies import PromptIds, Reply, before_stop, call_of
from osmosis_grpc.policies.system_messages import check_late_system, first_messages
from osmosis_grpc.policies.template_inputs import (
    TemplateTimes,
    at_time,
    clocked_template,
    reasoning_in_content,
    template_messages,
    with_text_arguments,
)
from osmosis_grpc.policies.tool_call_texts import Tool, ToolParser, parser_of
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import ChatRequest, Ids, Message

log = logging.getLogger(__name__)

_REPLY = "the text of a reply"
_NO_IDS: Ids = np.empty(0, dtype="<u4")
_THINK, _THOUGHT = "<think>", "</think>"
_OPENING_TOKENS = 16
"""How many of the last tokens of a prompt are searched for the beginning of reasoning."""
_BLANKS = " \t\r\n"


class Tokenizer(Protocol):
    """What a renderer needs of a tokenizer. The tokenizers of transformers and TemplateTokenizer implement it.

    A tokenizer may also have `all_special_ids`, the ids of tokens such as the end of a turn.
    """

    def apply_chat_template(
        self,
        conversation: list[Message],
        *,
        tools: list[Tool] | None = None,
        add_generation_prompt: bool = False,
        tokenize: bool = False,
        **params: Any,
    ) -> Any:
        """Return the text of a conversation.

        Args:
            conversation: The messages.
            tools: The tools of the chat.
            add_generation_prompt: Whether the text ends with the beginning of a reply.
            tokenize: Always False: return a text.
            **params: Further variables of the template.
        """
        ...

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Return the ids of a text, in which special tokens are written out.

        Args:
            text: The text.
            add_special_tokens: Always False: the text already has them.
        """
        ...

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
        """Return the text of ids.

        Args:
            token_ids: The ids.
            skip_special_tokens: Always False: keep them in the text.
        """
        ...


class ChatRenderer:
    """Renders with the chat template of a tokenizer. Any thread may call its methods, one thread at a time.

    Args:
        tokenizer: The tokenizer, with its template.
        tool_parser: How the model writes tool calls: the name of a style (docs/policies.md lists them), "auto" to
            recognize every style, or a function.
        template_params: Further variables of the template, such as enable_thinking.

    Raises:
        ValueError: The style is unknown.
        TypeError: The tokenizer lacks a method.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        tool_parser: str | ToolParser = "auto",
        template_params: Mapping[str, Any] | None = None,
    ) -> None:
        for method in ("apply_chat_template", "encode", "decode"):
            if not callable(getattr(tokenizer, method, None)):
                raise TypeError(f"tokenizer: a {type(tokenizer).__name__} has no {method}()")
        self._tokenizer = tokenizer
        self._parse = parser_of(tool_parser)
        self._params = dict(template_params or {})
        self._times = TemplateTimes()
        self._logged: set[str] = set()

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """No ids: the model server itself stops at the end of a turn."""
        return ()

    def prompt_ids(self, request: ChatRequest) -> PromptIds:
        """Return the prompt of a chat. Raises InvalidArgument if the template refuses its messages or tools."""
        messages, tools = self._messages(request.messages), list(request.tools or ())
        known = request.known_ids if request.known_ids is not None and request.prefix_len else _NO_IDS
        continues = len(known) > 0
        times = self._times.of(request, continues=continues) if self._clocked(tools) else [None]
        problem = ""
        for time in times:
            whole = self._text(messages, tools, time, reply_follows=True)
            check_late_system(messages, partial(str, whole))
            if not continues:
                break
            try:
                new = self._new_ids(messages, tools, request.prefix_len, known, whole, time)
            except _NotAppendOnly as error:
                problem = problem or str(error)
                continue
            self._keep_time(request, time)
            return PromptIds(np.concatenate([known, new]), len(known), drifted=False)
        self._keep_time(request, time)
        if continues:
            unknown = ", or the time that it wrote first is not known, as after a restart" if len(times) > 1 else ""
            self._log_once(problem + unknown)
        return PromptIds(self._encode(whole), 0, drifted=continues)

    def _keep_time(self, request: ChatRequest, time: datetime | None) -> None:
        if time is not None:
            self._times.keep(request, time)

    def reply(
        self,
        ids: Ids | Sequence[int],
        *,
        prompt: Ids | Sequence[int] = (),
        tools: Sequence[Tool] | None = None,
        stop: Sequence[str] = (),
        call_prefix: str = "call",
    ) -> Reply:
        """Read a reply from its sampled tokens.

        Args:
            ids: uint32, shape (n,): the sampled tokens.
            prompt: uint32, shape (p,): the prompt from which they were sampled. If it ends with `<think>`, the reply
                begins with reasoning.
            tools: The tools of the chat. Without any, the reply has no tool calls.
            stop: Stop texts. The reply ends before the first of them.
            call_prefix: Calls get the ids PREFIX_0, PREFIX_1 and so on.
        """
        text, matched = before_stop(self._text_of(ids), stop)
        reasoning, rest = _reasoning(text, opened=self._opened(prompt))
        message: Message = {"role": "assistant", "content": rest}
        if reasoning is not None:
            message = {"role": "assistant", "content": rest.strip(_BLANKS), "reasoning_content": reasoning}
        if not tools:
            return Reply(message, matched)
        parsed = self._parse(rest, tools)
        if parsed.calls:
            calls = [call_of(f"{call_prefix}_{n}", each.name, each.arguments) for n, each in enumerate(parsed.calls)]
            message |= {"content": parsed.content or None, "tool_calls": calls}
        return Reply(message, matched, parsed.unread)

    def _text_of(self, ids: Ids | Sequence[int]) -> str:
        """Decode the ids of a reply, without the special tokens at its end."""
        listed = np.asarray(ids, dtype="<u4").tolist()
        end = len(listed)
        while end and listed[end - 1] in self._special_ids:
            end -= 1
        return self._tokenizer.decode(listed[:end], skip_special_tokens=False)

    def _opened(self, prompt: Ids | Sequence[int]) -> bool:
        """Return whether a prompt ends with the tag that opens the reasoning."""
        end = np.asarray(prompt[-_OPENING_TOKENS:], dtype="<u4").tolist()
        return self._tokenizer.decode(end, skip_special_tokens=False).rstrip().endswith(_THINK)

    # The parts of a continued prompt.

    def _new_ids(
        self, messages: list[Message], tools: list[Tool], prefix: int, known: Ids, whole: str, time: datetime | None
    ) -> Ids:
        """Return the ids that follow `known`. Raises _NotAppendOnly."""
        said = self._tokenizer.decode(known.tolist(), skip_special_tokens=False)
        if whole.startswith(said):
            return self._encode(whole[len(said) :])
        # The template may write the last reply differently than the model did, for example without white space.
        before = self._text(messages[:prefix], tools, time)
        if not whole.startswith(before):
            raise _NotAppendOnly("it changes earlier messages when new ones follow")
        for part in ("content", "reasoning_content"):
            said_then = messages[prefix - 1].get(part)
            if isinstance(said_then, str) and _dense(said_then) not in _dense(before):
                raise _NotAppendOnly("it leaves out a part of the model's reply, such as its reasoning")
        if not before.endswith(self._closing):
            raise _NotAppendOnly("it does not end this reply as it ends others")
        self._check_beginning(messages, tools, known, time)
        closing = self._encode(self._closing)
        ids = self._encode(self._closing + whole[len(before) :])
        return ids[self._sampled_end(known, closing) :]

    def _sampled_end(self, known: Ids, closing: Ids) -> int:
        """Return how many ids of `closing`, the end of a turn, the model has already sampled."""
        for count in range(min(len(closing), len(known)), 0, -1):
            if np.array_equal(known[-count:], closing[:count]):
                return count
        ended = int(known[-1]) in self._special_ids  # the model may use another end token than the template
        return int(ended and len(closing) > 0 and int(closing[0]) in self._special_ids)

    def _check_beginning(self, messages: list[Message], tools: list[Tool], known: Ids, time: datetime | None) -> None:
        """Raise _NotAppendOnly unless the known tokens begin with the same tools and first messages."""
        try:
            head = self._encode(self._text(first_messages(messages), tools, time))
        except InvalidArgument:
            return  # the template does not render so few messages, so there is nothing to compare
        if not np.array_equal(known[: max(0, len(head) - 1)], head[:-1]):
            raise _NotAppendOnly("the chat has other tools or first messages than the chat that it continues")

    @cached_property
    def _closing(self) -> str:
        """The text with which the template ends a reply."""
        asked = [{"role": "user", "content": "a question"}, {"role": "assistant", "content": _REPLY}]
        _, found, closing = self._text(asked, [], None).rpartition(_REPLY)
        if not found:
            raise _NotAppendOnly("it leaves out the model's reply")
        return closing

    @cached_property
    def _special_ids(self) -> frozenset[int]:
        return frozenset(getattr(self._tokenizer, "all_special_ids", None) or ())

    def _text(
        self, messages: list[Message], tools: list[Tool], time: datetime | None, *, reply_follows: bool = False
    ) -> str:
        """Render messages. Pass the arguments of calls as strings if the template refuses them as objects.

        `time` is the time that the template sees, or None for the current time.
        """
        params = self._params if time is None else self._params | at_time(self._clocked(tools), time)
        try:
            return self._rendered(messages, tools, reply_follows, params)
        except Exception as error:  # a template may raise anything
            problem = error
        as_texts = with_text_arguments(messages)
        try:
            if as_texts != messages:
                return self._rendered(as_texts, tools, reply_follows, params)
        except Exception:
            log.debug("the chat template refuses the arguments as texts, too", exc_info=True)
        raise InvalidArgument("messages", f"the chat template refuses them: {problem}") from problem

    def _messages(self, messages: Sequence[Message]) -> list[Message]:
        """Return messages for the template, with reasoning in the content if the template has no place for it."""
        source = self._params.get("chat_template", getattr(self._tokenizer, "chat_template", None))
        made = template_messages(messages)
        return made if "reasoning_content" in str(source) else reasoning_in_content(made)

    def _clocked(self, tools: list[Tool]) -> str:
        return clocked_template(self._tokenizer, self._params, tools or None)

    def _rendered(
        self, messages: list[Message], tools: list[Tool], reply_follows: bool, params: Mapping[str, Any]
    ) -> str:
        text = self._tokenizer.apply_chat_template(
            messages, tools=tools or None, add_generation_prompt=reply_follows, tokenize=False, **params
        )
        if not isinstance(text, str):
            raise TypeError(f"apply_chat_template(tokenize=False) returned a {type(text).__name__}, not a str")
        return text

    def _encode(self, text: str) -> Ids:
        return np.asarray(self._tokenizer.encode(text, add_special_tokens=False), dtype="<u4")

    def _log_once(self, problem: str) -> None:
        if problem not in self._logged:
            self._logged.add(problem)
            log.warning(
                "the chat template is not append-only: %s. Such prompts are rendered anew, so the sample gets a new "
                "segment there.",
                problem,
            )


class _NotAppendOnly(Exception):
    """The new prompt cannot continue the known tokens; the message says why."""


def _reasoning(text: str, *, opened: bool) -> tuple[str | None, str]:
    """Split a reply into its reasoning (None without any) and the rest, which is empty if the reasoning has no end.

    `opened` says that the prompt already contains the opening tag.
    """
    begun = text.lstrip()
    if not opened and not begun.startswith(_THINK):
        return None, text
    reasoning, _, rest = begun.removeprefix(_THINK).partition(_THOUGHT)
    return reasoning, rest


def _dense(text: str) -> str:
    """Return a text without white space, which templates may change."""
    return re.sub(r"\s+", "", text)
