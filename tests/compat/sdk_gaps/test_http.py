"""Over HTTP: applications, requests, replies and debug files."""

import json
import logging
from contextlib import asynccontextmanager

import httpx
import pytest
from fastapi.testclient import TestClient

from osmosis_gateway import app as app_module
from osmosis_gateway.chat_bodies import read_reply
from osmosis_gateway.http_server import serve_http
from osmosis_grpc.policies import EchoPolicy
from osmosis_grpc.rollout import OsmosisLLMClient, RolloutAgentLoop, RolloutMetrics, create_app, serve_agent_loop
from osmosis_grpc.server import AgentServer, ServerConfig
from osmosis_grpc.server.tracelog import DebugLog
from osmosis_grpc.testing import run_rollout
from osmosis_grpc.testing.calculator import CalculatorAgent
from osmosis_grpc.trainer import RolloutClient
from tests.gateway.legacy import LegacyTrainer

HELLO = {
    "rollout_id": "test-123",
    "server_url": "http://localhost:8080",
    "messages": [{"role": "user", "content": "Hello"}],
    "completion_params": {"temperature": 0.7},
}


class Agent(RolloutAgentLoop):
    """Runs a function."""

    name = "agent"

    def __init__(self, run, tools=()):
        self.function, self.found = run, list(tools)

    def get_tools(self, request):
        return self.found

    async def run(self, ctx):
        return await self.function(ctx)


async def asks(ctx):
    messages = list(ctx.request.messages)
    messages.append((await ctx.chat(messages, **ctx.request.completion_params)).message)
    return ctx.complete(messages)


@asynccontextmanager
async def running(app):
    """A client of an application in this process."""
    transport = httpx.ASGITransport(app, client=("127.0.0.1", 1))
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client,
    ):
        yield client


async def outcome_of(agent, trainer, **body):
    """The result that a trainer gets for one Init."""
    async with running(create_app(agent)) as client:
        answer = await client.post("/v1/rollout/init", json=trainer.init_body() | body)
        assert answer.status_code == 202, answer.text
        return await trainer.completed()


# The test client


@pytest.mark.row("SDK S2")
def test_the_test_client_is_a_caller_on_this_machine():
    with TestClient(create_app(CalculatorAgent())) as client:
        assert client.get("/health").json()["status"] == "healthy"
        answer = client.post("/v1/rollout/init", json=HELLO)
        assert (answer.status_code, answer.json()["rollout_id"]) == (202, "test-123")
        assert answer.json()["tools"][0]["function"]["name"] == "add"


@pytest.mark.row("SDK S2")
def test_the_test_client_without_a_block_reports_health_and_says_what_is_missing():
    client = TestClient(create_app(CalculatorAgent()))
    health = client.get("/health").json()
    assert (health["status"], health["agent_loop"], health["active_rollouts"]) == ("healthy", "calculator", 0)
    answer = client.post("/v1/rollout/init", json=HELLO)
    assert (answer.status_code, "with TestClient(app)" in answer.text) == (503, True)
    for answer in (client.post("/rollout/cancel", json={"all": True}), client.get("/rollout/r1/status")):
        assert (answer.status_code, "with TestClient(app)" in answer.text) == (503, True)


@pytest.mark.row("SDK S2")
def test_an_application_allows_the_targets_that_it_names():
    far = HELLO | {"server_url": "http://192.0.2.7:8080"}
    with TestClient(create_app(CalculatorAgent())) as client:
        answer = client.post("/v1/rollout/init", json=far)
        assert (answer.status_code, "create_app(allow_target=[...])" in answer.text) == (422, True)
    with TestClient(create_app(CalculatorAgent(), allow_target=["192.0.2.0/24"])) as client:
        assert client.post("/v1/rollout/init", json=far).status_code == 202


@pytest.mark.row("SDK S2")
def test_another_caller_does_not_count_as_the_test_client():
    with TestClient(create_app(CalculatorAgent()), client=("192.0.2.1", 5)) as client:
        assert client.post("/v1/rollout/init", json=HELLO).status_code == 422


@pytest.mark.parametrize(
    ("usage", "read"),
    [
        ({"prompt_tokens": 3.0, "completion_tokens": 2.0}, {"prompt_tokens": 3, "completion_tokens": 2}),
        ({"prompt_tokens": 3, "completion_tokens": None}, {"prompt_tokens": 3}),
        ({"prompt_tokens": 3, "completion_tokens": 1.5}, {"prompt_tokens": 3}),
        ({"prompt_tokens": -1, "completion_tokens": True, "total_tokens": "5"}, None),
        (None, None),
        ([1], None),
        ({}, None),
    ],
)
@pytest.mark.row("SDK S5")
def test_usage_never_fails_a_chat(usage, read, caplog):
    reply = {"choices": [{"message": {"content": "x"}}], "usage": usage}
    found = read_reply(json.dumps(reply).encode()).usage
    assert found == read
    assert all(type(count) is int for count in (found or {}).values())
    given = list(usage.values()) if isinstance(usage, dict) else usage or []
    dropped = len(read or {}) < len([value for value in given if value is not None])
    assert bool(caplog.messages) == dropped


