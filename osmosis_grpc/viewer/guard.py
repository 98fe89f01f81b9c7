"""Checks each request to the viewer, and adds headers that keep other sites out.

A page of another site must not read rollouts. So the Host header must name this machine, which stops DNS rebinding. A
request that changes something must come from the viewer's own pages. Other sites may link to the viewer, but may not
load anything from it. The viewer's pages cannot be framed, and cannot load anything from elsewhere. The number of
concurrent requests is limited.
"""

import hmac
import secrets
from collections.abc import Collection
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from osmosis_grpc.network.bearer_tokens import Tokens
from osmosis_grpc.network.http.guard import is_local_name

COOKIE = "osmosis_view"
"""The prefix of the cookie's name. The port follows, because browsers send a cookie to all ports of a host."""
SAFE = frozenset(("GET", "HEAD"))
MOST_QUERY = 8192
"""The most bytes of a query. It is limited because each link of a page repeats the query."""
MOST_STREAMS = 64
"""The most live pages at once. They share the time for updates (live.py)."""
MOST_REQUESTS = 64
"""The most other requests that are answered at once."""
MOST_FORMS = 16
"""The most forms that are read and answered at once. They do not count as requests, so slow forms block no pages."""
MOST = {"stream": MOST_STREAMS, "form": MOST_FORMS, "page": MOST_REQUESTS}
HEADERS = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'; object-src 'none'",
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class ViewGuard:
    """ASGI middleware of the viewer.

    `names` are the host names that a request may use besides localhost and addresses. With `tokens`, a browser sends
    one of them once, as `?token=`, and then gets a cookie. Programs send a token in the header Authorization: Bearer.
    """

    def __init__(self, app: ASGIApp, *, names: Collection[str], tokens: Tokens) -> None:
        self.app = app
        self._names = frozenset(name.strip("[]").lower() for name in names)
        self._tokens = tokens
        self._session = secrets.token_urlsafe(32)
        """The value of the cookie. It changes when the viewer restarts."""
        self._open = dict.fromkeys(MOST, 0)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                if not scope["path"].startswith("/static/"):
                    headers["cache-control"] = "no-store"
            await send(message)

        kind = "form" if scope["method"] not in SAFE else "stream" if scope["path"].endswith("/stream") else "page"
        answer = self._refusal(scope) or self._unauthenticated(scope) or self._busy(kind)
        if answer is not None:
            await answer(scope, receive, with_headers)
            return
        self._open[kind] += 1
        try:
            await self.app(scope, receive, with_headers)
        finally:
            self._open[kind] -= 1

    def _busy(self, kind: str) -> Response | None:
        """Return 503 if too many requests of a kind are open."""
        if self._open[kind] < MOST[kind]:
            return None
        follows = f"{MOST_STREAMS} live pages are already open; close some"
        what = follows if kind == "stream" else "too many requests; try again"
        return PlainTextResponse(f"the viewer is busy: {what}", 503, {"retry-after": "2"})

    def _refusal(self, scope: Scope) -> Response | None:
        """Return the refusal of a request, or None if it is allowed.

        The refusal is 403 for a host name that is not this machine's, and if a page of another site loads or changes
        something. It is 414 for an address that is too long.
        """
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not host or not (is_local_name(host) or _split(host)[0] in self._names):
            return PlainTextResponse(f"Host: {host[:200]!r} is not a name of this viewer", 403)
        if len(scope["query_string"]) > MOST_QUERY:
            return PlainTextResponse(f"the query of the address has more than {MOST_QUERY} bytes", 414)
        own = headers.get("sec-fetch-site", "same-origin") in ("same-origin", "none")
        if scope["method"] not in SAFE:
            if not own or _netloc(headers.get("origin", "")) != host:
                return PlainTextResponse("only a page of this viewer may change something", 403)
        elif not own and headers.get("sec-fetch-mode") != "navigate":
            return PlainTextResponse("a page of another site may link to this viewer, and not load from it", 403)
        return None

    def _unauthenticated(self, scope: Scope) -> Response | None:
        """Return None for a caller with the token, a redirect with a cookie for `?token=`, or else 401."""
        if not self._tokens:
            return None
        headers = Headers(scope=scope)
        name = f"{COOKIE}_{_split(headers.get('host', ''))[1]}"
        cookie = cookie_parser(headers.get("cookie", "")).get(name, "")
        known = _equal(cookie, self._session) or self._tokens.owner(headers.get("authorization", "")) is not None
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        shown = [text for key, text in query if key == "token"]
        if shown and scope["method"] in SAFE and (known or any(self._tokens.owner(text) is not None for text in shown)):
            # Redirect also a caller with a cookie, so that the token is not in the address of the page.
            rest = urlencode([(key, text) for key, text in query if key != "token"])
            path = "/" + str(scope["path"]).lstrip("/\\")  # never //host, which names another host
            answer = RedirectResponse(f"{path}?{rest}" if rest else path, 303)
            secure = scope["scheme"] == "https"
            answer.set_cookie(name, self._session, httponly=True, samesite="strict", secure=secure)
            return answer
        if known:
            return None
        return PlainTextResponse("this viewer needs a token: open its address with ?token=...", 401)


def _equal(given: str, known: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), known.encode())


def _netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def _split(host: str) -> tuple[str, int]:
    """Return the name and the port of a Host header. The port is 80 if it has none."""
    try:
        parts = urlsplit(f"//{host}")
        return (parts.hostname or "").lower(), parts.port or 80
    except ValueError:
        return "", 80
