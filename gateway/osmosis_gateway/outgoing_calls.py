"""Outgoing HTTP: posts JSON to a trainer or to a legacy agent server, with retries.

A server has one `Calls` with one aiohttp session, so that the limits of the session apply to all rollouts together.
`Calls` connects only to addresses that the target policy has checked. It follows no redirects, ignores the proxies in
the environment variables, and bounds the size of answers.
"""

import asyncio
import json
import logging
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from osmosis_grpc.network.target_policy import Address
from osmosis_grpc.protocol.errors import (
    CallError,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    OsmosisServerError,
    OsmosisTimeoutError,
    OsmosisTransportError,
    OsmosisValidationError,
    PermissionDenied,
    Unauthenticated,
)
from osmosis_grpc.protocol.types.outcome import clip
from osmosis_grpc.settings.settings import RolloutClientSettings
from osmosis_grpc.supervise import SYSTEM, Backoff

log = logging.getLogger(__name__)

MAX_ANSWER_BYTES = 32 * 1024 * 1024
CONNECT_TIMEOUT = 10.0
"""A call fails if its connection does not open within this many seconds."""
LONGEST_RETRY_AFTER = 60.0
"""A longer Retry-After is cut to this many seconds, or to the setting retry_max_delay if that is larger."""
KEEPALIVE = 4.0
"""An idle connection is closed after this many seconds: before Uvicorn, which many trainers use, closes its end."""
_SHOWN = 500  # an error message repeats at most this many characters of a refusal
_checked: ContextVar[Address | None] = ContextVar("checked_address", default=None)
"""The checked address of the current call's host."""

_REFUSED: dict[int, type[OsmosisValidationError]] = {401: Unauthenticated, 403: PermissionDenied, 404: NotFound}
_PORTS = {"http": 80, "https": 443}


Problem = Callable[[bytes], CallError | None]
"""Returns the error that the body of a 2xx answer reports; None for a good body."""


def _no_problem(raw: bytes) -> CallError | None:
    return None


