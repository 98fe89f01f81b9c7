"""Finds out why a server cannot be used, and whether the error is permanent.

gRPC reports UNAVAILABLE if a server is unreachable, and also if only one side uses TLS. This module distinguishes these
causes by the text of gRPC's error or, if that is not enough, by a TLS handshake of its own. If the cause is still
uncertain, the error counts as temporary.
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import Literal

from osmosis_grpc.network.credentials import Credentials
from osmosis_grpc.protocol.errors import (
    Aborted,
    CallError,
    FailedPrecondition,
    Hint,
    PermissionDenied,
    TlsMismatch,
    Unauthenticated,
    Unavailable,
    Unimplemented,
)

PROBE_LIMIT = 2.0
"""The timeout of a TLS handshake of this module, in seconds."""
_NOT_CONNECTED = "failed to connect to all addresses"
_WHERE = "name the gRPC address that `osmosis-grpc serve` prints"
_HTTP_ANSWER = "http2 header with status"
"""A part of gRPC's error for an HTTP answer, which may come from a proxy while the server behind it restarts."""

_OTHER_NAME = "its certificate is for another name: name that with ClientTls(server_name=...)"
_TLS: tuple[tuple[str, str, Hint | None], ...] = (
    ("WRONG_VERSION_NUMBER", "it speaks plain text and not TLS", Hint.LEAVE_OUT_TLS),
    ("CERTIFICATE_VERIFY_FAILED", "its certificate is not signed by the CA that is trusted here", Hint.NAME_CA),
    ("Hostname Verification", _OTHER_NAME, None),
    ("is not in peer certificate", _OTHER_NAME, None),  # until grpcio 1.76
)
"""Parts of gRPC's errors about a TLS handshake, the meaning of each, and what to do."""
_HTTP_1 = ("http1.x server", "Expected SETTINGS frame as the first frame")
"""Parts of gRPC's errors about a server that answers in HTTP/1."""


def is_permanent(error: CallError | None) -> bool:
    """Return whether an error is permanent. Then the same call to the same server would fail again."""
    if isinstance(error, FailedPrecondition):
        return error.kind == "PROTOCOL"
    if isinstance(error, Aborted):
        return is_replaced(error)
    if isinstance(error, Unimplemented) and _HTTP_ANSWER in str(error):
        return False
    return isinstance(error, Unauthenticated | PermissionDenied | Unimplemented | TlsMismatch)


def is_replaced(error: CallError | None) -> bool:
    """Return whether another stream with the same attachment id has replaced this one, so it must stay closed."""
    return isinstance(error, Aborted) and error.reason == "ATTACHMENT_REPLACED"


async def explained(target: str, credentials: Credentials, error: CallError) -> CallError:
    """Return an error that explains a failed call, with the server's address and advice.

    Returns `error` itself if the cause is not known.
    """
    advice = _ADVICE.get(type(error))
    if advice is not None and is_permanent(error):
        advised = advice(credentials)
        hint = advised if isinstance(advised, Hint) else None
        text = f"server {target} refuses this caller: {error}" + ("" if hint else f"; {advised}")
        if isinstance(error, FailedPrecondition):
            return FailedPrecondition(text, kind=error.kind, subject=error.subject)
        return type(error)(text, hint=hint)
    if not isinstance(error, Unavailable) or _NOT_CONNECTED not in str(error):
        return error
    text = str(error)
    if any(words in text for words in _HTTP_1):
        return Unimplemented(f"server {target} answers in HTTP/1 and not in gRPC: {_WHERE}")
    if credentials.tls is not None:
        for words, meaning, tls_hint in _TLS:
            if words in text:
                return TlsMismatch(f"no TLS connection to server {target}: {meaning}", hint=tls_hint)
    shown = await _handshake(target)
    if credentials.tls is None and shown:
        return TlsMismatch(f"no connection to server {target}: it speaks TLS and this side does not", hint=Hint.USE_TLS)
    # Other causes are possible: the server is stopping, or a proxy closed the connection.
    if credentials.tls is not None and credentials.tls.cert is None and shown == "closed":
        return Unavailable(f"{text}, after the TLS handshake", hint=Hint.SHOW_CERTIFICATE)
    if "Connection refused" in text:
        return Unavailable(f"server {target} refuses connections", hint=Hint.START_SERVER)
    return error


def _credential_advice(credentials: Credentials) -> Hint:
    return Hint.CHECK_CREDENTIAL if credentials.token or credentials.tls else Hint.SHOW_CREDENTIAL


_ADVICE: dict[type[CallError], Callable[[Credentials], str]] = {
    Unauthenticated: _credential_advice,
    PermissionDenied: _credential_advice,
    Unimplemented: lambda credentials: f"it does not know this call: {_WHERE}, or update the server",
    FailedPrecondition: lambda credentials: "update the older of the two",
}


async def _handshake(target: str) -> Literal["", "open", "closed"]:
    """Make a TLS handshake without a certificate, and return the state of the connection after it.

    "closed" means that the server closed the connection or refused the handshake with an alert. An empty string means
    that the handshake failed for another reason.
    """
    host, _, port = target.rpartition(":")
    if not port.isdecimal():
        return ""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    shaken = False
    try:
        async with asyncio.timeout(PROBE_LIMIT):
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port), ssl=context)
            shaken = True
            try:
                return "open" if await reader.read(1) else "closed"  # a gRPC server sends the first bytes
            finally:
                writer.transport.abort()
    except TimeoutError:
        return "open" if shaken else ""
    except ssl.SSLError as error:
        return "closed" if shaken or "ALERT" in (error.reason or "") else ""
    except OSError:
        return "closed" if shaken else ""
