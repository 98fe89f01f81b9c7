"""A policy that asks a model through Anthropic's Messages API.

The API returns no token ids, so the samples are not trainable. Use the policy for evaluation, judges and data. It
converts chats from OpenAI's format, and replies back to it. `reasoning_content` has the thinking of a reply.
`thinking_blocks` has it with the signatures, and later requests must send these blocks back to the API.

Needs the extra `policies` (aiohttp).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from osmosis_grpc.agent.message_keys import arguments_object
from osmosis_grpc.policies.media import MODALITIES, Modality, medium
from osmosis_grpc.policies.model_http import BAD_BODY, HttpPolicy, ModelHttp, checked_url, typed
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import ChatRequest, ChatResponse, Message, jsontext

Block = dict[str, Any]

FINISH_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
"""Maps Anthropic's stop reasons to OpenAI's finish reasons."""
SAME = frozenset({"temperature", "top_p", "top_k", "thinking", "metadata", "service_tier", "stop_sequences"})
"""Parameters that are passed on unchanged: both formats have them, or only Anthropic does."""
LENGTHS = ("max_completion_tokens", "max_tokens")
WITHOUT_EFFECT = frozenset({"model", "stream", "logprobs", "top_logprobs", "store"})
"""Parameters that are dropped, because they don't change the reply or the policy sets them itself."""


def messages_body(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None) -> dict[str, Any]:
    """Return `system`, `messages` and `tools` of a request. Raises InvalidArgument for content that the API lacks."""
    system: list[str] = []
    turns: list[Message] = []
    for number, message in enumerate(messages):
        path, role = f"messages[{number}]", message.get("role")
        late_system = role in ("system", "developer") and bool(turns)  # the API refuses it; send it as the user's
        if role in ("system", "developer") and not late_system:
            system += [block["text"] for block in _blocks(message.get("content"), path) if block["type"] == "text"]
            continue
        name, blocks = ("user", _blocks(message.get("content"), path)) if late_system else _turn(message, path)
        if not blocks:
            continue  # the API refuses an empty content
        if turns and turns[-1]["role"] == name:
            turns[-1]["content"] += blocks
        else:
            turns.append({"role": name, "content": blocks})
    body: dict[str, Any] = {"messages": turns}
    if system:
        body["system"] = "\n\n".join(system)
    if tools:
        body["tools"] = [_tool(tool, f"tools[{number}]") for number, tool in enumerate(tools)]
    return body


def sampling_body(params: Mapping[str, Any], max_tokens: int) -> dict[str, Any]:
    """Return the sampling parameters of a request. Raises InvalidArgument for one that the API lacks."""
    given = {name: value for name, value in params.items() if value is not None and name not in WITHOUT_EFFECT}
    lengths = [given.pop(name) for name in LENGTHS if name in given]
    body: dict[str, Any] = {"max_tokens": lengths[0] if lengths else max_tokens}
    parallel = given.pop("parallel_tool_calls", True)
    choice = given.pop("tool_choice", None)
    if choice is not None or not parallel:
        body["tool_choice"] = _tool_choice(choice or "auto", parallel=bool(parallel))
    stop = given.pop("stop", None)
    if stop is not None:
        body["stop_sequences"] = [stop] if isinstance(stop, str) else list(stop)
    if "user" in given:
        body["metadata"] = {"user_id": given.pop("user")}
    if given.pop("n", 1) != 1:
        raise InvalidArgument("params.n", "Anthropic returns one reply for each request")
    for name, value in given.items():
        if name not in SAME:
            raise InvalidArgument(f"params.{name}", "is not a parameter of Anthropic's Messages API")
        body[name] = value
    return body


def reply_message(content: Sequence[Block]) -> Message:
    """Convert the blocks of a reply to an assistant message."""
    texts = [block["text"] for block in content if block["type"] == "text"]
    thoughts = [block for block in content if block["type"] in ("thinking", "redacted_thinking")]
    calls = [
        {
            "id": block["id"],
            "type": "function",
            "function": {"name": block["name"], "arguments": jsontext.render(block["input"])},
        }
        for block in content
        if block["type"] == "tool_use"
    ]
    message: Message = {"role": "assistant", "content": "".join(texts) or None}
    if calls:
        message["tool_calls"] = calls
    if thoughts:
        message["reasoning_content"] = "".join(block.get("thinking", "") for block in thoughts)
        message["thinking_blocks"] = thoughts
    return message


