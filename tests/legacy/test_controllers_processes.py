"""The controllers of POST /rollout against `serve -m`: a workflow, an agent loop, and kills of the server."""

import asyncio
import os

import aiohttp
import pytest

from tests.legacy.old_controller import OldController, answer
from tests.legacy.test_controllers import multiplies
from tests.processes import serving
from tests.waiting import until

WORKFLOW, LOOP = "tests.legacy.workflows:Sums", "tests.legacy.workflows:Loop"
PLACES = ["init.committed", "rollout.started", "chat.open:2", "result.before", "result.committed", "outcome.before"]


@pytest.mark.slow
@pytest.mark.parametrize("one_sample", [False, True], ids=["0.2.18", "0.3.0"])
@pytest.mark.parametrize("agent", [WORKFLOW, LOOP], ids=["workflow", "agent-loop"])
async def test_r80_serve_plays_with_a_controller(agent, one_sample):
    async with OldController(multiplies if agent is LOOP else answer, one_sample=one_sample) as controller:
        with serving("-m", agent, "-p", "0", "--no-journal") as (_, ready):
            await asyncio.gather(*(controller.start(ready["http"], f"r{number}") for number in range(20)))
            ends = [await controller.ended(f"r{number}") for number in range(20)]
    assert {(completion.status, graded.status) for completion, graded in ends} == {("success", "success")}
    assert (len(controller.calls), controller.stale) == (40, [])


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
async def test_r69_r80_a_server_that_is_killed_delivers_both_callbacks_once_it_is_started_again(place, tmp_path):
    state = ("--state-dir", str(tmp_path / "state"))
    async with OldController(multiplies) as controller:
        environment = os.environ | {"OSMOSIS_FAILPOINT": place}
        with serving("-m", LOOP, "-p", "0", *state, env=environment) as (process, ready):
            try:
                await controller.start(ready["http"])
            except aiohttp.ClientError:
                assert place in ("init.committed", "rollout.started")
            await asyncio.to_thread(process.wait, 30)
        assert process.returncode == -9
        port = ready["http"].rpartition(":")[2]
        with serving("-m", LOOP, "-p", port, *state) as (_, ready):
            completion, graded = await controller.ended()
            if place == "outcome.before":
                await until(lambda: len(controller.stale) == 2)
            calls = list(controller.calls)
            assert await controller.start(ready["http"]) == (200, {})
    assert completion.err_message is None
    assert (completion.status, graded.status, graded.samples["main"].reward) == ("success", "success", 1.0)
    asked = [len(body["messages"]) for _, _, body in controller.chats]
    assert sorted(set(asked)) == [1, 3]
    may_repeat = place in ("chat.open:2", "result.before")  # the reply was not in the journal
    assert len(asked) in ((2, 3) if may_repeat else (2,)), "no recorded chat is asked again"
    assert calls == [("completed", "r1"), ("grader", "r1")] * (2 if place == "outcome.before" else 1)
