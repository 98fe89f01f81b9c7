"""Turns the security options into ServerSecurity and Credentials. Raises ValueError naming the option."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from osmosis_grpc.network.credentials import Credentials
from osmosis_grpc.network.server_security import ServerSecurity
from osmosis_grpc.network.tls import ClientTls, ServerTls, read_pems

HARMLESS_TRACERS = frozenset(
    (
        "bdp_estimator",
        "connectivity_state",
        "dns_resolver",
        "flowctl",
        "http_keepalive",
        "pick_first",
        "resource_quota",
        "subchannel",
        "subchannel_pool",
        "timer",
    )
)
"""Tracers of gRPC that print no messages. `all`, `api` and `http` print metadata. `tcp` prints every byte."""


@contextmanager
def naming(before: str, after: str = "") -> Iterator[None]:
    """Put the names of options before and after the message of a ValueError."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{before}{error}{after}") from None


def server_security_from_options(
    tokens: Sequence[str],
    cert: Path | None,
    key: Path | None,
    client_ca: Path | None,
    *,
    insecure: bool,
    admin: Sequence[str] = (),
) -> ServerSecurity:
    """Return the security for callers: the accepted tokens and certificates, and the certificate of this server."""
    if (cert is None) != (key is None):
        raise ValueError("--tls-cert and --tls-key go together")
    if client_ca is not None and cert is None:
        raise ValueError("--tls-client-ca needs --tls-cert and --tls-key")
    tls = None
    if cert is not None and key is not None:
        with naming("--tls-cert, --tls-key, --tls-client-ca: "):
            read_pems(cert, key, client_ca)
        tls = ServerTls(cert=cert, key=key, client_ca=client_ca)
    with naming("--token: "):
        return ServerSecurity(tokens, tls=tls, insecure=insecure, admin_tokens=admin)


def credentials_from_options(
    token: str,
    ca: Path | None,
    cert: Path | None,
    key: Path | None,
    *,
    tls: bool,
    insecure: bool,
    names: tuple[str, str],
) -> Credentials:
    """Return the credentials with which this process dials a server.

    `names` has two items: the option of the token, and the prefix of the options of the files.
    """
    if (cert is None) != (key is None):
        raise ValueError(f"{names[1]}-cert and {names[1]}-key go together")
    with naming(f"{names[1]}-ca, {names[1]}-cert, {names[1]}-key: "):
        read_pems(cert, key, ca)
    files = ClientTls(ca=ca, cert=cert, key=key) if tls or ca or cert else None
    with naming(f"{names[0]}: "):
        return Credentials(token=token, tls=files, insecure=insecure)


def check_trace(tracers: str) -> None:
    """Raise ValueError if a tracer may print the credentials of callers. `tracers` is the value of GRPC_TRACE."""
    named = {name.strip() for name in tracers.split(",") if name.strip() and not name.strip().startswith("-")}
    if named - HARMLESS_TRACERS:
        names = ",".join(sorted(named - HARMLESS_TRACERS))
        raise ValueError(f"GRPC_TRACE={names} may print bearer tokens; unset it, or pass --unsafe-trace")
