"""Renders chats and reads replies with the package `renderers`, which knows the formats of model families.

A renderer of that package writes messages as the chat template of its family does. It parses replies by token id, so it
does not mistake a text that only looks like a tool call for one. It continues a conversation without rendering the old
messages again, unless the template would change or drop an earlier turn or its reasoning.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from osmosis_grpc.policies.chat_renderer import ChatRenderer
from osmosis_grpc.policies.replies import PromptIds, Renderer, Reply, before_stop, call_of
from osmosis_grpc.policies.system_messages import check_late_system, first_messages
from osmosis_grpc.policies.template_inputs import template_messages
from osmosis_grpc.policies.tool_call_texts import Tool, allows, json_of, name_of, properties_of
from osmosis_grpc.protocol.errors import InvalidArgument, MissingExtraError
from osmosis_grpc.protocol.types import ChatRequest, Ids, Message

log = logging.getLogger(__name__)

_OPENING_TOKENS = 16
"""How many of the last tokens of a prompt are searched for the beginning of reasoning."""
_CALL_KEYS = {"name", "arguments", "parameters", "args", "id", "type"}
_INVOKE = "invoke name="
"""The text with which a call begins in the formats of MiniMax and DeepSeek V4."""
_PARAMETERS = ("<parameter", "｜parameter name=", "<arg_key")  # noqa: RUF001
"""The texts with which parameters begin in the formats that write them with tags."""
_TAG = re.compile(r"<[^<>\s][^<>]*>|\[e~\[")
"""A tag around calls, or the end of a turn."""
_CALLS = ("ok", "unknown_tool")
"""The states of calls that could be parsed. The agent decides whether a tool exists."""


class FamilyTokenizer(Protocol):
    """What a family's renderer needs of a tokenizer. Tokenizers of transformers and TemplateTokenizer implement it."""

    name_or_path: str
    unk_token_id: int | None
    eos_token_id: int | None

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Return the ids of a text, in which special tokens are written out.

        Args:
            text: The text.
            add_special_tokens: Always False: the renderer adds them.
        """
        ...

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
        """Return the text of ids.

        Args:
            token_ids: The ids.
            skip_special_tokens: Always False: keep them in the text.
        """
        ...

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        """Return the id of a special token.

        Args:
            tokens: The token.
        """
        ...


class FamilyRenderer:
    """Renders as a family's chat template does. Any thread may call its methods, one thread at a time.

    Args:
        tokenizer: The tokenizer of the model.
        family: The name of a renderer, such as "qwen3.5" or "glm-5". Empty to look it up by `model`.
        model: The name of the model, such as "Qwen/Qwen3-8B"; empty for the name in the tokenizer.
        template_params: Variables of the family's template, such as enable_thinking.

    Raises:
        MissingExtraError: `renderers` is not installed.
        ValueError: The family is unknown, the model has no known family, or the tokenizer or a variable does not fit.
    """

    def __init__(
        self,
        tokenizer: FamilyTokenizer,
        *,
        family: str = "",
        model: str = "",
        template_params: Mapping[str, Any] | None = None,
    ) -> None:
        self.family = family or known_family(model or getattr(tokenizer, "name_or_path", ""))
        """The name of the renderer."""
        if not self.family:
            name = model or getattr(tokenizer, "name_or_path", "")
            raise ValueError(f"model: no renderer is known for {name!r}; name its family, or use ChatRenderer")
        self._tokenizer = tokenizer
        self._renderer = _made(tokenizer, self.family, dict(template_params or {}))
        self._ends = frozenset(self._renderer.get_stop_token_ids())
        think, thought = map(tokenizer.convert_tokens_to_ids, ("<think>", "</think>"))
        known = think != thought  # if they are equal, both are the id of the unknown token
        self._think: int | None = think if known else None
        self._thought: int | None = thought if known else None
        self._logged = False

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The tokens that end a turn."""
        return tuple(sorted(self._ends))

    def prompt_ids(self, request: ChatRequest) -> PromptIds:
        """Return the prompt of a chat. Raises InvalidArgument if the renderer refuses its messages or tools."""
        prompt = self._prompt_ids(request)
        messages = template_messages(request.messages)
        check_late_system(messages, lambda: self._tokenizer.decode(prompt.ids.tolist(), skip_special_tokens=False))
        return prompt

    def _prompt_ids(self, request: ChatRequest) -> PromptIds:
        messages, tools = template_messages(request.messages), list(request.tools or ())
        known = request.known_ids if request.known_ids is not None and request.prefix_len else None
        continues = known is not None and len(known) > 0
        if continues and known is not None:
            new = self._continued(request, messages, tools, known)
            if new is not None:
                return PromptIds(new, len(known), drifted=False)
        if continues and not self._logged:
            self._logged = True
            log.warning(
                "the format %s does not only append: it drops or changes a part of earlier turns, such as their "
                "reasoning. Such prompts are rendered anew, so the sample gets a new segment there",
                self.family,
            )
        whole = self._call("render_ids", messages, tools=tools or None, add_generation_prompt=True)
        return PromptIds(np.asarray(whole, dtype="<u4"), 0, drifted=continues)

    def _continued(self, request: ChatRequest, messages: list[Message], tools: list[Tool], known: Ids) -> Ids | None:
        """Return the prompt of a chat if it can continue the known tokens, else None."""
        try:
            head = self._call("render_ids", first_messages(messages), tools=tools or None, add_generation_prompt=False)
        except InvalidArgument:
            return None  # the template does not render so few messages, so they cannot be compared
        if not np.array_equal(known[: max(0, len(head) - 1)], np.asarray(head[:-1], dtype="<u4")):
            return None  # the tools or first messages differ from those of the chat to continue
        split = len(known) - request.known_reply
        if not request.known_reply:  # this rollout is a fork that continues a chat of its original
            before = messages[: request.prefix_len - 1]
            asked = self._call("render_ids", before, tools=tools or None, add_generation_prompt=True)
            split = len(asked) if np.array_equal(known[: len(asked)], np.asarray(asked, dtype="<u4")) else len(known)
        if split == len(known):
            return None
        made = self._call(
            "bridge_to_next_turn",
            known[:split].tolist(),
            known[split:].tolist(),
            messages[request.prefix_len :],
            tools=tools or None,
        )
        ids = np.asarray([] if made is None else made.token_ids, dtype="<u4")
        return ids if len(ids) > len(known) and np.array_equal(ids[: len(known)], known) else None

    def reply(
        self,
        ids: Ids,
        *,
        prompt: Ids,
        tools: Sequence[Tool] | None = None,
        stop: Sequence[str] = (),
        call_prefix: str = "call",
    ) -> Reply:
        """Read a reply from its sampled tokens.

        Args:
            ids: uint32, shape (n,): the sampled tokens.
            prompt: uint32, shape (p,): the prompt from which they were sampled.
            tools: The tools of the chat. Without any, the reply has no tool calls.
            stop: Stop texts. The reply ends before the first of them.
            call_prefix: Calls get the ids PREFIX_0, PREFIX_1 and so on.
        """
        sampled, matched = self._before(ids.tolist(), stop)
        schemas = {name: properties_of(tool) for tool in tools or () if (name := name_of(tool))}
        offered = [_with_texts(tool) for tool in tools or ()] or None
        text = self._tokenizer.decode([each for each in sampled if each not in self._ends], skip_special_tokens=False)
        try:
            read = self._read(sampled, prompt.tolist(), offered)
        except Exception as error:  # the model may sample anything, and the package may raise anything for it
            log.warning("the renderer %s cannot read a reply, which stays text: %r", self.family, error)
            return Reply({"role": "assistant", "content": text}, matched, ("unreadable_reply",))
        content = read.content or ""
        calls: list[dict[str, Any]] = []
        unread: list[str] = []
        content += _beside(text, read.tool_calls, content)
        for each in read.tool_calls:
            if tools and each.status in _CALLS and _is_call(each):
                arguments = _with_nulls(each.arguments, schemas.get(each.name, {}), each.raw)
                calls.append(call_of(f"{call_prefix}_{len(calls)}", each.name, arguments))
            else:
                content += ("\n" if content else "") + each.raw
                unread += [str(each.status) if each.status not in _CALLS else "malformed_structure"] if tools else []
        message: Message = {"role": "assistant", "content": content or (None if calls else "")}
        if read.reasoning_content:
            message["reasoning_content"] = read.reasoning_content
        if calls:
            message["tool_calls"] = calls
        return Reply(message, matched, tuple(unread))

    def _read(self, ids: list[int], prompt: list[int], tools: list[Tool] | None) -> Any:
        """Parse a reply with the package. A call within the reasoning stays a part of the reasoning.

        For some families, such as GLM's, the package would return such a call as a real one.
        """
        parse = self._renderer.parse_response
        read = parse(ids, tools=tools, prompt_ids=prompt)
        end = ids.index(self._thought) if self._thought is not None and self._thought in ids else -1
        first = min((each.token_span[0] for each in read.tool_calls if each.token_span), default=len(ids))
        reasons = self._think in (*prompt[-_OPENING_TOKENS:], *ids[:first])
        if not reasons or not first < end:
            return read
        rest = parse(ids[end:], tools=tools, prompt_ids=prompt)
        thought = self._tokenizer.decode([each for each in ids[:end] if each != self._think], skip_special_tokens=False)
        rest.reasoning_content = "\n".join(filter(None, [thought.strip(), rest.reasoning_content]))
        return rest

    def _before(self, ids: list[int], stop: Sequence[str]) -> tuple[list[int], str]:
        """Return the tokens before the first stop text, and the stop text, which is empty if there is none."""
        text, matched = before_stop(self._tokenizer.decode(ids, skip_special_tokens=False), stop)
        while matched and ids and len(self._tokenizer.decode(ids[:-1], skip_special_tokens=False)) >= len(text):
            ids = ids[:-1]
        if matched:  # the last token may contain the beginning of the stop text
            kept = self._tokenizer.decode(ids[:-1], skip_special_tokens=False)
            ids = [*ids[:-1], *self._tokenizer.encode(text[len(kept) :], add_special_tokens=False)]
        return ids, matched

    def _call(self, method: str, *args: Any, **options: Any) -> Any:
        try:
            return getattr(self._renderer, method)(*args, **options)
        except Exception as error:  # renderers raise any kind of error for what their template refuses
            raise InvalidArgument("messages", f"the renderer {self.family} refuses them: {error}") from error


