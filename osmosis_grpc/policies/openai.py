"""A policy that asks an OpenAI-compatible model server: vLLM, SGLang, or any other.

Token ids and logprobs are kept when the server gives them (`return_token_ids`: vLLM puts the
prompt's ids beside the choices, SGLang into them). Where it does not, the reply comes without,
and its sample is not trainable; nothing is ever tokenized again.
"""

from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from osmosis_grpc.errors import (
    CallError,
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    MissingExtraError,
    PermissionDenied,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
)
from osmosis_grpc.types import ChatRequest, ChatResponse, Ids, TokenBlock, VersionSpan, jsontext

if TYPE_CHECKING:
    import aiohttp


T = TypeVar("T")


class OpenAIPolicy:
    """Asks `base_url`/chat/completions. Used as `async with OpenAIPolicy(url, model) as policy`.

    `token_ids=False` leaves out `return_token_ids`, which some servers refuse. `timeout` is in
    seconds, for one reply. 429 and 5xx raise errors that are asked again; 4xx is final. The key
    appears in no error.
    """

    def __init__(
        self, base_url: str, model: str, *, api_key: str | None = None, token_ids: bool = True,
        timeout: float = 600.0, connections: int = 1024, version: str = "",
    ) -> None:  # fmt: skip
        self._url = base_url.rstrip("/") + "/chat/completions"
        self._model = model
        self._key = api_key
        self._token_ids = token_ids
        self._timeout = timeout
        self._connections = connections
        self._version = version
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "OpenAIPolicy":
        self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def __call__(self, request: ChatRequest, /) -> ChatResponse:
        import aiohttp

        session = self._session or self._open()
        try:
            async with session.post(self._url, json=self._body(request), allow_redirects=False) as response:
                raw, status, retry_after = await response.read(), response.status, response.headers.get("Retry-After")
        except TimeoutError:
            raise DeadlineExceeded(f"the model server gave no reply within {self._timeout:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise Unavailable(f"the model server cannot be reached: {type(error).__name__}") from None
        if status != 200:
            raise _refused(status, self._without_key(raw.decode(errors="replace")[:500]), retry_after)
        try:
            return _read(jsontext.parse(raw.decode(), "body"), self._version)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError, InvalidArgument) as error:
            raise Internal(f"the model server's reply cannot be read: {type(error).__name__}: {error}") from None

    def _open(self) -> "aiohttp.ClientSession":
        try:
            import aiohttp
        except ImportError:
            raise MissingExtraError("OpenAIPolicy", "server") from None
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        self._session = aiohttp.ClientSession(
            headers=headers, trust_env=False, timeout=aiohttp.ClientTimeout(total=self._timeout),
            connector=aiohttp.TCPConnector(limit=self._connections, limit_per_host=self._connections),
        )  # fmt: skip
        return self._session

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, "[key]") if self._key else text

    def _body(self, request: ChatRequest) -> dict[str, Any]:
        body: dict[str, Any] = {"logprobs": True, **request.params, "model": self._model, "stream": False}
        body["messages"] = list(request.messages)
        if request.tools:
            body["tools"] = list(request.tools)
        if self._token_ids:
            body["return_token_ids"] = True
        return body


def _read(body: dict[str, Any], version: str) -> ChatResponse:
    choice = body["choices"][0]
    ids = choice.get("token_ids")
    block = None if ids is None else TokenBlock.of(ids, _logprobs(choice, len(ids)))
    prompt = body.get("prompt_token_ids", choice.get("prompt_token_ids"))
    prompt_ids: Ids | None = None if prompt is None else TokenBlock.of(prompt).ids
    message = {"role": "assistant"} | _typed(choice["message"], dict)
    finish_reason = _typed(choice.get("finish_reason") or "", str)
    response = ChatResponse(
        message=message, finish_reason=finish_reason, usage=_typed(body.get("usage") or {}, dict) or None, tokens=block,
        prompt_ids=prompt_ids,
        versions=(VersionSpan(version, len(block.ids)),) if version and block is not None else (),
    )  # fmt: skip
    response.check()
    return response


def _typed(value: Any, kind: type[T]) -> T:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} is not a {kind.__name__}")
    return value


def _logprobs(choice: dict[str, Any], count: int) -> "np.ndarray[Any, Any] | None":
    """One per token, or none at all: a list of another length cannot be matched to the tokens."""
    rows = (choice.get("logprobs") or {}).get("content")
    if rows is None or len(rows) != count:
        return None
    return np.array([np.nan if row.get("logprob") is None else row["logprob"] for row in rows], dtype="<f4")


def _refused(status: int, text: str, retry_after: str | None) -> CallError:
    pause = float(retry_after) if retry_after and retry_after.strip().isdecimal() else None
    message = f"the model server answered {status}: {text}"
    if status == 429:
        return ResourceExhausted(message, retry_after=pause)
    if status >= 500 or status == 408:
        return Unavailable(message, retry_after=pause)
    if status in (401, 403):
        return (Unauthenticated if status == 401 else PermissionDenied)(f"the model server answered {status}")
    return InvalidArgument("", message)
