"""TLS and mTLS on every way that two sides connect; files that are replaced while a server runs."""

import asyncio
import logging
import os
import ssl
from contextlib import asynccontextmanager

import grpc
import httpx
import pytest

from osmosis_gateway.http_server import serve_http
from osmosis_grpc.network.credentials import channel
from osmosis_grpc.network.tls import client_context
from osmosis_grpc.policies import ToolCallingMock
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import control_pb2, services_pb2_grpc
from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.server import AgentServer, ClientTls, Credentials, ServerConfig, ServerSecurity, ServerTls
from osmosis_grpc.testing.calculator import CalculatorAgent
from osmosis_grpc.trainer import RolloutClient, Trainer
from tests.callback_trainer import CallbackTrainer
from tests.security.conftest import TOKEN
from tests.waiting import ended, until

QUESTION = [{"role": "user", "content": "What is 1 + 2?"}]
QUICK = ServerConfig(trainer_grace=0.5, retry_delay=(0.05, 0.1), outbox_delay=(0.05, 0.1))
PATIENCE = 20.0
PROTOCOLS = ("gRPC", "HTTPS")


@asynccontextmanager
async def opened(tls: ServerTls, protocol: str):
    """A server that listens with one protocol: whether a caller is accepted, by its TLS."""
    async with AgentServer([CalculatorAgent()], port=0, security=ServerSecurity(tls=tls)) as server:
        if protocol == "gRPC":
            yield lambda client: grpc_opens(server.address, client)
            return
        async with serve_http(server, port=0) as http:
            yield lambda client: https_opens(http.address, client)


async def grpc_opens(address: str, tls: ClientTls | None) -> bool:
    async with channel(address, tls, (("grpc.use_local_subchannel_pool", 1),)) as known:
        try:
            await services_pb2_grpc.RolloutServiceStub(known).GetServerInfo(control_pb2.GetServerInfoRequest())
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            return False
        return True


async def https_opens(address: str, tls: ClientTls | None) -> bool:
    scheme, verify = ("http", True) if tls is None else ("https", client_context(tls))
    async with httpx.AsyncClient(base_url=f"{scheme}://{address}", verify=verify, trust_env=False) as client:
        try:
            answer = await client.get("/openapi.json")
        except (httpx.TransportError, ssl.SSLError):
            return False
        return answer.status_code == 200


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_server_is_believed_by_its_ca_and_name(files, stranger, protocol):
    async with opened(files.server(), protocol) as opens:
        assert await opens(files.client())
        assert await opens(files.client(ca=stranger.ca)) is False
        assert await opens(ClientTls()) is False, "the public CAs did not sign it"
        assert await opens(None) is False
        if protocol == "gRPC":
            assert await opens(files.client(server_name="localhost"))
            assert await opens(files.client(server_name="elsewhere.example")) is False
    async with opened(files.server("expired"), protocol) as opens:
        assert await opens(files.client()) is False
    async with opened(files.server("client"), protocol) as opens:
        assert await opens(files.client()) is False, "another name is in it"


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_callers_need_a_certificate_of_the_ca(files, stranger, protocol):
    async with opened(files.server(client_ca=files.ca), protocol) as opens:
        assert await opens(files.client("client"))
        assert await opens(files.client()) is False
        assert await opens(files.client("expired")) is False
        theirs = ClientTls(ca=files.ca, cert=stranger.folder / "client.pem", key=stranger.folder / "client.key")
        assert await opens(theirs) is False


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_with_tokens_and_certificates_both_are_needed(files, protocol):
    security = ServerSecurity(TOKEN, tls=files.server(client_ca=files.ca))
    async with (
        AgentServer([CalculatorAgent()], port=0, security=security) as server,
        serve_http(server, port=0) as http,
    ):

        async def opens(tls: ClientTls, token: str) -> bool:
            if protocol == "HTTPS":
                shown = {"authorization": f"Bearer {token}"}
                async with httpx.AsyncClient(verify=client_context(tls), trust_env=False, headers=shown) as client:
                    return (await client.get(f"https://{http.address}/openapi.json")).status_code == 200
            async with channel(server.address, tls, ()) as known:
                stub = services_pb2_grpc.RolloutServiceStub(known)
                try:
                    shown = (("authorization", f"Bearer {token}"),)
                    await stub.GetServerInfo(control_pb2.GetServerInfoRequest(), metadata=shown)
                except grpc.aio.AioRpcError:
                    return False
                return True

        assert await opens(files.client("client"), TOKEN)
        assert not await opens(files.client("client"), "wrong")
        assert not await opens(files.client(), TOKEN)
        assert not await opens(files.client(), "wrong")


