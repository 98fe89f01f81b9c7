"""Runs the conformance suite in a test: against a server or a trainer that runs in a process of its own."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Sequence

import grpc

from osmosis_grpc.testing.conformance.cases import load
from osmosis_grpc.testing.conformance.report import Result
from osmosis_grpc.testing.conformance.runner import chosen_cases
from osmosis_grpc.testing.conformance.server_session import KINDS as SERVER_KINDS
from osmosis_grpc.testing.conformance.server_session import ServerOptions, server_under_test, test_server
from osmosis_grpc.testing.conformance.trainer_session import KINDS as TRAINER_KINDS
from osmosis_grpc.testing.conformance.trainer_session import test_trainer
from tests.processes import ROOT

AGENT = "osmosis_grpc.testing.conformance:agent"
MODES = ("callback", "attach", "accept", "call")
OWN = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)


@contextlib.contextmanager
def served(*arguments: str, module: str = "osmosis_grpc.serve"):
    """An agent server with the agent `conformance` in a process: yields its address."""
    command = [sys.executable, "-m", module, *arguments, "-m", AGENT, "--grpc-port", "0", "--no-http", "--no-journal"]
    command += ["--json", "--log-level", "error"]
    with _serving(command) as target:
        yield target


@contextlib.contextmanager
def hasty_server(accept: str):
    """The same with short times of silence, so that no case waits long. It dials the trainer at `accept`."""
    with _serving([sys.executable, "-m", "tests.conformance.hasty_server", accept]) as target:
        yield target


@contextlib.contextmanager
def _serving(command: Sequence[str]):
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT) as process:
        try:
            yield json.loads(process.stdout.readline())["grpc"]
        finally:
            process.kill()


async def check_server(
    target: str, names: Sequence[str] = (), *, modes: Sequence[str] = MODES, jobs: int = 8, **options
) -> list[Result]:
    """Returns the results of cases against a server; all cases without names."""
    wanted = ServerOptions(target=target, **({"tokens": {"first": ()}} | options))
    chosen = chosen_cases(load("server", SERVER_KINDS), names, modes)

    def channel() -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(target, options=OWN)

    async with server_under_test(wanted, channel) as under_test:
        return await test_server(under_test, chosen, jobs=jobs, known={}, on_result=lambda _result: None)


async def check_trainer(
    command: str, names: Sequence[str] = (), *, modes: Sequence[str] = MODES, jobs: int = 6
) -> list[Result]:
    """Returns the results of cases against a trainer; all cases without names."""
    chosen = chosen_cases(load("trainer", TRAINER_KINDS), names, modes)
    return await test_trainer(command, chosen, jobs=jobs, known={}, on_result=lambda _result: None)


def failed(results: Sequence[Result]) -> list[str]:
    """Returns the names and reasons of the failed cases."""
    return [f"{result.name}: {result.reason}" for result in results if result.bad]
