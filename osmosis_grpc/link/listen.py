"""Binding a server to an address."""

import grpc

from osmosis_grpc.link.targets import is_loopback


def listen(server: grpc.aio.Server, address: str) -> str:
    """Bind to HOST:PORT; returns it with the port as bound.

    Raises OSError when it is taken, ValueError when it is none, or public: there is no
    protection for that yet.
    """
    host, separator, port = address.rpartition(":")
    host = host.strip("[]")
    if not separator or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{address!r} is not HOST:PORT, for example 127.0.0.1:60051")
    if not is_loopback(host):
        raise ValueError(f"{host} is not loopback, and a public address needs a token or TLS")
    shown = f"[{host}]" if ":" in host else host
    try:
        bound = server.add_insecure_port(f"{shown}:{port}")
    except RuntimeError as error:
        raise OSError(f"cannot listen on {shown}:{port}: in use, or not an address of this machine") from error
    return f"{shown}:{bound}"
