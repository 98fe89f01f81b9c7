"""A failed TLS handshake writes no line of gRPC Core to the server's log, unless the operator asks for these lines."""

import os
import socket
import subprocess

import pytest
import trustme

from tests.processes import serving

CALCULATOR = ("-m", "osmosis_grpc.testing.calculator:agent_loop", "--no-journal")
PLAIN_HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


@pytest.mark.parametrize("verbosity", [None, "INFO"])
def test_failed_handshakes_do_not_fill_the_log(tmp_path, verbosity):
    made = trustme.CA().issue_cert("127.0.0.1")
    cert, key = tmp_path / "server.pem", tmp_path / "server.key"
    made.cert_chain_pems[0].write_to_path(cert)
    made.private_key_pem.write_to_path(key)
    env = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    env |= {} if verbosity is None else {"GRPC_VERBOSITY": verbosity}
    arguments = (*CALCULATOR, "--tls-cert", str(cert), "--tls-key", str(key))
    with serving(*arguments, env=env, stderr=subprocess.PIPE) as (process, ready):
        host, _, port = ready["grpc"].rpartition(":")
        for _ in range(5):
            with socket.create_connection((host, int(port)), timeout=20) as plain:
                plain.sendall(PLAIN_HTTP2)
                while plain.recv(1024):  # until the server closes the connection
                    pass
        process.terminate()
        _, logged = process.communicate(timeout=50)
    assert logged.count("Handshake failed") == (5 if verbosity else 0)
