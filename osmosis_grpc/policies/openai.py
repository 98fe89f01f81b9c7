"""A policy that asks an OpenAI-compatible model server: vLLM, SGLang, or any other.

The policy sends `return_token_ids` and keeps the ids and logprobs that come back. vLLM puts the prompt's ids beside the
choices, and SGLang into them; SGLang also reports the version of its weights. The policy never tokenizes a text itself,
so if a server returns no ids, the sample is not trainable. Unless a chat says otherwise, tokens are sampled from the
model's whole distribution.

Needs the extra `policies` (aiohttp).
"""

from typing import Any

import numpy as np

from osmosis_grpc.policies.event_streams import is_stream, read_stream, stream_problem
from osmosis_grpc.policies.generation import WeightNames
from osmosis_grpc.policies.model_http import BAD_BODY, HttpPolicy, ModelHttp, checked_url, typed
from osmosis_grpc.policies.sampling import SAMPLED, check_only
from osmosis_grpc.policies.system_messages import asked_folding
from osmosis_grpc.protocol.errors import Unavailable
from osmosis_grpc.protocol.types import ChatRequest, ChatResponse, Ids, Tensor, TokenBlock, VersionSpan, jsontext
from osmosis_grpc.protocol.types.samples import ABORTED

ID_PREFIX = "token_id:"
NEUTRAL = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
}
"""Values to send with `return_token_ids`. Without them, vLLM and SGLang use those of the model's
generation_config.json, which may change the distribution."""
_OF_STREAMS = frozenset(("stream_options",))
"""Dropped from the agent's parameters: servers refuse them without a stream, and the policy decides about streams."""
ABORT_RETRY = 1.0
"""The agent server asks again this many seconds after the model server has aborted a chat."""


class OpenAIPolicy(HttpPolicy):
    """Asks `base_url`/chat/completions.

    A trainer closes the policy's connections when the trainer ends; without a trainer, use `async with`.

    After 408, 429, 5xx or the finish reason "abort", the agent server asks again until its `trainer_grace` is over.
    vLLM and SGLang abort replies when weights change. Any other 4xx is final. Errors name the URL, never the key.

    Args:
        base_url: For example "http://127.0.0.1:8000/v1".
        model: The name of the model.
        api_key: Sent as bearer token.
        token_ids: Whether to send `return_token_ids`, and neutral sampling values where the agent sets none. Set it to
            False for servers that refuse these.
        logprobs: Whether to ask for logprobs. Set it to False for servers that refuse that.
        stream: Whether the server streams each reply. The policy still returns it as a whole.
        timeout: How many seconds a reply may take.
        connections: The most connections at once.
        version: The version of the weights if the server reports none; by default that of the trainer.

    Raises:
        MissingExtraError: aiohttp is not installed.
        ValueError: `base_url` is malformed.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        token_ids: bool = True,
        logprobs: bool = True,
        stream: bool = False,
        timeout: float = 600.0,
        connections: int = 1024,
        version: str = "",
    ) -> None:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        url = checked_url(base_url) + "/chat/completions"
        self._http = ModelHttp("OpenAIPolicy", url, headers, key=api_key, timeout=timeout, connections=connections)
        self._model = model
        self._token_ids = token_ids
        self._logprobs = logprobs
        self._stream = stream
        self._version = version
        self._weights = WeightNames(url)

    async def __call__(self, request: ChatRequest, /) -> ChatResponse:
        if self._token_ids:
            check_only(request.params, SAMPLED, "OpenAIPolicy with token ids")
        return await asked_folding(request, self._ask)

    async def _ask(self, request: ChatRequest) -> ChatResponse:
        asked = self._body(request)
        body = await (self._streamed(request, asked) if self._stream else self._http.post(request, asked))
        try:
            if body["choices"][0].get("finish_reason") in ABORTED:
                raise Unavailable(f"the model server aborted the chat{self._http.at}", retry_after=ABORT_RETRY)
            self._weights.read(_weight_version(body))
            return read_completion(body, self._version)
        except BAD_BODY as error:
            raise self._http.unreadable(error) from None

    async def _streamed(self, request: ChatRequest, asked: dict[str, Any]) -> dict[str, Any]:
        """Ask for a streamed reply, and return it as a whole."""
        raw = await self._http.post_raw(request, asked)
        problem = stream_problem(raw) if is_stream(raw) else ""
        if problem:
            raise Unavailable(f"the model server's stream {self._http.without_key(problem)}{self._http.at}")
        try:
            whole: dict[str, Any] = (
                read_stream(raw) if is_stream(raw) else typed(jsontext.parse_reply(raw, "body"), dict)
            )
        except BAD_BODY as error:
            raise self._http.unreadable(error) from None
        return whole

    def _body(self, request: ChatRequest) -> dict[str, Any]:
        """Return the body of a request. The agent's parameters cannot override what training needs."""
        given = {name: value for name, value in request.params.items() if value is not None and name not in _OF_STREAMS}
        body: dict[str, Any] = {**(NEUTRAL if self._token_ids else {}), **given}
        body |= {"model": self._model, "stream": self._stream}
        if self._stream:
            body["stream_options"] = {"include_usage": True}
        body["messages"] = list(request.messages)
        if request.tools:
            body["tools"] = list(request.tools)
        elif not body.get("tools"):  # servers refuse these without tools; but a required call is sent
            body.pop("parallel_tool_calls", None)
            if body.get("tool_choice") in ("auto", "none"):
                del body["tool_choice"]
        if self._logprobs:
            body["logprobs"] = True
        if self._token_ids:
            body["return_token_ids"] = True
        return body


