"""The official openai package drives a rollout through its base URL."""

import asyncio
import json
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.tap import Tap
from osmosis_grpc.endpoints.open_chats import Waits
from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import ChatRef, OutcomeStatus
from osmosis_grpc.trainer import Trainer
from tests.endpoints.programs import USER, outcome_of, running, serving
from tests.waiting import until

pytestmark = pytest.mark.adapters
openai = pytest.importorskip("openai")

TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "strict": True,  # openai 2 asks for it in streams
        "parameters": {"type": "object", "properties": {"a": {"type": "number"}}},
    },
}


def client(endpoint, **options):
    return openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.api_key, **options)


def calls(*ids):
    function = {"name": "add", "arguments": '{"a": 1}'}
    return [{"id": name, "type": "function", "function": function} for name in ids]


def policy(request):
    """Calls two tools at once, and then answers."""
    if request.chat_number == 1:
        return answer(request, {"role": "assistant", "content": None, "tool_calls": calls("c1", "c2")}, tokens=7)
    return answer(request, f"reply {request.chat_number}", tokens=5)


async def agent(endpoint, *, stream):
    """An ordinary program: it runs tools until the model calls none, and serializes replies as the package does."""
    messages = [USER]
    async with client(endpoint) as model:
        for _ in range(3):
            if stream:
                async with model.chat.completions.stream(
                    model="policy", messages=messages, tools=[TOOL], stream_options={"include_usage": True}
                ) as chunks:
                    reply = await chunks.get_final_completion()
            else:
                reply = await model.chat.completions.create(model="policy", messages=messages, tools=[TOOL])
            assert reply.usage.completion_tokens in (5, 7)
            message = reply.choices[0].message
            messages.append(message.model_dump(exclude={"parsed"}))
            for call in message.tool_calls or ():
                assert json.loads(call.function.arguments) == {"a": 1}
                messages.append({"role": "tool", "tool_call_id": call.id, "content": "3"})
            if not message.tool_calls:
                messages.append({"role": "user", "content": "again"})
    return 0.5


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("transport", ["attach", "callback"])
async def test_tokens_are_the_policys_and_stay_in_one_segment(stream, transport):
    given = []

    def watched(request):
        given.append(policy(request))
        return given[-1]

    outcome = await outcome_of(lambda endpoint: agent(endpoint, stream=stream), watched, transport=transport)
    assert (outcome.status, outcome.reward) == (OutcomeStatus.COMPLETED, 0.5), outcome.failure
    (sample,) = outcome.samples.values()
    (segment,) = sample.segments
    assert segment.chats == (1, 2, 3)
    sampled = segment.ids[segment.mask()]
    assert np.array_equal(sampled, np.concatenate([reply.tokens.ids for reply in given]))
    assert np.array_equal(segment.logprobs, np.concatenate([reply.tokens.logprobs for reply in given]))


@pytest.mark.parametrize("stream", [False, True])
async def test_each_choice_is_a_chat_of_its_own_and_the_program_continues_one(stream):
    seen = []

    def watched(request):
        seen.append(request)
        return answer(request, f"reply {request.chat_number}", tokens=request.chat_number)

    async def program(endpoint):
        async with client(endpoint) as model:
            asked = {"model": "policy", "messages": [USER], "n": 3, "seed": 7}
            texts = {0: "", 1: "", 2: ""}
            if stream:
                options = {"include_usage": True}
                async for chunk in await model.chat.completions.create(**asked, stream=True, stream_options=options):
                    usage = chunk.usage
                    for choice in chunk.choices:
                        texts[choice.index] += choice.delta.content or ""
            else:
                reply = await model.chat.completions.create(**asked)
                usage = reply.usage
                texts = {choice.index: choice.message.content for choice in reply.choices}
            assert texts == {0: "reply 1", 1: "reply 2", 2: "reply 3"}
            assert usage.completion_tokens == 6
            kept = {"role": "assistant", "content": texts[1]}
            await model.chat.completions.create(model="policy", messages=[USER, kept, USER])

    outcome = await outcome_of(program, watched)
    assert list(outcome.samples) == ["main"]
    assert [request.params.get("seed") for request in seen] == [7, 8, 9, None]
    assert seen[-1].parent_chat == 2
    assert {chat for segment in outcome.samples["main"].segments for chat in segment.chats} == {1, 2, 3, 4}


