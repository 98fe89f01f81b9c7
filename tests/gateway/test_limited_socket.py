"""Connections over HTTP are limited in all and for each address, and an idle one gives its place away."""

import asyncio
from contextlib import asynccontextmanager

import pytest
import trustme
from fastapi import FastAPI, Response

from osmosis_grpc.network.http.connections import network_of
from osmosis_grpc.network.http.server import HttpServer
from osmosis_grpc.network.tls import ServerTls


@asynccontextmanager
async def served(connections: int, tls: ServerTls | None = None):
    """A server with two routes: /quick answers at once, /slow when the event is set."""
    app, goes_on = FastAPI(), asyncio.Event()

    @app.get("/quick")
    async def quick() -> str:
        return "quick"

    @app.get("/slow")
    async def slow() -> str:
        await goes_on.wait()
        return "slow"

    async with HttpServer(app, connections=connections, tls=tls) as http:
        yield http, goes_on
        goes_on.set()


async def test_agents_have_all_connections_of_their_port_from_one_address(monkeypatch):
    monkeypatch.setattr("osmosis_grpc.network.http.server.agent_connections", lambda: 4)
    async with HttpServer(FastAPI()) as http:
        idle = [await connect(http) for _ in range(4)]
        assert b"404" in await get(http, "/")
        assert await idle[0][0].read() == b""  # the oldest one
        idle[1][1].write(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        assert b"404" in await idle[1][0].readline()
        for _, writer in idle:
            writer.close()


async def test_an_answer_that_is_still_being_sent_is_not_cut():
    app = FastAPI()
    size = 20_000_000

    @app.get("/large")
    async def large() -> Response:
        return Response(b"x" * size)

    async with HttpServer(app, connections=8) as http:
        reader, writer = await connect(http)
        writer.write(b"GET /large HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        assert b"200" in await reader.readline()
        others = [await connect(http) for _ in range(8)]
        assert b"404" in await get(http, "/")
        async with asyncio.timeout(20):
            assert len((await reader.read()).partition(b"\r\n\r\n")[2]) == size
        for _, other in [*others, (reader, writer)]:
            other.close()


async def connect(http: HttpServer, host: str = "127.0.0.1"):
    return await asyncio.open_connection("127.0.0.1", http.port, local_addr=(host, 0))


async def get(http: HttpServer, path: str, host: str = "127.0.0.1") -> bytes:
    """The whole answer over a new connection; empty if the connection is closed without one."""
    reader, writer = await connect(http, host)
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n".encode())
        async with asyncio.timeout(20):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_idle_connections_of_one_address_keep_no_one_out():
    async with served(8) as (http, _):
        idle = [await connect(http) for _ in range(30)]
        for host in ("127.0.0.1", "127.0.0.2"):
            assert (await get(http, "/quick", host)).endswith(b'"quick"')
        async with asyncio.timeout(20):
            for reader, _ in idle[:26]:  # the oldest ones
                assert await reader.read() == b""
        for _, writer in idle:
            writer.close()


async def test_idle_connections_of_many_addresses_keep_no_one_out():
    async with served(8) as (http, _):
        idle = [await connect(http, f"127.0.1.{number}") for number in range(1, 31)]
        assert (await get(http, "/quick")).endswith(b'"quick"')
        for _, writer in idle:
            writer.close()


async def test_requests_in_work_are_not_cut_and_another_address_is_served(caplog):
    async with served(8) as (http, goes_on):
        at_work = [asyncio.create_task(get(http, "/slow")) for _ in range(4)]
        async with asyncio.timeout(20):
            while await get(http, "/quick"):  # until all four are in work
                await asyncio.sleep(0.01)  # as long as requests are on their way
        assert (await get(http, "/quick", "127.0.0.2")).endswith(b'"quick"')
        goes_on.set()
        assert all(answer.endswith(b'"slow"') for answer in await asyncio.gather(*at_work))
        assert (await get(http, "/quick")).endswith(b'"quick"')
    assert [row.levelname for row in caplog.records] == ["WARNING"]
    assert f"127.0.0.1 has 4 HTTP connections to port {http.port}, the most of one address" in caplog.text


async def test_connections_that_never_shake_hands_keep_no_one_out(tmp_path):
    """Over TLS a connection counts from its first byte on."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    made = trustme.CA().issue_cert("localhost")
    made.cert_chain_pems[0].write_to_path(cert)
    made.private_key_pem.write_to_path(key)
    async with served(8, ServerTls(cert=cert, key=key)) as (http, _):
        silent = [await connect(http) for _ in range(30)]
        async with asyncio.timeout(20):
            for reader, _ in silent[:26]:
                assert await reader.read() == b""
        for _, writer in silent:
            writer.close()


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("testclient", "testclient"),
    ],
)
def test_the_addresses_of_an_ipv6_network_count_as_one(host, network):
    assert network_of(host) == network