@pytest.mark.row("SDK S5")
async def test_a_rollout_completes_whatever_the_usage(monkeypatch):
    seen = []

    async def run(ctx):
        reply = await ctx.chat(ctx.request.messages)
        seen.append(reply.usage.get("completion_tokens", 0))
        return ctx.complete([*ctx.request.messages, reply.message])

    async with LegacyTrainer() as trainer:
        trainer.usage = {"prompt_tokens": 3.0, "completion_tokens": 2.0}
        assert (await outcome_of(Agent(run), trainer))["status"] == "COMPLETED"
    assert seen == [2]


@pytest.mark.row("SDK S9")
async def test_the_schemas_of_an_init_have_strict_and_parameters():
    plain = {"type": "function", "function": {"name": "now", "description": "The time."}}
    strict = {"type": "function", "function": {"name": "then", "description": "The time.", "strict": True}}
    async with LegacyTrainer() as trainer, running(create_app(Agent(asks, [plain, strict]))) as client:
        answer = await client.post("/v1/rollout/init", json=trainer.init_body())
        await trainer.completed()
    none = {"type": "object", "properties": {}, "required": []}
    assert [tool["function"].get("strict") for tool in answer.json()["tools"]] == [False, True]
    assert [tool["function"].get("parameters") for tool in answer.json()["tools"]] == [none, none]


@pytest.mark.row("SDK S10")
def test_an_application_has_a_key():
    with TestClient(create_app(CalculatorAgent(), api_key="osm_rollout_x=y")) as client:
        assert client.post("/v1/rollout/init", json=HELLO).status_code == 401
        shown = {"Authorization": "Bearer osm_rollout_x=y"}
        assert client.get("/platform/health", headers=shown).status_code == 200
        far = HELLO | {"server_url": "http://192.0.2.7:8080"}
        assert client.post("/v1/rollout/init", json=far, headers=shown).status_code == 202
    with pytest.raises(ValueError, match="printable ASCII"):
        create_app(CalculatorAgent(), api_key="")


@pytest.mark.row("SDK S10")
def test_parameters_about_the_platform_are_accepted_and_named(caplog):
    with caplog.at_level(logging.INFO):
        create_app(CalculatorAgent(), credentials=None, server_host="0.0.0.0", server_port=9000)
    assert caplog.messages == [
        "create_app: credentials, server_host, server_port have no effect: this server is registered with no platform"
    ]
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        create_app(CalculatorAgent(), colour="red")


@pytest.fixture
def served(monkeypatch):
    """What serve_agent_loop gives to uvicorn."""
    found = []
    monkeypatch.setattr(app_module.uvicorn, "run", lambda app, **options: found.append((app, options)))
    return found


@pytest.mark.row("SDK S10")
def test_serve_agent_loop_takes_the_parameters_of_the_sdk(served, monkeypatch, caplog):
    monkeypatch.setenv("OSMOSIS_ROLLOUT_SERVER_TOKEN", "of the environment")
    with caplog.at_level(logging.INFO):
        serve_agent_loop(CalculatorAgent(), port=9001, skip_register=True, local_debug=True, log_level="debug")
    assert "serve_agent_loop: skip_register have no effect" in caplog.text
    ((app, options),) = served
    assert (options["port"], options["host"], options["log_level"]) == (9001, "127.0.0.1", "debug")
    with TestClient(app) as client:
        assert client.get("/metrics").status_code == 200  # without a token


@pytest.mark.row("SDK S10")
def test_serve_agent_loop_has_a_key(served):
    serve_agent_loop(CalculatorAgent(), api_key="k", host="0.0.0.0", insecure=True)
    with TestClient(served[0][0]) as client:
        assert client.get("/platform/health").status_code == 401
        assert client.get("/platform/health", headers={"Authorization": "k"}).status_code == 200
    for wrong in ({"reload": True}, {"local_debug": True, "host": "0.0.0.0"}):
        with pytest.raises(ValueError, match=r"reload|token"):
            serve_agent_loop(CalculatorAgent(), **wrong)


