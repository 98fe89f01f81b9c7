"""Finds out whether addresses are free. It does not import grpc, because the supervisor of several workers needs it."""

import errno
import socket
from contextlib import ExitStack

_REASONS = {
    errno.EADDRINUSE: "the port is in use",
    errno.EADDRNOTAVAIL: "this is not an address of this machine",
    errno.EACCES: "this user may not listen on that port",
}


def check_free(host: str, port: int) -> None:
    """Binds a plain socket and closes it. Raises OSError with the reason if the address is not free.

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
        raise OSError(f"cannot listen on {shown}:{port}: {reason}")


def free_ports(host: str, count: int) -> list[int]:
    """Returns different ports that are free now. Raises OSError if the host is not an address of this machine."""
    found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, place = found[0]
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket(family, kind, protocol)) for _ in range(count)]
        for probe in probes:
            probe.bind(place)
        return [int(probe.getsockname()[1]) for probe in probes]
