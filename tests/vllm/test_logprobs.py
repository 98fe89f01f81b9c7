"""Ids and logprobs from a real vLLM: those of the engine's own record, and those that transformers computes."""

import numpy as np
import pytest

from osmosis_grpc.policies import FinishReason, GenerateRequest, OpenAIPolicy, Sampling, TemplateTokenizer
from osmosis_grpc.protocol.errors import ContextLengthExceeded, InvalidArgument
from osmosis_grpc.trainer import ChatRequest
from tests.vllm.conftest import KINDS, ROUTES
from tests.vllm.engine import CONTEXT, MODELS, recomputed

pytestmark = pytest.mark.vllm
NEAR = 1e-3
PROMPTS = ["What is 2 + 3?", "Grüße aus Köln", "def f(x):\n    return", "\u2028 \U0001f600"]
TOKENS = 24
NEUTRAL = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0}


def asked(prompt, **sampling):
    return GenerateRequest(
        request_id=f"r{len(prompt)}",
        session_id="r/main",
        prompt_ids=np.asarray(prompt, dtype="<u4"),
        sampling=Sampling(**{"max_tokens": TOKENS, **sampling}),
    )


def near(rows, wanted):
    return max(float(np.abs(np.asarray(row) - np.asarray(want)).max()) for row, want in zip(rows, wanted, strict=True))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("kind", ROUTES)
async def test_ids_and_logprobs_are_those_of_the_engine_and_of_transformers(
    kind, temperature, engine_of, python_engine, tokenizer
):
    """The engine behind smg-grpc-servicer has no HTTP, so another one with the same model and seed has the record."""
    engine, generator = engine_of(kind)
    engine = python_engine if kind == "smg" else engine
    prompts = [tokenizer.encode(text) for text in PROMPTS]
    async with generator:
        assert await generator.context_length() == CONTEXT
        results = [await generator.generate(asked(ids, temperature=temperature, seed=7)) for ids in prompts]
    for prompt, result in zip(prompts, results, strict=True):
        sampling = NEUTRAL | {"temperature": temperature, "max_tokens": TOKENS, "logprobs": 0, "seed": 7}
        (choice,) = engine.post("/inference/v1/generate", {"token_ids": prompt, "sampling_params": sampling})["choices"]
        assert result.token_ids.tolist() == choice["token_ids"]
        record = [place["logprob"] for place in choice["logprobs"]["content"]]
        assert near([result.logprobs], [record]) < NEAR
    rows = [(p, r.token_ids.tolist(), temperature) for p, r in zip(prompts, results, strict=True)]
    assert near([result.logprobs for result in results], recomputed(MODELS / "shaped", rows)) < NEAR
    assert len({tuple(result.token_ids.tolist()) for result in results}) == len(PROMPTS)


@pytest.mark.parametrize("stream", [False, True])
async def test_chat_completions_with_ids_have_them_too(stream, python_engine):
    rows, given = [], []
    async with OpenAIPolicy(f"{python_engine.url}/v1", "tiny", stream=stream) as policy:
        for text in PROMPTS:
            messages = [{"role": "user", "content": text}]
            params = {"max_tokens": TOKENS, "temperature": 0.7}
            response = await policy(ChatRequest(rollout_id="r", messages=messages, params=params))
            rows.append((response.prompt_ids.tolist(), response.tokens.ids.tolist(), 0.7))
            given.append(response.tokens.logprobs)
    assert near(given, recomputed(MODELS / "shaped", rows)) < NEAR


@pytest.mark.parametrize("kind", KINDS)
async def test_parameters_shape_what_is_sampled(kind, engine_of, tokenizer):
    _, generator = engine_of(kind)
    prompt = tokenizer.encode("Hello")
    end = tokenizer.encode("<|im_end|>")[0]
    async with generator:
        allowed = await generator.generate(asked(prompt, allowed_token_ids=(50, 60, 70)))
        early = asked(prompt, allowed_token_ids=(50, end), logit_bias={end: 100.0} if kind != "http-rust" else {})
        ended = await generator.generate(early)
        late = asked(prompt, allowed_token_ids=(50, end), min_tokens=5)
        waited = await generator.generate(late)
        top = await generator.generate(asked(prompt, top_logprobs=3))
        shape = asked(prompt, regex="[ab]{3}")
        shaped = await generator.generate(shape)
    assert set(allowed.token_ids.tolist()) <= {50, 60, 70}
    if kind != "http-rust":
        assert (ended.token_ids.tolist(), ended.finish_reason) == ([end], FinishReason.STOP)
    assert len(waited.token_ids) >= 5
    assert end not in waited.token_ids[:5].tolist()
    best = top.extras["top_logprobs"].numpy()
    assert best.shape == (len(top.token_ids), 3)
    assert (np.diff(best) <= 0).all()
    text = tokenizer.decode(shaped.token_ids.tolist())
    assert text.removesuffix("<|im_end|>") in {a + b + c for a in "ab" for b in "ab" for c in "ab"}


