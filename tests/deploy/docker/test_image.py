"""The image of deploy/docker/Dockerfile runs, and trainers on the host get rewards through it."""

import asyncio

import aiohttp
import pytest

from osmosis_grpc.policies import ToolCallingMock
from osmosis_grpc.trainer import RolloutRequest, Trainer
from tests.deploy.docker.conftest import TOKEN, USER
from tests.gateway.legacy import LegacyTrainer

pytestmark = [pytest.mark.docker, pytest.mark.slow]
BRIDGE = "{{(index .IPAM.Config 0).Gateway}}"
AT_ONCE = 6


def requests(prefix, count):
    for number in range(count):
        messages = [{"role": "user", "content": f"What is {number} + 3?"}]
        yield RolloutRequest(
            rollout_id=f"{prefix}-{number}", messages=messages, metadata={"ground_truth": str(number + 3)}
        )


async def test_trainers_on_the_host_get_rewards_over_grpc_and_over_http(docker, new_server, credentials):
    host = docker("network", "inspect", "bridge", "-f", BRIDGE)
    with new_server("both") as server:
        server.start()
        assert docker("exec", server.name, "id", "-u") == str(USER)
        assert docker("exec", server.name, "sh", "-c", "touch /agents/file 2> /dev/null || echo refused") == "refused"
        async with Trainer([server.address], ToolCallingMock(), credentials=credentials) as trainer:
            outcomes = [outcome async for outcome in trainer.run(requests("grpc", 4))]
        url, headers = f"http://127.0.0.1:{server.http_port}", {"Authorization": f"Bearer {TOKEN}"}
        async with LegacyTrainer(host=host) as old, aiohttp.ClientSession(url, headers=headers) as session:
            async with session.post("/v1/rollout/init", json=old.init_body("http-1")) as answer:
                assert answer.status == 202, await answer.text()
            completed = await old.completed()
        assert server.stop() == 0
    assert {outcome.reward for outcome in outcomes} == {1.0}
    assert completed["reward"] == 1.0


async def test_no_rollout_is_lost_when_containers_are_replaced_one_after_the_other(new_server, credentials):
    """Two servers with a volume each; their containers are stopped and started while a trainer runs rollouts."""
    mock, asked, stopped = ToolCallingMock(), 0, asyncio.Event()

    async def policy(request):
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.05)  # as a model takes
        return await mock(request)

    def endless():
        for number, request in enumerate(requests("rolling", 100_000)):
            if stopped.is_set() and number % AT_ONCE == 0:
                return
            began.append(request.rollout_id)
            yield request

    with new_server("first") as first, new_server("second") as second:
        for server in (first, second):
            server.start()
        began, ended, codes = [], [], []
        addresses = [first.address, second.address]
        async with Trainer(addresses, policy, credentials=credentials) as trainer, asyncio.TaskGroup() as group:

            async def replace():
                for server in (first, second):
                    codes.append(await asyncio.to_thread(server.stop))
                    await asyncio.to_thread(server.start)
                stopped.set()

            group.create_task(replace())
            async for outcome in trainer.run(endless(), retries=2, max_in_flight=AT_ONCE):
                ended.append(outcome)
    assert codes == [0, 0]
    assert sorted(outcome.rollout_id for outcome in ended) == sorted(began)
    assert {outcome.reward for outcome in ended} == {1.0}
