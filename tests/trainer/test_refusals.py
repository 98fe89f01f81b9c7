"""Servers that refuse for good fail at once and say what to do; servers that are not there are waited for, aloud."""

import asyncio
import contextlib
import logging
import os
import socket
import subprocess
import sys

import pytest
import trustme
import uvicorn

from osmosis_grpc.network.server_security import ServerSecurity
from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.errors import TlsMismatch, Unauthenticated, Unavailable, Unimplemented
from osmosis_grpc.server import AgentServer
from osmosis_grpc.trainer import ClientTls, Credentials, RolloutClient, ServerTls, Trainer, TrainerConfig
from tests.callback_trainer import CallbackTrainer
from tests.ports import quiet_port
from tests.processes import ROOT, run
from tests.trainer.conftest import talker
from tests.waiting import ended, until

MESSAGES = [{"role": "user", "content": "Say hello."}]
TOKEN = "a-token-of-sixteen-characters-or-more"


def policy(request):
    return answer(request, "hello")


@pytest.fixture
def certificates(tmp_path):
    """A folder with certificates: ca.pem, other-ca.pem, and CERT and KEY of 127.0.0.1, of another name, of a caller."""
    ca, other = trustme.CA(), trustme.CA()
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    other.cert_pem.write_to_path(tmp_path / "other-ca.pem")
    for name, host in (("server", "127.0.0.1"), ("elsewhere", "elsewhere.test"), ("caller", "caller.test")):
        cert = ca.issue_cert(host)
        cert.cert_chain_pems[0].write_to_path(tmp_path / f"{name}.pem")
        cert.private_key_pem.write_to_path(tmp_path / f"{name}.key")
    return tmp_path


@contextlib.asynccontextmanager
async def agent_server(tokens=(), tls=None, port=0):
    async with AgentServer([talker()], port=port, security=ServerSecurity(tokens, tls=tls, insecure=False)) as server:
        yield server.address


@contextlib.asynccontextmanager
async def other_grpc_server():
    async with CallbackTrainer(policy) as server:
        yield server.address


@contextlib.asynccontextmanager
async def http_server():
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body", "body": b"not here"})

    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical", lifespan="off"))
    task = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    yield f"127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    await task


def cases(folder):
    """By name: the server, how it is dialled, the error, and what that says."""
    tls = ServerTls(cert=folder / "server.pem", key=folder / "server.key")
    elsewhere = ServerTls(cert=folder / "elsewhere.pem", key=folder / "elsewhere.key")
    mutual = ServerTls(cert=folder / "server.pem", key=folder / "server.key", client_ca=folder / "ca.pem")
    trusting = ClientTls(ca=folder / "ca.pem")
    return {
        "no token": (agent_server(TOKEN), {}, Unauthenticated, "pass its token as `token`"),
        "wrong token": (agent_server(TOKEN), {"token": TOKEN[::-1]}, Unauthenticated, "check the `token`"),
        "plain to tls": (agent_server(tls=tls), {}, TlsMismatch, r"speaks TLS .* pass tls=ClientTls\(ca=...\)"),
        "plain to mutual tls": (agent_server(tls=mutual), {}, TlsMismatch, "speaks TLS"),
        "tls to plain": (agent_server(), {"tls": trusting}, TlsMismatch, "speaks plain text .* leave out `tls`"),
        "wrong ca": (agent_server(tls=tls), {"tls": ClientTls(ca=folder / "other-ca.pem")}, TlsMismatch, "name its CA"),
        "wrong name": (agent_server(tls=elsewhere), {"tls": trusting}, TlsMismatch, "server_name"),
        "other grpc": (other_grpc_server(), {}, Unimplemented, "name the gRPC address"),
        "http": (http_server(), {}, Unimplemented, "answers in HTTP/1"),
        "tls to http": (http_server(), {"tls": trusting}, TlsMismatch, "speaks plain text"),
    }


