"""The security of a server: tokens, certificates, and TLS on addresses that other machines can reach."""

import logging
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import unquote

from osmosis_grpc.network.bearer_tokens import WRONG, CallbackKeys, Tokens, bearer, is_for
from osmosis_grpc.network.handlers import metadata_value
from osmosis_grpc.network.target_policy import is_loopback
from osmosis_grpc.network.tls import ServerTls
from osmosis_grpc.protocol.errors import PermissionDenied, Unauthenticated
from osmosis_grpc.protocol.types.outcome import clip, printable
from osmosis_grpc.supervise.throttled_log import Throttled

log = logging.getLogger(__name__)


class ServerSecurity:
    """The credentials that a server requires of its callers. Without `tls` and `insecure` it listens on loopback only.

    Args:
        tokens: The accepted bearer tokens, each SECRET or NAME=SECRET. Without them callers need no token.
        admin_tokens: The tokens of administrators. The server also accepts them as `tokens`.
        tls: The files of the server's certificate. With a `client_ca`, callers need one of their own (mTLS).
        insecure: Whether a public address without TLS is allowed.

    Raises:
        ValueError: A token is not valid.
        TypeError: `tls` is not a ServerTls.
    """

    __slots__ = ("admin_tokens", "insecure", "tls", "tokens")

    def __init__(
        self,
        tokens: Tokens | str | Iterable[str] = (),
        *,
        admin_tokens: Tokens | str | Iterable[str] = (),
        tls: ServerTls | None = None,
        insecure: bool = False,
    ) -> None:
        if tls is not None and not isinstance(tls, ServerTls):
            raise TypeError(f"tls: {tls!r:.80} is not a ServerTls; pass ServerTls(cert=..., key=...)")
        self.tokens = tokens if isinstance(tokens, Tokens) else Tokens(tokens)
        self.admin_tokens = admin_tokens if isinstance(admin_tokens, Tokens) else Tokens(admin_tokens)
        self.tls = tls
        self.insecure = insecure

    def __repr__(self) -> str:
        return f"ServerSecurity({self.tokens}, admin_tokens={self.admin_tokens}, tls={self.tls})"

    @property
    def authenticates(self) -> bool:
        """Whether the server identifies every caller."""
        return bool(self.tokens) or self.asks_certificates

    @property
    def asks_certificates(self) -> bool:
        """Whether callers need a certificate (mTLS)."""
        return self.tls is not None and self.tls.client_ca is not None

    def check_host(self, host: str) -> None:
        """Raise ValueError if a server with this security must not listen on the host."""
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
        """Raise PermissionDenied unless the caller is an administrator.

        An administrator sends one of `admin_tokens`. If the server requires no credentials at all, every caller on the
        server's machine is an administrator.
        """
        if self.admin_tokens:
            if self.admin_tokens.owner(metadata_value(context, "authorization")) is None:
                raise PermissionDenied("this call needs an administrator's token")
        elif self.authenticates:
            raise PermissionDenied(
                "this call needs an administrator's token, and this server has none: start it with --admin-token-file"
            )
        elif not is_loopback(peer_host(context.peer())):
            raise PermissionDenied(
                "without an administrator's token (--admin-token-file) only callers on the server's machine may do this"
            )

    def authenticator(self) -> "Authenticator | None":
        """Return the check for every call; None for a server that does not identify its callers."""
        return Authenticator(self) if self.authenticates else None


class Authenticator:
    """Identifies the caller of a gRPC call."""

    def __init__(self, security: ServerSecurity) -> None:
        self._tokens = security.tokens
        self._admin_tokens = security.admin_tokens
        self._refused = Throttled(log)

    def __call__(self, context: Any) -> str:
        """Return the owner of the rollouts that the call starts. Its name contains no secret.

        Raises Unauthenticated for a caller without a valid credential.
        """
        if not self._tokens:
            try:
                return certificate_owner(context.peer_identities(), context.auth_context())
            except Unauthenticated as error:
                self._refused.warn(refusal_text(unquote(context.peer()), str(error)))
                raise
        given = metadata_value(context, "authorization")
        owner = self._tokens.owner(given) or self._admin_tokens.owner(given)
        if owner is None:
            self._refused.warn(refusal_text(unquote(context.peer()), token_problem(given)))
            raise Unauthenticated(WRONG)
        return owner


class CallbackAuthenticator:
    """Accepts a callback with a credential made by this trainer, or with one of the trainer's tokens.

    With mTLS the caller also needs a certificate that contains a name.
    """

    def __init__(self, security: ServerSecurity, keys: CallbackKeys) -> None:
        self._security = security
        self._keys = keys
        self._refused = Throttled(log)

    def __call__(self, context: Any) -> None:
        """Raise Unauthenticated for a call that is not accepted."""
        if self._security.asks_certificates:
            certificate_owner(context.peer_identities(), context.auth_context())
        given = metadata_value(context, "authorization")
        if self._security.tokens.owner(given) is None and not self._keys.made(bearer(given)):
            self._refused.warn(refusal_text(unquote(context.peer()), token_problem(given)))
            raise Unauthenticated(WRONG)


def peer_host(peer: str) -> str:
    """Return the IP address of a gRPC peer. `peer` is, for example, ipv4:127.0.0.1:4711 or ipv6:[::1]:4711."""
    return unquote(peer).partition(":")[2].rpartition(":")[0].strip("[]").removeprefix("::ffff:")


def refusal_text(peer: str, reason: str) -> str:
    """Return the log line for a refused caller."""
    return f"the server refuses caller {printable(clip(peer, 256))}: {reason}"


def token_problem(header: str) -> str:
    """Return why an Authorization header is not accepted. The result does not contain the header's text."""
    return "its token is not accepted" if bearer(header) else "it shows no token"


def check_for_rollout(credential: str, rollout_id: str) -> None:
    """Raise PermissionDenied for a credential that was made for another rollout."""
    if not is_for(credential, rollout_id):
        raise PermissionDenied("the credential was made for another rollout")


def certificate_owner(identities: Sequence[bytes] | None, auth_context: Any) -> str:
    """Return the name in a caller's certificate. Raises Unauthenticated for a certificate without a name."""
    names = [*(identities or ()), *auth_context.get("x509_common_name", ())]
    if not names or not names[0]:
        raise Unauthenticated("the certificate has neither a common name nor an alternative name")
    return f"cert:{names[0].decode(errors='replace')}"
