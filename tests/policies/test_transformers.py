"""The in-process generator, with a small random Llama and a tokenizer of bytes: exact logprobs, batches, seeds, ends.

Runs where torch and transformers are installed: `make test-adapters` and `make test-model`.
"""

import asyncio
import re

import numpy as np
import pytest

from osmosis_grpc.policies import ChatRenderer, FinishReason, GenerateRequest, Sampling, TokenPolicy, TokenPolicyConfig
from osmosis_grpc.policies.transformers import TransformersGenerator
from osmosis_grpc.protocol.errors import Internal, InvalidArgument
from osmosis_grpc.protocol.types import ChatRequest, OutcomeStatus
from osmosis_grpc.server import AgentServer
from osmosis_grpc.testing.calculator import CalculatorAgent
from osmosis_grpc.trainer import Trainer, VersionSpan
from tests.policies.byte_tokenizer import ByteTokenizer, chatml
from tests.waiting import until

pytestmark = pytest.mark.adapters
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

CONTEXT = 900
PATIENCE = 30.0


@pytest.fixture(scope="module")
def tokenizer():
    return ByteTokenizer(chatml)


@pytest.fixture
def model(tokenizer):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        initializer_range=0.4,
        attn_implementation="eager",
    )
    return transformers.LlamaForCausalLM(config)


def generator_of(model, tokenizer, **options):
    return TransformersGenerator(model, tokenizer, **{"end_ids": [tokenizer.end_id]} | options)


def request(ids, name="1", **sampling):
    sampling = Sampling(**{"max_tokens": 12, "ignore_eos": True} | sampling)
    return GenerateRequest(request_id=name, session_id="r/main", prompt_ids=np.array(ids, "<u4"), sampling=sampling)


def recomputed(model, prompt, generated, temperature=1.0):
    """The logprobs of the sampled tokens, by one pass over the whole text."""
    ids = torch.tensor([[*prompt, *generated.token_ids.tolist()]])
    with torch.no_grad():
        scores = torch.log_softmax(model(input_ids=ids).logits[0].float() / temperature, dim=-1)
    places = range(len(prompt) - 1, ids.shape[1] - 1)
    return np.array([float(scores[at, ids[0, at + 1]]) for at in places])


async def test_the_logprobs_of_a_batch_are_those_of_a_whole_pass(model, tokenizer):
    """Prompts and replies of different lengths, so rows are padded, and rows end while others go on."""
    generator = generator_of(model, tokenizer, batch=8)
    prompts = [tokenizer.encode("a" * length) for length in (1, 7, 40, 3, 3)]
    settings = [{"temperature": 0.7}, {"temperature": 1.3, "top_p": 0.9}, {"temperature": 0.0}, {"top_k": 3}, {}]
    calls = [
        generator.generate(request(prompt, str(number), max_tokens=5 + 3 * number, **setting))
        for number, (prompt, setting) in enumerate(zip(prompts, settings, strict=True))
    ]
    results = await asyncio.gather(*calls)
    for number, (prompt, setting, result) in enumerate(zip(prompts, settings, results, strict=True)):
        temperature = setting.get("temperature", 1.0) or 1.0
        assert (len(result.token_ids), result.finish_reason) == (5 + 3 * number, FinishReason.LENGTH)
        np.testing.assert_allclose(result.logprobs, recomputed(model, prompt, result, temperature), atol=1e-4)


async def test_a_seed_gives_the_same_tokens_alone_and_in_a_batch(model, tokenizer):
    generator = generator_of(model, tokenizer)
    prompt = tokenizer.encode("The answer")
    alone = await generator.generate(request(prompt, seed=4))
    again, other, unseeded = await asyncio.gather(
        generator.generate(request(prompt, "1", seed=4)),
        generator.generate(request(prompt, "2", seed=5)),
        generator.generate(request(prompt, "3")),
    )
    assert alone.token_ids.tolist() == again.token_ids.tolist()
    assert len({tuple(result.token_ids.tolist()) for result in (alone, other, unseeded)}) == 3


