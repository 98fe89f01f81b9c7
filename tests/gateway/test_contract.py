"""A legacy trainer and our server: the contract's fields, statuses and promises, over sockets."""

import asyncio
from contextlib import asynccontextmanager

import aiohttp
import pytest

from osmosis_gateway.http_server import serve_http
from osmosis_gateway.standalone import serve_standalone
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import events
from osmosis_grpc.rollout import RolloutAgentLoop, RolloutClientSettings, RolloutServerSettings, RolloutSettings
from osmosis_grpc.server import AgentServer, ServerConfig
from osmosis_grpc.testing.calculator import CalculatorAgent
from osmosis_grpc.trainer import Callback, RolloutClient
from tests.gateway.legacy import LegacyTrainer
from tests.waiting import ended, until

QUICK = RolloutClientSettings(retry_base_delay=0.1)
QUICK_SERVER = ServerConfig(outbox_delay=(0.05, 0.2), retry_delay=(0.05, 0.2), stop_again_after=(0.05, 0.1))


@asynccontextmanager
async def gateway(*agents, client=QUICK, token=None, **config):
    """A server over gRPC and HTTP, a legacy trainer, and a session to post with."""
    settings = RolloutSettings(client=client, server=RolloutServerSettings(token=token))
    engine = ServerConfig(**({"outbox_delay": (0.05, 0.2), "stop_again_after": (0.05, 0.1)} | config))
    loops = list(agents) or [CalculatorAgent()]
    async with (
        AgentServer(loops, port=0, config=engine) as server,
        serve_http(server, port=0, settings=settings) as http,
        LegacyTrainer() as trainer,
        aiohttp.ClientSession(f"http://{http.address}") as session,
    ):
        yield server, trainer, session


async def init(session, body, **options):
    async with session.post("/v1/rollout/init", json=body, **options) as answer:
        return answer.status, await answer.json(), answer.headers


async def health(session, path="/health"):
    async with session.get(path) as answer:
        return await answer.json()


def agent_of(run, get_tools=lambda self, request: []):
    return type("Agent", (RolloutAgentLoop,), {"name": "agent", "run": run, "get_tools": get_tools})()


async def test_a_rollout_from_its_init_to_its_result():
    async with gateway() as (_, trainer, session):
        body = trainer.init_body(completion_params={"temperature": 0, "top_k": 5, "stop": "END", "seed": None})
        status, answer, _ = await init(session, body)
        done = await trainer.completed()
        counts = await health(session)
    assert status == 202
    assert answer.keys() == {"rollout_id", "tools"}
    assert [tool["function"]["name"] for tool in answer["tools"]] == ["add", "subtract", "multiply", "divide"]
    first, second = trainer.chats
    assert first == {
        "model": "default",
        "rollout_id": "r1",
        "messages": body["messages"],
        "temperature": 0.0,
        "top_p": 1.0,
        "max_tokens": 512,
        "logprobs": True,
        "top_k": 5,
        "stop": ["END"],
    }
    assert [m["role"] for m in second["messages"]] == ["user", "assistant", "tool"]
    assert second["messages"][1]["content"] is None  # nulls within messages are kept
    assert trainer.keys == ["Bearer key-r1"] * 3
    metrics = done.pop("metrics")
    assert done == {
        "rollout_id": "r1",
        "status": "COMPLETED",
        "finish_reason": "stop",
        "reward": 1.0,
        "extra_fields": {},
        "final_messages": [*second["messages"], {"role": "assistant", "content": "The tools say 6.\n#### 6"}],
    }
    assert metrics.keys() == {
        "total_latency_ms",
        "llm_latency_ms",
        "tool_latency_ms",
        "num_llm_calls",
        "num_tool_calls",
        "prompt_tokens",
        "response_tokens",
        "max_context_tokens",
    }
    assert (metrics["num_llm_calls"], metrics["num_tool_calls"]) == (2, 1)
    assert counts["completed_rollouts"] == 1


