"""The LiteLLM provider `osmosis`: any library on LiteLLM reaches the policy of its rollout."""

import asyncio
import gc
import sys
import weakref

import numpy as np
import pytest

from osmosis_grpc.protocol.errors import FailedPrecondition, InvalidArgument, OsmosisRolloutError, ResourceExhausted
from osmosis_grpc.protocol.types import ChatRef, OutcomeStatus
from osmosis_grpc.rollout import AgentWorkflow, RolloutAgentLoop, get_rollout_context, register_litellm_provider
from osmosis_grpc.testing import run_rollout
from tests.gateway.commands import outcome_of
from tests.integrations.strands_policy import Replies, calls

pytestmark = pytest.mark.adapters
pytest.importorskip("litellm")

MODEL = "osmosis/policy"
QUESTION = [{"role": "user", "content": "hi", "name": "bob"}]
TOOLS = [
    {
        "type": "function",
        "function": {"name": "add", "description": "Add.", "parameters": {"type": "object", "properties": {}}},
    }
]


@pytest.fixture
def litellm():
    import litellm

    assert register_litellm_provider() is litellm
    return litellm


async def ran(run, policy, prompt=QUESTION, **request):
    class Workflow(AgentWorkflow):
        async def run(self, ctx):
            await run(list(ctx.prompt))

    return await run_rollout(Workflow, policy, prompt, **request)


async def plain(litellm, messages, **options):
    return (await litellm.acompletion(model=MODEL, messages=messages, **options)).choices[0].message


async def streamed(litellm, messages, **options):
    chunks = await litellm.acompletion(model=MODEL, messages=messages, stream=True, **options)
    return litellm.stream_chunk_builder([chunk async for chunk in chunks]).choices[0].message


async def sync(litellm, messages, **options):
    return litellm.completion(model=MODEL, messages=messages, **options).choices[0].message


async def sync_streamed(litellm, messages, **options):
    chunks = list(litellm.completion(model=MODEL, messages=messages, stream=True, **options))
    return litellm.stream_chunk_builder(chunks).choices[0].message


async def on_a_thread(litellm, messages, **options):
    return await asyncio.to_thread(
        lambda: litellm.completion(model=MODEL, messages=messages, **options).choices[0].message
    )


def test_registering_twice_adds_one_provider(litellm):
    register_litellm_provider()
    assert [item["provider"] for item in litellm.custom_provider_map].count("osmosis") == 1


@pytest.mark.parametrize("ask", [plain, streamed, sync, sync_streamed, on_a_thread], ids=lambda ask: ask.__name__)
async def test_every_kind_of_call_is_a_chat_and_its_tokens_stay_in_one_segment(litellm, ask):
    thoughtful = calls("add", '{"a":  1}', '{"b": 2}') | {"reasoning_content": "hm"}
    policy = Replies(thoughtful, "two", "three")

    async def run(messages):
        for _ in range(3):
            message = await ask(litellm, messages, tools=TOOLS, temperature=0.5, max_tokens=9)
            messages.append(message)
            for call in message.tool_calls or ():
                assert call.function.name == "add"
                messages.append({"role": "tool", "tool_call_id": call.id, "content": "x"})
            messages.append({"role": "user", "content": "more"})
        assert message.content == "three"

    outcome = await ran(run, policy, completion_params={"top_p": 0.9, "temperature": 1.0})
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
    (segment,) = outcome.samples["main"].segments
    assert segment.chats == (1, 2, 3)
    sampled = np.concatenate([reply.tokens.ids for reply in policy.given])
    assert np.array_equal(segment.ids[segment.mask()], sampled)
    first, second, _ = policy.requests
    assert first.messages == QUESTION
    assert (first.params, first.tools) == ({"top_p": 0.9, "temperature": 0.5, "max_tokens": 9}, TOOLS)
    assert second.messages[1] == thoughtful


async def test_a_reply_has_usage_finish_reason_and_logprobs(litellm):
    policy = Replies(calls("add", {"a": 1}) | {"reasoning_content": "hm"})
    seen = []

    async def run(messages):
        seen.append(await litellm.acompletion(model=MODEL, messages=messages, tools=TOOLS, logprobs=True))
        options = {"stream": True, "stream_options": {"include_usage": True}}
        seen.append([chunk async for chunk in await litellm.acompletion(model=MODEL, messages=messages, **options)])

    outcome = await ran(run, policy)
    reply, chunks = seen
    given = policy.given[0]
    assert reply.usage.completion_tokens == given.usage["completion_tokens"], outcome.failure
    assert reply.usage.prompt_tokens == given.usage["prompt_tokens"]
    assert reply.choices[0].finish_reason == "tool_calls"
    assert reply.choices[0].message.reasoning_content == "hm"
    assert [token.logprob for token in reply.choices[0].logprobs.content] == given.tokens.logprobs.tolist()
    usages = [chunk.usage for chunk in chunks if getattr(chunk, "usage", None)]
    assert usages[-1].completion_tokens == policy.given[1].usage["completion_tokens"]
    assert "tool_calls" in [chunk.choices[0].finish_reason for chunk in chunks]
    assert chunks[0].choices[0].delta.reasoning_content == "hm"


