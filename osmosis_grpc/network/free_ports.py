"""Finds out whether addresses are free, and holds ports.

This module does not import grpc, because the supervisor of several workers needs it.
"""

import errno
import socket
from collections.abc import Sequence
from contextlib import ExitStack

_REASONS = {
    errno.EADDRINUSE: "the port is in use",
    errno.EADDRNOTAVAIL: "this is not an address of this machine",
    errno.EACCES: "this user may not listen on that port",
}


def check_free(host: str, port: int) -> None:
    """Bind a plain socket and close it. Raises OSError with the reason and its errno if the address is not free.

    gRPC itself would print a line to stderr, and its exception has no reason.
    """
    shown = f"[{host}]" if ":" in host else host
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise OSError(f"cannot listen on {shown}:{port}: {error.strerror or error}") from None
    problem: OSError | None = None
    for family, kind, protocol, _, place in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(
                    socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
                )  # as in gRPC, a port in TIME_WAIT counts as free
                probe.bind(place)
            return  # one free address of the host is enough, as for gRPC
        except OSError as error:
            problem = problem or error
    if problem is not None:
        reason = _REASONS.get(problem.errno or 0) or problem.strerror or str(problem)
        raised = OSError(f"cannot listen on {shown}:{port}: {reason}")
        raised.errno = problem.errno
        raise raised


def hold_ports(host: str, ports: Sequence[int]) -> list[socket.socket]:
    """Return a bound socket for each port. Port 0 means any free port. Raises OSError if a port cannot be bound.

    The sockets do not listen, so a server can listen on these ports. While they are open, no outgoing connection of
    this machine gets one of the ports, not even while its server restarts.
    """
    with ExitStack() as stack:
        held = [stack.enter_context(_bound(host, port)) for port in ports]
        stack.pop_all()
        return held


def _bound(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to one address of the host, and does not listen."""
    problem: OSError | None = None
    for family, kind, protocol, _, place in socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    ):
        holder = socket.socket(family, kind, protocol)
        try:
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a server binds the port, too
            holder.bind(place)
            return holder
        except OSError as error:
            holder.close()
            problem = error
    raise problem or OSError(f"{host} has no address")
