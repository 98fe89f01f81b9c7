"""Posts JSON to a model server, and converts HTTP statuses to errors. Needs the extra `policies` (aiohttp)."""

import contextlib
import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import quote, urlsplit

from pydantic_core import to_json

from osmosis_grpc.protocol.errors import (
    CallError,
    ContextLengthExceeded,
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    MissingExtraError,
    PermissionDenied,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
)
from osmosis_grpc.protocol.types import ChatRequest, jsontext

if TYPE_CHECKING:
    import aiohttp

T = TypeVar("T")
BAD_BODY = (KeyError, IndexError, TypeError, ValueError, AttributeError, InvalidArgument)
"""The errors of a reply that cannot be read."""

SESSION_HEADER = "X-Session-ID"
"""The header with ROLLOUT/SAMPLE, by which a router picks the replica that caches the prefix of a sample's chats."""
MOST_SAID = 500


class HttpPolicy:
    """A policy that asks a model server over HTTP. Its trainer or `async with` closes the connections."""

    _http: "ModelHttp"

    async def __aenter__(self) -> Self:
        self._http.enter()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._http.exit()


class ModelHttp:
    """The connections to one URL of a model server.

    `headers` are sent with each request. Errors never contain `key`. The error for a 404 ends with the advice
    `missing`. The connections are closed when the last user exits. Raises MissingExtraError, which names `policy`,
    without aiohttp.
    """

    def __init__(
        self,
        policy: str,
        url: str,
        headers: Mapping[str, str],
        *,
        key: str | None = None,
        timeout: float = 600.0,
        connections: int = 1024,
        missing: str = "check base_url and model",
    ) -> None:
        try:
            import aiohttp
        except ImportError:
            raise MissingExtraError(policy, "policies") from None
        self._url = url
        self._headers = dict(headers)
        self._key = key
        self._timeout = timeout
        self._connections = connections
        self._missing = missing
        self._session: aiohttp.ClientSession | None = None
        self._users = 0

    @property
    def at(self) -> str:
        """The name of this server in error messages, in parentheses."""
        return self._at("POST", "")

    def enter(self) -> None:
        """Count a user."""
        self._users += 1

    async def exit(self) -> None:
        """Remove a user, and close the connections after the last one."""
        self._users -= 1
        session = self._session
        if not self._users and session is not None:
            self._session = None
            await session.close()

    async def post(self, request: ChatRequest, body: Mapping[str, Any]) -> Any:
        """Return the JSON of the answer. Raises what post_raw() raises, and Internal if the answer is not JSON."""
        raw = await self.post_raw(request, body)
        try:
            return jsontext.parse_reply(raw, "body")
        except (ValueError, InvalidArgument) as error:
            raise self.unreadable(error) from None

    async def post_raw(self, request: ChatRequest, body: Mapping[str, Any]) -> bytes:
        """Return the answer to a chat. Raises what send() raises."""
        return await self.send("POST", body=body, session_id=f"{request.rollout_id}/{request.sample}")

    async def send(
        self,
        method: str,
        path: str = "",
        *,
        body: Mapping[str, Any] | None = None,
        session_id: str = "",
        timeout: float | None = None,
    ) -> bytes:
        """Return the body of the answer. Cancelling closes the connection, so that the model server stops sampling.

        Args:
            method: GET or POST.
            path: The path and query to append to the URL.
            body: The JSON body; None for none.
            session_id: The value of the header SESSION_HEADER; empty for none.
            timeout: A limit in seconds. The constructor's limit applies, too.

        Raises ResourceExhausted, Unavailable or DeadlineExceeded if a retry may help, and another CallError if not.
        """
        import aiohttp

        session = self._session or self._open()
        headers = {SESSION_HEADER: quote(session_id)} if session_id else {}
        seconds, at = self._timeout if timeout is None else min(timeout, self._timeout), self._at(method, path)
        limit = aiohttp.ClientTimeout(total=seconds)
        if body is not None:
            headers["Content-Type"] = "application/json"
        data = None if body is None else to_json(body)
        more: Any = {"data": data, "headers": headers, "timeout": limit, "allow_redirects": False}
        try:
            async with session.request(method, self._url + path, **more) as response:
                raw, status, retry_after = await response.read(), response.status, response.headers.get("Retry-After")
        except TimeoutError:
            raise DeadlineExceeded(f"the model server gave no reply within {seconds:g} s{at}") from None
        except (aiohttp.ClientError, OSError) as error:
            raise Unavailable(f"the model server cannot be reached: {type(error).__name__}{at}") from None
        if status != 200:
            said = self.without_key(_said(raw.decode(errors="replace")))
            raise refused(status, said, at, retry_after, self._missing)
        return raw

    def unreadable(self, error: Exception) -> Internal:
        """Return the error for an answer that cannot be read."""
        problem = self.without_key(f"{type(error).__name__}: {error}")
        return Internal(f"the model server's reply cannot be read: {problem}{self.at}")

    def without_key(self, text: str) -> str:
        """Return a text without the key."""
        return text.replace(self._key, "[key]") if self._key else text

    def _at(self, method: str, path: str) -> str:
        return f" ({method} {self._url}{path})"

    def _open(self) -> "aiohttp.ClientSession":
        import aiohttp

        self._session = aiohttp.ClientSession(
            headers=self._headers,
            trust_env=False,
            connector=aiohttp.TCPConnector(limit=self._connections, limit_per_host=self._connections),
        )
        return self._session


