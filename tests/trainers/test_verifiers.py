"""A harness of verifiers whose agent runs on an agent server in another process. Run by `make test-adapters`.

A small HTTP server samples the tokens, in place of vLLM's.
"""

import asyncio
import json

import numpy as np
import pytest

from osmosis_grpc.protocol.types import OutcomeStatus
from tests.ports import quiet_port
from tests.processes import ROOT, server_process
from tests.processes import run as run_program
from tests.trainers import program, tiny_model

pytestmark = [pytest.mark.trainers, pytest.mark.filterwarnings("ignore")]
pytest.importorskip("verifiers")

CALCULATOR = "osmosis_grpc.testing.calculator:agent_loop"


@pytest.fixture(scope="module")
def server():
    with server_process("-m", CALCULATOR) as (_, address):
        yield address


@pytest.fixture
async def engine(tmp_path):
    """A server with vLLM's /inference/v1/generate. Yields its base URL, the folder of its tokenizer, and its calls."""
    from aiohttp import web

    tokenizer = tiny_model.tokenizer("<tool_call>", "</tool_call>")
    tokenizer.save_pretrained(tmp_path / "model")
    calls = []

    async def generate(request):
        asked = await request.json()
        prompt = asked["token_ids"]
        if "What is" not in tokenizer.decode(prompt):
            return web.json_response({"error": {"message": "no question"}}, status=400)
        sampled = tokenizer.encode(program.reply(tokenizer.decode(prompt)))
        logprobs = [-0.01 * (len(calls) + 1) - 0.001 * index for index in range(len(sampled))]
        calls.append((prompt, sampled, logprobs))
        content = [
            {"token": f"token_id:{token}", "logprob": value} for token, value in zip(sampled, logprobs, strict=True)
        ]
        choice = {"index": 0, "token_ids": sampled, "logprobs": {"content": content}, "finish_reason": "stop"}
        return web.json_response({"request_id": "r", "choices": [choice]})

    async def models(request):
        return web.json_response({"object": "list", "data": [{"id": "tiny", "object": "model", "max_model_len": 4096}]})

    app = web.Application()
    app.add_routes([web.post("/inference/v1/generate", generate), web.get("/v1/models", models)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1", str(tmp_path / "model"), calls
    await runner.cleanup()


@pytest.fixture
async def run(server, engine, tmp_path, monkeypatch):
    """Runs a task and returns its trace and the outcome."""
    import verifiers.v1 as vf

    from osmosis_grpc.integrations import _shared_trainer, verifiers

    module = "from osmosis_grpc.integrations.verifiers import OsmosisHarness\n__all__ = ['OsmosisHarness']\n"
    (tmp_path / "osmosis_agent.py").write_text(module)
    monkeypatch.syspath_prepend(tmp_path)
    url, model, _ = engine
    outcomes = []

    class Watched(_shared_trainer.SharedTrainer):
        async def outcome(self, request, policy, *, retries):
            outcomes.append(await super().outcome(request, policy, retries=retries))
            return outcomes[-1]

    monkeypatch.setattr(_shared_trainer, "SharedTrainer", Watched)

    class Data(vf.TaskData):
        answer: str

    client = vf.TrainClientConfig(
        base_url=url, renderer={"name": "default", "tool_parser": "qwen3"}, renderer_model_name=model
    )

    async def start(question, answer, **changes):
        agent = vf.Agent(
            vf.AgentConfig(
                harness={"id": "osmosis_agent", "servers": [server], **changes},
                runtime={"type": "subprocess"},
                model="tiny",
                client=client,
            )
        )
        trace = await agent.run(vf.Task(Data(prompt=question, answer=answer), vf.TaskConfig()))
        return trace, outcomes[-1] if outcomes else None

    yield start
    await verifiers.close_trainers()


@pytest.mark.parametrize(("answer", "reward"), [("56", 1.0), ("57", 0.0)])
async def test_the_trace_has_the_tokens_masks_logprobs_and_reward_of_the_outcome(run, engine, answer, reward):
    trace, outcome = await run("What is 7 * 8?", answer)
    assert trace.ok
    assert outcome.status is OutcomeStatus.COMPLETED
    assert trace.reward == outcome.reward == reward
    (branch,) = trace.branches
    (segment,) = outcome.samples["main"].segments
    assert branch.token_ids == segment.ids.tolist()
    assert branch.sampled_mask == segment.mask().tolist()
    assert np.float32(branch.logprobs).tolist() == segment.aligned_logprobs().tolist()
    first, second = engine[2]
    assert segment.ids.tolist() == second[0] + second[1]
    assert segment.sampled == len(first[1]) + len(second[1])
    assert trace.info["rollout_id"] == outcome.rollout_id == f"verifiers-{trace.id}"


async def test_replies_that_are_not_to_be_trained_on_are_masked(run):
    with server_process("-m", "tests.dropping:judges") as (_, address):
        trace, outcome = await run("What is 7 * 8?", "56", servers=[address])
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
    sampled = [node for node in trace.nodes if node.sampled]
    assert trace.nodes[sampled[2].parent].message.content == "What is wrong?"
    assert [any(node.mask) for node in sampled] == [False, True, False]
    assert all(sum(node.mask) == len(node.logprobs) for node in trace.nodes)


async def test_a_failed_rollout_has_no_reward(run):
    trace, outcome = await run("Tell me a story", "none")
    assert outcome.status is OutcomeStatus.FAILED
    assert not trace.ok
    assert trace.rewards == {}
    assert trace.errors


async def test_a_wrong_address_is_named(run, monkeypatch):
    from osmosis_grpc.trainer import Trainer

    wait_for_server = Trainer.wait_for_server
    monkeypatch.setattr(Trainer, "wait_for_server", lambda self: wait_for_server(self, 0.3))
    address = f"127.0.0.1:{quiet_port()}"
    trace, outcome = await run("What is 7 * 8?", "56", servers=[address])
    assert outcome is None
    assert address in json.dumps([error.message for error in trace.errors])


@pytest.mark.timeout(150)
async def test_the_example_runs(server):
    from aiohttp import web

    def reply(messages):
        if messages[-1]["role"] == "tool":
            return {"role": "assistant", "content": f"#### {messages[-1]['content']}"}
        call = {"name": "add", "arguments": '{"a": 2, "b": 3}'}
        return {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": call}]}

    async def chat(request):
        message = reply((await request.json())["messages"])
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        made = {"id": "x", "object": "chat.completion", "created": 1, "model": "tiny", "choices": [choice]}
        return web.json_response(made)

    app = web.Application()
    app.add_routes([web.post("/v1/chat/completions", chat)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    example = str(ROOT / "examples" / "verifiers_agent" / "run.py")
    done = await asyncio.to_thread(run_program, example, server, url, "tiny", timeout=110)
    await runner.cleanup()
    assert done.returncode == 0, done.stderr
    assert "reward 1.0" in done.stdout, done.stdout + done.stderr
