"""The policy that takes tokens and gives tokens, with a scripted generator: aborts, retries, versions, cancellation."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from osmosis_grpc.policies import ChatRenderer, FinishReason, Media, TokenPolicy
from osmosis_grpc.protocol.errors import DeadlineExceeded, Internal, InvalidArgument, ResourceExhausted, Unavailable
from osmosis_grpc.protocol.types import ChatRequest, OutcomeStatus, Tensor, VersionSpan
from osmosis_grpc.server import AgentServer
from osmosis_grpc.testing import run_rollout
from osmosis_grpc.testing.calculator import CalculatorAgent
from osmosis_grpc.trainer import Trainer
from tests.policies.byte_tokenizer import ByteTokenizer, chatml, forgetful, hermes, llama3
from tests.policies.scripted_generator import Scripted, generated, policy_of
from tests.waiting import until

QUESTION = [{"role": "user", "content": "What is 2 + 3?"}]
PATIENCE = 20.0


async def test_a_wrong_part_is_named():
    with pytest.raises(TypeError, match=r"renderer: a ByteTokenizer has no prompt_ids\(\); pass ChatRenderer"):
        TokenPolicy(TOKENS, Scripted([]))
    with pytest.raises(TypeError, match=r"generator: a function has no generate\(\); pass a TokenGenerator"):
        TokenPolicy(ChatRenderer(TOKENS), lambda asked: asked)
    with pytest.raises(TypeError, match=r"tokenizer: a str has no apply_chat_template\(\)"):
        ChatRenderer("Qwen/Qwen2.5-0.5B-Instruct")


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        ("#### 5", "the generator returned a str, not a Generated"),
        (lambda: generated([1], "abort"), "the generator's finish_reason is 'abort', not one of stop, length, aborted"),
        (lambda: generated([1], version=7), "the generator's weight_version is 7, not a str"),
        (
            lambda: generated([1], extras={"entropy": Tensor.of([1.0])}),
            r"tokens.extras\[entropy\].*not a tensor of float64",
        ),
    ],
)
async def test_a_result_that_cannot_be_used_is_no_reply(result, problem):
    policy, _, _ = policy_of(result() if callable(result) else result)
    with pytest.raises(Internal, match=problem):
        await policy(chat())


def chat(**changes):
    return ChatRequest(**({"rollout_id": "r", "sample": "main", "messages": QUESTION} | changes))


TOKENS = ByteTokenizer(chatml)


@pytest.mark.parametrize(
    ("choice", "text", "unmet"),
    [
        ("required", "It is 5.", True),
        ("required", '<tool_call>{"name": "add", "arguments": {}}</tool_call>', False),
        (
            {"type": "function", "function": {"name": "mul"}},
            '<tool_call>{"name": "add", "arguments": {}}</tool_call>',
            True,
        ),
        ("auto", "It is 5.", False),
    ],
)
async def test_a_reply_without_a_required_call_is_marked(choice, text, unmet):
    policy, _, _ = policy_of(generated(TOKENS.reply(text)))
    tools = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("add", "mul")]
    reply = await policy(chat(tools=tools, params={"tool_choice": choice}))
    assert reply.extra.get("tool_choice_unmet", False) is unmet


async def test_a_reply_has_the_sampled_tokens_and_the_prompt():
    sampled = TOKENS.reply("It is 5.")
    policy, generator, tokenizer = policy_of(generated(sampled, version="step-3", cached_tokens=4), priority=2)
    async with policy:
        assert generator.entered == 1
        reply = await policy(chat(params={"temperature": 0.5, "max_tokens": 9, "stop": "x", "seed": 1}))
    assert generator.entered == 0
    assert (reply.message, reply.finish_reason) == ({"role": "assistant", "content": "It is 5."}, "stop")
    assert reply.tokens.ids.tolist() == sampled
    assert tokenizer.decode(reply.prompt_ids.tolist()) == chatml(QUESTION, [], True)
    assert reply.versions == (VersionSpan("step-3", len(sampled)),)
    assert reply.usage["prompt_tokens"] == len(reply.prompt_ids)
    assert reply.usage["prompt_tokens_details"] == {"cached_tokens": 4}
    (asked,) = generator.asked
    assert (asked.session_id, asked.priority, asked.prompt_ids.tolist()) == ("r/main", 2, reply.prompt_ids.tolist())
    assert asked.request_id.startswith("r/main/1/1/")
    sampling = asked.sampling
    assert (sampling.temperature, sampling.max_tokens, sampling.stop, sampling.seed) == (0.5, 9, ("x",), 1)


async def test_limits_of_tokens_reach_the_generator_and_shrink_with_each_part():
    one, two = TOKENS.encode("It "), TOKENS.reply("is.")
    policy, generator, _ = policy_of(generated(one, FinishReason.ABORTED), generated(two))
    limits = {"min_tokens": 5, "bad_words": "no", "logit_bias": {"7": -100}, "allowed_token_ids": [7, 8]}
    await policy(chat(params=limits))
    first, second = (asked.sampling for asked in generator.asked)
    assert (first.bad_words, first.logit_bias, first.allowed_token_ids) == (("no",), {7: -100.0}, (7, 8))
    assert (first.min_tokens, second.min_tokens) == (5, 5 - len(one))


async def test_the_versions_of_a_result_are_those_of_its_tokens():
    ids = TOKENS.reply("It is 5.")
    spans = (VersionSpan("", 2), VersionSpan("2", len(ids) - 2))
    policy, _, _ = policy_of(replace(generated(ids), versions=spans), replace(generated(ids), versions=spans[:1]))
    reply = await policy(chat(version="1"))
    assert reply.versions == (VersionSpan("1", 2), spans[1])
    with pytest.raises(Internal):
        await policy(chat())


async def test_an_aborted_result_is_asked_again_and_each_part_keeps_its_version_and_extras():
    one, two, three = TOKENS.encode("It "), TOKENS.encode("is"), TOKENS.reply(" 5.")
    rows = [Tensor.of(np.full((len(part), 1, 1), n, dtype="int16")) for n, part in enumerate((one, two, three))]
    experts = [{"routed_experts": row} for row in rows]
    policy, generator, _ = policy_of(
        generated(one, FinishReason.ABORTED, "1", extras=experts[0]),
        generated([], FinishReason.ABORTED, "1"),
        generated(two, FinishReason.ABORTED, "1", extras=experts[1]),
        generated(three, version="2", extras=experts[2]),
        max_tokens=50,
    )
    reply = await policy(chat())
    assert reply.message["content"] == "It is 5."
    assert reply.tokens.ids.tolist() == [*one, *two, *three]
    assert reply.versions == (VersionSpan("1", len(one + two)), VersionSpan("2", len(three)))
    assert reply.tokens.extras["routed_experts"].numpy().ravel().tolist() == (
        [0] * len(one) + [1] * len(two) + [2] * len(three)
    )
    prompt = reply.prompt_ids.tolist()
    assert [asked.prompt_ids.tolist() for asked in generator.asked] == [
        prompt,
        prompt + one,
        prompt + one,
        prompt + one + two,
    ]
    assert [asked.sampling.max_tokens for asked in generator.asked] == [
        50,
        50 - len(one),
        50 - len(one),
        50 - len(one + two),
    ]
    assert len({asked.request_id for asked in generator.asked}) == 4
    assert not generator.aborted, "a call that returned is not aborted"


async def test_an_aborted_result_that_used_up_max_tokens_ends_with_length():
    ids = TOKENS.encode("abcd")
    policy, generator, _ = policy_of(generated(ids, FinishReason.ABORTED), max_tokens=4)
    reply = await policy(chat())
    assert (reply.finish_reason, reply.tokens.ids.tolist(), len(generator.asked)) == ("length", ids, 1)


async def test_errors_are_retried_by_status_and_are_never_a_reply():
    busy, down = ResourceExhausted("busy", retry_after=0.0), Unavailable("down", retry_after=0.0)
    policy, generator, _ = policy_of(busy, down, generated(TOKENS.reply("5")))
    assert (await policy(chat())).message["content"] == "5"
    async with policy:
        generator.script = [down] * 4
        with pytest.raises(Unavailable, match="down"):
            await policy(chat())
        generator.script = [Internal("broken"), generated(TOKENS.reply("5"))]
        with pytest.raises(Internal, match="broken"):
            await policy(chat())
        assert len(generator.asked) == 3 + 4 + 1
    assert len(generator.aborted) == 2 + 4 + 1, "a call that failed may still be sampling"


@pytest.mark.parametrize("how", ["task", "hook", "both"])
async def test_a_reply_that_is_not_wanted_is_aborted_once(how):
    policy, generator, _ = policy_of(None, None)
    async with policy:
        task = asyncio.ensure_future(policy(chat()))
        other = asyncio.ensure_future(policy(chat(chat_number=2)))
        await until(lambda: len(generator.asked) == 2)
        if how != "hook":
            task.cancel()
            await asyncio.wait([task])
        if how != "task":
            policy.cancel(chat())
        await until(lambda: generator.aborted)
        assert generator.aborted == [asked.request_id for asked in generator.asked if "/main/1/1/" in asked.request_id]
        task.cancel()
        other.cancel()
        await asyncio.wait([task, other])
    assert sorted(generator.aborted) == sorted(asked.request_id for asked in generator.asked)


async def test_a_cancelled_rollout_aborts_its_call():
    policy, generator, _ = policy_of(None)
    async with AgentServer([CalculatorAgent()], port=0) as server, Trainer([server.address], policy) as trainer:
        rollout = asyncio.ensure_future(trainer.rollout(rollout_id="r", messages=QUESTION))
        await until(lambda: generator.asked)
        await trainer.cancel("r")
        await until(lambda: generator.aborted)
        outcome = await asyncio.wait_for(rollout, PATIENCE)
    assert outcome.status is OutcomeStatus.CANCELLED
    assert generator.aborted == [asked.request_id for asked in generator.asked]


async def test_the_time_is_limited():
    policy, generator, _ = policy_of(None, timeout=0.01)
    async with policy:
        with pytest.raises(DeadlineExceeded, match=r"no reply within 0\.01 s"):
            await policy(chat())
    assert len(generator.aborted) == 1


@pytest.mark.parametrize(
    ("params", "problem"),
    [
        ({"temperature": "hot"}, "params.temperature: is 'hot', not a number from 0"),
        ({"top_p": 2}, "params.top_p: is 2, not a number above 0, at most 1"),
        ({"top_p": 0}, "params.top_p"),
        ({"top_p": 1e-50}, "params.top_p"),
        ({"repetition_penalty": 0}, "params.repetition_penalty"),
        ({"max_tokens": 0}, "params.max_tokens: is 0, not a whole number from 1"),
        ({"stop": [""]}, "params.stop: has an empty text"),
        ({"n": 2}, "params.n: is 2; a token policy serves only 1"),
        ({"tool_choice": "always"}, "params.tool_choice"),
        ({"best_of": 2}, "params.best_of"),
        ({"use_beam_search": True}, "params.use_beam_search"),
        ({"echo": True}, "params.echo"),
        ({"prompt_logprobs": 1}, "params.prompt_logprobs"),
        ({"min_tokens": 9, "max_tokens": 8}, "params.min_tokens"),
        ({"bad_words": [""]}, "params.bad_words"),
        ({"logit_bias": [1]}, "params.logit_bias"),
        ({"logit_bias": {"a": 1}}, "params.logit_bias.a"),
        ({"logit_bias": {"5": 101}}, "params.logit_bias"),
        ({"allowed_token_ids": []}, "params.allowed_token_ids"),
        ({"priority": "high"}, "params.priority: is 'high'"),
        ({"response_format": {"type": "xml"}}, "params.response_format"),
    ],
)
async def test_a_parameter_that_cannot_be_served_is_named(params, problem):
    policy, generator, _ = policy_of()
    with pytest.raises(InvalidArgument) as error:
        await policy(chat(params=params))
    assert problem in str(error.value)
    assert not generator.asked


async def test_a_parameter_that_is_null_does_not_replace_the_one_of_the_configuration():
    policy, generator, _ = policy_of(generated(TOKENS.encode("a")), params={"temperature": 0.5})
    await policy(chat(params={"temperature": None}))
    assert generator.asked[0].sampling.temperature == 0.5


async def test_the_context_limits_prompt_and_reply():
    prompt = len(TOKENS.encode(chatml(QUESTION, [], True)))
    policy, generator, _ = policy_of(generated(TOKENS.encode("ab"), FinishReason.LENGTH), context=prompt + 2)
    assert (await policy(chat())).finish_reason == "length"
    assert generator.asked[0].sampling.max_tokens == 2
    with pytest.raises(InvalidArgument, match=f"messages: have .* tokens, and the context of the model has {prompt}"):
        await policy_of(context=prompt)[0](chat())


async def test_images_go_to_the_generator_as_bytes_in_their_order():
    parts = [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAEC"}},
        {"type": "text", "text": "and"},
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
    ]
    policy, generator, tokenizer = policy_of(generated(TOKENS.reply("a cat")), tokenizer=Pictures())
    await policy(chat(messages=[{"role": "user", "content": parts}]))
    (asked,) = generator.asked
    assert asked.media == (
        Media(modality="image", mime_type="image/png", data=b"\x00\x01\x02"),
        Media(modality="image", url="https://example.com/a.png"),
    )
    assert "<image>and<image>" in tokenizer.decode(asked.prompt_ids.tolist())
    broken = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,?"}}]
    with pytest.raises(InvalidArgument, match=r"messages\[0\]\.content\[0\]\.image_url: is not base64"):
        await policy(chat(messages=[{"role": "user", "content": broken}]))


class Pictures(ByteTokenizer):
    """A template that writes a placeholder for each image."""

    def apply_chat_template(self, messages, **options):
        def text(part):
            return "<image>" if part["type"] == "image" else part["text"]

        flat = [{**m, "content": "".join(map(text, m["content"]))} if isinstance(m["content"], list) else m
                for m in messages]  # fmt: skip
        return super().apply_chat_template(flat, **options)


class Solver:
    """A generator that answers the calculator's question as its model would: one call after the other."""

    def __init__(self, tokenizer, *, thinks=""):
        self.tokenizer, self.thinks = tokenizer, thinks
        self.sessions = set()

    async def generate(self, request):
        self.sessions.add(request.session_id)
        text = self.tokenizer.decode(request.prompt_ids.tolist())
        results = text.count("<tool_response>") + text.count("ipython")
        calls = [("add", {"a": 2, "b": 3})] if not results else [("multiply", {"a": 5, "b": 4})] if results == 1 else []
        before = self.thinks if calls else "#### 20"
        return generated(self.tokenizer.reply(before, calls, sampled_as="bytes"), version="1")

    async def abort(self, request_id):
        raise AssertionError("nothing is aborted")


