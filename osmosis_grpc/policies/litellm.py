"""A policy that asks a model through litellm, under litellm's name, for example "anthropic/claude-sonnet-4-5".

The providers return no token ids, so the samples are not trainable.

Needs the extra `litellm`.
"""

from typing import Any

from osmosis_grpc.agent.import_hints import use_local_prices
from osmosis_grpc.policies.model_http import BAD_BODY, refused
from osmosis_grpc.policies.system_messages import asked_folding
from osmosis_grpc.protocol.errors import CallError, DeadlineExceeded, Internal, MissingExtraError, Unavailable
from osmosis_grpc.protocol.types import ChatRequest, ChatResponse


def import_litellm(needed_by: str) -> Any:
    """Import litellm and keep it from printing hints and using the network. Raises MissingExtraError."""
    use_local_prices()
    try:
        import litellm
    except ImportError:
        raise MissingExtraError(needed_by, "litellm") from None
    litellm.suppress_debug_info = True
    litellm.telemetry = False
    return litellm


class LiteLLMPolicy:
    """Asks a model through litellm. Errors are as with OpenAIPolicy.

    The `extra["cost"]` of a reply is litellm's estimate of its price in dollars, if litellm knows the model.

    Args:
        model: litellm's name of the model.
        api_key: The key. By default, litellm reads the environment variable of the provider.
        base_url: The address of a model server that you run yourself.
        timeout: How many seconds a reply may take.

    Raises:
        MissingExtraError: litellm is not installed.
    """

    def __init__(
        self, model: str, *, api_key: str | None = None, base_url: str | None = None, timeout: float = 600.0
    ) -> None:
        litellm = import_litellm(f"litellm:{model}")
        self._litellm: Any = litellm
        self._model = model
        self._key = api_key
        self._base_url = base_url
        self._timeout = timeout

    async def __call__(self, request: ChatRequest, /) -> ChatResponse:
        return await asked_folding(request, self._ask)

    async def _ask(self, request: ChatRequest) -> ChatResponse:
        asked: dict[str, Any] = {**request.params, "messages": list(request.messages), "model": self._model}
        if request.tools:
            asked["tools"] = list(request.tools)
        try:
            reply = await self._litellm.acompletion(
                **asked, api_key=self._key, api_base=self._base_url, timeout=self._timeout, num_retries=0
            )
        except Exception as error:  # litellm's errors have no common base class
            raise self._error(error) from None
        try:
            return self._read(reply)
        except BAD_BODY as error:
            raise Internal(f"the reply of {self._model} cannot be read: {type(error).__name__}: {error}") from None

    def _read(self, reply: Any) -> ChatResponse:
        body = reply.model_dump(exclude_none=True)
        choice = body["choices"][0]
        try:
            cost = self._litellm.completion_cost(completion_response=reply, model=self._model)
        except Exception:  # litellm does not know the price of this model
            cost = None
        response = ChatResponse(
            message={"content": None, **choice["message"], "role": "assistant"},
            finish_reason=str(choice.get("finish_reason") or ""),
            usage=body.get("usage") or None,
            extra={"cost": cost} if cost else {},
        )
        response.check()
        return response

    def _error(self, error: Exception) -> CallError:
        text = str(error)
        text = (text.replace(self._key, "[key]") if self._key else text)[:500]
        if isinstance(error, self._litellm.exceptions.Timeout):
            return DeadlineExceeded(f"{self._model} gave no reply within {self._timeout:g} s")
        if isinstance(error, self._litellm.exceptions.APIConnectionError):
            return Unavailable(f"{self._model} cannot be reached: {text}")
        status = getattr(error, "status_code", None)
        at = f" (litellm:{self._model})"
        return refused(status, text, at, None) if isinstance(status, int) else Internal(f"{text}{at}")
