"""A server of workflows, over real sockets (rows 70, 75 and 76 of the SDK's list)."""

import hmac
from unittest import mock

import pytest

from osmosis_grpc.network.bearer_tokens import Tokens
from osmosis_grpc.network.server_security import ServerSecurity
from osmosis_grpc.policies import EchoPolicy
from osmosis_grpc.protocol.errors import CallError, Unauthenticated, Unavailable
from osmosis_grpc.protocol.types import Callback
from osmosis_grpc.server import AgentServer
from osmosis_grpc.trainer import RolloutClient, Trainer
from tests.agent.workflows.made import QUESTION, Asks, AsksTwice

CALLBACK = Callback(target="127.0.0.1:9")


async def test_a_workflow_runs_for_a_trainer_over_the_network():
    async with AgentServer([AsksTwice], port=0) as server, Trainer(server.address, EchoPolicy()) as trainer:
        outcome = await trainer.rollout(rollout_id="r1", messages=QUESTION, label="x")
        assert [list(sample.messages)[-1]["content"] for sample in outcome.samples.values()] == ["hello", "hello"]


@pytest.mark.row("SDK 70")
async def test_an_equal_init_over_the_network_starts_nothing():
    async with AgentServer([Asks], port=0) as server, RolloutClient(server.address) as client:
        created = [(await client.init(rollout_id="r1", messages=QUESTION, callback=CALLBACK)).created for _ in range(2)]
        assert created == [True, False]


@pytest.mark.parametrize("token", ["", "wrong-secret", "right-secre", "right-secret-too"])
@pytest.mark.row("SDK 75")
async def test_every_method_needs_the_token(token):
    security = ServerSecurity(["right-secret"], admin_tokens="admin-secret")
    async with (
        AgentServer([Asks], port=0, security=security) as server,
        RolloutClient(server.address, token=token) as client,
    ):
        calls = [
            client.info(),
            client.init(rollout_id="r1", callback=CALLBACK),
            client.get("r1"),
            client.cancel("r1"),
            client.page(),
            client.drain(),
        ]
        for call in calls:
            with pytest.raises(Unauthenticated):
                await call
        with pytest.raises(Unauthenticated):
            async for _ in client.events("r1"):
                pass
    async with (
        AgentServer([Asks], port=0, security=security) as server,
        RolloutClient(server.address, token="right-secret") as client,
    ):
        assert [loop.name for loop in (await client.info()).agent_loops] == ["Asks"]


@pytest.mark.row("SDK 75")
def test_tokens_are_compared_in_constant_time_and_empty_ones_are_refused():
    tokens = Tokens(["one-secret", "other-secret"])
    with mock.patch.object(hmac, "compare_digest", wraps=hmac.compare_digest) as compared:
        assert tokens.owner("Bearer one-secret") is not None
        assert tokens.owner("Bearer two-secret") is None
    assert compared.call_count == 4
    with pytest.raises(ValueError, match="not empty"):
        ServerSecurity([""])


@pytest.mark.slow
@pytest.mark.row("SDK 76")
async def test_a_draining_server_takes_no_new_work_and_each_process_has_an_identity():
    ids = []
    for _ in range(2):
        async with AgentServer([Asks], port=0) as server, RolloutClient(server.address) as client:
            ids.append((await client.info()).process_id)
            await client.drain()
            with pytest.raises(Unavailable) as raised:
                await client.init(rollout_id="r1", messages=QUESTION, callback=CALLBACK)
            assert isinstance(raised.value, CallError)
            assert raised.value.retry_after
    assert ids[0] != ids[1]
