"""OpenAIPolicy and a server that answers as vLLM does: streams, several choices, and what shapes the sampling."""

import pytest

from osmosis_grpc.policies import OpenAIPolicy
from osmosis_grpc.protocol.errors import InvalidArgument
from osmosis_grpc.protocol.types import ChatRequest
from osmosis_grpc.rollout import RolloutAgentLoop
from osmosis_grpc.testing import run_rollout
from tests.policies.fake_vllm_http import NEUTRAL, PROMPT, FakeVllmHttp

QUESTION = [{"role": "user", "content": "2+3?"}]
SHAPED = {"temperature": 0.6, "top_p": 0.8, "top_k": 20, "min_p": 0.1, "repetition_penalty": 1.1}
SHAPED |= {"presence_penalty": 1.5, "frequency_penalty": 0.5}
TOOLS = [{"type": "function", "function": {"name": "f"}}]
both = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


async def ask(vllm, params=None, *, tools=None, **options):
    async with vllm.serving() as url, OpenAIPolicy(url, "m", **options) as policy:
        return await policy(ChatRequest(rollout_id="r", messages=QUESTION, params=params or {}, tools=tools))


@both
@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\x85"], ids=lambda mark: f"{ord(mark):04x}")
async def test_a_reply_may_have_every_character_that_some_take_for_the_end_of_a_line(mark, stream):
    text = f"a{mark}b"
    response = await ask(FakeVllmHttp(text), stream=stream)
    assert response.message == {"role": "assistant", "content": text}
    assert response.tokens.ids.tolist() == list(map(ord, text))


@both
async def test_several_choices_have_one_prompt(stream):
    response = await ask(FakeVllmHttp(), {"n": 2}, stream=stream)
    assert response.prompt_ids.tolist() == PROMPT
    assert response.tokens.ids.tolist() == list(map(ord, "#### 5"))
    assert [choice["message"]["content"] for choice in response.extra["choices"]] == ["#### 5"]


@both
async def test_a_rollout_whose_chats_ask_for_several_choices_is_trainable_from_the_right_prompt(stream):
    class Several(RolloutAgentLoop):
        name = "several"

        async def get_tools(self, request):
            return []

        async def run(self, ctx):
            await ctx.chat(ctx.request.messages, n=2)
            return ctx.complete(ctx.request.messages)

    async with FakeVllmHttp().serving() as url, OpenAIPolicy(url, "m", stream=stream) as policy:
        outcome = await run_rollout(Several(), policy, QUESTION)
    (segment,) = outcome.samples["main"].segments
    assert segment.ids.tolist() == [*PROMPT, *map(ord, "#### 5")]


@both
async def test_a_chat_without_parameters_is_sampled_from_the_whole_distribution_of_the_model(stream):
    """Whatever the model's generation_config.json says."""
    vllm = FakeVllmHttp(model=SHAPED)
    await ask(vllm, stream=stream)
    assert vllm.sampled == [NEUTRAL]


@pytest.mark.parametrize("name", NEUTRAL)
async def test_the_values_of_a_chat_replace_the_neutral_ones(name):
    vllm = FakeVllmHttp(model=SHAPED)
    given = {"temperature": 0.5, "top_p": 0.5, "top_k": 7, "min_p": 0.25}.get(name, 1.25)
    await ask(vllm, {name: given})
    assert vllm.sampled == [NEUTRAL | {name: given}]


@pytest.mark.parametrize("name", NEUTRAL)
async def test_a_parameter_that_is_null_is_not_the_models_own_value(name):
    vllm = FakeVllmHttp(model=SHAPED)
    await ask(vllm, {name: None})
    assert vllm.sampled == [NEUTRAL]


async def test_without_token_ids_the_servers_defaults_count_and_no_unknown_key_is_sent():
    vllm = FakeVllmHttp(model=SHAPED)
    await ask(vllm, token_ids=False)
    assert vllm.sampled == [NEUTRAL | SHAPED]
    assert set(vllm.bodies[0]) == {"model", "messages", "stream", "logprobs"}


@pytest.mark.parametrize(
    ("name", "value"),
    [("best_of", 2), ("use_beam_search", True), ("echo", True), ("prompt_logprobs", 0), ("prompt_logprobs", 1)],
)
async def test_a_parameter_that_changes_what_the_returned_tokens_are_is_refused_by_name(name, value):
    vllm = FakeVllmHttp()
    with pytest.raises(InvalidArgument) as refused:
        await ask(vllm, {name: value})
    assert refused.value.violations[0][0] == f"params.{name}"
    assert vllm.bodies == []


@pytest.mark.parametrize(
    ("name", "value"), [("best_of", 1), ("use_beam_search", False), ("echo", False), ("prompt_logprobs", None)]
)
async def test_such_a_parameter_with_its_neutral_value_is_served(name, value):
    assert (await ask(FakeVllmHttp(), {name: value})).tokens is not None


@both
async def test_keys_of_a_message_that_are_null_are_left_out(stream):
    response = await ask(FakeVllmHttp(), {"n": 2}, stream=stream)
    assert response.message == {"role": "assistant", "content": "#### 5"}


@pytest.mark.parametrize("choice", ["auto", "none"])
async def test_a_choice_among_no_tools_is_not_sent(choice):
    vllm = FakeVllmHttp()
    await ask(vllm, {"tool_choice": choice, "parallel_tool_calls": False})
    assert not {"tool_choice", "parallel_tool_calls"} & vllm.bodies[0].keys()


async def test_a_choice_among_tools_is_sent():
    vllm = FakeVllmHttp()
    params = {"tool_choice": "auto", "parallel_tool_calls": False}
    await ask(vllm, params, tools=TOOLS)
    assert params.items() <= vllm.bodies[0].items()


async def test_a_call_that_is_required_of_no_tools_is_refused():
    with pytest.raises(InvalidArgument):
        await ask(FakeVllmHttp(), {"tool_choice": "required"})
