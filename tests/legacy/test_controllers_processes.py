"""The controllers of POST /rollout against `serve -m`: a workflow, an agent loop, and kills of the server."""

import asyncio
import os

import aiohttp
import pytest

from tests.legacy.old_controller import OldController, answer
from tests.legacy.polling_client import Admission, PollingClient, Refused
from tests.legacy.test_controllers import multiplies
from tests.ports import quiet_port
from tests.processes import serving
from tests.waiting import until

WORKFLOW, LOOP = "tests.legacy.workflows:Sums", "tests.legacy.workflows:Loop"
PLACES = ["init.committed", "rollout.started", "chat.open:2", "result.before", "result.committed", "outcome.before"]


@pytest.mark.slow
@pytest.mark.parametrize("one_sample", [False, True], ids=["0.2.18", "0.3.0"])
@pytest.mark.parametrize("agent", [WORKFLOW, LOOP], ids=["workflow", "agent-loop"])
@pytest.mark.row("SDK 80")
async def test_serve_plays_with_a_controller(agent, one_sample):
    async with OldController(multiplies if agent is LOOP else answer, one_sample=one_sample) as controller:
        with serving("-m", agent, "-p", "0", "--no-journal") as (_, ready):
            await asyncio.gather(*(controller.start(ready["http"], f"r{number}") for number in range(20)))
            ends = [await controller.ended(f"r{number}") for number in range(20)]
    assert {(completion.status, graded.status) for completion, graded in ends} == {("success", "success")}
    assert (len(controller.calls), controller.stale) == (40, [])


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.row("SDK 69", "SDK 80")
async def test_a_server_that_is_killed_delivers_both_callbacks_once_it_is_started_again(place, tmp_path):
    options = ("-p", str(quiet_port()), "--state-dir", str(tmp_path / "state"))
    async with OldController(multiplies) as controller:
        environment = os.environ | {"OSMOSIS_FAILPOINT": place}
        with serving("-m", LOOP, *options, env=environment) as (process, ready):
            try:
                await controller.start(ready["http"])
            except aiohttp.ClientError:
                assert place in ("init.committed", "rollout.started")
            await asyncio.to_thread(process.wait, 30)
        assert process.returncode == -9
        with serving("-m", LOOP, *options) as (_, ready):
            completion, graded = await controller.ended()
            if place == "outcome.before":
                await until(lambda: len(controller.stale) == 2)
            calls = list(controller.calls)
            assert await controller.start(ready["http"]) == (200, {})
    assert completion.err_message is None
    assert (completion.status, graded.status, graded.samples["main"].reward) == ("success", "success", 1.0)
    asked = [len(body["messages"]) for _, _, body in controller.chats]
    assert sorted(set(asked)) == [1, 3]
    most = 2 if place in ("chat.open:2", "result.before") else 1  # then the replies are possibly not in the journal
    assert {asked.count(1), asked.count(3)} <= set(range(1, most + 1)), "no recorded chat is asked again"
    assert calls == [("completed", "r1"), ("grader", "r1")] * (2 if place == "outcome.before" else 1)


@pytest.mark.slow
@pytest.mark.parametrize("agent", [WORKFLOW, LOOP], ids=["workflow", "agent-loop"])
@pytest.mark.row("SDK S15")
async def test_serve_plays_with_a_trainer_that_polls(agent):
    async with PollingClient(multiplies if agent is LOOP else answer) as client:
        with serving("-m", agent, "-p", "0", "--max-concurrent", "4", "--no-journal") as (_, ready):
            results = await asyncio.gather(*(client.run(ready["http"], f"r{number}") for number in range(20)))
    assert {(result.status, result.sample.reward) for result in results} == {("success", 1.0)}


@pytest.mark.slow
@pytest.mark.parametrize("place", [*PLACES[2:], "after"])
@pytest.mark.row("SDK 69", "SDK S15")
async def test_a_lease_outlives_a_killed_server(place, tmp_path):
    """The kill comes within the rollout, between its end and its delivery, or after the delivery."""
    options = ("-p", str(quiet_port()), "--state-dir", str(tmp_path / "state"))
    async with PollingClient(multiplies) as client:
        environment = os.environ if place == "after" else os.environ | {"OSMOSIS_FAILPOINT": place}
        with serving("-m", LOOP, *options, env=environment) as (process, ready):
            admission = await client.admit(ready["http"])
            try:
                await client.result(ready["http"], admission)
            except aiohttp.ClientError:
                assert place != "after"
            if place == "after":
                await until(lambda: _delivered(client, ready["http"]))
                process.kill()
            await asyncio.to_thread(process.wait, 30)
        with serving("-m", LOOP, *options) as (_, ready):
            result = await client.result(ready["http"], admission)
            wrong = Admission(**admission.model_dump() | {"polling_lease_token": "wrong"})
            with pytest.raises(Refused, match="403"):
                await client.poll(ready["http"], wrong)
            with pytest.raises(Refused, match="409"):
                await client.admit(ready["http"])
            await until(lambda: _delivered(client, ready["http"]))
    assert (result.status, result.sample.reward) == ("success", 1.0)


async def _delivered(client, address):
    health = await client.call(address, "GET", "/health")
    return not health["undelivered"] and not health["active_rollouts"]