def read_completion(body: dict[str, Any], version: str = "") -> ChatResponse:
    """Return the first choice of a reply in OpenAI's format.

    `extra` has the other choices as "choices", and the logprobs of a choice without token ids as "logprobs". Raises
    KeyError, IndexError, TypeError, ValueError, AttributeError or InvalidArgument for a body that cannot be read.
    """
    choice = body["choices"][0]
    ids = choice.get("token_ids")
    block = None if ids is None else TokenBlock.of(ids, _logprobs(choice, len(ids)), _top_logprobs(choice, len(ids)))
    prompt = body.get("prompt_token_ids", choice.get("prompt_token_ids"))
    prompt_ids: Ids | None = None if prompt is None else TokenBlock.of(prompt).ids
    message = {"role": "assistant"} | _without_nulls(typed(choice["message"], dict))
    finish_reason = typed(choice.get("finish_reason") or "", str)
    version = WeightNames("").read(_weight_version(body)) or version
    response = ChatResponse(
        message=jsontext.copy(message, "message"),  # stricter than parse_reply()
        finish_reason=finish_reason,
        usage=jsontext.copy(typed(body.get("usage") or {}, dict), "usage") or None,
        tokens=block,
        prompt_ids=prompt_ids,
        versions=(VersionSpan(version, len(block.ids)),) if version and block is not None else (),
        extra=_extra(body, choice, has_tokens=block is not None),
    )
    response.check()
    return response


def _without_nulls(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message without keys that are null, such as `refusal`. A null `content` stays."""
    return {name: value for name, value in message.items() if value is not None or name == "content"}


def _extra(body: dict[str, Any], choice: dict[str, Any], *, has_tokens: bool) -> dict[str, Any]:
    extra = {"choices": body["choices"][1:], "logprobs": None if has_tokens else choice.get("logprobs")}
    return {name: jsontext.copy(value, name) for name, value in extra.items() if value}


def _weight_version(body: dict[str, Any]) -> str:
    """Return the version of the weights that SGLang reports, or an empty string."""
    version = (body.get("metadata") or {}).get("weight_version")
    return "" if version is None else typed(version, str)


def _logprobs(choice: dict[str, Any], count: int) -> "np.ndarray[Any, Any] | None":
    rows = (choice.get("logprobs") or {}).get("content")
    if rows is None or len(rows) != count:
        return None
    return np.array([row.get("logprob") for row in rows], dtype="<f4")  # None becomes NaN


def _top_logprobs(choice: dict[str, Any], count: int) -> dict[str, Tensor]:
    """Return the extras top_logprobs and top_logprob_ids. vLLM sends the ids with `return_tokens_as_token_ids`."""
    rows = (choice.get("logprobs") or {}).get("content") or []
    if not rows or not rows[0].get("top_logprobs"):  # not requested
        return {}
    tops = [row.get("top_logprobs") or [] for row in rows]
    if len(tops) != count or len(set(map(len, tops))) != 1:
        return {}
    extras = {"top_logprobs": Tensor.of(np.array([[top["logprob"] for top in row] for row in tops], dtype="<f4"))}
    names = [[str(top.get("token")) for top in row] for row in tops]
    if all(name.startswith(ID_PREFIX) for row in names for name in row):
        listed = [[int(name.removeprefix(ID_PREFIX)) for name in row] for row in names]
        extras["top_logprob_ids"] = Tensor.of(np.array(listed, dtype="<u4"))
    return extras