async def test_https_health_needs_no_certificate(files):
    security = ServerSecurity(tls=files.server(client_ca=files.ca))
    async with (
        AgentServer([CalculatorAgent()], port=0, security=security) as server,
        serve_http(server, port=0) as http,
        httpx.AsyncClient(
            base_url=f"https://{http.address}", verify=client_context(files.client()), trust_env=False
        ) as client,
    ):
        assert (await client.get("/health")).status_code == 200
        for path in ("/openapi.json", "/platform/health", "/nowhere"):
            assert (await client.get(path)).status_code == 401


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_files_are_replaced_while_the_server_runs(fresh, stranger, protocol, caplog):
    caplog.set_level(logging.INFO)
    mine, theirs = fresh.client(), fresh.client(ca=stranger.ca)
    async with opened(fresh.server(), protocol) as opens:
        assert (await opens(mine), await opens(theirs)) == (True, False)
        fresh.issue("server", "127.0.0.1", by=stranger)
        assert (await opens(mine), await opens(theirs)) == (False, True)
        for broken in ("", "no certificate", (fresh.folder / "client.pem").read_text()):
            (fresh.folder / "server.pem").write_text(broken)
            assert (await opens(mine), await opens(theirs)) == (False, True), "what was read before stays"
            assert "server.pem" in caplog.text
        (fresh.folder / "server.pem").unlink()
        assert await opens(theirs)
        fresh.issue("server", "127.0.0.1")
        assert (await opens(mine), await opens(theirs)) == (True, False)
    assert "PRIVATE KEY" not in caplog.text


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_files_of_equal_size_time_and_inode_are_read_again(fresh, stranger, protocol):
    def put(by):
        fresh.issue("new", "127.0.0.1", by=by)
        for ending in ("pem", "key"):
            path = fresh.folder / f"server.{ending}"
            path.write_bytes((fresh.folder / f"new.{ending}").read_bytes().ljust(8192, b"\n"))
            os.utime(path, (1_700_000_000, 1_700_000_000))

    put(fresh)
    mine, theirs = fresh.client(), fresh.client(ca=stranger.ca)
    async with opened(fresh.server(), protocol) as opens:
        assert (await opens(mine), await opens(theirs)) == (True, False)
        put(stranger)
        assert (await opens(mine), await opens(theirs)) == (False, True)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_the_callers_ca_is_replaced_while_the_server_runs(fresh, stranger, protocol):
    mine = fresh.client("client")
    theirs = ClientTls(ca=fresh.ca, cert=stranger.folder / "client.pem", key=stranger.folder / "client.key")
    accepted = fresh.folder / "callers.pem"
    for text, ends in (
        (fresh.ca.read_text(), (True, False)),
        (fresh.ca.read_text() + stranger.ca.read_text(), (True, True)),
        (stranger.ca.read_text(), (False, True)),
    ):
        if not accepted.exists():
            accepted.write_text(text)
            opening = opened(fresh.server(client_ca=accepted), protocol)
            opens = await opening.__aenter__()
        accepted.write_text(text)
        assert (await opens(mine), await opens(theirs)) == ends
    await opening.__aexit__(None, None, None)


async def test_an_attachment_over_mtls_with_a_token(files):
    security = ServerSecurity(f"lab={TOKEN}", tls=files.server(client_ca=files.ca))
    async with AgentServer([CalculatorAgent()], port=0, security=security) as server:
        async with Trainer(
            [server.address], ToolCallingMock(), credentials=Credentials(token=TOKEN, tls=files.client("client"))
        ) as trainer:
            outcome = await asyncio.wait_for(trainer.rollout(rollout_id="r", messages=QUESTION), PATIENCE)
            seen = [event.event_number async for event in trainer.events("r")]
        async with RolloutClient(server.address, token=TOKEN, tls=files.client("client")) as client:
            assert (await client.get("r")).outcome.status is OutcomeStatus.COMPLETED
        assert server.engine.rollouts.get("token:lab", "r")
    assert outcome.status is OutcomeStatus.COMPLETED
    assert seen == list(range(1, len(seen) + 1))