async def test_truncated_sampling_draws_only_the_allowed_tokens(model, tokenizer):
    generator = generator_of(model, tokenizer)
    prompt = tokenizer.encode("x")
    greedy, *others = await asyncio.gather(
        generator.generate(request(prompt, "0", temperature=0.0)),
        *(
            generator.generate(request(prompt, str(number), **only))
            for number, only in enumerate(({"top_k": 1}, {"top_p": 1e-9}, {"top_p": 0.0}, {"min_p": 1.0}), 1)
        ),
    )
    assert [other.token_ids.tolist() for other in others] == [greedy.token_ids.tolist()] * 4


async def test_a_reply_ends_at_stop_tokens_stop_texts_and_the_end_of_the_context(model, tokenizer):
    generator = generator_of(model, tokenizer)
    prompt = tokenizer.encode("Say ")
    whole = await generator.generate(request(prompt, seed=1, max_tokens=30))
    ids = whole.token_ids.tolist()
    assert len(ids) == 30
    at = next(n for n in range(5, 30) if ids[n] not in ids[:n])
    stopped = await generator.generate(request(prompt, seed=1, max_tokens=30, stop_token_ids=(ids[at],)))
    assert (stopped.token_ids.tolist(), stopped.finish_reason) == (ids[: at + 1], FinishReason.STOP)
    ended = await generator_of(model, tokenizer, end_ids=[ids[at]]).generate(
        request(prompt, seed=1, max_tokens=30, ignore_eos=False)
    )
    assert (ended.token_ids.tolist(), ended.finish_reason) == (ids[: at + 1], FinishReason.STOP)
    text = tokenizer.decode(ids[at - 1 : at + 1])
    by_text = await generator.generate(request(prompt, seed=1, max_tokens=30, stop=(text, "never")))
    assert by_text.finish_reason is FinishReason.STOP
    assert text in tokenizer.decode(by_text.token_ids.tolist())
    assert text not in tokenizer.decode(by_text.token_ids.tolist()[:-1])
    long = tokenizer.encode("z" * (CONTEXT - 3))
    assert len((await generator.generate(request(long, max_tokens=30))).token_ids) == 3
    with pytest.raises(InvalidArgument, match=f"messages: have {CONTEXT} tokens, and the model takes {CONTEXT}"):
        await generator.generate(request(tokenizer.encode("z" * CONTEXT)))


async def test_an_aborted_call_ends_and_the_others_of_its_batch_go_on(model, tokenizer):
    seen = []

    class Watched(ByteTokenizer):
        def decode(self, ids, **options):
            seen.append(len(ids))
            return super().decode(ids, **options)

    generator = generator_of(model, Watched(chatml))
    prompt = tokenizer.encode("x")
    long = asyncio.ensure_future(generator.generate(request(prompt, "long", max_tokens=800, stop=("never ever",))))
    short = asyncio.ensure_future(generator.generate(request(prompt, "short", max_tokens=20)))
    await until(lambda: len(seen) > 3)
    await generator.abort("long")
    await generator.abort("unknown")
    aborted = await long
    assert aborted.finish_reason is FinishReason.ABORTED
    assert 3 < len(aborted.token_ids) < 800
    assert len((await short).token_ids) == 20


