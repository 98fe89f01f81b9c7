"""Tasksets of verifiers through a server, beside verifiers' own runner. Run by `make test-environments`.

verifiers starts a program for each episode, with uv, which installs what the program needs from the package index.
"""

import asyncio
import json
import re
from pathlib import Path

import pytest

from osmosis_grpc.environments import open_environment
from tests.environments.parity import Played, number_of, through_server

pytestmark = [pytest.mark.environments, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(600)]
vf = pytest.importorskip("verifiers.v1")
TALKS = '{"id":"null"}'


@pytest.fixture(autouse=True)
def tasksets(monkeypatch):
    folder = Path(__file__).parent / "tasksets"
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder))


def says(messages):
    """The number of the question, or something else."""
    question = messages[0]["content"]
    return re.findall(r"\d+", question)[0] if number_of(question, 3) else "I will not"


def adds(messages):
    """A call of the tool, and then what it returned, or for some questions something else."""
    if messages[-1]["role"] != "tool":
        a, b = re.findall(r"\d+", messages[-1]["content"])
        function = {"name": "adder_add", "arguments": json.dumps({"a": int(a), "b": int(b)})}
        return {"role": "assistant", "tool_calls": [{"id": "call-1", "type": "function", "function": function}]}
    return f"It is {messages[-1]['content']}." if number_of(messages[0]["content"], 3) else "I do not know."


def climbs(messages):
    return "up" * (1 + number_of(str(messages[-1]["content"]), 4))


CASES = {
    "words-taskset": (f"agent.harness={TALKS}", says, 50),
    "tools-taskset": (f"agent.harness={TALKS}", adds, 8),
    "turns-taskset": (f"player.harness={TALKS}", climbs, 8),
}


async def own_runner(name, role, reply, count):
    """What verifiers itself gets from the same model behind an HTTP server."""
    from aiohttp import web
    from verifiers.v1.utils.loaders import load_environment, resolve_env_config

    async def chat(request):
        asked = await request.json()
        said = reply(asked["messages"])
        message = {"role": "assistant", "content": said} if isinstance(said, str) else {"content": None, **said}
        calls = [{"index": n, **call} for n, call in enumerate(message.get("tool_calls", []))]
        delta = {**message, **({"tool_calls": calls} if calls else {})}
        base = {"id": "x", "object": "chat.completion.chunk", "created": 0, "model": "m"}
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for each, reason in ((delta, None), ({}, "tool_calls" if calls else "stop")):
            chunk = {**base, "choices": [{"index": 0, "delta": each, "finish_reason": reason}]}
            await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response

    app = web.Application()
    app.add_routes([web.post("/v1/chat/completions", chat)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    agent = {"harness": json.loads(TALKS), "runtime": {"type": "subprocess"}}
    env = load_environment(resolve_env_config({"taskset": {"id": name}, role: agent}))
    client = vf.EvalClientConfig(base_url=f"http://127.0.0.1:{runner.addresses[0][1]}/v1", api_key_var="NONE")
    gate = asyncio.Semaphore(4)

    async def played(task):
        async with gate:
            episode = await env.run_episode(task, vf.ModelContext(model="m", client=client))
        (trace,) = episode.traces
        assert episode.ok, (episode.errors, trace.errors)
        parts = {each: reward.value for each, reward in trace.rewards.items()} | dict(trace.metrics)
        return Played({"main": trace.reward}, parts, trace.num_turns)

    try:
        async with env.serving():
            tasks = list(env.taskset.take(count))
            found = await asyncio.gather(*map(played, tasks))
    finally:
        await runner.cleanup()
    return {str(number): each for number, each in enumerate(found)}


@pytest.mark.parametrize("name", CASES)
async def test_rewards_parts_and_turns_are_those_of_the_library(name):
    options, reply, count = CASES[name]
    played, _ = await through_server(f"verifiers:{name},tasks={count},{options}", reply, in_flight=4)
    assert played == await own_runner(name, options.partition(".")[0], reply, count)
    assert len({each.rewards["main"] for each in played.values()}) > 1


async def test_an_episode_that_verifiers_ends_early_names_the_environment():
    from osmosis_grpc.protocol.types import OutcomeStatus
    from osmosis_grpc.testing.rollouts import run_rollout

    environment = open_environment(f"verifiers:words-taskset,agent.harness={TALKS}")
    metadata = {"task_id": environment.task_id("0")}
    changed = [{"role": "user", "content": "Another question."}]
    outcome = await run_rollout(environment, says, changed, metadata=metadata)
    assert outcome.status is OutcomeStatus.FAILED
    assert outcome.failure.message.startswith(environment.task_id("0"))


@pytest.mark.parametrize("spec", ["verifiers:nothing", "verifiers:words-taskset,colour=1"])
def test_a_wrong_name_or_option_is_refused(spec):
    with pytest.raises(ValueError, match=r"verifiers"):
        open_environment(spec)