def _is_call(read: Any) -> bool:
    """Return whether a call is complete: a name, arguments, and no text that would be lost."""
    if not read.name or not isinstance(read.arguments, Mapping):
        return False
    inside = str(read.arguments)
    begun = {_INVOKE: 1, **dict.fromkeys(_PARAMETERS, len(read.arguments))}
    if any(read.raw.count(text) > most + inside.count(text) for text, most in begun.items()):
        return False  # the beginning of another call, or of a parameter that was not read
    value = json_of(read.raw)
    return not isinstance(value, dict) or not value.keys() - _CALL_KEYS


def _beside(text: str, calls: Sequence[Any], content: str) -> str:
    """Return the texts between and after the calls, without tags, that the package leaves out of the content."""
    parts, at = [], 0
    for each in calls:
        begin = text.find(each.raw, at)
        parts += [text[at:begin]] if at and begin > at else []
        at = begin + len(each.raw) if begin >= 0 else at
    parts += [text[at:]] if at else []
    found = "\n".join(part for each in parts if (part := _TAG.sub("", each).strip()) and part not in content)
    return f"\n{found}" if found and content else found


def _with_texts(tool: Tool) -> Tool:
    """Return a tool in which each parameter that may be a string has exactly the type "string".

    For any other type, the package parses a value without quotes as JSON. So 12 would become a number even for a
    parameter of the type `str | None`.
    """
    texts = {name: {"type": "string"} for name, schema in properties_of(tool).items() if allows(schema, "string")}
    if not texts:
        return tool
    function = tool["function"]
    parameters = {**function["parameters"], "properties": {**function["parameters"]["properties"], **texts}}
    return {**tool, "function": {**function, "parameters": parameters}}


