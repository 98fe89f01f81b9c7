"""How a server is guarded: TLS, tokens, and where it may listen without them."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from osmosis_grpc.errors import PermissionDenied, Unauthenticated
from osmosis_grpc.link.handlers import metadata_value
from osmosis_grpc.link.targets import is_loopback
from osmosis_grpc.link.throttled import Throttled
from osmosis_grpc.link.tls import ServerTls
from osmosis_grpc.link.tokens import WRONG, Tokens, bearer, for_rollout
from osmosis_grpc.types.completion import clip, printable

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """What callers have to show, and whether they are spoken with over TLS. Nothing of both by default."""

    tokens: Tokens = field(default_factory=Tokens)
    """Callers show one of these; without any nobody is asked for one."""
    tls: ServerTls | None = None
    insecure: bool = False
    """Whether a public address may do without."""

    @classmethod
    def of(
        cls, tokens: str | Sequence[str] = (), tls: ServerTls | None = None, insecure: bool = False, *,
        tls_name: str = "tls",
    ) -> "Security":  # fmt: skip
        """From tokens as text. Raises ValueError for one that is none, TypeError naming `tls_name`."""
        if tls is not None and not isinstance(tls, ServerTls):
            raise TypeError(f"{tls_name}: {tls!r:.80} is not a ServerTls; pass ServerTls(cert=..., key=...)")
        return cls(tokens=Tokens(tokens), tls=tls, insecure=insecure)

    @property
    def authenticates(self) -> bool:
        """Whether it is known of every caller who it is."""
        return bool(self.tokens) or self.asks_certificates

    @property
    def asks_certificates(self) -> bool:
        """Whether callers need a certificate (mTLS)."""
        return self.tls is not None and self.tls.client_ca is not None

    def check_host(self, host: str) -> None:
        """Refuse an address that is not guarded enough to listen on. Raises ValueError."""
        if is_loopback(host) or self.insecure or self.tls is not None:
            return
        if self.tokens:
            raise ValueError(
                f"{host} is not loopback, and tokens would travel there in plain text: give TLS a certificate and a "
                "key (--tls-cert, --tls-key), or say --insecure"
            )
        raise ValueError(
            f"{host} is not loopback, and a public address needs a token or TLS: --tls-cert and --tls-key, with "
            "--token or --tls-client-ca to say who may call, or --insecure"
        )

    def guard(self) -> "Guard | None":
        """What every call has to pass; None when any call may."""
        return Guard(self) if self.authenticates else None


class Guard:
    """Finds out whose a call is."""

    def __init__(self, security: Security, *, callbacks: bool = False) -> None:
        self._tokens = security.tokens
        self._callbacks = callbacks
        self._refused = Throttled(log)

    def __call__(self, context: Any) -> str:
        """The owner of what a call asks for, by a name that tells no secret. Raises Unauthenticated."""
        if not self._tokens:
            try:
                return certificate_owner(context.peer_identities(), context.auth_context())
            except Unauthenticated as error:
                self._refused.warn(refusal_text(unquote(context.peer()), str(error)))
                raise
        given = metadata_value(context, "authorization")
        owner = self._tokens.owner(given)
        if owner is None and self._callbacks and self._tokens.made(given):
            owner = "callback"
        if owner is None:
            self._refused.warn(refusal_text(unquote(context.peer()), token_problem(given)))
            raise Unauthenticated(WRONG)
        return owner


def refusal_text(peer: str, reason: str) -> str:
    """Returns the line of a server's log about a caller that it refuses."""
    return f"the server refuses caller {printable(clip(peer, 256))}: {reason}"


def token_problem(header: str) -> str:
    """Returns what is wrong with an Authorization header that is not accepted, without the header's text."""
    return "its token is not accepted" if bearer(header) else "it shows no token"


def check_for_rollout(credential: str, rollout_id: str) -> None:
    """Refuse a credential that was made for another rollout. Raises PermissionDenied."""
    if not for_rollout(credential, rollout_id):
        raise PermissionDenied("the credential was made for another rollout")


def certificate_owner(identities: Sequence[bytes] | None, told: Any) -> str:
    """The name in a caller's certificate. Raises Unauthenticated for one that names nobody."""
    names = [*(identities or ()), *told.get("x509_common_name", ())]
    if not names or not names[0]:
        raise Unauthenticated("the certificate names nobody: it has neither a common name nor an alternative one")
    return f"cert:{names[0].decode(errors='replace')}"
