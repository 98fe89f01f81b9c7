"""The name of the model in a request decides which policy of the trainer answers it, whatever its history continues."""

import pytest

from osmosis_grpc.policies.scripted import answer
from tests.endpoints.programs import USER, running

pytestmark = pytest.mark.adapters
openai = pytest.importorskip("openai")

MORE = {"role": "user", "content": "Criticize it."}


async def asked(program, policies=("", "critic")):
    """Returns the outcome of a program that gets a function to ask with, and the policies that answered."""
    answered = []

    async def run(endpoint):
        options = {"base_url": endpoint.base_url, "api_key": endpoint.api_key, "max_retries": 0}
        async with openai.AsyncOpenAI(**options) as client:

            async def ask(model, messages, **options):
                reply = await client.chat.completions.create(model=model, messages=messages, **options)
                return {"role": "assistant", "content": reply.choices[0].message.content}

            await program(ask)
        return 1.0

    async def policy(request):
        answered.append(request.policy)
        return answer(request, "fine")

    async with running(run, dict.fromkeys(policies, policy)) as (trainer, _):
        return await trainer.rollout(rollout_id="r1", messages=[USER]), answered


async def test_a_policy_that_goes_on_with_the_conversation_of_another_one_has_a_sample_of_its_own():
    async def program(ask):
        draft = await ask("policy", [USER])
        critique = await ask("policy/critic", [USER, draft, MORE])
        await ask("policy", [USER, draft, MORE, critique, USER])
        await ask("policy/critic", [USER, draft, MORE, critique, MORE])

    outcome, answered = await asked(program)
    assert answered == ["", "critic", "", "critic"], outcome.failure
    assert {name: sample.policy for name, sample in outcome.samples.items()} == {"main": "", "sample-2": "critic"}


async def test_equal_replies_of_two_policies_are_two_conversations():
    async def program(ask):
        replies = [await ask(model, [USER]) for model in ("policy", "policy/critic")]
        for model, reply in zip(("policy", "policy/critic"), replies, strict=True):
            await ask(model, [USER, reply, MORE])

    outcome, answered = await asked(program)
    assert answered == ["", "critic", "", "critic"], outcome.failure
    assert {name: len(sample.segments) for name, sample in outcome.samples.items()} == {"main": 1, "sample-2": 1}


async def test_a_question_that_one_policy_has_refused_can_be_asked_of_another_one():
    async def program(ask):
        with pytest.raises(openai.BadRequestError):
            await ask("policy/nobody", [USER])
        await ask("policy", [USER])

    outcome, answered = await asked(program)
    assert (answered, outcome.reward) == ([""], 1.0), outcome.failure


async def test_a_named_sample_refuses_another_policy_than_its_own():
    async def program(ask):
        header = {"x-osmosis-sample": "judge"}
        await ask("policy/critic", [USER], extra_headers=header)
        await ask("policy", [USER], extra_headers=header)
        with pytest.raises(openai.BadRequestError):
            await ask("policy/other", [USER], extra_headers=header)

    outcome, answered = await asked(program, ("", "critic", "other"))
    assert (answered, outcome.reward) == (["critic", "critic"], 1.0), outcome.failure