async def test_tokens_are_taken_where_the_trainer_tells_them():
    async with gateway() as (server, trainer, session), RolloutClient(server.address) as client:
        await init(session, trainer.init_body())
        outcome = await ended(client, "r1")
        seen = [event.kind async for event in client.events("r1")]
    sample = outcome.samples["main"]
    assert sample.trainable
    replies = [kind.response for kind in seen if isinstance(kind, events.ChatAnswered)]
    assert all(len(reply.tokens.ids) and len(reply.prompt_ids) for reply in replies)
    assert sum(segment.sampled for segment in sample.segments) == sum(len(reply.tokens.ids) for reply in replies)


async def test_no_reward_and_no_tokens_are_left_out():
    async with gateway() as (_, trainer, session):
        trainer.tokens = False
        await init(session, trainer.init_body(metadata={}))
        done = await trainer.completed()
    assert "reward" not in done
    assert "error_message" not in done


async def _error(self, ctx):
    return ctx.error("the tool broke")


async def _broken(self, ctx):
    ctx.nothing()


async def _asleep(self, ctx):
    await asyncio.sleep(60)


@pytest.mark.parametrize(
    ("run", "word"), [(_broken, "FAILED: "), (_error, "FAILED: the tool broke"), (_asleep, "CANCELLED: ")]
)
async def test_every_other_end_is_an_error_that_begins_with_its_word(run, word):
    async with gateway(agent_of(run)) as (server, trainer, session):
        await init(session, trainer.init_body())
        if word.startswith("CANCELLED"):
            async with RolloutClient(server.address) as client:
                await client.cancel("r1")
        done = await trainer.completed()
    assert done["status"] == "ERROR"
    assert done["error_message"].startswith(word)
    assert "reward" not in done


async def test_the_same_init_again_answers_the_same_and_starts_nothing():
    async with gateway() as (_, trainer, session):
        body = trainer.init_body()
        answers = await asyncio.gather(*(init(session, body) for _ in range(20)))
        await trainer.completed()
        answers.append(await init(session, body))
        other = await init(session, body | {"max_turns": 3})
        again = await init(session, trainer.init_body("r2") | {"idempotency_key": "k"})
        alias = await init(session, trainer.init_body("r3") | {"idempotency_key": "k"})
    assert {status for status, _, _ in answers} == {202}
    assert all(answer == answers[0][1] for _, answer, _ in answers)
    assert len(trainer.outcomes) == 1
    assert (other[0], again[0], alias[0]) == (409, 202, 409)
    assert other[1]["detail"].endswith("was started with another body; it differs in max_turns")


async def test_at_capacity_and_while_draining():
    async def run(self, ctx):
        await asyncio.sleep(60)

    async with gateway(agent_of(run), max_concurrent=1, max_queued=1) as (server, trainer, session):
        first = await init(session, trainer.init_body("r1"))
        second = await init(session, trainer.init_body("r2"))
        third, detail, headers = await init(session, trainer.init_body("r3"))
        active = (await health(session))["active_rollouts"]
        await server.drain()
        fourth, _, drained = await init(session, trainer.init_body("r4"))
        again, _, _ = await init(session, trainer.init_body("r1"))
        status = (await health(session))["status"]
    assert (first[0], second[0], third, active) == (202, 202, 429, 2)
    assert int(headers["Retry-After"]) >= 1
    assert "limits" in detail["detail"]
    assert (fourth, again, status) == (503, 202, "draining")
    assert int(drained["Retry-After"]) >= 1


async def test_a_tool_choice_of_one_chat_goes_with_it():
    tool = {"type": "function", "function": {"name": "f", "description": "f", "parameters": {"type": "object"}}}

    async def run(self, ctx):
        messages = list(ctx.request.messages)
        await ctx.chat(messages)
        await ctx.chat(messages, tools=[tool])
        return ctx.complete(messages)

    async with gateway(agent_of(run)) as (_, trainer, session):
        await init(session, trainer.init_body())
        await trainer.completed()
    assert "tools" not in trainer.chats[0]
    assert trainer.chats[1]["tools"] == [tool]


async def test_several_agents_need_a_name():
    async def run(self, ctx):
        return ctx.complete([])

    async with gateway(CalculatorAgent(), agent_of(run)) as (_, trainer, session):
        unnamed = await init(session, trainer.init_body())
        wrong = await init(session, trainer.init_body(agent_loop="nobody"))
        named = await init(session, trainer.init_body(agent_loop="agent"))
        await trainer.completed()
        names = (await health(session))["agent_loop"]
    assert (unnamed[0], wrong[0], named[0]) == (422, 404, 202)
    assert unnamed[1]["detail"][0]["loc"] == ["body", "agent_loop"]
    assert names == "agent, calculator"


