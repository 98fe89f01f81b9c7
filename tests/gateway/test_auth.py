"""Who may start rollouts: whoever shows the server's token; nobody sees it."""

import asyncio
import json
import logging
import os
import signal

import httpx
import pytest

from osmosis_grpc.rollout import RolloutServerSettings, RolloutSettings
from tests.gateway.conftest import INIT, RawTrainer
from tests.processes import serving

TOKEN = "osm_rollout_a-secret-of-the-server"
SHOWN = [f"Bearer {TOKEN}", f"bearer {TOKEN}", f"BEARER {TOKEN}", TOKEN, f"Bearer  {TOKEN}"]
NOT_SHOWN = [
    None,
    "",
    "Bearer",
    "Bearer wrong",
    "wrong",
    f"Bearer {TOKEN[:-1]}",
    TOKEN[:-1],
    f"{TOKEN}x",
    f"x{TOKEN}",
    f"Bearer {TOKEN}x",
    f"Basic {TOKEN}",
    f"Token {TOKEN}",
    f"Bearer Bearer {TOKEN}",
    f"Bearer{TOKEN}",
    f"Bearer {TOKEN.upper()}",
    f"Bearer {TOKEN}, Bearer {TOKEN}",
    f"Bearer {TOKEN}\xe9",
    "Bearer \xff\xfe",
    "a" * 10_000,
    f"Bearer\t{TOKEN}x",
    "Bearer None",
    "Bearer null",
    "None",
    f"Bearer {TOKEN[0]}",
]
HOSTS = {
    "[::1]evil.com": False,
    "[::1].evil.com": False,
    "[::1]:80.evil.com": False,
    "[::1%25evil.com]": False,
    "127.0.0.1:80.evil.com": False,
    "127.0.0.1:evil.com": False,
    "127.0.0.1:80:81": False,
    "127.0.0.1@evil.com": False,
    "localhost:80.evil.com": False,
    "localhost:evil.com": False,
    "::1": False,
    "[127.0.0.1]": False,
    ":80": False,
    "localhost:123456": False,
    "127.0.0.1:": False,
    "localhost..": False,
    "a.localhost": True,
    "[::1]": True,
    "[::1]:9000": True,
    "127.0.0.1": True,
    "127.0.0.1:80": True,
    "localhost:80": True,
}


def showing(value):
    return {} if value is None else {"authorization": value.encode("latin-1")}


@pytest.fixture
async def closed(start):
    """A gateway with a token."""
    return await start(token=TOKEN)


async def test_a_token_opens(closed, trainer):
    for number, value in enumerate(SHOWN):
        answer = await closed.init(trainer.body(f"r{number}"), headers=showing(value))
        assert answer.status_code == 202, value
        assert (await closed.client.get("/platform/health", headers=showing(value))).status_code == 200, value
        await trainer.outcome(f"r{number}")


async def test_nothing_else_does(closed, trainer):
    for value in NOT_SHOWN:
        for answer in (
            await closed.init(trainer.body(), headers=showing(value)),
            await closed.client.get("/platform/health", headers=showing(value)),
        ):
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer"), value
            assert TOKEN[:-1] not in answer.text
    await closed.untouched()
    assert trainer.connections == 0


async def test_a_token_is_taken_from_the_header_only(closed, trainer):
    for query, more in (
        (f"?token={TOKEN}&access_token={TOKEN}&api_key={TOKEN}", {}),
        ("", {"cookie": f"token={TOKEN}"}),
        ("", {"x-api-key": TOKEN}),
        ("", {"proxy-authorization": f"Bearer {TOKEN}"}),
    ):
        body = json.dumps(trainer.body(api_key=TOKEN, token=TOKEN))
        headers = {"content-type": "application/json"} | more
        answer = await closed.client.post(INIT + query, content=body, headers=headers)
        assert answer.status_code == 401
    await closed.untouched()


async def test_the_first_of_two_headers_counts(closed, trainer):
    """Whichever it is, a wrong one in front of the right one does not open."""
    headers = [("content-type", "application/json"), ("authorization", "wrong"), ("authorization", f"Bearer {TOKEN}")]
    answer = await closed.client.post(INIT, content=json.dumps(trainer.body()), headers=headers)
    assert answer.status_code == 401


