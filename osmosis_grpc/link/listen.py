"""Binding a server to an address."""

from weakref import WeakKeyDictionary

import grpc

from osmosis_grpc.link.credentials import server_credentials
from osmosis_grpc.link.security import Security

_KEPT: WeakKeyDictionary[grpc.aio.Server, grpc.ServerCredentials] = WeakKeyDictionary()
"""grpc asks these for newer certificates for as long as the server lives, and does not keep them itself."""


def listen(server: grpc.aio.Server, address: str, security: Security) -> str:
    """Bind to HOST:PORT; returns it with the port as bound.

    Raises OSError when it is taken, ValueError when it is none, when it is public and not
    guarded enough for that, and when a file of TLS cannot be used.
    """
    host, separator, port = address.rpartition(":")
    host = host.strip("[]")
    if not separator or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{address!r} is not HOST:PORT, for example 127.0.0.1:60051")
    security.check_host(host)
    shown = f"[{host}]" if ":" in host else host
    try:
        if security.tls is None:
            bound = server.add_insecure_port(f"{shown}:{port}")
        else:
            _KEPT[server] = server_credentials(security.tls)
            bound = server.add_secure_port(f"{shown}:{port}", _KEPT[server])
    except RuntimeError as error:
        raise OSError(f"cannot listen on {shown}:{port}: in use, or not an address of this machine") from error
    return f"{shown}:{bound}"
