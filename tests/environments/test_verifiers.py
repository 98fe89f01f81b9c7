"""Tasksets of verifiers through a server, beside verifiers' own runner. Run by `make test-environments`.

verifiers starts a program for each episode, with uv, which installs what the program needs from the package index.
"""

import asyncio
import json
import re
import subprocess
from pathlib import Path

import pytest

from osmosis_grpc.environments import open_environment, task_requests
from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.testing.rollouts import run_rollout
from osmosis_grpc.trainer import Trainer
from tests.environments.living import alive, descendants
from tests.environments.parity import TASKS, Played, number_of, through_server
from tests.ports import quiet_port
from tests.processes import server_process
from tests.waiting import until

pytestmark = [pytest.mark.environments, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(1800)]
vf = pytest.importorskip("verifiers.v1")
CANCELLED, COMPLETED, DEADLINE = OutcomeStatus.CANCELLED, OutcomeStatus.COMPLETED, OutcomeStatus.DEADLINE_EXCEEDED
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


def works(messages):
    """A command of the shell, and then what it printed."""
    if messages[-1]["role"] != "tool":
        number = re.findall(r"Say (\d+)", str(messages[-1]["content"]))[0]
        function = {"name": "bash", "arguments": json.dumps({"command": f"echo {number}"})}
        return {"role": "assistant", "tool_calls": [{"id": "call-1", "type": "function", "function": function}]}
    return str(messages[-1]["content"]).strip() if number_of(str(messages[1]["content"]), 3) else "Done."


CASES = {
    "one turn": ("words-taskset", "agent", TALKS, says, TASKS),
    "tools": ("tools-taskset", "agent", TALKS, adds, TASKS),
    "several turns": ("turns-taskset", "player", TALKS, climbs, TASKS),
    "a harness with a shell": ("words-taskset", "agent", '{"id":"bash"}', works, 10),
}


async def own_runner(name, role, harness, reply, count):
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
    agent = {"harness": json.loads(harness), "runtime": {"type": "subprocess"}}
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


@pytest.mark.parametrize("case", CASES)
async def test_rewards_parts_and_turns_are_those_of_the_library(case):
    name, role, harness, reply, count = CASES[case]
    spec = f"verifiers:{name},tasks={count},{role}.harness={harness}"
    played, _ = await through_server(spec, reply, in_flight=4)
    assert played == await own_runner(name, role, harness, reply, count)
    assert len({each.rewards["main"] for each in played.values()}) > 1


@pytest.mark.parametrize("how", ["raises", "nan", "list", "none", "text", "never_ends"])
async def test_a_wrong_reward_is_a_failure_that_names_the_task(how):
    environment = open_environment(
        f"verifiers:wrong-taskset,agent.harness={TALKS},taskset.task.how={how},agent.timeout.scoring=1"
    )
    metadata = {"task_id": environment.task_id("0")}
    outcome = await run_rollout(environment, lambda chat: answer(chat, "something"), [], metadata=metadata)
    assert outcome.status is OutcomeStatus.FAILED
    assert outcome.failure.message.startswith(environment.task_id("0"))
    assert ("wrong_taskset.py:" in outcome.failure.message) is (how == "raises"), "the place of what raised"
    assert outcome.reward is None


@pytest.mark.parametrize("end", ["kill", "cancel", "deadline", "end"])
async def test_none_of_its_processes_is_left(end, tmp_path):
    spec, port, count = f"verifiers:tools-taskset,agent.harness={TALKS},tasks=8", quiet_port(), 8
    asked, may = set(), asyncio.Event()

    async def policy(request):
        asked.add(request.rollout_id)
        await may.wait()
        return answer(request, adds(request.messages))

    fields = {"agent_timeout": 60.0} if end == "deadline" else {}
    requests = list(task_requests(open_environment(spec), "r", **fields))
    arguments = ("--env", spec, "--grpc-port", str(port), "--state-dir", str(tmp_path))
    async with Trainer([f"127.0.0.1:{port}"], policy) as trainer:

        async def collected():
            return [outcome async for outcome in trainer.run(requests, max_in_flight=count, retries=1)]

        with server_process(*arguments, stderr=subprocess.DEVNULL) as (process, _):
            running = asyncio.ensure_future(collected())
            await until(lambda: len(asked) == count, timeout=200)
            started = descendants(process.pid)
            assert len(started) >= 2 * count  # a program and a server of tools for each episode
            match end:
                case "kill":
                    process.kill()
                case "cancel":
                    await trainer.cancel(everything=True)
                case "end":
                    may.set()
            if end != "kill":
                statuses = {outcome.status for outcome in await asyncio.wait_for(running, 200)}
                assert statuses == {{"cancel": CANCELLED, "deadline": DEADLINE, "end": COMPLETED}[end]}
            await until(lambda: not any(map(alive, started)))
            assert end == "kill" or not descendants(process.pid)
        if end == "kill":
            may.set()
            with server_process(*arguments, stderr=subprocess.DEVNULL) as (process, _):
                outcomes = await asyncio.wait_for(running, 200)
                await until(lambda: not descendants(process.pid))
            assert {outcome.status for outcome in outcomes} == {COMPLETED}
            assert sorted(outcome.rollout_id for outcome in outcomes) == [f"r-{n}" for n in range(count)]


async def test_an_episode_that_verifiers_ends_early_names_the_environment():
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
