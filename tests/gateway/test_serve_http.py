"""serve's HTTP server: the flags, the ready record, the port."""

import asyncio
import json
import socket

import aiohttp
import pytest

from tests.gateway.legacy import LegacyTrainer
from tests.gateway.test_contract import health, init
from tests.processes import run, serving
from tests.waiting import until

CALCULATOR = ("-m", "osmosis_grpc.testing.calculator:agent_loop")


@pytest.fixture
def taken():
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        yield str(busy.getsockname()[1])


@pytest.mark.slow
async def test_one_command_serves_both_and_drains_both():
    context = serving(*CALCULATOR, "-p", "0", "--log-level", "error")
    process, ready = await asyncio.to_thread(context.__enter__)
    try:
        async with LegacyTrainer() as trainer, aiohttp.ClientSession(f"http://{ready['http']}") as session:
            trainer.latency = 0.5
            await init(session, trainer.init_body())
            process.terminate()

            async def draining():
                return (await health(session))["status"] == "draining"

            await until(draining)
            refused = await init(session, trainer.init_body("late"))
            done = await trainer.completed()
        code = await asyncio.to_thread(process.wait, 10)
    finally:
        context.__exit__(None, None, None)
    assert ready.keys() == {"event", "grpc", "http", "agent_loops", "pid", "version"}
    assert refused[0] == 503
    assert (done["status"], code) == ("COMPLETED", 0)


@pytest.mark.slow
def test_no_http():
    with serving(*CALCULATOR, "--log-level", "error") as (_, ready):
        assert "http" not in ready


@pytest.mark.slow
def test_a_taken_port_that_was_asked_for_stops_the_start(taken):
    done = run("-m", "osmosis_grpc.serve", *CALCULATOR, "--grpc-port", "0", "-p", taken)
    assert done.returncode == 2
    assert f"127.0.0.1:{taken}" in done.stderr
    assert "--http-port chooses another port" in done.stderr


@pytest.mark.slow
def test_the_default_port_being_taken_does_not(monkeypatch, tmp_path):
    """Somebody who never asked for HTTP is not to be stopped by it."""
    import subprocess
    import sys

    code = (
        "import sys; from osmosis_grpc.settings.settings import RolloutServerSettings as Settings;"
        "Settings.model_fields['http_port'].default = int(sys.argv.pop(1)); Settings.model_rebuild(force=True);"
        "from osmosis_grpc.serve.entrypoint import run, serve;"
        "sys.exit(run(serve))"
    )
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        command = [sys.executable, "-c", code, str(busy.getsockname()[1]), *CALCULATOR, "--grpc-port", "0", "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            ready = json.loads(process.stdout.readline())
            process.terminate()
            reported = process.stderr.read()
    assert "http" not in ready
    assert "no HTTP" in reported


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((*CALCULATOR, "-p", "0", "--no-http"), "--no-http"),
        ((*CALCULATOR, "-p", "65536"), "--http-port"),
        (("--legacy-agent", "127.0.0.1:9000"), "is not http://HOST:PORT"),
        (("--legacy-agent", "http://127.0.0.1:1"), "--legacy-agent http://127.0.0.1:1"),
        (("--legacy-agent", "old=http://127.0.0.1:1", "--legacy-listen", "nowhere"), "--legacy-listen"),
        ((), "-m"),
    ],
)
def test_called_wrongly(forked, arguments, text):
    done = forked.run("-m", "osmosis_grpc.serve", *arguments, "--grpc-port", "0", "--json")
    assert done.returncode == 2
    assert text in done.stderr
    assert "Traceback" not in done.stderr