SCRIPT = """
import asyncio, os, sys
from osmosis_grpc.protocol.errors import TlsMismatch
from osmosis_grpc.policies import EchoPolicy
from osmosis_grpc.trainer import ClientTls, Credentials, Trainer

before = os.environ.get("GRPC_VERBOSITY")

async def main():
    async with Trainer([sys.argv[1]], EchoPolicy(), credentials=Credentials(tls=ClientTls(ca=sys.argv[2]))) as trainer:
        try:
            await trainer.rollout(rollout_id="r")
        except TlsMismatch as error:
            print(before, error)

asyncio.run(main())
"""


@pytest.mark.parametrize("verbosity", [None, pytest.param("INFO", marks=pytest.mark.slow)])
async def test_a_failed_handshake_has_no_line_of_grpc_core_unless_the_user_asks_for_it(certificates, verbosity):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    env = clean if verbosity is None else clean | {"GRPC_VERBOSITY": verbosity}
    async with agent_server() as target:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            SCRIPT,
            target,
            str(certificates / "ca.pem"),
            cwd=ROOT,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        out, err = await asyncio.wait_for(process.communicate(), 50)
    assert out.decode().startswith(f"{verbosity} no TLS connection to server {target}"), err.decode()
    assert (b"ssl_transport_security" in err) == (verbosity is not None), err.decode()


NAMES = (
    "no token",
    "wrong token",
    "plain to tls",
    "plain to mutual tls",
    "tls to plain",
    "wrong ca",
    "wrong name",
    "other grpc",
    "http",
    "tls to http",
)


@pytest.mark.parametrize("name", NAMES)
async def test_an_attached_trainer_fails_at_once_and_says_what_to_do(certificates, caplog, name):
    server, how, error, advice = cases(certificates)[name]
    async with (
        server as address,
        Trainer([address], policy, credentials=Credentials(**how), config=TrainerConfig(lost_after=3600)) as trainer,
    ):
        with pytest.raises(error, match=advice) as raised:
            await trainer.rollout(rollout_id="r1", messages=MESSAGES)
        assert address in str(raised.value)
        with pytest.raises(error, match=advice):
            await trainer.rollout(rollout_id="r2", messages=MESSAGES)
        assert address in caplog.text
        assert TOKEN not in caplog.text


@pytest.mark.parametrize("name", ["no token", "plain to tls", "other grpc"])
async def test_a_client_fails_at_once_and_says_what_to_do(certificates, refused_at_once, name):
    server, how, error, advice = cases(certificates)[name]
    async with server as address, RolloutClient(address, lost_after=3600, **how) as client:
        for call in (client.info(), ended(client, "r1"), anext(client.events("r1"))):
            with pytest.raises(error, match=advice) as raised:
                await call
            assert address in str(raised.value)


async def test_a_server_that_refuses_leaves_the_others_their_rollouts(caplog):
    async with (
        agent_server(TOKEN) as refusing,
        agent_server() as good,
        Trainer([refusing, good], policy, config=TrainerConfig(lost_after=3600)) as trainer,
    ):
        waits = [trainer.rollout(rollout_id=f"r{n}", messages=MESSAGES) for n in range(8)]
        outcomes = await asyncio.gather(*waits)
        await until(lambda: f"server {refusing} refuses this caller" in caplog.text)
    assert all(outcome.reward == 1.0 for outcome in outcomes)
    refusals = [record for record in caplog.records if "refuses this caller" in record.getMessage()]
    assert [record.levelno for record in refusals] == [logging.WARNING], "one line, however often it is dialled"


async def test_a_refused_server_that_is_mended_is_used():
    async with contextlib.AsyncExitStack() as stack:
        port = quiet_port()
        async with agent_server(TOKEN, port=port) as address:
            trainer = await stack.enter_async_context(
                Trainer([address], policy, config=TrainerConfig(longest_pause=0.1))
            )
            with pytest.raises(Unauthenticated):
                await trainer.rollout(rollout_id="r1", messages=MESSAGES)
        await stack.enter_async_context(agent_server(port=port))
        await until(lambda: trainer.servers[0].attached)
        outcome = await trainer.rollout(rollout_id="r2", messages=MESSAGES)
    assert outcome.reward == 1.0


