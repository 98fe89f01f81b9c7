"""A policy that asks an OpenAI-compatible model server: vLLM, SGLang, or any other.

The policy keeps the token ids and logprobs that a server returns for `return_token_ids`. vLLM puts the prompt's ids
beside the choices, and SGLang puts them into the choices. If a server returns no ids, the reply has no tokens and its
sample is not trainable. The policy never tokenizes a text itself.

Needs the extra `policies` (aiohttp).
"""

import contextlib
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlsplit

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
from osmosis_grpc.types import ChatRequest, ChatResponse, Ids, Tensor, TokenBlock, VersionSpan, jsontext

if TYPE_CHECKING:
    import aiohttp


T = TypeVar("T")

SESSION_HEADER = "X-Session-ID"
"""This header is equal in all chats of a sample, so that a router picks the replica that caches their prefix."""
ID_PREFIX = "token_id:"
"""How vLLM writes a token as its id."""
ABORT_RETRY = 1.0
"""When the model server aborts a chat, the agent server asks again after this many seconds."""
MOST_SAID = 500
"""An error has at most this many characters of the model server's answer."""


class OpenAIPolicy:
    """Asks `base_url`/chat/completions, for example with base_url "http://127.0.0.1:8000/v1".

    A trainer closes the policy's connections at its end. Without a trainer, use `async with OpenAIPolicy(url, model)`.
    `token_ids=False` leaves out `return_token_ids`, and `logprobs=False` leaves out `logprobs`, because some servers
    refuse them. One reply may take `timeout` seconds. `version` is kept with every reply. Without `version`, the
    trainer's version is kept.

    After 429, 408, 5xx or the finish reason "abort", the policy raises an error. Then the agent server asks again, for
    its `trainer_grace` at most. vLLM and SGLang abort a reply when weights change. Any other 4xx is final. Errors name
    the URL, never the key. Raises MissingExtraError without aiohttp, and ValueError for a malformed `base_url`.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        token_ids: bool = True,
        logprobs: bool = True,
        timeout: float = 600.0,
        connections: int = 1024,
        version: str = "",
    ) -> None:
        try:
            import aiohttp
        except ImportError:
            raise MissingExtraError("OpenAIPolicy", "policies") from None
        self._url = checked_url(base_url) + "/chat/completions"
        self._model = model
        self._key = api_key
        self._token_ids = token_ids
        self._logprobs = logprobs
        self._timeout = timeout
        self._connections = connections
        self._version = version
        self._session: aiohttp.ClientSession | None = None
        self._users = 0

    async def __aenter__(self) -> "OpenAIPolicy":
        self._users += 1
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._users -= 1
        session = self._session
        if not self._users and session is not None:
            self._session = None
            await session.close()

    async def __call__(self, request: ChatRequest, /) -> ChatResponse:
        import aiohttp

        session = self._session or self._open()
        headers = {SESSION_HEADER: quote(f"{request.rollout_id}/{request.sample}")}
        call = session.post(self._url, json=self._body(request), headers=headers, allow_redirects=False)
        try:
            async with call as response:
                raw, status, retry_after = await response.read(), response.status, response.headers.get("Retry-After")
        except TimeoutError:
            raise DeadlineExceeded(f"the model server gave no reply within {self._timeout:g} s{self._at}") from None
        except (aiohttp.ClientError, OSError) as error:
            raise Unavailable(f"the model server cannot be reached: {type(error).__name__}{self._at}") from None
        if status != 200:
            text = _said(raw.decode(errors="replace"))
            raise refused(status, self._without_key(text), self._at, retry_after)
        try:
            body = jsontext.parse(raw.decode(), "body")
            if body["choices"][0].get("finish_reason") == "abort":
                raise Unavailable(f"the model server aborted the chat{self._at}", retry_after=ABORT_RETRY)
            return _read(body, self._version)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError, InvalidArgument) as error:
            problem = self._without_key(f"{type(error).__name__}: {error}")
            raise Internal(f"the model server's reply cannot be read: {problem}{self._at}") from None

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, "[key]") if self._key else text

    @property
    def _at(self) -> str:
        return f" (POST {self._url})"

    def _open(self) -> "aiohttp.ClientSession":
        import aiohttp

        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        self._session = aiohttp.ClientSession(
            headers=headers,
            trust_env=False,
            timeout=aiohttp.ClientTimeout(total=self._timeout),
            connector=aiohttp.TCPConnector(limit=self._connections, limit_per_host=self._connections),
        )
        return self._session

    def _body(self, request: ChatRequest) -> dict[str, Any]:
        asked = {"logprobs": True} if self._logprobs else {}
        body: dict[str, Any] = {**asked, **request.params, "model": self._model, "stream": False}
        body["messages"] = list(request.messages)
        if request.tools:
            body["tools"] = list(request.tools)
        if self._token_ids:
            body["return_token_ids"] = True
        return body


def checked_url(base_url: str) -> str:
    """Return the base URL. Raises ValueError for a URL that is malformed or has a password."""
    try:
        parts = urlsplit(base_url)
    except ValueError:  # its text may have the password
        raise ValueError("base_url: is not http://HOST:PORT/v1 or https://HOST/v1") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("base_url: is not http://HOST:PORT/v1 or https://HOST/v1")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError("base_url: has a user name, a password, a query or a fragment; give the key as api_key")
    return base_url.rstrip("/")


def _read(body: dict[str, Any], version: str) -> ChatResponse:
    choice = body["choices"][0]
    ids = choice.get("token_ids")
    block = None if ids is None else TokenBlock.of(ids, _logprobs(choice, len(ids)), _top_logprobs(choice, len(ids)))
    prompt = body.get("prompt_token_ids", choice.get("prompt_token_ids"))
    prompt_ids: Ids | None = None if prompt is None else TokenBlock.of(prompt).ids
    message = {"role": "assistant"} | _typed(choice["message"], dict)
    finish_reason = _typed(choice.get("finish_reason") or "", str)
    response = ChatResponse(
        message=message,
        finish_reason=finish_reason,
        usage=_typed(body.get("usage") or {}, dict) or None,
        tokens=block,
        prompt_ids=prompt_ids,
        versions=(VersionSpan(version, len(block.ids)),) if version and block is not None else (),
    )
    response.check()
    return response


def _typed(value: Any, kind: type[T]) -> T:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} is not a {kind.__name__}")
    return value


def _logprobs(choice: dict[str, Any], count: int) -> "np.ndarray[Any, Any] | None":
    """Return one logprob per token; None if the list has another length."""
    rows = (choice.get("logprobs") or {}).get("content")
    if rows is None or len(rows) != count:
        return None
    return np.array([np.nan if row.get("logprob") is None else row["logprob"] for row in rows], dtype="<f4")


def _top_logprobs(choice: dict[str, Any], count: int) -> dict[str, Tensor]:
    """Return the extras top_logprobs and top_logprob_ids. vLLM returns ids for `return_tokens_as_token_ids`."""
    rows = (choice.get("logprobs") or {}).get("content") or []
    tops = [row.get("top_logprobs") or [] for row in rows]
    if len(tops) != count or len(set(map(len, tops))) != 1 or not tops[0]:
        return {}
    extras = {"top_logprobs": Tensor.of(np.array([[top["logprob"] for top in row] for row in tops], dtype="<f4"))}
    names = [[str(top.get("token")) for top in row] for row in tops]
    if all(name.startswith(ID_PREFIX) for row in names for name in row):
        listed = [[int(name.removeprefix(ID_PREFIX)) for name in row] for row in names]
        extras["top_logprob_ids"] = Tensor.of(np.array(listed, dtype="<u4"))
    return extras


def refused(status: int, text: str, at: str, retry_after: str | None) -> CallError:
    """Return the error for a status of HTTP. `text` is the server's answer, and `at` the place for the message."""
    pause = float(retry_after) if retry_after and retry_after.strip().isdecimal() else None
    message = f"the model server answered {status}: {text[:MOST_SAID]}{at}"
    if status == 429:
        return ResourceExhausted(message, retry_after=pause)
    if status >= 500 or status == 408:
        return Unavailable(message, retry_after=pause)
    if status in (401, 403):
        kind = Unauthenticated if status == 401 else PermissionDenied
        return kind(f"the model server answered {status}{at}; check api_key")
    return Internal(f"{message}; check base_url and model" if status == 404 else message)


def _said(text: str) -> str:
    """Return the message of an answer {"error": {"message": ...}}, and any other answer as it is."""
    with contextlib.suppress(KeyError, TypeError, ValueError, InvalidArgument):
        return _typed(jsontext.parse(text, "body")["error"]["message"], str)
    return text