@pytest.mark.parametrize("kind", ["http", "http-rust"])
async def test_bad_words_are_not_sampled(kind, engine_of, tokenizer):
    _, generator = engine_of(kind)
    ids = tokenizer.encode("alpha beta")
    async with generator:
        seen = await generator.generate(asked(ids, allowed_token_ids=tuple(tokenizer.encode("red"))))
        word = tokenizer.decode(seen.token_ids[:1].tolist())
        others = (*tokenizer.encode("red"), 50)
        never = await generator.generate(asked(ids, allowed_token_ids=others, bad_words=(word,)))
    assert seen.token_ids[0] not in never.token_ids.tolist()


async def test_smg_shapes_what_is_sampled_and_names_what_it_lacks(engine_of, tokenizer):
    _, generator = engine_of("smg")
    prompt, end = tokenizer.encode("Hello"), tokenizer.encode("<|im_end|>")[0]
    async with generator:
        ended = await generator.generate(asked(prompt, logit_bias={end: 100.0}, min_tokens=0))
        waited = await generator.generate(asked(prompt, min_tokens=5))
        top = await generator.generate(asked(prompt, top_logprobs=3))
        shaped = await generator.generate(asked(prompt, regex="[ab]{3}"))
        for lacking in ({"allowed_token_ids": (50,)}, {"bad_words": ("no",)}, {"top_logprobs": 20}):
            with pytest.raises(InvalidArgument) as caught:
                await generator.generate(asked(prompt, **lacking))
            assert [field for field, _ in caught.value.violations] == [f"params.{name}" for name in lacking]
    assert (ended.token_ids.tolist(), ended.finish_reason) == ([end], FinishReason.STOP)
    assert len(waited.token_ids) >= 5
    assert top.extras["top_logprobs"].numpy().shape == (len(top.token_ids), 3)
    text = tokenizer.decode(shaped.token_ids.tolist()).removesuffix("<|im_end|>")
    assert len(text) == 3
    assert set(text) <= {"a", "b"}


async def test_a_tokenizer_from_smg_reads_as_the_one_in_the_folder(engine_of, tokenizer, tmp_path):
    _, generator = engine_of("smg")
    async with generator:
        folder = await generator.download_tokenizer(tmp_path / "tokenizer")
    assert TemplateTokenizer(folder).encode(PROMPTS[1]) == tokenizer.encode(PROMPTS[1])


async def test_a_stop_text_ends_a_reply_with_its_tokens(python_engine, engine_of, tokenizer):
    _, generator = engine_of("http")
    only = tokenizer.encode("a")
    async with generator:
        result = await generator.generate(asked(tokenizer.encode("Hi"), allowed_token_ids=tuple(only), stop=("aaa",)))
    assert (result.token_ids.tolist(), result.finish_reason) == (only * 3, FinishReason.STOP)


@pytest.mark.parametrize("kind", ["http", "http-rust"])
async def test_a_full_context_and_wrong_values_are_refused(kind, engine_of):
    _, generator = engine_of(kind)
    async with generator:
        with pytest.raises(ContextLengthExceeded) as caught:
            await generator.generate(asked([5] * (CONTEXT + 1)))
        with pytest.raises(InvalidArgument):
            await generator.generate(asked([10**7]))
        with pytest.raises(InvalidArgument):
            await generator.generate(asked([5], top_logprobs=21))
        to_the_end = await generator.generate(asked([5] * (CONTEXT - 3), max_tokens=50))
        if kind == "http-rust":
            with pytest.raises(InvalidArgument):
                await generator.generate(asked([5], logit_bias={5: 1.0}))
    assert (caught.value.tokens, caught.value.limit) == (CONTEXT + 1, CONTEXT)
    assert (len(to_the_end.token_ids), to_the_end.finish_reason) == (3, FinishReason.LENGTH)
