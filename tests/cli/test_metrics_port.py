"""serve --metrics-port: a process of its own, scraped over a socket."""

import os
import signal
import socket
import urllib.request

import pytest

from tests.cli.test_extras import advised, without
from tests.observability.scrape import Page
from tests.processes import ROOT, run, serving

CALCULATOR = ("-m", "osmosis_grpc.testing.calculator:agent_loop")
SERVE = ("-m", "osmosis_grpc.serve", *CALCULATOR, "--grpc-port", "0", "--no-http")
VARIABLE = "OSMOSIS_ROLLOUT_SERVER_METRICS_PORT"
CANARY = "canary-of-a-server-token"


def fetch(address):
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
        assert answer.status == 200
        return Page(answer.read().decode())


@pytest.mark.parametrize("how", ["option", pytest.param("variable", marks=pytest.mark.slow)])
def test_port_0_picks_a_free_port_and_says_which(how):
    arguments, environment = (["--metrics-port", "0"], {}) if how == "option" else ([], {VARIABLE: "0"})
    environment |= {"OSMOSIS_ROLLOUT_SERVER_TOKEN": CANARY}
    with serving(*CALCULATOR, *arguments, env=os.environ | environment) as (process, ready):
        host, _, port = ready["metrics"].rpartition(":")
        assert (host, port != "0") == ("127.0.0.1", True)
        page = fetch(ready["metrics"])
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=30)
    assert process.returncode == 0
    assert page.labels("osmosis_rollouts_in_flight", "agent") == {"calculator"}
    assert ready["metrics"] in log, "the log names the port"
    assert CANARY not in page.text


@pytest.mark.slow
def test_there_is_no_such_port_by_default():
    with serving(*CALCULATOR) as (_, ready):
        assert "metrics" not in ready


@pytest.mark.slow
def test_a_port_in_use_is_one_line():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = run(*SERVE, "--metrics-port", port)
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("serve: ")]
    assert done.returncode == 2
    assert line.startswith(f"serve: cannot listen on 127.0.0.1:{port}: ")
    assert line.endswith("; --metrics-port chooses another port")


@pytest.mark.slow
def test_a_missing_library_is_one_line_where_metrics_are_asked_for(tmp_path):
    environment = without(tmp_path, "prometheus_client")
    done = run(*SERVE, "--metrics-port", "0", env=environment)
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("serve: ")]
    assert done.returncode == 2
    assert line.startswith("serve: --metrics-port: metrics needs the extra 'server': pip install ")
    assert advised(line) == ["pip", "install", "-e", f"{ROOT}[server]"]
    with serving(*CALCULATOR, env=environment) as (process, ready):
        assert "metrics" not in ready
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    assert process.returncode == 0
