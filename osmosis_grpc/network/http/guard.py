"""Authenticates HTTP callers. Every path except /health requires a credential, even a path without a route.

A server on loopback may require no credentials. The guard then refuses calls from web pages in a local browser.
"""

import logging
import re
from ipaddress import ip_address
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from osmosis_grpc.network.bearer_tokens import WRONG, Tokens
from osmosis_grpc.network.server_security import refusal_text, token_problem
from osmosis_grpc.network.target_policy import is_loopback
from osmosis_grpc.supervise.throttled_log import Throttled

log = logging.getLogger(__name__)

OPEN = frozenset(("/health",))
"""Paths that require no credential."""


class Guard:
    """ASGI middleware that requires a token, a client certificate, or both.

    It sets `request.state.owner` to the caller's name. It refuses a request without reading the body. Without tokens
    and certificates, a server on loopback requires a Host header that names this machine. This stops DNS rebinding, in
    which the host name of a web page resolves to this machine, so that the page passes the browser's same-origin rule.
    But the Host header still has the name of the page's host.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        tokens: Tokens,
        certificates: bool,
        loopback: bool | None,
        admin_tokens: Tokens | None = None,
    ) -> None:
        self.app = app
        self._tokens = tokens
        self._admin_tokens = admin_tokens or Tokens()
        self._certificates = certificates
        self._loopback = loopback
        self._refused = Throttled(log)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused: JSONResponse | None = None
        if scope["type"] != "lifespan" and scope["path"].removeprefix(scope.get("root_path", "")) not in OPEN:
            check = self._authenticate if self._tokens or self._certificates else self._check_host
            refused = check(scope)
        if refused is None:
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await refused(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    def _authenticate(self, scope: Scope) -> JSONResponse | None:
        """Set the caller's name. If the caller is not authenticated, return the refusal instead."""
        state = scope.setdefault("state", {})
        owner = certificate = state.get("certificate")
        problem = ""
        if self._tokens:
            given = Headers(scope=scope).get("authorization", "")
            owner = self._tokens.owner(given) or self._admin_tokens.owner(given)
            problem = token_problem(given)
        if self._certificates and certificate is None:
            owner, problem = None, "it shows no certificate"
        if owner is not None:
            state["owner"] = owner
            return None
        peer = ":".join(map(str, scope.get("client") or ("unknown",)))
        self._refused.warn(refusal_text(f"{peer} over HTTP", problem))
        return JSONResponse({"detail": WRONG}, 401, {"WWW-Authenticate": "Bearer"})

    def _check_host(self, scope: Scope) -> JSONResponse | None:
        """Return a refusal if the server is on loopback and the Host header does not name this machine."""
        host = Headers(scope=scope).get("host", "")
        if not bound_to_loopback(scope, self._loopback) or is_local_name(host) or from_test_client(scope):
            return None
        detail = f"Host: {host[:256]!r} is not a name of this machine; a caller by another name needs a token"
        return JSONResponse({"detail": detail}, 421)


def bound_to_loopback(scope: Scope, known: bool | None) -> bool:
    """Return whether the server listens on loopback. If `known` is None, the address of the connection decides."""
    if known is not None:
        return known
    return is_loopback(str((scope.get("server") or ("",))[0])) or from_test_client(scope)


def from_test_client(scope: Scope) -> bool:
    """Return whether a request comes from the TestClient of Starlette, which calls the application in its process.

    A web server sets both values from its socket, so no caller on the network can choose them.
    """
    ends = [str((scope.get(end) or ("",))[0]) for end in ("server", "client")]
    return ends == ["testserver", "testclient"]


_HOST = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9.-]+))(?::[0-9]{1,5})?")
"""A Host header: an address or a name, and an optional port."""


def is_local_name(host: str) -> bool:
    """Return whether a Host header is an IP address, a localhost name, or empty as in HTTP/1.0."""
    if not host:
        return True
    match = _HOST.fullmatch(host)
    if match is None:
        return False
    try:
        return ip_address(match["six"] or match["name"]).version == (6 if match["six"] else 4)
    except ValueError:
        name = (match["name"] or "").lower().removesuffix(".")
        return name == "localhost" or name.endswith(".localhost")


def certificate_owner(certificate: Any) -> str | None:
    """Return the owner that a client certificate names, as over gRPC; None without a certificate or a name.

    `certificate` has the form that getpeercert() of the standard library returns.
    """
    if not certificate:
        return None
    names = [value for kind, value in certificate.get("subjectAltName", ()) if kind in _KINDS]
    names += [value for row in certificate.get("subject", ()) for kind, value in row if kind == "commonName"]
    return f"cert:{names[0]}" if names and names[0] else None


_KINDS = ("DNS", "URI", "email", "IP Address")
