"""P18 and P19 over the older HTTP contract, which has one reward and no names of policies."""

from contextlib import asynccontextmanager

import aiohttp
import pytest

from osmosis_gateway.http_server import serve_http
from osmosis_gateway.standalone import serve_standalone
from osmosis_grpc.server import AgentServer, ServerConfig
from osmosis_grpc.trainer import RolloutClient
from tests.gateway.legacy import LegacyTrainer
from tests.gateway.test_contract import agent_of, init

QUICK = ServerConfig(outbox_delay=(0.05, 0.2), retry_delay=(0.05, 0.2), stop_again_after=(0.05, 0.1))


@asynccontextmanager
async def over_http(way, run):
    """An agent behind HTTP, in its own process or behind a gateway of its own; an HTTP trainer and a session."""
    async with AgentServer([agent_of(run)], port=0, config=QUICK) as server, LegacyTrainer() as trainer:
        if way == "own":
            served = serve_http(server, port=0)
        else:
            served = serve_standalone(server.address, port=0, callback_port=0)
        async with served as http:
            address = http.address if way == "own" else http[0].address
            async with aiohttp.ClientSession(f"http://{address}") as session:
                yield server, trainer, session


async def judged(self, ctx):
    """Two samples; the rollout has a reward only if the question asks for one."""
    ctx.add_sample("main", policy="solver")
    messages = list(ctx.request.messages)
    reply = await ctx.chat(messages)
    judge = ctx.add_sample("judge", policy="judge", parent=("main", reply.chat_number), train=False)
    await ctx.chat([{"role": "user", "content": "judge"}], sample=judge)
    ctx.set_reward(0.5)
    ctx.set_reward(1.0, name="format")
    ctx.set_reward(0.25, chat=reply.chat_number)
    return ctx.complete([*messages, reply.message], reward=ctx.request.metadata.get("whole"))


async def alone(self, ctx):
    """One sample, whose reward is set while the agent runs."""
    messages = list(ctx.request.messages)
    messages.append((await ctx.chat(messages)).message)
    ctx.set_reward(0.5)
    ctx.set_reward(1.0, name="format")
    return ctx.complete(messages)


@pytest.mark.parametrize("way", ["own", "standalone"])
async def test_the_reward_of_one_sample_is_the_reward_of_the_result(way):
    async with over_http(way, alone) as (_, trainer, session):
        await init(session, trainer.init_body())
        done = await trainer.completed()
    assert (done["status"], done["reward"]) == ("COMPLETED", 0.5)
    assert not {"reward_components", "chat_rewards", "samples"} & done.keys()
    assert done["extra_fields"] == {}


@pytest.mark.parametrize("way", ["own", "standalone"])
@pytest.mark.parametrize("whole", [None, 0.75])
async def test_of_several_samples_only_the_reward_of_the_rollout_is_reported(way, whole):
    async with over_http(way, judged) as (server, trainer, session):
        await init(session, trainer.init_body(metadata={} if whole is None else {"whole": whole}))
        done = await trainer.completed()
        async with RolloutClient(server.address) as client:
            outcome = (await client.get("r1")).outcome
    assert (done["status"], done.get("reward")) == ("COMPLETED", whole)
    assert len(trainer.chats) == 2
    assert not any({"policy", "sample"} & chat.keys() for chat in trainer.chats)
    main, judge = outcome.samples["main"], outcome.samples["judge"]
    assert (outcome.reward, main.reward, main.reward_components) == (whole, 0.5, {"format": 1.0})
    assert [(sample.policy, sample.train) for sample in (main, judge)] == [("solver", None), ("judge", False)]
    assert [(chat.chat_number, chat.reward) for chat in main.chat_rewards] == [(1, 0.25)]