async def test_conversations_are_samples_and_a_header_or_a_name_of_a_policy_chooses(litellm):
    async def run(messages):
        await litellm.acompletion(model=MODEL, messages=messages)
        await litellm.acompletion(model=MODEL, messages=[{"role": "user", "content": "other"}])
        await litellm.acompletion(model=MODEL, messages=messages, extra_headers={"x-sample-id": "pr%C3%BCfer"})
        await litellm.acompletion(model="osmosis/policy/critic", messages=[{"role": "user", "content": "third"}])

    policy = Replies("x")
    outcome = await ran(run, policy)
    assert list(outcome.samples) == ["main", "sample-2", "prüfer", "sample-4"], outcome.failure
    assert [request.policy for request in policy.requests] == ["", "", "", "critic"]
    assert outcome.samples["sample-2"].parent in (None, ChatRef("main", 1))


async def test_parameters_are_forwarded_or_refused_by_name(litellm):
    policy = Replies("x")

    async def run(messages):
        await litellm.acompletion(
            model=MODEL, messages=messages, stop=["a"], seed=1, top_k=4, extra_body={"min_p": 0.1}, user="u", n=1
        )
        with pytest.raises(litellm.BadRequestError, match="n: is not 1"):
            await litellm.acompletion(model=MODEL, messages=messages, n=2)
        with pytest.raises(litellm.UnsupportedParamsError, match="reasoning_effort"):
            await litellm.acompletion(model=MODEL, messages=messages, reasoning_effort="low")

    outcome = await ran(run, policy)
    assert policy.requests[0].params == {"stop": ["a"], "seed": 1, "top_k": 4, "min_p": 0.1}, outcome.failure


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (FailedPrecondition("no model is loaded"), "APIError"),
        (InvalidArgument("temperature", "is too hot"), "BadRequestError"),
        (ResourceExhausted("no room", retry_after=80_000.0), "RateLimitError"),
    ],
    ids=["refused", "wrong", "full"],
)
async def test_an_error_of_the_trainer_is_one_of_litellm_and_the_trainers_failure(litellm, error, kind):
    caught = []

    def policy(request):
        raise error

    async def run(messages):
        try:
            await litellm.acompletion(model=MODEL, messages=messages)
        except getattr(litellm, kind) as raised:
            caught.append(raised)
            raise

    outcome = await ran(run, policy)
    assert str(error) in str(caught[0])
    assert isinstance(caught[0], OsmosisRolloutError)
    assert (outcome.failure.boundary, outcome.failure.retryable) == ("trainer", error.retryable)


async def test_an_agent_loop_reaches_its_policy_too(litellm):
    class Loop(RolloutAgentLoop):
        name = "loop"

        def get_tools(self, request):
            return []

        async def run(self, ctx):
            reply = await litellm.acompletion(model=MODEL, messages=ctx.request.messages)
            return ctx.complete(reward=float(reply.choices[0].message.content == "x"))

    outcome = await run_rollout(Loop(), Replies("x"), QUESTION)
    assert (outcome.reward, outcome.samples["main"].messages[-1]["content"]) == (1.0, "x"), outcome.failure


async def test_another_name_of_the_model_is_refused_with_those_that_exist(litellm):
    policy = Replies("x")

    async def run(messages):
        for name in ("osmosis/polcy", "osmosis/policies/planner"):
            with pytest.raises(litellm.BadRequestError, match=f"{name} is unknown; the models are osmosis/policy and"):
                await litellm.acompletion(model=name, messages=messages)
        await litellm.acompletion(model=MODEL, messages=messages)

    outcome = await ran(run, policy)
    assert (outcome.status, len(policy.requests)) == (OutcomeStatus.COMPLETED, 1), outcome.failure


async def test_outside_of_a_rollout_there_is_no_model(litellm):
    with pytest.raises(litellm.BadRequestError, match="osmosis/policy exists only in the process of the server"):
        await litellm.acompletion(model=MODEL, messages=QUESTION)
    with pytest.raises(litellm.BadRequestError, match="while a rollout runs"):
        litellm.completion(model=MODEL, messages=QUESTION)


async def test_no_http_request_is_made_and_no_key_is_needed(litellm, monkeypatch):
    import httpx

    def refuse(*args, **kwargs):
        raise AssertionError("an HTTP request")

    monkeypatch.setattr(httpx.AsyncClient, "send", refuse)
    monkeypatch.setattr(httpx.Client, "send", refuse)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    outcome = await ran(lambda messages: litellm.acompletion(model=MODEL, messages=messages), Replies("x"))
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure


async def test_ended_rollouts_are_forgotten(litellm):
    contexts = weakref.WeakSet()

    async def asks(messages):
        contexts.add(get_rollout_context())
        await plain(litellm, messages)

    for _ in range(8):
        assert (await ran(asks, Replies("hi"))).failure is None
    gc.collect()
    assert len(contexts) < 4, "LiteLLM itself keeps the context variables of its newest calls"


COMMAND = f"{sys.executable} agent.py"
ASK = """
import litellm

reply = litellm.completion(model="openai/policy", messages=[USER])
result(reward=float("hello" in reply.choices[0].message.content))
"""
WRONG = """
import litellm

from osmosis_grpc.rollout import register_litellm_provider

register_litellm_provider()
litellm.completion(model="osmosis/policy", messages=[USER])
"""


async def test_the_model_of_a_program_is_openai_policy(tmp_path):
    outcome = await outcome_of(tmp_path, ASK, Replies("hello"), command=COMMAND)
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
    assert (outcome.reward, len(outcome.samples["main"].segments)) == (1.0, 1)


async def test_a_program_that_asks_osmosis_policy_reads_what_to_write(tmp_path):
    outcome = await outcome_of(tmp_path, WRONG, Replies("hello"), command=COMMAND)
    assert outcome.status is OutcomeStatus.FAILED
    assert outcome.failure.message.splitlines()[0].endswith(
        "in a program of `serve --command` the model is openai/policy"
    )
