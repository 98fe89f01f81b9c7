"""@rollout_agent: functions that use the openai package, in the server's process."""

import asyncio
import threading
from pathlib import Path

import numpy as np
import pytest

from osmosis_grpc.agent.loop import AgentNameError
from osmosis_grpc.agent.source_version import AgentVersion
from osmosis_grpc.agent.validator import place_of, validate_agent_loop
from osmosis_grpc.policies.scripted import EchoPolicy, answer
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.rollout import rollout_agent, tool
from osmosis_grpc.server import AgentServer
from osmosis_grpc.testing import run_rollout
from osmosis_grpc.trainer import Trainer
from tests.waiting import until

pytestmark = pytest.mark.adapters
openai = pytest.importorskip("openai")

USER = {"role": "user", "content": "What is 2 + 3?"}


@tool
async def add(a: float, b: float) -> float:
    """Adds two numbers."""
    return a + b


def policy(request):
    """Calls the tool twice at once, and then answers with the newest result."""
    if request.chat_number == 1:
        calls = [
            {"id": f"c{n}", "type": "function", "function": {"name": "add", "arguments": f'{{"a": {n}, "b": 3}}'}}
            for n in (1, 2)
        ]
        return answer(request, {"role": "assistant", "content": None, "tool_calls": calls}, tokens=7)
    return answer(request, f"#### {request.messages[-1]['content']}", tokens=5)


async def conversation(task, client, chat):
    messages = list(task.messages)
    for _ in range(task.max_turns):
        message = (await chat(messages)).choices[0].message
        messages.append(message)
        if not message.tool_calls:
            break
        messages += await task.ctx.run_tools(message)
    return float(message.content == f"#### {task.label}")


@rollout_agent("async", tools=[add])
async def async_agent(task, client):
    return await conversation(
        task, client, lambda messages: client.chat.completions.create(model="policy", messages=messages)
    )


@rollout_agent("streaming", tools=[add])
async def streaming_agent(task, client):
    async def chat(messages):
        async with client.chat.completions.stream(model="policy", messages=messages) as chunks:
            return await chunks.get_final_completion()

    return await conversation(task, client, chat)


@rollout_agent("sync", tools=[add])
def sync_agent(task, client):
    messages = list(task.messages)
    for _ in range(task.max_turns):
        message = client.chat.completions.create(model="policy", messages=messages).choices[0].message
        messages.append(message)
        if not message.tool_calls:
            break
        messages += task.ctx.run_tools(message)
    return float(message.content == f"#### {task.label}")


@rollout_agent("sync streaming", tools=[add])
def sync_streaming_agent(task, client):
    messages = list(task.messages)
    for _ in range(task.max_turns):
        with client.chat.completions.stream(model="policy", messages=messages) as chunks:
            message = chunks.get_final_completion().choices[0].message
        messages.append(message)
        if not message.tool_calls:
            break
        messages += task.ctx.run_tools(message)
    return float(message.content == f"#### {task.label}")


@pytest.mark.parametrize(
    "agent", [async_agent, streaming_agent, sync_agent, sync_streaming_agent], ids=lambda agent: agent.name
)
async def test_the_tokens_of_a_conversation_are_the_policys_in_one_segment(agent):
    given = []

    def watched(request):
        given.append(policy(request))
        assert [schema["function"]["name"] for schema in request.tools] == ["add"]
        assert request.params == {"temperature": 0.5}
        return given[-1]

    async with AgentServer([agent], port=0) as server, Trainer([server.address], watched) as trainer:
        outcome = await trainer.rollout(
            rollout_id="train a 1?#%", messages=[USER], label="5.0", completion_params={"temperature": 0.5}
        )
    assert (outcome.status, outcome.reward) == (OutcomeStatus.COMPLETED, 1.0), outcome.failure
    assert [message["role"] for message in outcome.messages] == ["user", "assistant", "tool", "tool", "assistant"]
    (segment,) = outcome.samples["main"].segments
    assert segment.chats == (1, 2)
    sampled = np.concatenate([reply.tokens.ids for reply in given])
    assert np.array_equal(segment.ids[segment.mask()], sampled)
    assert outcome.metrics.num_tool_calls == 2


async def test_the_task_has_the_trainers_request_and_the_client_knows_no_other_key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "canary")
    seen = []

    @rollout_agent("task")
    async def agent(task, client):
        seen.append((task, client))
        await client.chat.completions.create(model="policy", messages=task.messages, temperature=0)

    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    messages = [{"role": "assistant", "content": "x"}, {"role": "user", "content": parts}]
    outcome = await run_rollout(
        agent, EchoPolicy(), messages, rollout_id="r1", label="5", metadata={"k": [1]}, max_turns=3, attempt=2
    )
    assert (outcome.status, outcome.reward) == (OutcomeStatus.COMPLETED, None), outcome.failure
    ((task, client),) = seen
    assert (task.prompt, task.label, task.metadata, task.rollout_id) == ("one two", "5", {"k": [1]}, "r1")
    assert (task.max_turns, task.attempt, task.messages) == (3, 2, messages)
    assert isinstance(client, openai.AsyncOpenAI)
    assert "canary" not in client.api_key


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        ("won", "reward: is 'won', not a finite number"),
        (float("nan"), "reward: is nan, not a finite number"),
        ({"reward": "1"}, "reward: is '1', not a finite number"),
        ({"rewards": [1]}, "rewards: is a list, not an object"),
        ({"rewards": {"main": None}}, "rewards.main: is None, not a finite number"),
        ({"rewards": {"other": 1.0}}, "rewards.other: "),
        ({"metadata": "x"}, "metadata: is a str, not an object"),
        ({"metadata": {"x": object()}}, "extra_fields"),
        ({"finish_reason": 3}, "finish_reason: is a int, not a string"),
        ({"score": 3}, "score: is not a key of a result; the keys are reward, rewards, train, metadata, finish_reason"),
    ],
)
async def test_a_bad_result_is_a_failure_that_names_the_field(result, problem):
    @rollout_agent("bad")
    async def agent(task, client):
        await client.chat.completions.create(model="policy", messages=task.messages)
        return result

    outcome = await run_rollout(agent, EchoPolicy(), [USER])
    assert (outcome.status, outcome.failure.boundary) == (OutcomeStatus.FAILED, "agent")
    assert problem in outcome.failure.message
    assert outcome.reward is None
    assert outcome.samples["main"].segments


