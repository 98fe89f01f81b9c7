"""Environments of OpenEnv through a server, beside OpenEnv's own client. Run by `make test-environments`."""

import json
import subprocess
import sys
import urllib.request
from contextlib import contextmanager, suppress

import pytest

from osmosis_grpc.environments import open_environment
from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.testing.rollouts import run_rollout
from tests.environments.faults import HOW, assert_it_fails
from tests.environments.parity import TASKS, Played, number_of, through_server
from tests.ports import quiet_port
from tests.processes import ROOT
from tests.waiting import wait_until

pytestmark = [pytest.mark.environments, pytest.mark.filterwarnings("ignore")]
pytest.importorskip("openenv.core")
LOCAL = "tests.environments.openenv_game:Game"


@contextmanager
def served(game):
    address = f"http://127.0.0.1:{quiet_port()}"
    command = [sys.executable, "-m", "tests.environments.openenv_game", address.rpartition(":")[2], game]
    with subprocess.Popen(command, cwd=ROOT) as process:
        try:
            wait_until(lambda: answers(address), timeout=60)
            yield address
        finally:
            process.kill()


@pytest.fixture(scope="module")
def url():
    with served("Game") as address:
        yield address


@pytest.fixture(scope="module")
def wrong_url():
    with served("Wrong") as address:
        yield address


def answers(address):
    with suppress(OSError):
        return urllib.request.urlopen(f"{address}/health").status == 200


def guess(seed_text, turn):
    return str(number_of(f"{seed_text} {turn}", 10))


def reply(messages):
    return guess(messages[-1]["content"], sum(message["role"] == "user" for message in messages))


async def own_client(url):
    from openenv.core.generic_client import GenericEnvClient

    found = {}
    for seed in range(TASKS):
        env = GenericEnvClient(url)
        made, total, turn = await env.reset(seed=seed), 0.0, 0
        while not made.done:
            turn += 1
            made = await env.step({"message": guess(made.observation["text"], turn)})
            total += made.reward
        await env.close()
        found[str(seed)] = Played({"main": total}, {"steps": float(turn), "invalid_actions": 0.0}, turn)
    return found


@pytest.mark.parametrize("place", ["server", "process"])
async def test_rewards_parts_and_turns_are_those_of_the_library(place, url):
    spec = f"openenv:{url if place == 'server' else LOCAL},tasks={TASKS}"
    played, _ = await through_server(spec, reply)
    assert played == await own_client(url)
    assert len({each.rewards["main"] for each in played.values()}) > 1


async def test_what_a_class_takes_is_an_option():
    environment = open_environment(f"openenv:{LOCAL},highest=3")
    metadata = {"task_id": environment.task_id("0")}
    outcome = await run_rollout(
        environment, lambda request: answer(request, "0"), environment.opening, metadata=metadata
    )
    assert outcome.messages[1]["content"] == "A number from 0 to 3."


async def test_an_environment_that_raises_is_named(url):
    for name in (url, LOCAL):
        environment = open_environment(f"openenv:{name}")
        metadata = {"task_id": environment.task_id("0")}
        outcome = await run_rollout(
            environment, lambda request: answer(request, "no number"), environment.opening, metadata=metadata
        )
        assert outcome.status is OutcomeStatus.FAILED
        assert outcome.failure.message.startswith(environment.task_id("0"))


@pytest.mark.parametrize("game", ["Wrong", "WrongAsync"])
@pytest.mark.parametrize("how", [*HOW, "never_ends"])
async def test_what_goes_wrong_is_a_failure_that_names_the_task(how, game):
    spec = f"openenv:{LOCAL.partition(':')[0]}:{game},how={how},seconds=0.5"
    await assert_it_fails(spec, max_turns=3)


@pytest.mark.parametrize("how", [*HOW, "never_ends"])
async def test_what_goes_wrong_on_a_server_is_a_failure_that_names_the_task(how, wrong_url):
    reset = json.dumps({"how": how})
    await assert_it_fails(f"openenv:{wrong_url},reset={reset},seconds=0.5", max_turns=3)


@pytest.mark.parametrize("name", ["http://127.0.0.1:9", "no_such_module:Game", f"{LOCAL},reset"])
def test_a_wrong_name_is_refused(name):
    with pytest.raises(ValueError, match="openenv"):
        open_environment(f"openenv:{name}")