@pytest.mark.parametrize("behaviour", ["refuses connections", "closes connections"])
async def test_a_server_that_is_not_there_yet_is_waited_for_and_warned_of(caplog, behaviour):
    port = quiet_port()
    address = f"127.0.0.1:{port}"
    async with contextlib.AsyncExitStack() as stack:
        closing = None
        if behaviour == "closes connections":
            closing = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", port)
        trainer = await stack.enter_async_context(Trainer([address], policy, config=TrainerConfig(longest_pause=0.1)))
        waiting = asyncio.create_task(trainer.rollout(rollout_id="r1", messages=MESSAGES))
        await until(lambda: f"server {address} cannot be reached" in caplog.text)
        if closing is not None:
            closing.close()
            await closing.wait_closed()
        await stack.enter_async_context(agent_server(port=port))
        outcome = await waiting
    assert outcome.reward == 1.0


async def test_a_server_that_was_attached_and_refuses_later_is_waited_for(caplog):
    """Its token is being changed, or it is behind something that is: what worked once is no mistake of the user's."""
    async with contextlib.AsyncExitStack() as stack:
        port = quiet_port()
        async with agent_server(port=port) as address:
            trainer = await stack.enter_async_context(
                Trainer([address], policy, config=TrainerConfig(longest_pause=0.1))
            )
            await trainer.rollout(rollout_id="r1", messages=MESSAGES)
        async with agent_server(TOKEN, port=port):
            await until(lambda: "refuses this caller" in caplog.text)
            waiting = asyncio.create_task(trainer.rollout(rollout_id="r2", messages=MESSAGES))
            await asyncio.sleep(0)
            assert not waiting.done()
        await stack.enter_async_context(agent_server(port=port))
        outcome = await waiting
    assert outcome.reward == 1.0


async def test_a_server_that_may_want_a_certificate_is_tried_again_with_a_hint(certificates, caplog):
    mutual = ServerTls(
        cert=certificates / "server.pem", key=certificates / "server.key", client_ca=certificates / "ca.pem"
    )
    trusting = ClientTls(ca=certificates / "ca.pem")
    async with agent_server(tls=mutual) as address, Trainer([address], policy, credentials=Credentials(tls=trusting)):
        await until(lambda: "if it asks for a client certificate" in caplog.text)
        assert f"server {address} cannot be reached" in caplog.text


async def test_a_client_warns_of_a_server_that_is_away(caplog, refused_at_once):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    async with RolloutClient(address, lost_after=1.0) as client:
        with pytest.raises(Unavailable):
            await ended(client, "r1")
    assert f"server {address} cannot be reached" in caplog.text


@pytest.mark.slow
def test_a_script_that_names_a_wrong_port_sees_why_on_stderr(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    (tmp_path / "train.py").write_text(ONE_ROLLOUT)
    done = run("train.py", address, cwd=tmp_path)
    lines = done.stderr.splitlines()
    warnings = [line for line in lines if line.startswith(f"server {address} cannot be reached")]
    assert len(warnings) == 2, done.stderr
    assert "it refuses connections; start it" in warnings[0]
    assert "Unavailable" in done.stdout


ONE_ROLLOUT = """
import asyncio, sys
from osmosis_grpc.protocol.errors import CallError
from osmosis_grpc.trainer import Trainer, TrainerConfig

async def main(target):
    async with Trainer([target], lambda request: None, config=TrainerConfig(lost_after=7.0)) as trainer:
        try:
            await trainer.rollout(rollout_id="r1", messages=[])
        except CallError as error:
            print(type(error).__name__, error)

asyncio.run(main(sys.argv[1]))
"""