async def test_an_exception_names_the_functions_line():
    @rollout_agent("raises")
    def agent(task, client):
        raise KeyError("on purpose")

    outcome = await run_rollout(agent, EchoPolicy(), [USER])
    assert outcome.failure.file.endswith("test_openai_agents.py")
    assert "on purpose" in outcome.failure.message


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_an_error_of_the_trainer_is_raised_once_as_openais_error(kind):
    asked = []

    def refuses(request):
        asked.append(request)
        raise InvalidArgument("messages", "are too long")

    if kind == "async":

        @rollout_agent("refused")
        async def agent(task, client):
            await client.chat.completions.create(model="policy", messages=task.messages)
    else:

        @rollout_agent("refused")
        def agent(task, client):
            client.chat.completions.create(model="policy", messages=task.messages)

    async with AgentServer([agent], port=0) as server, Trainer([server.address], refuses) as trainer:
        outcome = await trainer.rollout(rollout_id="r1", messages=[USER])
    assert len(asked) == 1
    assert (outcome.status, outcome.failure.boundary) == (OutcomeStatus.FAILED, "trainer")
    assert "are too long" in outcome.failure.message


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_cancelled_rollout_ends_with_its_partial_sample_and_a_clear_error(kind):
    waits, stopped, errors = asyncio.Event(), asyncio.Event(), []

    async def slow(request):
        if request.chat_number == 1:
            return answer(request, "one")
        waits.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    if kind == "async":

        @rollout_agent("slow")
        async def agent(task, client):
            try:
                for _ in range(2):
                    reply = await client.chat.completions.create(model="policy", messages=task.messages)
                    task.messages.extend([reply.choices[0].message.model_dump(), {"role": "user", "content": "more"}])
            except asyncio.CancelledError as error:
                errors.append(error)
                raise
    else:

        @rollout_agent("slow")
        def agent(task, client):
            try:
                for _ in range(2):
                    reply = client.chat.completions.create(model="policy", messages=task.messages)
                    task.messages.extend([reply.choices[0].message.model_dump(), {"role": "user", "content": "more"}])
            except openai.APIStatusError as error:
                errors.append(error)
                raise

    async with AgentServer([agent], port=0) as server, Trainer([server.address], slow) as trainer:
        rollout = asyncio.create_task(trainer.rollout(rollout_id="r1", messages=[USER]))
        await waits.wait()
        await trainer.cancel("r1")
        outcome = await rollout
        await until(lambda: stopped.is_set() and errors)
    assert outcome.status is OutcomeStatus.CANCELLED
    assert outcome.samples["main"].segments[0].chats == (1,)
    if kind == "sync":
        assert (errors[0].status_code, errors[0].body["code"]) == (410, "rollout_ended")


async def test_sync_functions_run_at_once_on_threads():
    together = threading.Barrier(20, timeout=20)

    @rollout_agent("blocks")
    def agent(task, client):
        client.chat.completions.create(model="policy", messages=task.messages)
        together.wait()  # all 20 threads get here, or the barrier breaks
        return 1.0

    async with AgentServer([agent], port=0) as server, Trainer([server.address], EchoPolicy()) as trainer:
        outcomes = await asyncio.gather(*(trainer.rollout(rollout_id=f"r{n}", messages=[USER]) for n in range(20)))
    assert {outcome.reward for outcome in outcomes} == {1.0}


def test_the_agent_is_valid_and_its_function_can_be_called():
    result = validate_agent_loop(sync_agent)
    assert (result.agent_name, result.findings, result.tool_count) == ("sync", (), 1)
    file, line = place_of(sync_agent.run)
    assert file == __file__
    assert "def sync_agent" in Path(__file__).read_text().splitlines()[line - 1]
    assert next(iter(AgentVersion.of(sync_agent).parts)).endswith("test_openai_agents.py")

    @rollout_agent("called")
    def agent(task, client):
        return task + client

    assert agent(1, 2) == 3


def test_a_function_that_cannot_be_an_agent_is_refused():
    with pytest.raises(TypeError, match=r'@rollout_agent\("my-agent"\)'):
        rollout_agent(lambda task, client: None)
    with pytest.raises(TypeError, match="called as agent"):

        @rollout_agent("few")
        def agent(task):
            pass

    with pytest.raises(TypeError, match="yields"):

        @rollout_agent("generator")
        def generator(task, client):
            yield 1

    with pytest.raises(AgentNameError):
        rollout_agent("")(lambda task, client: None)


async def test_chats_of_the_context_and_of_the_client_are_samples_of_their_own():
    @rollout_agent("mixed")
    async def mixed(task, client):
        await task.ctx.chat(task.messages)
        await client.chat.completions.create(model="policy", messages=task.messages)
        header = {"x-osmosis-sample": "main"}
        await client.chat.completions.create(model="policy", messages=task.messages, extra_headers=header)
        return 1.0

    outcome = await run_rollout(mixed, EchoPolicy(), [USER])
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
    chats = {name: len(sample.segments) for name, sample in outcome.samples.items()}
    assert chats == {"main": 2, "sample-2": 1}
