"""A policy that asks a model through Anthropic's Messages API. The API returns no token ids.

So the samples of its rollouts are not trainable. Use it for evaluation, for judges, and for data.

Needs the extra `policies` (aiohttp).
"""

from typing import Any

from osmosis_grpc.policies.anthropic_messages import (
    FINISH_REASONS,
    messages_body,
    reply_message,
    sampling_body,
    usage_of,
)
from osmosis_grpc.policies.model_http import BAD_BODY, HttpPolicy, ModelHttp, checked_url, typed
from osmosis_grpc.protocol.types import ChatRequest, ChatResponse

BASE_URL = "https://api.anthropic.com"
VERSION = "2023-06-01"


class AnthropicPolicy(HttpPolicy):
    """Asks `base_url`/v1/messages.

    A trainer closes the policy's connections at its end. Without a trainer, use `async with`. Errors are those of
    OpenAIPolicy: after 429, 408 and 5xx the agent server asks again. A parameter that the API does not have, such as
    `seed`, raises InvalidArgument.

    Args:
        model: The name of the model.
        api_key: Sent as x-api-key.
        base_url: The address of the API, with or without /v1.
        max_tokens: For chats that set none, because the API requires it.
        timeout: The most seconds of a reply.
        connections: The most connections at a time.

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
    """Return a reply in the format of Anthropic's Messages API.

    Raises KeyError, TypeError, ValueError, AttributeError or InvalidArgument for one that cannot be read.
    """
    stop_reason = typed(reply.get("stop_reason") or "", str)
    response = ChatResponse(
        message=reply_message(typed(reply["content"], list)),
        finish_reason=FINISH_REASONS.get(stop_reason, stop_reason),
        usage=usage_of(reply["usage"]),
    )
    response.check()
    return response
