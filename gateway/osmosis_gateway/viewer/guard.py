"""Checks each request to the viewer, and adds the headers that keep other pages and hosts out.

A web page of another host must not read rollouts. So the Host header has to name this machine (DNS rebinding). A
request that changes something has to come from the viewer's own pages. No page may be framed or load anything from
elsewhere.
"""

import hmac
import secrets
from collections.abc import Collection
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from osmosis_gateway.guard import is_local_name
from osmosis_grpc.link.bearer_tokens import Tokens

COOKIE = "osmosis_view"
"""The name of a cookie begins with this, and ends with the port. Browsers show a cookie to all ports of a host."""
SAFE = frozenset(("GET", "HEAD"))
"""Methods that change nothing."""
HEADERS = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'; object-src 'none'",
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
"""Each response has these."""


class ViewGuard:
    """ASGI middleware of the viewer.

    `names` are the names of hosts that a request may name besides localhost and addresses. With `tokens`, a browser
    shows one of them once as `?token=`, and then gets a cookie. Programs show it in the header Authorization: Bearer.
    """

    def __init__(self, app: ASGIApp, *, names: Collection[str], tokens: Tokens) -> None:
        self.app = app
        self._names = frozenset(name.strip("[]").lower() for name in names)
        self._tokens = tokens
        self._session = secrets.token_urlsafe(32)
        """The value of the cookie. A restart of the viewer makes a new one."""

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

        answer = self._refusal(scope) or self._unauthenticated(scope)
        await (self.app if answer is None else answer)(scope, receive, with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        """Return 403 for a host name that is not this machine's, and for a change that another page asks for."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not host or not (is_local_name(host) or _split(host)[0] in self._names):
            return PlainTextResponse(f"Host: {host[:200]!r} is not a name of this viewer", 403)
        if scope["method"] not in SAFE:
            origin = headers.get("origin", "")
            if urlsplit(origin).netloc != host or headers.get("sec-fetch-site", "same-origin") != "same-origin":
                return PlainTextResponse("only a page of this viewer may change something", 403)
        return None

    def _unauthenticated(self, scope: Scope) -> Response | None:
        """Return None for a caller that shows the token, a redirect with a cookie for `?token=`, or else 401."""
        if not self._tokens:
            return None
        headers = Headers(scope=scope)
        given = headers.get("authorization", "")
        name = f"{COOKIE}_{_split(headers.get('host', ''))[1]}"
        cookie = cookie_parser(headers.get("cookie", "")).get(name, "")
        if self._tokens.owner(given) is not None or _equal(cookie, self._session):
            return None
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        shown = [text for key, text in query if key == "token"]
        if scope["method"] in SAFE and any(self._tokens.owner(text) is not None for text in shown):
            rest = urlencode([(key, text) for key, text in query if key != "token"])
            path = "/" + str(scope["path"]).lstrip("/\\")  # never //host, which names another host
            answer = RedirectResponse(f"{path}?{rest}" if rest else path, 303)
            answer.set_cookie(name, self._session, httponly=True, samesite="strict")
            return answer
        return PlainTextResponse("this viewer needs a token: open its address with ?token=...", 401)


def _equal(given: str, known: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), known.encode())


def _split(host: str) -> tuple[str, int]:
    """Return the name and the port of a Host header. The port is 80 if it has none."""
    try:
        parts = urlsplit(f"//{host}")
        return (parts.hostname or "").lower(), parts.port or 80
    except ValueError:
        return "", 80