def _with_nulls(arguments: Mapping[str, Any], schemas: Mapping[str, Any], raw: str) -> dict[str, Any]:
    """Replace the text "null" in arguments by None where it was written without quotes and null is allowed."""
    return {
        name: None if value == "null" and '"null"' not in raw and allows(schemas.get(name), "null") else value
        for name, value in arguments.items()
    }


def renderer_of(tokenizer: Any, model: str = "", **template_params: Any) -> Renderer:
    """Return the renderer of a model's family or, if there is none, of its chat template. Logs which of them it is.

    Args:
        tokenizer: The tokenizer of the model.
        model: The name of the model, such as "Qwen/Qwen3-8B"; empty for the name in the tokenizer.
        **template_params: Variables of the template, such as enable_thinking.

    Raises:
        ValueError: The tokenizer or a variable does not fit the family of the model.
    """
    name = model or str(getattr(tokenizer, "name_or_path", ""))
    try:
        family = known_family(name)
        why = f"the package renderers has none for {name!r}"
    except MissingExtraError:
        family, why = "", "the extra renderers is not installed"
        log.warning("the extra renderers is not installed, so the format of %s is taken from its chat template", name)
    if family:
        log.info("prompts and replies of %s have the format %s", name, family)
        return FamilyRenderer(tokenizer, family=family, template_params=template_params)
    log.info("prompts have the chat template of the tokenizer, and tool calls are found by their texts: %s", why)
    return ChatRenderer(tokenizer, template_params=template_params)


def known_family(model: str) -> str:
    """Return the name of the renderer for a model, or an empty string if none is known.

    Args:
        model: The name of the model, such as "Qwen/Qwen3-8B".

    Raises:
        MissingExtraError: `renderers` is not installed.
    """
    return str(_package().base.MODEL_RENDERER_MAP.get(model, ""))


def _package() -> Any:
    try:
        import renderers
        import renderers.base
        import renderers.configs
    except ImportError:
        raise MissingExtraError("FamilyRenderer", "renderers") from None
    return renderers


def _made(tokenizer: Any, family: str, params: dict[str, Any]) -> Any:
    """Return the renderer of a family. Raises ValueError."""
    package = _package()
    configs = {}
    for each in vars(package.configs).values():
        fields = getattr(each, "model_fields", None)
        if fields and "name" in fields and isinstance(fields["name"].default, str):
            configs[fields["name"].default] = each
    known = sorted(configs.keys() - {"auto", "custom", "default"})
    if family not in known:
        raise ValueError(f"family: {family!r} is not one of {', '.join(known)}")
    try:
        return package.create_renderer(tokenizer, configs[family](**params))
    except Exception as error:  # for example an AssertionError about a missing token, or an unknown variable
        raise ValueError(f"family: {family} does not fit the tokenizer or its variables: {error}") from error