async def test_choices_of_a_request_that_fails_are_not_trained():
    def fails(request):
        if request.chat_number == 3:
            raise InvalidArgument("messages", "are too long")
        return answer(request, f"reply {request.chat_number}")

    async def program(endpoint):
        async with client(endpoint) as model:
            with pytest.raises(openai.BadRequestError):
                await model.chat.completions.create(model="policy", messages=[USER], n=3)

    outcome = await outcome_of(program, fails)
    assert [sample.train for sample in outcome.samples.values()] == [False]


async def test_structured_output_and_other_parameters_go_to_the_trainer():
    seen = []

    def watched(request):
        seen.append(request.params)
        return answer(request, '{"answer": 5}')

    async def program(endpoint):
        schema = {"name": "answer", "schema": {"type": "object"}}
        async with client(endpoint) as model:
            reply = await model.chat.completions.create(
                model="policy",
                messages=[USER],
                response_format={"type": "json_schema", "json_schema": schema},
                max_completion_tokens=64,
                temperature=0.5,
                parallel_tool_calls=False,
                extra_body={"min_p": 0.1},
            )
            assert json.loads(reply.choices[0].message.content) == {"answer": 5}
            assert [each.id async for each in model.models.list()] == ["policy"]

    await outcome_of(program, watched)
    (params,) = seen
    assert params["response_format"]["json_schema"]["name"] == "answer"
    assert (params["max_completion_tokens"], params["temperature"], params["min_p"]) == (64, 0.5, 0.1)
    assert "parallel_tool_calls" not in params, "there are no tools"


async def test_an_error_of_the_trainer_reaches_the_program_once():
    asked, errors = [], []

    def refuses(request):
        asked.append(request)
        raise InvalidArgument("messages", "are too long")

    async def program(endpoint):
        async with client(endpoint) as model:
            try:
                await model.chat.completions.create(model="policy", messages=[USER])
            except openai.APIStatusError as error:
                errors.append(error)

    outcome = await outcome_of(program, refuses)
    assert (len(asked), len(errors)) == (1, 1)
    assert (errors[0].status_code, errors[0].body["type"]) == (400, "invalid_request_error")
    assert "are too long" in errors[0].body["message"]
    assert outcome.status is OutcomeStatus.COMPLETED, "the program has handled it"


@pytest.mark.parametrize(
    ("change", "kind", "status"),
    [
        ({"key": "wrong"}, openai.AuthenticationError, 401),
        ({"path": "/v1/rollouts/r2"}, openai.NotFoundError, 404),
        ({"body": {"n": 65}}, openai.BadRequestError, 400),
        ({"body": {"n": "two"}}, openai.BadRequestError, 400),
        ({"body": {"messages": "no list"}}, openai.BadRequestError, 400),
        ({"body": {"messages": [{"role": "nobody", "content": ""}]}}, openai.BadRequestError, 400),
    ],
)
async def test_wrong_requests_are_refused_with_the_packages_own_errors(change, kind, status):
    errors = []

    async def program(endpoint):
        url = endpoint.base_url.replace("/v1/rollouts/r1", change.get("path", "/v1/rollouts/r1"))
        async with openai.AsyncOpenAI(base_url=url, api_key=change.get("key", endpoint.api_key)) as model:
            try:
                await model.chat.completions.create(**{"model": "policy", "messages": [USER]} | change.get("body", {}))
            except openai.APIStatusError as error:
                errors.append(error)

    await outcome_of(program, policy)
    assert [(type(error), error.status_code) for error in errors] == [(kind, status)]
    assert errors[0].body["message"]


async def test_a_cancelled_rollout_gives_the_program_a_clear_error_and_keeps_its_sample():
    errors, waits, cancelled = [], asyncio.Event(), asyncio.Event()

    async def slow(request):
        if request.chat_number == 1:
            return answer(request, "one")
        waits.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    kept = []

    async def program(endpoint):
        kept.append(endpoint)
        messages = [USER]
        async with client(endpoint) as model:
            for _ in range(2):
                reply = await model.chat.completions.create(model="policy", messages=messages)
                messages += [reply.choices[0].message.model_dump(), USER]

    async with running(program, slow) as (trainer, _):
        rollout = asyncio.create_task(trainer.rollout(rollout_id="r1", messages=[USER]))
        await waits.wait()
        await trainer.cancel("r1")
        outcome = await rollout
        assert outcome.status is OutcomeStatus.CANCELLED
        assert outcome.samples["main"].segments[0].chats == (1,)
        await until(cancelled.is_set)
        async with client(kept[0]) as model:
            with pytest.raises(openai.APIStatusError) as caught:
                await model.chat.completions.create(model="policy", messages=[USER])
        errors.append(caught.value)
    assert errors[0].status_code == 410
    assert errors[0].body["code"] == "rollout_ended"