def usage_of(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Return token counts under OpenAI's names. As with OpenAI, the prompt's count includes cached tokens."""
    cached = usage.get("cache_read_input_tokens") or 0
    prompt = usage["input_tokens"] + cached + (usage.get("cache_creation_input_tokens") or 0)
    sampled = usage["output_tokens"]
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def _turn(message: Message, path: str) -> tuple[str, list[Block]]:
    """Return the role and the blocks of a message that is not a system message."""
    blocks = _blocks(message.get("content"), path)
    if message["role"] in ("tool", "function"):
        result: Block = {"type": "tool_result", "tool_use_id": str(message.get("tool_call_id", ""))}
        return "user", [{**result, "content": blocks} if blocks else result]
    if message["role"] == "user":
        return "user", blocks
    thoughts = message.get("thinking_blocks")
    uses = [_tool_use(call, f"{path}.tool_calls[{n}]") for n, call in enumerate(message.get("tool_calls") or ())]
    return "assistant", [*(thoughts if isinstance(thoughts, list) else ()), *blocks, *uses]


def _blocks(content: Any, path: str) -> list[Block]:
    """Convert a content to blocks, without blank texts, which the API refuses."""
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content or ()
    blocks = []
    for index, part in enumerate(parts):
        place = f"{path}.content[{index}]"
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind in ("text", "refusal") and isinstance(part.get(kind), str):
            if part[kind].strip():
                blocks.append({"type": "text", "text": part[kind]})
        elif MODALITIES.get(kind or "") is Modality.IMAGE:
            blocks.append({"type": "image", "source": _source(part, place)})
        else:
            raise InvalidArgument(place, f"a part of the type {kind!r} has no block in Anthropic's Messages API")
    return blocks


def _source(part: Mapping[str, Any], path: str) -> Block:
    image = medium(part, path)
    if image.url:
        return {"type": "url", "url": image.url}
    value = part.get(part["type"])
    url = value["url"] if isinstance(value, Mapping) else part.get("image_url", value)
    return {"type": "base64", "media_type": image.mime_type, "data": str(url).partition(";base64,")[2]}


def _tool_use(call: Any, path: str) -> Block:
    try:
        function, call_id = call["function"], str(call["id"])
        return {
            "type": "tool_use",
            "id": call_id,
            "name": function["name"],
            "input": arguments_object(function["arguments"]),
        }
    except (KeyError, TypeError):
        raise InvalidArgument(path, "is not a tool call with an id, and a function with name and arguments") from None


def _tool(tool: Mapping[str, Any], path: str) -> Block:
    function = tool.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InvalidArgument(path, "is not a tool with a function that has a name")
    made = {"name": function["name"], "input_schema": function.get("parameters") or {"type": "object"}}
    return {**made, "description": function["description"]} if function.get("description") else made


def _tool_choice(choice: Any, *, parallel: bool) -> Block:
    names = {"auto": "auto", "none": "none", "required": "any"}
    if isinstance(choice, str) and choice in names:
        made: Block = {"type": names[choice]}
    else:
        function = choice.get("function") if isinstance(choice, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise InvalidArgument("params.tool_choice", f"is {choice!r:.80}, not auto, none, required or a function")
        made = {"type": "tool", "name": function["name"]}
    return made if parallel or made["type"] == "none" else {**made, "disable_parallel_tool_use": True}


BASE_URL = "https://api.anthropic.com"
VERSION = "2023-06-01"


class AnthropicPolicy(HttpPolicy):
    """Asks `base_url`/v1/messages.

    A trainer closes the policy's connections when the trainer ends; without a trainer, use `async with`. Errors are as
    with OpenAIPolicy: after 408, 429 and 5xx, the agent server asks again. A parameter that the API lacks, such as
    `seed`, raises InvalidArgument.

    Args:
        model: The name of the model.
        api_key: Sent as x-api-key.
        base_url: The address of the API, with or without /v1.
        max_tokens: The limit for chats that set none. The API requires one.
        timeout: How many seconds a reply may take.
        connections: The most connections at once.

    Raises:
        MissingExtraError: aiohttp is not installed.
        ValueError: `base_url` is malformed.
    """

    def __init__(
        self,
        model: str,
        *,
        api_key: str | None = None,
        base_url: str = BASE_URL,
        max_tokens: int = 4096,
        timeout: float = 600.0,
        connections: int = 64,
    ) -> None:
        headers = {"anthropic-version": VERSION} | ({"x-api-key": api_key} if api_key else {})
        url = checked_url(base_url).removesuffix("/v1") + "/v1/messages"
        self._http = ModelHttp("AnthropicPolicy", url, headers, key=api_key, timeout=timeout, connections=connections)
        self._model = model
        self._max_tokens = max_tokens

    async def __call__(self, request: ChatRequest, /) -> ChatResponse:
        sampling = sampling_body(request.params, self._max_tokens)
        body = {"model": self._model, **sampling, **messages_body(request.messages, request.tools)}
        if "tools" not in body:
            body.pop("tool_choice", None)
        reply = await self._http.post(request, body)
        try:
            return read_message(reply)
        except BAD_BODY as error:
            raise self._http.unreadable(error) from None


def read_message(reply: dict[str, Any]) -> ChatResponse:
    """Read a reply in the format of Anthropic's Messages API.

    Raises KeyError, TypeError, ValueError, AttributeError or InvalidArgument if it is malformed.
    """
    stop_reason = typed(reply.get("stop_reason") or "", str)
    response = ChatResponse(
        message=reply_message(typed(reply["content"], list)),
        finish_reason=FINISH_REASONS.get(stop_reason, stop_reason),
        usage=jsontext.copy(usage_of(reply["usage"]), "usage"),
    )
    response.check()
    return response