async def test_new_weights_interrupt_a_reply_which_goes_on_with_them(model, tokenizer):
    """Each part of the reply has the version and the logprobs of the weights that sampled it."""
    generator = generator_of(model, tokenizer, version="step-1", end_ids=[])
    policy = TokenPolicy(ChatRenderer(tokenizer), generator, TokenPolicyConfig(max_tokens=700, seed=3))
    started = []
    sampled = generator.generate

    async def generate(asked):
        started.append(asked)
        return await sampled(asked)

    generator.generate = generate
    chat = ChatRequest(rollout_id="r", messages=[{"role": "user", "content": "Count."}])
    async with policy:
        reply = asyncio.ensure_future(policy(chat))
        await until(lambda: started)
        old = [parameter.detach().clone() for parameter in model.parameters()]
        async with generator.update_weights("step-2", abort=True):
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(0.9)
        response = await reply
    first, second = response.versions if len(response.versions) == 2 else (VersionSpan("", 0), *response.versions)
    assert second.version == "step-2"
    assert first.tokens + second.tokens == 700
    prompt, ids = response.prompt_ids.tolist(), response.tokens.ids
    if first.tokens:
        new = [parameter.detach().clone() for parameter in model.parameters()]
        _load(model, old)
        part = _part(ids[: first.tokens])
        np.testing.assert_allclose(response.tokens.logprobs[: first.tokens], recomputed(model, prompt, part), atol=1e-4)
        _load(model, new)
    part = _part(ids[first.tokens :])
    given = [*prompt, *ids[: first.tokens].tolist()]
    np.testing.assert_allclose(response.tokens.logprobs[first.tokens :], recomputed(model, given, part), atol=1e-4)


def _part(ids):
    class Part:
        token_ids = ids

    return Part


def _load(model, values):
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), values, strict=True):
            parameter.copy_(value)


async def test_a_failed_update_keeps_the_version_and_the_sampling_goes_on(model, tokenizer):
    generator = generator_of(model, tokenizer, version="1")
    with pytest.raises(RuntimeError, match="no weights"):
        async with generator.update_weights("2"):
            waiting = asyncio.ensure_future(generator.generate(request([1])))
            raise RuntimeError("no weights")
    assert (await waiting).weight_version == "1"


@pytest.mark.parametrize(
    ("sampling", "name"), [({"presence_penalty": 1.0}, "presence_penalty"), ({"json_schema": "{}"}, "response_format")]
)
async def test_what_it_cannot_do_is_refused_by_name(model, tokenizer, sampling, name):
    with pytest.raises(InvalidArgument, match=rf"params\.{name}: is not supported by TransformersGenerator"):
        await generator_of(model, tokenizer).generate(request([1], **sampling))


async def test_a_model_that_fails_is_an_error_and_the_next_call_works(model, tokenizer):
    generator = generator_of(model, tokenizer)
    with pytest.raises(Internal, match="the model failed: IndexError"):
        await generator.generate(request([10**6]))
    assert len((await generator.generate(request([1]))).token_ids) == 12
    with pytest.raises(TypeError, match="model: a str is not a model; pass AutoModelForCausalLM"):
        TransformersGenerator("a/path", tokenizer)
    with pytest.raises(ValueError, match="end_ids: neither the tokenizer nor the model"):
        model.generation_config.eos_token_id = None
        TransformersGenerator(model, tokenizer)


async def test_rollouts_over_a_server_have_exact_tokens(model, tokenizer):
    """A random model writes nonsense, so the calculator ends after one reply. The trajectory is trainable."""
    policy = TokenPolicy(
        ChatRenderer(tokenizer), generator_of(model, tokenizer, version="0"), TokenPolicyConfig(max_tokens=16, seed=1)
    )
    question = [{"role": "user", "content": "What is 2 + 3?"}]
    async with AgentServer([CalculatorAgent()], port=0) as server, Trainer([server.address], policy) as trainer:
        rollouts = [trainer.rollout(rollout_id=f"r-{n}", messages=question, label="5") for n in range(4)]
        outcomes = await asyncio.wait_for(asyncio.gather(*rollouts), PATIENCE)
    for outcome in outcomes:
        assert outcome.status is OutcomeStatus.COMPLETED
        (segment,) = outcome.samples["main"].segments
        prompt = segment.ids[: segment.mask_runs[0]].tolist()
        expected = recomputed(model, prompt, _part(segment.ids[segment.mask_runs[0] :]))
        np.testing.assert_allclose(segment.logprobs, expected, atol=1e-4)
        assert re.fullmatch(r"0+", "".join(span.version for span in segment.versions))
    assert len({tuple(outcome.samples["main"].segments[0].ids.tolist()) for outcome in outcomes}) == 4
