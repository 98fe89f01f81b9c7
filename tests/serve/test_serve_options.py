"""Options of `serve` in real processes: budgets, the logs of handshakes, and the viewer."""

import os
import re
import signal
import socket
import subprocess
import urllib.request

import httpx
import pytest
import trustme

from osmosis_grpc.network.credentials import Credentials
from osmosis_grpc.policies.scripted import EchoPolicy
from osmosis_grpc.protocol.errors import ResourceExhausted
from osmosis_grpc.protocol.types import Callback
from osmosis_grpc.trainer import RolloutClient, Trainer
from tests.processes import run, serving

CALCULATOR = ("-m", "osmosis_grpc.testing.calculator:agent_loop")
PLAIN_HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MODULE = ("-m", "osmosis_grpc.testing.calculator:agent_loop")
VIEW = (*MODULE, "--view", "--view-port", "0", "--state-dir", "state")


async def test_the_budgets_are_those_of_the_options(forked, tmp_path):
    budgets = ("--disk-budget", "0.5", "--memory-budget", "16")
    command = ("-m", "osmosis_grpc.serve", *CALCULATOR, *budgets, "--grpc-port", "0", "--metrics-port", "0", "--json")
    with forked.ready(*command, "--no-http", "--state-dir", str(tmp_path)) as (_, ready):
        with urllib.request.urlopen(f"http://{ready['metrics']}/metrics") as page:
            (shown,) = re.findall(r"(?m)^osmosis_journal_budget_bytes (.*)$", page.read().decode())
        assert float(shown) == 0.5 * 1024**3
        async with RolloutClient(ready["grpc"]) as client:
            large = [{"role": "user", "content": "x" * 12_000_000}]
            callback = Callback(target="127.0.0.1:9", credential="c" * 32)
            await client.init(rollout_id="first", messages=large, callback=callback)
            with pytest.raises(ResourceExhausted, match=f"memory_budget of {16 * 1024**2} bytes is full"):
                await client.init(rollout_id="second", messages=large, callback=callback)


@pytest.mark.parametrize("verbosity", [None, pytest.param("INFO", marks=pytest.mark.slow)])
def test_failed_handshakes_do_not_fill_the_log(tmp_path, verbosity):
    made = trustme.CA().issue_cert("127.0.0.1")
    cert, key = tmp_path / "server.pem", tmp_path / "server.key"
    made.cert_chain_pems[0].write_to_path(cert)
    made.private_key_pem.write_to_path(key)
    env = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    env |= {} if verbosity is None else {"GRPC_VERBOSITY": verbosity}
    arguments = (*CALCULATOR, "--no-journal", "--tls-cert", str(cert), "--tls-key", str(key))
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


async def test_the_pages_show_the_rollouts_of_the_server_to_who_has_an_admin_token(forked, tmp_path):
    (tmp_path / "admin").write_text("viewed-by-ada")
    command = ("-m", "osmosis_grpc.serve", *VIEW, "--grpc-port", "0", "--no-http", "--json")
    with forked.ready(*command, "--admin-token-file", "admin", cwd=tmp_path) as (process, ready):
        async with Trainer([ready["grpc"]], EchoPolicy(), credentials=Credentials(token="viewed-by-ada")) as trainer:
            await trainer.rollout(rollout_id="seen", messages=[{"role": "user", "content": "1 + 1"}])
        async with httpx.AsyncClient(base_url=f"http://{ready['view']}", trust_env=False, timeout=20) as browser:
            assert (await browser.get("/")).status_code == 401
            assert (await browser.get("/", params={"token": "wrong"})).status_code == 401
            entered = await browser.get("/", params={"token": "viewed-by-ada"})
            assert (entered.status_code, entered.headers["location"]) == (303, "/")
            page = (await browser.get("/")).text
            assert 'data-id="seen 1"' in page
            assert "viewed-by-ada" not in page
            assert "1 + 1" in (await browser.get("/turn?id=seen&turn=1")).text
            assert "IN USE" in (await browser.get("/server")).text
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0


@pytest.mark.slow
def test_without_tokens_loopback_needs_none(tmp_path):
    with serving(*VIEW, cwd=tmp_path) as (_, ready):
        answer = httpx.get(f"http://{ready['view']}/", trust_env=False)
        assert (answer.status_code, "no rollouts yet" in answer.text) == (200, True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (
            ("--view", "--state-dir", "s", "--host", "0.0.0.0", "--insecure"),
            "so it needs a token: --admin-token-file FILE",
        ),
        (("--view", "--state-dir", "s", "--token-file", "token"), "so it needs a token: --admin-token-file FILE"),
        (("--view", "--no-journal"), "--view reads the journal, so it does not go with --no-journal"),
        (("--view-port", "1"), "serve: --view-port goes with --view"),
    ],
)
def test_a_wrong_option_says_what_to_name_instead(tmp_path, options, problem):
    (tmp_path / "token").write_text("a-secret")
    done = run("-m", "osmosis_grpc.serve", *MODULE, "--grpc-port", "0", "--no-http", *options, cwd=tmp_path)
    assert (done.returncode, problem in done.stderr) == (2, True), done.stderr


@pytest.mark.slow
def test_a_taken_port_is_named(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        options = ("--grpc-port", "0", "--no-http", "--state-dir", "state", "--view", "--view-port", port)
        done = run("-m", "osmosis_grpc.serve", *MODULE, *options, cwd=tmp_path)
    assert (done.returncode, "--view-port chooses another port" in done.stderr) == (2, True), done.stderr
