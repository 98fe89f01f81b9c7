"""gRPC's credentials from files and tokens: what a server shows, and how one is dialled."""

from dataclasses import dataclass, field

import grpc

from osmosis_grpc.link.channel_options import Options
from osmosis_grpc.link.client_calls import Metadata
from osmosis_grpc.link.target_policy import is_loopback
from osmosis_grpc.link.tls import ClientTls, Pems, ServerTls, Watched, read_pems
from osmosis_grpc.link.tokens import check_token


def server_credentials(tls: ServerTls) -> grpc.ServerCredentials:
    """Each connection is shown what the files hold then. Raises ValueError naming the file."""

    def read() -> Pems:
        return read_pems(tls.cert, tls.key, tls.client_ca)

    watched = Watched(tls.files, read)
    shown = watched.now()

    def changed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal shown
        newest = watched.now()
        if newest is shown:
            return None
        shown = newest
        return _configuration(newest)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(shown),
        changed,  # type: ignore[arg-type] # None means no change
        require_client_authentication=tls.client_ca is not None,
    )


def _configuration(pems: Pems) -> grpc.ServerCertificateConfiguration:
    assert pems.key is not None
    assert pems.cert is not None
    return grpc.ssl_server_certificate_configuration([(pems.key, pems.cert)], pems.ca)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How a server is dialled: what is shown to it, and what it is believed by."""

    token: str = field(default="", repr=False)
    """Its bearer token. Never shown."""
    tls: ClientTls | None = None
    insecure: bool = False
    """Whether the token may travel in plain text beyond this machine."""

    def __post_init__(self) -> None:
        if self.token:
            check_token(self.token)
        if self.tls is not None:
            if not isinstance(self.tls, ClientTls):
                raise TypeError(f"tls: {self.tls!r:.80} is not a ClientTls; pass ClientTls(ca=...)")
            read_pems(self.tls.cert, self.tls.key, self.tls.ca)

    def check_target(self, target: str) -> None:
        """Refuse to tell the token in plain text. Raises ValueError."""
        host = target.rpartition(":")[0].strip("[]")
        if self.token and self.tls is None and not self.insecure and not is_loopback(host):
            raise ValueError(
                f"{target} is not loopback, and the token would travel there in plain text: speak TLS "
                "with it, or say that insecure is meant"
            )

    @property
    def metadata(self) -> Metadata:
        """What goes along with every call."""
        return (("authorization", f"Bearer {self.token}"),) if self.token else ()

    def channel(self, target: str, options: Options) -> grpc.aio.Channel:
        """A channel to HOST:PORT. Raises ValueError naming a file that cannot be read."""
        return channel(target, self.tls, options)


def channel(target: str, tls: ClientTls | None, options: Options) -> grpc.aio.Channel:
    """A channel, over TLS when there is any. Raises ValueError naming a file that cannot be read."""
    if tls is None:
        return grpc.aio.insecure_channel(target, options=options)
    pems = read_pems(tls.cert, tls.key, tls.ca)
    named = (("grpc.ssl_target_name_override", tls.server_name),) if tls.server_name else ()
    credentials = grpc.ssl_channel_credentials(pems.ca, pems.key, pems.cert)
    return grpc.aio.secure_channel(target, credentials, options=(*options, *named))