LAX = {
    "max_turns": "5",
    "max_tokens_total": 100.0,
    "idempotency_key": "",
    "completion_params": {"temperature": "0.7", "top_p": "1", "max_tokens": 128.0},
}


@pytest.mark.row("SDK S12")
async def test_numbers_are_read_as_pydantic_reads_them():
    seen = []

    async def run(ctx):
        seen.append(ctx.request)
        return await asks(ctx)

    async with LegacyTrainer() as trainer:
        done = await outcome_of(Agent(run), trainer, **LAX)
    assert done["status"] == "COMPLETED", done
    (request,) = seen
    assert (request.max_turns, request.max_tokens_total, request.idempotency_key) == (5, 100, None)
    assert request.completion_params == {"temperature": 0.7, "top_p": 1.0, "max_tokens": 128}
    (chat,) = trainer.chats
    assert (chat["temperature"], chat["top_p"], chat["max_tokens"]) == (0.7, 1.0, 128)


@pytest.mark.parametrize("key", ["", None])
@pytest.mark.row("SDK S12")
async def test_empty_idempotency_keys_do_not_join_rollouts(key):
    async with LegacyTrainer() as trainer, running(create_app(Agent(asks))) as client:
        for rollout_id in ("r1", "r2"):
            body = trainer.init_body(rollout_id) | {"idempotency_key": key}
            answer = await client.post("/v1/rollout/init", json=body)
            assert answer.json()["rollout_id"] == rollout_id
        await trainer.completed(2)
    assert {row["rollout_id"] for row in trainer.outcomes} == {"r1", "r2"}


OBSERVED = {"role": "observation", "content": "It rains."}


async def observes(ctx):
    messages = [*ctx.request.messages, OBSERVED]
    messages.append((await ctx.chat(messages)).message)
    return ctx.complete(messages)


@pytest.mark.row("SDK S12")
async def test_other_roles_travel_over_http():
    async with LegacyTrainer() as trainer:
        begins = [*trainer.init_body()["messages"], {"role": "memory", "content": "An earlier day."}]
        done = await outcome_of(Agent(observes), trainer, messages=begins)
    assert done["status"] == "COMPLETED", done
    roles = ["user", "memory", "observation"]
    assert [message["role"] for message in trainer.chats[0]["messages"]] == roles
    assert [message["role"] for message in done["final_messages"]] == [*roles, "assistant"]


@pytest.mark.row("SDK S12")
async def test_other_roles_are_in_the_journal(tmp_path):
    quick = ServerConfig(outbox_delay=(0.05, 0.2), retry_delay=(0.05, 0.2))
    async with LegacyTrainer() as trainer:
        async with (
            AgentServer([Agent(observes)], port=0, config=quick, state_dir=tmp_path) as server,
            serve_http(server, port=0) as http,
            httpx.AsyncClient() as client,
        ):
            body = trainer.init_body(messages=[OBSERVED])
            answer = await client.post(f"http://{http.address}/v1/rollout/init", json=body)
            assert answer.status_code == 202, answer.text
            await trainer.completed()
        async with (
            AgentServer([Agent(observes)], port=0, config=quick, state_dir=tmp_path) as server,
            RolloutClient(server.address) as client,
        ):
            outcome = (await client.get("r1")).outcome
            assert [message["role"] for message in outcome.messages][:2] == ["observation", "observation"]
            seen = [event async for event in client.events("r1")]
    assert len(seen) >= 5


@pytest.mark.row("SDK S12")
async def test_a_grpc_trainer_refuses_other_roles_by_name():
    async def policy(request):
        raise AssertionError("nothing is sent")

    outcome = await run_rollout(Agent(observes), policy, [{"role": "user", "content": "Hi"}])
    assert outcome.status == "FAILED"
    assert "messages[1].role: 'observation' is not one of assistant, " in outcome.failure.message


async def logs(ctx):
    assert ctx.debug_enabled
    ctx.log_event("pre_llm", turn=0)
    ctx.log_event("done", reward=1.0, text="é")
    return ctx.complete(ctx.request.messages)


@pytest.mark.row("SDK S13")
async def test_the_lines_of_log_event_are_in_the_file_of_the_rollout(tmp_path):
    async with LegacyTrainer() as trainer, running(create_app(Agent(logs), debug_dir=str(tmp_path))) as client:
        await client.post("/v1/rollout/init", json=trainer.init_body("rollout-abc.1"))
        done = await trainer.completed()
    assert done["status"] == "COMPLETED", done
    assert (tmp_path / "rollout-abc.1.jsonl").read_text().splitlines() == [
        '{"event": "pre_llm", "rollout_id": "rollout-abc.1", "turn": 0}',
        '{"event": "done", "rollout_id": "rollout-abc.1", "reward": 1.0, "text": "\\u00e9"}',
    ]
    (ours,) = tmp_path.glob("*/rollout-abc_1-*.jsonl")
    assert json.loads(ours.read_text().splitlines()[0])["event"] == "accepted"


