"""A rollout server of 0.2.18 or later, hosted as an agent. Our own HTTP server plays it here."""

from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from osmosis_gateway.http_agent import HttpAgent
from osmosis_gateway.relay import LegacyAgentLost
from osmosis_gateway.workflow_server_agent import WorkflowServerAgent, hosted_legacy_agent
from osmosis_grpc.policies import EchoPolicy
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import FailureReason, OutcomeStatus
from osmosis_grpc.server import AgentServer
from osmosis_grpc.trainer import Trainer
from tests.http_servers import posting, url_of
from tests.legacy.test_controllers import serving, workflow
from tests.ports import quiet_port

QUESTION = [{"role": "user", "content": "What is 2 * 3? 6"}]


@asynccontextmanager
async def hosted(url, policy=None, **options):
    """Host a server. Yields a trainer and the agent."""
    async with (
        WorkflowServerAgent(url, name="sums", **options) as agent,
        AgentServer([agent], port=0) as server,
        Trainer([server.address], policy or EchoPolicy()) as trainer,
    ):
        yield trainer, agent


async def rollout(trainer, **more):
    return await trainer.rollout(**{"rollout_id": "r1", "messages": QUESTION, "label": "6"} | more)


@pytest.mark.row("SDK S20")
async def test_the_reward_and_the_sample_arrive():
    async with serving(workflow()) as (_, address), hosted(f"http://{address}") as (trainer, _):
        outcome = await rollout(trainer)
    assert (outcome.status, outcome.reward) == (OutcomeStatus.COMPLETED, 1.0), outcome.failure
    (sample,) = outcome.samples.values()
    assert [message["content"] for message in sample.messages] == [QUESTION[0]["content"]] * 2
    assert sample.segments


async def test_a_failed_agent_is_a_failure_with_its_text():
    async with serving(workflow()) as (_, address), hosted(f"http://{address}") as (trainer, _):
        outcome = await rollout(trainer, metadata={"raise": "RuntimeError"})
    assert (outcome.status, outcome.failure.boundary) == (OutcomeStatus.FAILED, "agent")
    assert "the agent broke" in outcome.failure.message


async def test_a_time_limit_is_passed_on():
    async with serving(workflow()) as (_, address), hosted(f"http://{address}") as (trainer, _):
        outcome = await rollout(trainer, metadata={"sleep": 30}, agent_timeout=1.0)
    assert outcome.failure.reason is FailureReason.AGENT_TIMEOUT


async def test_the_trainers_refusal_is_the_trainers_failure():
    def refuses(request):
        raise InvalidArgument("messages", "too long for this model")

    async with serving(workflow()) as (_, address), hosted(f"http://{address}", refuses) as (trainer, _):
        outcome = await rollout(trainer)
    assert outcome.status is OutcomeStatus.FAILED
    assert outcome.failure.boundary == "trainer"


async def test_a_server_that_cannot_be_reached_fails_the_rollout():
    async with hosted(f"http://127.0.0.1:{quiet_port()}") as (trainer, _):
        outcome = await rollout(trainer, agent_timeout=5.0)
    assert outcome.failure is not None


async def test_a_silent_server_is_lost():
    async def accepts(request):
        return web.json_response({}, status=202)

    async with posting({"/rollout": accepts}) as runner, hosted(url_of(runner), silence=0.2) as (trainer, _):
        outcome = await rollout(trainer, agent_timeout=20.0)
    assert outcome.failure.causes[0].type == LegacyAgentLost.__name__


async def test_a_callback_without_the_key_of_a_rollout_is_refused():
    seen = []

    async def accepts(request):
        body = await request.json()
        async with aiohttp.ClientSession() as session:
            for key in ("wrong", body["controller_api_key"]):
                for kind in ("completion", "grader"):
                    sent = {"status": "success", "rollout_id": body["rollout_id"], "sample": {"reward": 0.5}}
                    headers = {"Authorization": f"Bearer {key}"}
                    async with session.post(body[f"{kind}_callback_url"], json=sent, headers=headers) as answer:
                        seen.append(answer.status)
        return web.json_response({}, status=202)

    async with posting({"/rollout": accepts}) as runner, hosted(url_of(runner)) as (trainer, _):
        outcome = await rollout(trainer)
    assert seen == [401, 401, 200, 200]
    assert (outcome.status, outcome.reward) == (OutcomeStatus.COMPLETED, 0.5)


async def test_the_kind_of_a_server_is_read_from_its_health():
    async def health(request):
        return web.json_response({"status": "ok", "concurrency": {"running": 0}})

    app = web.Application()
    app.add_routes([web.get("/health", health)])
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        agent = await hosted_legacy_agent(url_of(runner))
        assert (type(agent), agent.name) == (WorkflowServerAgent, "legacy")
    finally:
        await runner.cleanup()
    async with serving(workflow()) as (_, address):  # it has the name of its agent, as servers of 0.2.14
        assert isinstance(await hosted_legacy_agent(f"http://{address}"), HttpAgent)
    assert isinstance(await hosted_legacy_agent(f"http://127.0.0.1:{quiet_port()}", name="loop"), HttpAgent)