@dataclass(frozen=True, slots=True)
class Base:
    """A checked base URL: `{scheme}://{host}:{port}{path}`."""

    scheme: str
    host: str
    port: int
    path: str
    exact: str = ""
    """The original path and query."""

    @classmethod
    def of(cls, text: str, field: str, *, query: bool = False) -> "Base":
        """Parse a base URL. With `query`, the URL can have a query. Raises InvalidArgument naming `field`."""
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError as error:
            raise InvalidArgument(field, f"is not a URL: {error}") from None
        problems = {
            "is not an http:// or https:// URL with a host": parts.scheme not in _PORTS or not parts.hostname,
            "holds a user name or a password; use api_key": "@" in parts.netloc,
            "has a query or a fragment; pass a base URL, to which paths are appended": (
                ("?" in text and not query) or "#" in text
            ),
            "holds a character that cannot stand in a URL": (
                not text.isascii() or not text.isprintable() or " " in text or "\\" in text
            ),
            "0 is not a port": port == 0,
        }
        for problem, found in problems.items():
            if found:
                raise InvalidArgument(field, problem)
        return cls(
            parts.scheme,
            parts.hostname or "",
            port or _PORTS[parts.scheme],
            parts.path.rstrip("/"),
            parts.path + (f"?{parts.query}" if parts.query else ""),
        )

    @property
    def authority(self) -> str:
        """HOST:PORT."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def join(self, path: str) -> URL:
        """Return the URL of a path below this base URL."""
        return URL(f"{self.scheme}://{self.authority}{self.path}{path}", encoded=True)

    @property
    def url(self) -> URL:
        """The URL itself."""
        return URL(f"{self.scheme}://{self.authority}{self.exact}", encoded=True)


class Calls:
    """Posts JSON. Use it as `async with Calls(settings) as calls`.

    With `checked_only`, a call to a host whose address was not checked fails. `tls` sets the trusted certificates; the
    default is those of the public CAs. Entering an open `Calls` again has no effect.
    """

    def __init__(
        self,
        settings: RolloutClientSettings,
        *,
        whom: str = "the trainer",
        checked_only: bool = False,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._settings = settings
        self._whom = whom
        self._checked_only = checked_only
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "Calls":
        settings = self._settings
        self._session = self._session or aiohttp.ClientSession(
            connector=_Connector(settings, self._tls, _Resolver(self._checked_only)),
            trust_env=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=settings.timeout_seconds, sock_connect=CONNECT_TIMEOUT),
            headers={"Content-Type": "application/json", "Accept-Encoding": "identity"},
        )
        return self

    async def __aexit__(self, *exc: Any) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def post(
        self,
        url: URL,
        body: bytes | None,
        *,
        key: str = "",
        retries: int = 0,
        headers: Mapping[str, str] | None = None,
        address: Address | None = None,
        answer: bool = True,
        problem: Problem = _no_problem,
    ) -> bytes:
        """Post JSON, or GET if `body` is None. Return the body of a 2xx answer, or b"" if `answer` is False.

        `address` is the host's checked address. 408, 429, 5xx, 3xx, timeouts and transport errors are retried `retries`
        times, after Retry-After or with exponential backoff. After the last retry, this method raises
        OsmosisTransportError, OsmosisTimeoutError or OsmosisServerError. It raises OsmosisValidationError for a
        refusal, without a retry. `problem` checks the body of a 2xx answer. If it returns an error, the call has
        failed with this error, and is retried.
        """
        backoff = Backoff(self._settings.retry_base_delay, self._settings.retry_max_delay, system=SYSTEM)
        _checked.set(address)
        for retry in range(1, retries + 1):
            found = await self._attempt(url, body, key, headers or {}, answer, problem)
            if isinstance(found, bytes):
                return found
            pause = backoff.next()
            if found.retry_after is not None:
                pause = min(found.retry_after, max(self._settings.retry_max_delay, LONGEST_RETRY_AFTER))
            log.warning("%s; retry %d of %d in %.1f s", found, retry, retries, pause)
            await asyncio.sleep(pause)
        found = await self._attempt(url, body, key, headers or {}, answer, problem)
        if isinstance(found, bytes):
            return found
        raise found

    async def _attempt(
        self, url: URL, body: bytes | None, key: str, headers: Mapping[str, str], wanted: bool, problem: Problem
    ) -> bytes | CallError:
        """Send one request: POST, or GET if `body` is None. Return the answer's body.

        If the request fails, return the error if a retry may help, and otherwise raise it.
        """
        if self._session is None:
            raise OsmosisTransportError("this server is closing")
        sent = dict(headers) | ({"Authorization": f"Bearer {key}"} if key else {})
        try:
            async with self._session.request(
                "GET" if body is None else "POST", url, data=body, headers=sent, allow_redirects=False
            ) as answer:
                status, retry_after = answer.status, answer.headers.get("Retry-After")
                if 200 <= status < 300 and not wanted:
                    await _drop(answer)
                    return b""
                raw = await _bounded(answer, MAX_ANSWER_BYTES)
        except TimeoutError:
            return OsmosisTimeoutError(f"{self._whom} gave no answer within {self._settings.timeout_seconds:g} s")
        except (aiohttp.ClientError, OSError) as error:
            return OsmosisTransportError(f"{self._whom} cannot be reached: {type(error).__name__}")
        if 200 <= status < 300:
            found = problem(raw)
            return raw if found is None else found
        text = clip(f"{self._whom} answered {status}: {redacted(raw.decode(errors='replace'), key)[:_SHOWN]}")
        may_help = status in (408, 429) or not 400 <= status < 500
        failed: CallError = OsmosisServerError(text, retry_after=_seconds(retry_after))
        if not may_help:
            failed = _REFUSED.get(status, FailedPrecondition)(text)
        failed.status_code = status
        if may_help:
            return failed
        raise failed


async def _bounded(answer: aiohttp.ClientResponse, limit: int) -> bytes:
    parts, size = [], 0
    async for part in answer.content.iter_any():
        size += len(part)
        if size > limit:
            answer.close()
            raise OsmosisServerError(f"the answer has more than {limit} bytes")
        parts.append(part)
    return b"".join(parts)


async def _drop(answer: aiohttp.ClientResponse) -> None:
    """Read and discard an answer, so that its connection can be reused. Close it if the answer is large or slow."""
    try:
        async with asyncio.timeout(1):
            await _bounded(answer, 64 * 1024)
    except (TimeoutError, aiohttp.ClientError, OSError, OsmosisServerError):
        answer.close()


def redacted(text: str, key: str) -> str:
    """Return the text without the key, even where the other side has escaped the key."""
    for spelling in {key, json.dumps(key)[1:-1], repr(key)[1:-1]} if key else ():
        text = text.replace(spelling, "[key]")
    return text


def _seconds(retry_after: str | None) -> float | None:
    """Return the seconds to wait of a Retry-After header, which is a number or a date; None for any other value."""
    text = (retry_after or "").strip()
    if text.isdecimal() and len(text) < 7:
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None


class _Connector(aiohttp.TCPConnector):
    """A connection pool that limits its idle connections and connects to checked addresses."""

    def __init__(self, settings: RolloutClientSettings, tls: ssl.SSLContext | None, resolver: AbstractResolver) -> None:
        super().__init__(
            limit=settings.max_connections,
            limit_per_host=0,
            keepalive_timeout=KEEPALIVE,
            use_dns_cache=False,
            resolver=resolver,
            ssl=tls or True,
        )
        self._keepalive = settings.max_keepalive_connections

    def _release(self, key: Any, protocol: Any, *, should_close: bool = False) -> None:
        idle = sum(map(len, self._conns.values()))
        super()._release(key, protocol, should_close=should_close or idle >= self._keepalive)


class _Resolver(AbstractResolver):
    """Resolves a host to its checked addresses."""

    def __init__(self, checked_only: bool) -> None:
        self._checked_only = checked_only
        self._plain = aiohttp.ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        address = _checked.get()
        if address is None:
            if self._checked_only:
                raise OSError(f"{host}:{port} was not checked")
            return await self._plain.resolve(host, port, family)
        return [
            ResolveResult(
                hostname=host,
                host=ip,
                port=port,
                proto=0,
                flags=socket.AI_NUMERICHOST,
                family=socket.AF_INET6 if ":" in ip else socket.AF_INET,
            )
            for ip in address.ips
        ]

    async def close(self) -> None:
        await self._plain.close()
