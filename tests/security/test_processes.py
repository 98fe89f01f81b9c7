"""The real commands: where they refuse to listen, what they refuse to start with, and that they tell no secret."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import aclosing

import httpx
import pytest

from osmosis_grpc.network.tls import client_context
from osmosis_grpc.policies import ToolCallingMock
from osmosis_grpc.protocol.errors import InvalidArgument, Unauthenticated
from osmosis_grpc.trainer import Callback, RolloutClient
from tests.callback_trainer import CallbackTrainer
from tests.gateway.conftest import RawTrainer
from tests.processes import ROOT, run, serving
from tests.security.conftest import TOKEN
from tests.waiting import ended

CALCULATOR = ("-m", "osmosis_grpc.testing.calculator:agent_loop")
QUESTION = [{"role": "user", "content": "What is 1 + 2?"}]
PUBLIC = ("--host", "0.0.0.0")

pytestmark = pytest.mark.slow  # each test starts processes


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OSMOSIS_")}
    return kept | {"OSMOSIS_ROLLOUT_SERVER_STATE_DIR": ":memory:"} | more


def tls(files, *more: str) -> tuple[str, ...]:
    return ("--tls-cert", str(files.folder / "server.pem"), "--tls-key", str(files.folder / "server.key"), *more)


REFUSED = {
    "public, with nothing": ((*PUBLIC,), {}, "needs a token or TLS"),
    "an address that is not loopback": (("--host", "192.168.0.1"), {}, "needs a token or TLS"),
    "all of IPv6": (("--host", "::"), {}, "needs a token or TLS"),
    "a name": (("--host", "example.com"), {}, "needs a token or TLS"),
    "a token in plain text": ((*PUBLIC, "--token", TOKEN), {}, "plain text"),
    "a token of the environment": ((*PUBLIC,), {"OSMOSIS_ROLLOUT_SERVER_TOKEN": TOKEN}, "plain text"),
    "a trainer's token in plain text": (("--connect", "10.0.0.1:1", "--connect-token", TOKEN), {}, "plain text"),
    "the same from the environment": (
        ("--connect", "10.0.0.1:1"),
        {"OSMOSIS_ROLLOUT_SERVER_CONNECT_TOKEN": TOKEN},
        "plain text",
    ),
    "keys of legacy agents": (
        ("--legacy-agent", "x=http://127.0.0.1:1", "--legacy-listen", "0.0.0.0:0"),
        {},
        "--legacy-listen",
    ),
    "a certificate without a key": (("--tls-cert", "x.pem"), {}, "--tls-cert and --tls-key go together"),
    "files that are not there": (("--tls-cert", "x.pem", "--tls-key", "y.key"), {}, "x.pem cannot be read"),
    "a token that is none": (("--token", f" {TOKEN}"), {}, "--token"),
    "tracers that print tokens": ((), {"GRPC_TRACE": "all"}, "--unsafe-trace"),
}


FAST = ("public, with nothing", "a token in plain text", "a trainer's token in plain text", "tracers that print tokens")


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case in FAST else pytest.mark.slow) for case in REFUSED]
)
def test_forbidden_targets_are_refused(forked, case):
    arguments, more, text = REFUSED[case]
    command = ("-m", "osmosis_grpc.serve", *CALCULATOR, "--no-http", "--grpc-port", "0", *arguments)
    result = forked.run(*command, env=environment(**more))
    assert (result.returncode, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("serve: ")
    assert text in line
    assert TOKEN not in line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "more", "text"),
    [
        (PUBLIC, {}, "needs a token or TLS"),
        ((*PUBLIC, "--token", TOKEN), {}, "plain text"),
        (("--target", "10.0.0.1:1", "--target-token", TOKEN), {}, "plain text"),
        (("--target", "10.0.0.1:1"), {"OSMOSIS_ROLLOUT_CLIENT_TOKEN": TOKEN}, "plain text"),
        (("--target-ca", "x.pem"), {}, "x.pem cannot be read"),
        ((), {"GRPC_TRACE": "http"}, "--unsafe-trace"),
    ],
)
def test_urls_that_only_the_gateway_refuses(arguments, more, text):
    command = ("-m", "osmosis_gateway", "--target", "127.0.0.1:1", "-p", "0", "--callback-port", "0", *arguments)
    result = run(*command, env=environment(**more))
    assert (result.returncode, result.stdout) == (2, "")
    *warnings, line = result.stderr.splitlines()
    assert all("every program on this machine can read a command line" in warning for warning in warnings)
    assert text in line
    assert TOKEN not in line


async def test_a_public_address_over_tls_with_a_token(files):
    def start():
        with serving(*CALCULATOR, *PUBLIC, *tls(files, "--token", TOKEN), "-p", "0", env=environment()) as (_, ready):
            return asyncio.run(used(ready))

    async def used(ready):
        at = {name: f"127.0.0.1:{ready[name].rpartition(':')[2]}" for name in ("grpc", "http")}
        async with RolloutClient(at["grpc"], token=TOKEN, tls=files.client()) as client:
            version = (await client.info()).version
        async with RolloutClient(at["grpc"], tls=files.client()) as client:
            with pytest.raises(Unauthenticated):
                await client.info()
        verify = client_context(files.client())
        async with httpx.AsyncClient(base_url=f"https://{at['http']}", verify=verify, trust_env=False) as client:
            shown = {"authorization": f"Bearer {TOKEN}"}
            statuses = [(await client.get("/platform/health", headers=h)).status_code for h in ({}, shown)]
        return version, statuses

    version, statuses = await asyncio.to_thread(start)
    assert version
    assert statuses == [401, 200]


def test_insecure_is_believed():
    with serving(*CALCULATOR, *PUBLIC, "--insecure", "--token", TOKEN, "-p", "0", env=environment()) as (_, ready):
        assert ready["grpc"].startswith("0.0.0.0:")
        assert ready["http"].startswith("0.0.0.0:")


def test_tls_alone_is_enough_and_warned_of(files):
    with serving(*CALCULATOR, *PUBLIC, *tls(files), env=environment()) as (process, _):
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=20)
    assert "require a credential with --token-file or --tls-client-ca" in err


@pytest.mark.slow
async def test_the_gateway_alone_in_front_of_a_guarded_server(files, tmp_path):
    """HTTPS with a token on one side, mTLS with another token on the other."""
    server = serving(
        *CALCULATOR, *tls(files, "--tls-client-ca", str(files.ca), "--token", "of-the-server"), env=environment()
    )
    with server as (_, ready):
        command = [
            sys.executable,
            "-m",
            "osmosis_gateway",
            "--target",
            ready["grpc"],
            "-p",
            "0",
            "--callback-port",
            "0",
            "--json",
            "--target-ca",
            str(files.ca),
            "--target-cert",
            str(files.folder / "client.pem"),
            "--target-key",
            str(files.folder / "client.key"),
            "--token",
            TOKEN,
            *tls(files),
        ]
        with subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment(OSMOSIS_ROLLOUT_CLIENT_TOKEN="of-the-server"),
        ) as gateway:
            try:
                http = json.loads(await asyncio.to_thread(gateway.stdout.readline))["http"]
                verify = client_context(files.client())
                async with (
                    RawTrainer() as trainer,
                    httpx.AsyncClient(base_url=f"https://{http}", verify=verify, trust_env=False) as client,
                ):
                    assert (await client.post("/v1/rollout/init", json=trainer.body())).status_code == 401
                    shown = {"authorization": f"Bearer {TOKEN}"}
                    answer = await client.post("/v1/rollout/init", json=trainer.body(), headers=shown)
                    assert answer.status_code == 202
                    assert (await trainer.outcome())["status"] == "COMPLETED"
            finally:
                gateway.kill()


CANARIES = {
    name: f"canary-{name}-3f9d" for name in ("option", "environment", "connect", "wrong", "trainer", "callback", "http")
}


@pytest.mark.slow
async def test_no_secret_is_logged(tmp_path):
    """Calls fail and succeed at level DEBUG: neither the logs nor any answer has a secret."""
    arguments = (
        *CALCULATOR,
        "-p",
        "0",
        "--log-level",
        "debug",
        "--log",
        str(tmp_path),
        "--token",
        CANARIES["option"],
        "--connect",
        "127.0.0.1:1",
        "--connect-token",
        CANARIES["connect"],
        "--drain-timeout",
        "0.5",
    )
    more = {"OSMOSIS_ROLLOUT_SERVER_TOKEN": f"lab={CANARIES['environment']}"}
    seen: list[str] = []

    def echoing(request):
        raise InvalidArgument("credential", f"{request.credential} is what you have shown")

    async def used(ready):
        async with (
            CallbackTrainer(ToolCallingMock(), tokens=CANARIES["trainer"]) as good,
            CallbackTrainer(echoing, tokens=CANARIES["callback"]) as bad,
            RawTrainer() as old,
            RolloutClient(ready["grpc"], token=CANARIES["environment"]) as client,
        ):
            for token in (CANARIES["wrong"], CANARIES["option"][:-1]):
                async with RolloutClient(ready["grpc"], token=token) as stranger:
                    with pytest.raises(Unauthenticated) as refused:
                        await stranger.init(rollout_id="x", callback=good.callback())
                    seen.append(str(refused.value))
            callbacks = {
                "completed": good.callback(),
                "the token": good.callback(credential=CANARIES["trainer"]),
                "refused": Callback(target=good.address, credential=CANARIES["callback"]),
                "echoed": Callback(target=bad.address, credential=CANARIES["callback"]),
                "away": Callback(target="127.0.0.1:1", credential=CANARIES["callback"]),
            }
            for name, callback in callbacks.items():
                seen.append(repr(callback))
                await client.init(rollout_id=name, messages=QUESTION, callback=callback)
            with pytest.raises(InvalidArgument) as refused:
                bad_one = Callback(target="169.254.169.254:1", credential=CANARIES["callback"])
                await client.init(rollout_id="y", callback=bad_one)
            seen.append(str(refused.value))
            http = f"http://{ready['http']}"
            async with httpx.AsyncClient(base_url=http, trust_env=False) as session:
                for shown in (CANARIES["wrong"], CANARIES["option"]):
                    for body in (old.body(api_key=CANARIES["http"]), {"api_key": CANARIES["http"]}):
                        answer = await session.post(
                            "/v1/rollout/init", json=body, headers={"authorization": f"Bearer {shown}"}
                        )
                        seen.append(answer.text)
            await old.outcome()
            outcomes = {name: await ended(client, name) for name in callbacks if name != "away"}
            assert {name: str(row.status) for name, row in outcomes.items()} == {
                "completed": "COMPLETED",
                "the token": "COMPLETED",
                "refused": "FAILED",
                "echoed": "FAILED",
            }
            assert "[credential]" in outcomes["echoed"].failure.message
            seen.append(repr(outcomes))
            async with RolloutClient(ready["grpc"], token=CANARIES["option"]) as other:
                for name, owner in [*((name, client) for name in callbacks), ("r1", other)]:
                    seen.append(repr(await owner.get(name)))
                    last = "ChatRequested" if name == "away" else "Ended"
                    async with asyncio.timeout(20), aclosing(owner.events(name)) as events:
                        async for event in events:
                            seen.append(repr(event))
                            if type(event.kind).__name__ == last:
                                break
            seen.extend([repr(row) async for row in client.rollouts()])

    def start():
        with serving(*arguments, env=environment(**more)) as (process, ready):
            seen.append(json.dumps(ready))
            asyncio.run(used(ready))
            process.send_signal(signal.SIGTERM)
            seen.extend(process.communicate(timeout=30))

    await asyncio.to_thread(start)
    logs = [path.read_text() for path in tmp_path.rglob("*.jsonl")]
    assert len(logs) == 6
    everything = "\n".join([*seen, *logs])
    assert "no credential, or a wrong one" in everything
    assert {name for name, secret in CANARIES.items() if secret[:-1] in everything} == set()