@pytest.mark.parametrize("template", [chatml, llama3, hermes, forgetful])
async def test_a_rollout_with_tools_is_one_segment_of_exact_tokens(template):
    tokenizer = ByteTokenizer(template)
    generator = Solver(tokenizer)
    question = [{"role": "user", "content": "What is (2 + 3) * 4?"}]
    policy = TokenPolicy(ChatRenderer(tokenizer), generator)
    async with AgentServer([CalculatorAgent()], port=0) as server, Trainer([server.address], policy) as trainer:
        outcome = await asyncio.wait_for(trainer.rollout(rollout_id="r", messages=question, label="20"), PATIENCE)
    assert (outcome.status, outcome.reward) == (OutcomeStatus.COMPLETED, 1.0)
    sample = outcome.samples["main"]
    (segment,) = sample.segments
    assert sample.trainable
    assert (len(segment.chats), segment.drift_index) == (3, None)
    assert segment.sampled == sum(len(chat.tokens.ids) for chat in sample.chats)
    assert segment.logprobs.tolist() == ((segment.ids[segment.mask()] % 7) / -10).astype("<f4").tolist()
    assert {span.version for span in segment.versions} == {"1"}
    assert generator.sessions == {"r/main"}


async def test_drift_is_recorded_where_the_template_forgets():
    """A second question: the template now leaves out the reasoning of the first reply."""
    tokenizer = ByteTokenizer(forgetful)

    async def agent(ctx):
        messages = list(QUESTION)
        messages.append((await ctx.chat(messages)).message)
        messages.append({"role": "user", "content": "And 3 + 4?"})
        messages.append((await ctx.chat(messages)).message)
        return ctx.complete(messages, reward=1.0)

    thinking = generated(tokenizer.reply("<think>add</think>5"))
    policy = TokenPolicy(ChatRenderer(tokenizer), Scripted([thinking, thinking]))
    outcome = await run_rollout(_agent(agent), policy, messages=QUESTION)
    sample = outcome.samples["main"]
    assert sample.trainable
    first, second = sample.segments
    assert first.drift_index is None
    start = len(tokenizer.encode(forgetful(QUESTION, [], True)))
    assert second.drift_index == start, "the prompts are equal up to the reply"


def _agent(run):
    from osmosis_grpc.rollout import RolloutAgentLoop

    class Agent(RolloutAgentLoop):
        name = "asks-twice"

        async def run(self, ctx):
            return await run(ctx)

    return Agent()
