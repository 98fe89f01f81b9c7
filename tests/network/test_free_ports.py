"""hold_ports(): other programs do not get a port by chance, and a server can still listen on it."""

import errno
import socket
from contextlib import closing

import pytest

from osmosis_grpc.network.free_ports import check_free, hold_ports


def test_a_held_port_is_free_for_a_server_and_for_nothing_else() -> None:
    holders = hold_ports("127.0.0.1", [0, 0])
    ports = [holder.getsockname()[1] for holder in holders]
    assert len(set(ports)) == 2
    for holder, port in zip(holders, ports, strict=True):
        with closing(holder):
            check_free("127.0.0.1", port)
            with socket.socket() as server:
                server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                server.bind(("127.0.0.1", port))
                server.listen()
                socket.create_connection(("127.0.0.1", port), 10).close()
            with socket.socket() as other, pytest.raises(OSError) as refused:
                other.bind(("127.0.0.1", port))
            assert refused.value.errno == errno.EADDRINUSE


def test_no_port_stays_held_if_one_cannot_be_bound() -> None:
    with socket.socket() as taken, socket.socket() as other:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        other.bind(("127.0.0.1", 0))
        free = other.getsockname()[1]
        other.close()
        with pytest.raises(OSError, match="in use"):
            hold_ports("127.0.0.1", [free, taken.getsockname()[1]])
    with socket.socket() as again:
        again.bind(("127.0.0.1", free))