async def test_which_chats_are_asked_again():
    async def asked(*faults):
        async with gateway() as (_, trainer, session):
            trainer.chat_faults = list(faults)
            await init(session, trainer.init_body())
            done = await trainer.completed()
        return len(trainer.chats), done["status"]

    assert await asyncio.gather(
        asked(500, 503), asked((429, {"Retry-After": "0"}), (408, {})), asked(400), asked(404), asked(*[500] * 4)
    ) == [(4, "COMPLETED"), (4, "COMPLETED"), (1, "ERROR"), (1, "ERROR"), (4, "ERROR")]


@pytest.mark.parametrize("status", [200, 201, 202, 204])
async def test_any_2xx_acknowledges(status):
    async with gateway() as (server, trainer, session):
        trainer.complete_statuses = [status]
        await init(session, trainer.init_body())
        await trainer.completed()
        await _settled(server)
        assert (await health(session))["undelivered"] == 0
    assert len(trainer.outcomes) == 1
    assert trainer.keys.count("Bearer key-r1") == 3


async def test_which_results_are_sent_again():
    async def sent(status, tries):
        async with gateway() as (server, trainer, session):
            trainer.complete_statuses = [status]
            await init(session, trainer.init_body())
            await until(lambda: len(trainer.keys) >= 2 + tries)
            await _settled(server)
        assert len(trainer.keys) == 2 + tries, status
        assert len(trainer.outcomes) == (1 if tries == 2 else 0), status

    await asyncio.gather(*(sent(status, 1) for status in (400, 401, 409)))
    await asyncio.gather(*(sent(status, 2) for status in (408, 429, 500, 302)))


async def test_a_result_stays_on_record_until_it_is_delivered():
    client = QUICK.model_copy(update={"complete_rollout_retries": 1})
    async with gateway(client=client) as (server, trainer, session):
        trainer.complete_statuses = [500] * 7  # more than the quick tries of one round
        await init(session, trainer.init_body())

        async def undelivered():
            return (await health(session))["undelivered"]

        await until(undelivered)
        async with RolloutClient(server.address) as grpc:
            rows = [row async for row in grpc.rollouts(undelivered=True)]
        await trainer.completed()
        await _settled(server)
        assert (await health(session))["undelivered"] == 0
    assert [row.rollout_id for row in rows] == ["r1"]
    assert len(trainer.outcomes) == 1


async def test_a_result_is_given_up_after_its_time_and_counted():
    client = QUICK.model_copy(update={"complete_rollout_retries": 0})
    async with gateway(client=client, record_ttl=0.5) as (server, trainer, session):
        trainer.complete_statuses = [500] * 1000
        await init(session, trainer.init_body())
        await until(lambda: server.engine.capacity().expired)
    assert trainer.outcomes == []


async def test_a_callback_over_grpc_is_no_url_even_beside_http():
    async with gateway() as (server, trainer, _), RolloutClient(server.address) as client:
        messages = [{"role": "user", "content": "What is 2 * 3?"}]
        with pytest.raises(InvalidArgument, match=r"callback.target: is a URL; send HOST:PORT"):
            await client.init(rollout_id="g1", messages=messages, callback=Callback(target=trainer.url))
        assert not [rollout async for rollout in client.rollouts()]
    assert trainer.outcomes == []


async def test_trace_context_goes_with_every_call():
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with gateway() as (_, trainer, session):
        await init(session, trainer.init_body(), headers={"traceparent": parent, "tracestate": "a=b"})
        await trainer.completed()
    assert {(h.get("traceparent"), h.get("tracestate")) for h in trainer.headers} == {(parent, "a=b")}


async def _settled(server):
    """Wait until everything is delivered or given up."""
    await until(lambda: not (server.engine.capacity().undelivered or server.engine.capacity().running))


@asynccontextmanager
async def over_http(way, run):
    """An agent behind HTTP, in its own process or behind a gateway of its own; an HTTP trainer and a session."""
    async with AgentServer([agent_of(run)], port=0, config=QUICK_SERVER) as server, LegacyTrainer() as trainer:
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