async def test_a_client_that_hangs_up_stops_the_sampling_and_may_ask_again():
    cancelled = asyncio.Event()

    async def slow(request):
        if request.chat_number == 1:
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()
        return answer(request, "second")

    async def program(endpoint):
        async with client(endpoint, max_retries=0) as model:
            with pytest.raises(openai.APITimeoutError):
                await model.chat.completions.create(model="policy", messages=[USER], timeout=0.3)
            await cancelled.wait()
            reply = await model.chat.completions.create(model="policy", messages=[USER])
            assert reply.choices[0].message.content == "second"

    outcome = await outcome_of(program, slow, waits=Waits(retry=0.1))
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
    assert list(outcome.samples) == ["main"]


async def test_each_conversation_is_a_sample_and_a_subagent_has_its_parent():
    def scripted(request):
        first = request.messages[0]["content"]
        if first == "plan" and request.chat_number == 1:
            return answer(request, {"role": "assistant", "content": None, "tool_calls": calls("ask-helper")})
        return answer(request, f"{first} {request.chat_number}")

    async def program(endpoint):
        async with client(endpoint) as model:

            async def chat(messages):
                reply = await model.chat.completions.create(model="policy", messages=messages)
                messages.append(reply.choices[0].message.model_dump())
                return reply.choices[0].message

            planner = [{"role": "system", "content": "plan"}, USER]
            await chat(planner)
            helper = [{"role": "system", "content": "help"}, USER]
            await chat(helper)
            result = await chat([*helper, {"role": "user", "content": "more"}])
            planner.append({"role": "tool", "tool_call_id": "ask-helper", "content": result.content})
            await chat(planner)
            critic = [{"role": "system", "content": "criticize"}, USER]
            await chat(critic)
        return 1.0

    outcome = await outcome_of(program, scripted)
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
    parents = {name: sample.parent for name, sample in outcome.samples.items()}
    assert parents == {"main": None, "sample-2": ChatRef("main", 1), "sample-3": None}
    assert [len(sample.segments) for sample in outcome.samples.values()] == [1, 1, 1]


async def test_the_bytes_of_an_attachment_grow_linearly_in_turns():
    async def program(endpoint):
        messages = [USER]
        async with client(endpoint) as model:
            for turn in range(turns):
                reply = await model.chat.completions.create(model="policy", messages=messages)
                messages.append({"role": "assistant", "content": reply.choices[0].message.content})
                messages.append({"role": "user", "content": f"{turn}" * 500})

    totals = []
    async with Tap() as tap, serving(program) as (server, _):
        route = await tap.route(server.address)
        async with Trainer([route], lambda request: answer(request, "x" * 500)) as trainer:
            for turns in (8, 16, 32):
                before = await tap.settled()
                await trainer.rollout(rollout_id=f"r{turns}", messages=[USER])
                totals.append(await tap.settled() - before)
    assert 1.8 < (totals[2] - totals[1]) / (totals[1] - totals[0]) < 2.4  # 4 if each chat had the whole history


async def test_a_reply_without_a_finish_reason_and_the_known_logprobs():
    def bare(request):
        return replace(policy(request), finish_reason="")

    async def program(endpoint):
        async with client(endpoint) as model:
            body = {"model": "policy", "messages": [USER], "logprobs": True}
            async with model.chat.completions.stream(**body) as chunks:
                streamed = (await chunks.get_final_completion()).choices[0]
            other = body | {"messages": [{"role": "user", "content": "other"}]}
            whole = (await model.chat.completions.create(**other)).choices[0]
            for choice in (streamed, whole):
                assert choice.finish_reason == "tool_calls"
                assert len(choice.logprobs.content) == 7
                assert choice.logprobs.content[0].token.startswith("token_id:")
            assert (await model.chat.completions.create(**other | {"logprobs": None})).choices[0].logprobs is None
        return 1.0

    outcome = await outcome_of(program, bare)
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure


@pytest.mark.parametrize("finish_reason", ["length", "model_context_window_exceeded"])
async def test_a_reply_that_was_cut_has_the_finish_reason_length(finish_reason):
    async def program(endpoint):
        async with client(endpoint) as model:
            reply = await model.chat.completions.create(model="policy", messages=[USER])
            assert reply.choices[0].finish_reason == "length"

    outcome = await outcome_of(program, lambda request: replace(policy(request), finish_reason=finish_reason))
    assert (outcome.status, outcome.finish_reason) == (OutcomeStatus.COMPLETED, finish_reason), outcome.failure
    assert outcome.samples["main"].cut in ("length", "context")