_TOO_LONG = re.compile(
    r"context_length_exceeded|exceed_context_size|maximum context length|maximum model length|model's context length"
    r"|prompt is too long|exceeds the available context|longer than the model|input is too long",
    re.I,
)
_TOKENS = re.compile(
    r"(?:requested|resulted in|input \(|request \(|\(length|has|contains|too long:)\s*(\d[\d,]*)", re.IGNORECASE
)
_LIMIT = re.compile(r"(?:length is|length of|length \(|context size \(|> )\s*(\d[\d,]*)", re.IGNORECASE)


def checked_url(base_url: str) -> str:
    """Return the base URL without a slash at its end. Raises ValueError if it is malformed or has a password."""
    try:
        parts = urlsplit(base_url)
    except ValueError:  # its message may contain the password
        raise ValueError("base_url: is not http://HOST:PORT/v1 or https://HOST/v1") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("base_url: is not http://HOST:PORT/v1 or https://HOST/v1")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError("base_url: has a user name, a password, a query or a fragment; give the key as api_key")
    return base_url.rstrip("/")


def refused(
    status: int, text: str, at: str, retry_after: str | None, missing: str = "check base_url and model"
) -> CallError:
    """Return the error for an HTTP status. `text` is the server's answer, and `at` names the server."""
    pause = _seconds(retry_after) if retry_after else None
    message = f"the model server answered {status}: {text[:MOST_SAID]}{at}"
    if status == 429:
        return ResourceExhausted(message, retry_after=pause)
    if status >= 500 or status == 408:
        return Unavailable(message, retry_after=pause)
    if status in (401, 403):
        kind = Unauthenticated if status == 401 else PermissionDenied
        return kind(f"the model server answered {status}{at}; check api_key")
    if status in (400, 413, 422):
        return context_exceeded(text, message) or InvalidArgument("", message)
    return Internal(f"{message}; {missing}" if status == 404 else message)


def context_exceeded(text: str, message: str) -> ContextLengthExceeded | None:
    """Return an error if an answer says that the prompt is too long, else None.

    Recognizes the answers of OpenAI, Anthropic, vLLM, SGLang and llama.cpp.
    """
    if not _TOO_LONG.search(text):
        return None
    tokens, limit = (
        int(found[1].replace(",", "")) if found else 0 for found in (_TOKENS.search(text), _LIMIT.search(text))
    )
    return ContextLengthExceeded(tokens, limit, message)


def _seconds(retry_after: str) -> float | None:
    """Return the seconds of the header Retry-After, a number or a date, or None if it is neither."""
    if retry_after.strip().isdecimal():
        return float(retry_after)
    try:
        date = parsedate_to_datetime(retry_after)
    except ValueError:
        return None
    return max(0.0, date.timestamp() - time.time())


def typed(value: Any, kind: type[T]) -> T:
    """Return the value. Raises TypeError if it is not a `kind`."""
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} is not a {kind.__name__}")
    return value


def _said(text: str) -> str:
    """Return the message of an answer {"error": {"message": ...}}, or any other answer as it is."""
    with contextlib.suppress(KeyError, TypeError, ValueError, InvalidArgument):
        return typed(jsontext.parse(text, "body")["error"]["message"], str)
    return text