@pytest.mark.parametrize("name", ["client", "nameless"])
async def test_a_certificate_is_an_owner(files, name):
    """By its alternative name, else by its common name; over HTTPS the same."""
    owner = {"client": "cert:trainer-7@lab.example", "nameless": "cert:trainer-8"}[name]
    security = ServerSecurity(tls=files.server(client_ca=files.ca))
    async with (
        AgentServer([CalculatorAgent()], port=0, security=security, config=QUICK) as server,
        serve_http(server, port=0) as http,
        RolloutClient(server.address, tls=files.client(name)) as client,
        httpx.AsyncClient(
            base_url=f"https://{http.address}", verify=client_context(files.client(name)), trust_env=False
        ) as session,
        CallbackTrainer(ToolCallingMock()) as trainer,
    ):
        await client.init(rollout_id="r", messages=QUESTION, callback=trainer.callback())
        body = {"server_url": f"http://{trainer.address}", "messages": QUESTION, "completion_params": {}}
        answer = await session.post("/v1/rollout/init", json=body | {"rollout_id": "h"})
        assert answer.status_code == 202
        assert {record.rollout_id for record in (await server.engine.rollouts.page(owner))[0]} == {"r", "h"}
        await asyncio.wait_for(trainer.outcome("r"), PATIENCE)


async def test_dialling_out_over_tls_with_a_token(files, stranger, caplog):
    security = ServerSecurity([TOKEN], tls=files.server(client_ca=files.ca))
    async with Trainer([], ToolCallingMock(), listen="127.0.0.1:0", security=security) as trainer:
        for credentials, problem in (
            (Credentials(token="wrong", tls=files.client("client")), "no credential, or a wrong one"),
            (Credentials(token=TOKEN, tls=files.client()), "trying again"),
            (Credentials(token=TOKEN, tls=files.client("client", ca=stranger.ca)), "CERTIFICATE_VERIFY_FAILED"),
            (Credentials(token=TOKEN), "trying again"),
        ):
            caplog.clear()
            async with AgentServer([CalculatorAgent()], port=0, connect=[trainer.address], credentials=credentials):
                await until(lambda: problem in caplog.text)
            assert trainer.servers == []
            assert TOKEN not in caplog.text
        credentials = Credentials(token=TOKEN, tls=files.client("client"))
        async with AgentServer([CalculatorAgent()], port=0, connect=[trainer.address], credentials=credentials):
            outcome = await asyncio.wait_for(trainer.rollout(rollout_id="r", messages=QUESTION), PATIENCE)
            assert outcome.status is OutcomeStatus.COMPLETED


async def called_back(files, trainer_tls, server_tls, *, server_name=""):
    """How a rollout ends whose trainer speaks TLS."""
    trainers = Credentials(tls=server_tls)
    async with (
        AgentServer([CalculatorAgent()], port=0, config=QUICK, credentials=trainers) as server,
        CallbackTrainer(ToolCallingMock(), tls=trainer_tls, tokens=TOKEN) as trainer,
        RolloutClient(server.address) as client,
    ):
        callback = trainer.callback(server_name=server_name)
        assert callback.tls is not None
        await client.init(rollout_id="r", messages=QUESTION, callback=callback)
        return (await asyncio.wait_for(ended(client, "r"), PATIENCE)).status


@pytest.mark.slow
async def test_callbacks_over_tls(files, stranger):
    completed, failed = OutcomeStatus.COMPLETED, OutcomeStatus.FAILED
    calls = {
        "by its host": called_back(files, files.server(), files.client()),
        "by its name": called_back(files, files.server(), files.client(), server_name="localhost"),
        "by another name": called_back(files, files.server(), files.client(), server_name="other.example"),
        "by another CA": called_back(files, files.server(), files.client(ca=stranger.ca)),
        "by the public CAs": called_back(files, files.server(), None),
        "expired": called_back(files, files.server("expired"), files.client()),
        "mTLS": called_back(files, files.server(client_ca=files.ca), files.client("client")),
        "no certificate": called_back(files, files.server(client_ca=files.ca), files.client()),
    }
    ends = dict(zip(calls, await asyncio.gather(*calls.values()), strict=True))
    assert ends == {
        "by its host": completed,
        "by its name": completed,
        "by another name": failed,
        "by another CA": failed,
        "by the public CAs": failed,
        "expired": failed,
        "mTLS": completed,
        "no certificate": failed,
    }