@pytest.mark.row("SDK S13")
async def test_without_a_folder_debug_is_off():
    async def run(ctx):
        assert not ctx.debug_enabled
        return await asks(ctx)

    async with LegacyTrainer() as trainer:
        assert (await outcome_of(Agent(run), trainer))["status"] == "COMPLETED"


@pytest.mark.row("SDK S13")
async def test_serve_agent_loop_makes_a_folder_for_each_start(served, tmp_path):
    serve_agent_loop(Agent(logs), debug_dir=str(tmp_path))
    async with LegacyTrainer() as trainer, running(served[0][0]) as client:
        await client.post("/v1/rollout/init", json=trainer.init_body("r1"))
        await trainer.completed()
    (folder,) = tmp_path.iterdir()
    assert folder.name.isdecimal()
    assert sorted(path.name for path in folder.iterdir()) == ["events", "r1.jsonl"]


@pytest.mark.parametrize(
    ("rollout_id", "plain"),
    [
        ("r-1.a_B", True),
        ("x" * 200, True),
        ("x" * 201, False),
        ("..hidden", False),
        ("CON", False),
        ("con.txt", False),
        ("a b", False),
        ("end.", False),
        ("ü", False),
    ],
)
@pytest.mark.row("SDK S13")
def test_odd_ids_name_no_file(tmp_path, rollout_id, plain):
    name = DebugLog(tmp_path).path(rollout_id).name
    assert (name == f"{rollout_id}.jsonl") is plain
    assert name.isascii()


@pytest.mark.row("SDK S8")
async def test_the_client_has_the_parameters_and_attributes_of_the_sdk():
    async with LegacyTrainer() as trainer, OsmosisLLMClient(trainer.url + "/", "r8", None, 5.0, 1) as client:
        assert (client.server_url, client.rollout_id) == (trainer.url, "r8")
        assert (client.timeout_seconds, client.max_retries, client.complete_rollout_retries) == (5.0, 1, 2)
        reply = await client.chat_completions(HELLO["messages"], 0.25, 0.5, 7, "END", logprobs=True)
        counted = client.get_metrics()
        await client.complete_rollout("COMPLETED", [*HELLO["messages"], reply.message], metrics=counted)
    (chat,) = trainer.chats
    assert (chat["temperature"], chat["top_p"], chat["max_tokens"], chat["stop"]) == (0.25, 0.5, 7, ["END"])
    assert (type(counted), counted.num_llm_calls) == (RolloutMetrics, 1)
    assert trainer.outcomes[0]["metrics"]["num_llm_calls"] == 1


@pytest.mark.row("SDK S1")
async def test_each_sample_has_a_reward_and_the_contract_has_that_of_the_rollout():
    async def run(ctx):
        done = await asks(ctx)
        judge = ctx.add_sample("judge", train=False)
        await ctx.chat(ctx.request.messages, sample=judge)
        ctx.set_reward(0.5)
        ctx.set_reward(0.25, sample=judge)
        return ctx.complete(done.final_messages, reward=0.75)

    outcome = await run_rollout(Agent(run), EchoPolicy(), HELLO["messages"])
    assert {name: sample.reward for name, sample in outcome.samples.items()} == {"main": 0.5, "judge": 0.25}
    assert outcome.reward == 0.75
    async with LegacyTrainer() as trainer:
        assert (await outcome_of(Agent(run), trainer))["reward"] == 0.75


@pytest.mark.row("SDK S11")
async def test_after_a_restart_the_outcome_comes_again_to_the_trainer_that_asks(tmp_path):
    quick = ServerConfig(outbox_delay=(0.05, 0.2), retry_delay=(0.05, 0.2))
    async with LegacyTrainer() as trainer:
        for count in (1, 2):
            async with (
                AgentServer([Agent(asks)], port=0, config=quick, state_dir=tmp_path) as server,
                serve_http(server, port=0) as http,
                httpx.AsyncClient() as client,
            ):
                answer = await client.post(f"http://{http.address}/v1/rollout/init", json=trainer.init_body("r1"))
                assert (answer.status_code, answer.json()["rollout_id"]) == (202, "r1")
                await trainer.completed(count)
        assert len(trainer.chats) == 1
    first, again = trainer.outcomes
    assert (first.pop("metrics"), first) == (pytest.approx(again.pop("metrics")), again)
