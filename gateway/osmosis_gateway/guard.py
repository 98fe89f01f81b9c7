"""Who may use the HTTP routes: every path but /health asks who is there, whether it leads to a route or not."""

from typing import Any

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from osmosis_grpc.link.tokens import WRONG, Tokens

OPEN = frozenset(("/health",))
"""What anyone may ask."""


class Guarded:
    """ASGI middleware. Callers show one of the tokens, where there are any, and a `certificate`, where that is asked
    for; `request.state.owner` is then by what name they are known. Nothing is read of a request that is refused.
    """

    def __init__(self, app: ASGIApp, *, tokens: Tokens, certificates: bool) -> None:
        self.app = app
        self._tokens = tokens
        self._certificates = certificates

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or scope["path"].removeprefix(scope.get("root_path", "")) in OPEN:
            await self.app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        owner = certificate = state.get("certificate")
        if self._tokens:
            owner = self._tokens.owner(Headers(scope=scope).get("authorization", ""))
        if self._certificates and certificate is None:
            owner = None
        if owner is not None:
            state["owner"] = owner
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            refused = JSONResponse({"detail": WRONG}, 401, {"WWW-Authenticate": "Bearer"})
            await refused(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})


def certificate_owner(certificate: Any) -> str | None:
    """By what name the caller is known who showed a certificate, as the standard library tells it; as over gRPC."""
    if not certificate:
        return None
    names = [value for kind, value in certificate.get("subjectAltName", ()) if kind in _KINDS]
    names += [value for row in certificate.get("subject", ()) for kind, value in row if kind == "commonName"]
    return f"cert:{names[0]}" if names and names[0] else None


_KINDS = ("DNS", "URI", "email", "IP Address")
