"""How a server is guarded: TLS, tokens, and where it may listen without them."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from osmosis_grpc.errors import PermissionDenied, Unauthenticated
from osmosis_grpc.link.callback_credentials import CallbackKeys, is_for
from osmosis_grpc.link.handlers import metadata_value
from osmosis_grpc.link.target_policy import is_loopback
from osmosis_grpc.link.throttled_log import Throttled
from osmosis_grpc.link.tls import ServerTls
from osmosis_grpc.link.tokens import WRONG, Tokens, bearer
from osmosis_grpc.types.completion import clip, printable

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """What callers have to show, and whether they are spoken with over TLS. Nothing of both by default."""

    tokens: Tokens = field(default_factory=Tokens)
    """Callers show one of these; without any nobody is asked for one."""
    admin: Tokens = field(default_factory=Tokens)
    """Callers who control the server show one of these; they are accepted as callers, too."""
    tls: ServerTls | None = None
    insecure: bool = False
    """Whether a public address may do without."""

    @classmethod
    def of(
        cls,
        tokens: str | Sequence[str] = (),
        tls: ServerTls | None = None,
        insecure: bool = False,
        *,
        admin: str | Sequence[str] = (),
        tls_name: str = "tls",
    ) -> "Security":
        """From tokens as text. Raises ValueError for one that is none, TypeError naming `tls_name`."""
        if tls is not None and not isinstance(tls, ServerTls):
            raise TypeError(f"{tls_name}: {tls!r:.80} is not a ServerTls; pass ServerTls(cert=..., key=...)")
        return cls(tokens=Tokens(tokens), admin=Tokens(admin), tls=tls, insecure=insecure)

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

    def check_admin(self, context: Any) -> None:
        """Refuse a call that controls the server to anyone but an administrator. Raises PermissionDenied.

        An administrator shows a token of `admin`. Where there is none and nobody is asked for a credential, every
        caller on this machine is one.
        """
        if self.admin:
            if self.admin.owner(metadata_value(context, "authorization")) is None:
                raise PermissionDenied("this call needs an administrator's token")
        elif self.authenticates:
            raise PermissionDenied(
                "this call needs an administrator's token, and this server has none: start it with --admin-token-file"
            )
        elif not is_loopback(peer_host(context.peer())):
            raise PermissionDenied(
                "without an administrator's token (--admin-token-file) only callers on the server's machine may do this"
            )

    def guard(self) -> "Guard | None":
        """What every call has to pass; None when any call may."""
        return Guard(self) if self.authenticates else None


class Guard:
    """Finds out whose a call is."""

    def __init__(self, security: Security) -> None:
        self._tokens = security.tokens
        self._admin = security.admin
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
        owner = self._tokens.owner(given) or self._admin.owner(given)
        if owner is None:
            self._refused.warn(refusal_text(unquote(context.peer()), token_problem(given)))
            raise Unauthenticated(WRONG)
        return owner


class CallbackGuard:
    """Lets callbacks pass that show a credential of the trainer's making, or one of its tokens.

    Where certificates are asked for, they name somebody, too.
    """

    def __init__(self, security: Security, keys: CallbackKeys) -> None:
        self._security = security
        self._keys = keys
        self._refused = Throttled(log)

    def __call__(self, context: Any) -> None:
        """Raises Unauthenticated."""
        if self._security.asks_certificates:
            certificate_owner(context.peer_identities(), context.auth_context())
        given = metadata_value(context, "authorization")
        if self._security.tokens.owner(given) is None and not self._keys.made(bearer(given)):
            self._refused.warn(refusal_text(unquote(context.peer()), token_problem(given)))
            raise Unauthenticated(WRONG)


def peer_host(peer: str) -> str:
    """The address in what grpc calls a peer, such as ipv4:127.0.0.1:4711 or ipv6:[::1]:4711."""
    return unquote(peer).partition(":")[2].rpartition(":")[0].strip("[]").removeprefix("::ffff:")


def refusal_text(peer: str, reason: str) -> str:
    """Returns the line of a server's log about a caller that it refuses."""
    return f"the server refuses caller {printable(clip(peer, 256))}: {reason}"


def token_problem(header: str) -> str:
    """Returns what is wrong with an Authorization header that is not accepted, without the header's text."""
    return "its token is not accepted" if bearer(header) else "it shows no token"


def check_for_rollout(credential: str, rollout_id: str) -> None:
    """Refuse a credential that was made for another rollout. Raises PermissionDenied."""
    if not is_for(credential, rollout_id):
        raise PermissionDenied("the credential was made for another rollout")


def certificate_owner(identities: Sequence[bytes] | None, auth_context: Any) -> str:
    """The name in a caller's certificate. Raises Unauthenticated for one that names nobody."""
    names = [*(identities or ()), *auth_context.get("x509_common_name", ())]
    if not names or not names[0]:
        raise Unauthenticated("the certificate names nobody: it has neither a common name nor an alternative one")
    return f"cert:{names[0].decode(errors='replace')}"
