"""The credentials of a caller: a bearer token, and the files for TLS."""

from dataclasses import dataclass, field

import grpc

from osmosis_grpc.network.bearer_tokens import check_token
from osmosis_grpc.network.channel_options import Options
from osmosis_grpc.network.client_calls import Metadata
from osmosis_grpc.network.target_policy import is_loopback
from osmosis_grpc.network.tls import ClientTls, read_pems


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """The credentials that a client sends to a server, and the CAs that the client trusts.

    Raises ValueError for a token that is not valid, and for a file that cannot be used. Raises TypeError for a `tls`
    that is not ClientTls.
    """

    token: str = field(default="", repr=False)
    """The bearer token. No log line and no error message contains it."""
    tls: ClientTls | None = None
    """The files for TLS; None for plain text."""
    insecure: bool = False
    """Whether the token is allowed to leave this machine in plain text."""

    def __post_init__(self) -> None:
        if self.token:
            check_token(self.token)
        if self.tls is not None:
            if not isinstance(self.tls, ClientTls):
                raise TypeError(f"tls: {self.tls!r:.80} is not a ClientTls; pass ClientTls(ca=...)")
            read_pems(self.tls.cert, self.tls.key, self.tls.ca)

    def check_target(self, target: str) -> None:
        """Raise ValueError if the token would leave this machine in plain text, unless `insecure` allows that."""
        host = target.rpartition(":")[0].strip("[]")
        if self.token and self.tls is None and not self.insecure and not is_loopback(host):
            raise ValueError(
                f"{target} is not loopback, and the token would travel there in plain text: speak TLS "
                "with it, or pass insecure=True"
            )

    @property
    def metadata(self) -> Metadata:
        """The metadata of each call."""
        return (("authorization", f"Bearer {self.token}"),) if self.token else ()


def channel(target: str, tls: ClientTls | None, options: Options) -> grpc.aio.Channel:
    """Return a channel to HOST:PORT, with TLS if `tls` is given. Raises ValueError naming a bad file."""
    if tls is None:
        return grpc.aio.insecure_channel(target, options=options)
    pems = read_pems(tls.cert, tls.key, tls.ca)
    named = (("grpc.ssl_target_name_override", tls.server_name),) if tls.server_name else ()
    credentials = grpc.ssl_channel_credentials(pems.ca, pems.key, pems.cert)
    return grpc.aio.secure_channel(target, credentials, options=(*options, *named))