async def test_an_accepted_token_is_not_the_trainers(closed, trainer):
    """The server's token and the trainer's key are two things."""
    await closed.init(trainer.body(), headers=showing(f"Bearer {TOKEN}"))
    await closed.init(trainer.body("r2", api_key="key"), headers=showing(f"Bearer {TOKEN}"))
    await trainer.outcome("r1")
    await trainer.outcome("r2")
    assert {headers.get("authorization") for _, headers, _ in trainer.requests} == {None, "Bearer key"}


async def test_401_comes_before_the_body(closed):
    """Also before anything that is wrong with it is reported."""
    for lines in (
        "Content-Length: 1000",
        "Content-Length: 99999999999",
        "Transfer-Encoding: chunked",
        "Content-Type: text/plain",
        "Content-Encoding: gzip\r\nContent-Length: 5",
        "Content-Length: 1000\r\nExpect: 100-continue",
    ):
        reader, writer = await closed.connect()
        writer.write(f"POST {INIT} HTTP/1.1\r\nHost: x\r\n{lines}\r\n\r\n".encode())
        async with asyncio.timeout(20):
            assert b" 401 " in await reader.readline(), lines  # and no 100 Continue


async def test_platform_health(closed, gateway):
    assert (await gateway.client.get("/platform/health")).status_code == 404
    assert (await gateway.client.get("/platform/health", headers=showing(TOKEN))).status_code == 404
    assert (await closed.client.get("/platform/health")).status_code == 401
    answer = await closed.client.get("/platform/health", headers=showing(TOKEN))
    assert answer.json() == (await closed.client.get("/health")).json()


@pytest.mark.parametrize("token", ["with space", "Bearer x", '"', "a:b", "0"])
async def test_any_token_that_fits_a_header_works(start, trainer, token):
    gateway = await start(token=token)
    assert (await gateway.init(trainer.body())).status_code == 401
    headers = {"authorization": f"Bearer {token}".encode()}
    assert (await gateway.init(trainer.body(), headers=headers)).status_code == 202
    await trainer.outcome()


async def test_a_token_is_neither_logged_nor_answered(start, trainer, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    gateway = await start(token=TOKEN)
    texts = []
    for value in [*SHOWN[:2], *NOT_SHOWN]:
        texts.append((await gateway.init(trainer.body(), headers=showing(value))).text)
        texts.append((await gateway.init(b"{", headers=showing(value))).text)
    texts.append((await gateway.client.get("/openapi.json")).text)
    texts.append(repr(RolloutSettings(server=RolloutServerSettings(token=TOKEN))))
    await trainer.outcome()
    texts += [
        logging.Formatter().format(row) for row in caplog.records if not row.name.startswith(("httpx", "httpcore"))
    ]
    for text in [*texts, *capfd.readouterr()]:
        assert TOKEN[:-1] not in text


@pytest.mark.slow
async def test_the_environment_sets_it():
    environment = os.environ | {"OSMOSIS_ROLLOUT_SERVER_TOKEN": TOKEN}
    arguments = ("-m", "osmosis_grpc.testing.calculator:agent_loop", "-p", "0", "--log-level", "debug")

    def run(trainer_body):
        with serving(*arguments, env=environment) as (process, ready):
            assert set(ready) >= {"grpc", "http"}
            with httpx.Client(base_url=f"http://{ready['http']}", trust_env=False) as client:
                statuses = [
                    client.post(INIT, json=trainer_body, headers=headers).status_code
                    for headers in ({}, showing("Bearer wrong"), showing(f"Bearer {TOKEN}"))
                ]
                statuses += [client.get("/health").status_code, client.get("/platform/health").status_code]
            process.send_signal(signal.SIGTERM)
            return statuses, json.dumps(ready) + process.stdout.read() + process.stderr.read()

    async with RawTrainer() as trainer:
        statuses, reported = await asyncio.to_thread(run, trainer.body())
        assert statuses == [401, 401, 202, 200, 401]
        assert (await trainer.outcome())["status"] == "COMPLETED"
    assert TOKEN[:-1] not in reported


@pytest.mark.parametrize(("host", "let_in"), HOSTS.items())
async def test_what_follows_an_address_in_a_host_header_counts(gateway, host, let_in):
    answer = await gateway.client.get("/openapi.json", headers={"host": host})
    assert answer.status_code == (200 if let_in else 421)
