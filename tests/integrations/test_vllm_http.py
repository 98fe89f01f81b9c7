"""vLLM over plain HTTP: the generator and the control client, against a server made from the answers of vLLM 0.32."""

import asyncio

import numpy as np
import pytest

from osmosis_grpc.integrations.vllm_http import PauseMode, VllmHttpControl, VllmHttpGenerator
from osmosis_grpc.policies import ChatRenderer, FinishReason, GenerateRequest, Media, Modality, Sampling, TokenPolicy
from osmosis_grpc.protocol.errors import (
    Cancelled,
    ContextLengthExceeded,
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    PermissionDenied,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
)
from osmosis_grpc.protocol.types import VersionSpan
from osmosis_grpc.server import AgentServer
from osmosis_grpc.trainer import ChatRequest, Trainer
from tests.integrations.counting_agent import QUESTION, TURNS, CountingAgent, counting_model
from tests.integrations.fake_engine import CONTEXT, FakeEngine, Plan, logprob
from tests.integrations.fake_vllm_generate import NEUTRAL, FakeVllmGenerate
from tests.policies.byte_tokenizer import ByteTokenizer
from tests.waiting import until

REPLY = [11, 12, 13, 14, 15]
SHAPED = {"top_k": 20, "top_p": 0.8, "min_p": 0.1, "repetition_penalty": 1.1, "temperature": 0.1}


def asked(prompt=(1, 2, 3), *, sampling=None, **more):
    prompt_ids = np.asarray(prompt, dtype="<u4")
    sampling = sampling or Sampling(max_tokens=9)
    return GenerateRequest(request_id="r1", session_id="r/main one", prompt_ids=prompt_ids, sampling=sampling, **more)


def engine(reply=REPLY, **more):
    return FakeEngine(lambda prompt: list(reply), **more)


def policy_of(url, tokenizer):
    return TokenPolicy(ChatRenderer(tokenizer), VllmHttpGenerator(url))


def chat(**more):
    return ChatRequest(rollout_id="r", messages=[{"role": "user", "content": "Hi"}], **more)


@pytest.mark.parametrize("rust", [False, True])
async def test_a_call_carries_ids_and_neutral_values_and_its_result_ids_logprobs_and_versions(rust):
    vllm = FakeVllmGenerate(engine(generation_config=SHAPED), rust=rust)
    async with vllm.serving() as url, VllmHttpGenerator(f"{url}/v1", api_key="a-secret") as generator:
        result = await generator.generate(asked(priority=-2))
        assert await generator.context_length() == CONTEXT
    (sent,), (headers,) = vllm.bodies, vllm.headers
    assert (sent["request_id"], sent["token_ids"], sent["priority"]) == ("r1", [1, 2, 3], -2)
    assert (headers["X-Session-ID"], headers["Authorization"]) == ("r/main%20one", "Bearer a-secret")
    (sampled_with,) = vllm.engine.sampled_with
    assert {name: sampled_with[name] for name in NEUTRAL} == NEUTRAL, "not what generation_config.json says"
    assert sent["sampling_params"].keys() == NEUTRAL.keys() | {"max_tokens", "logprobs", "detokenize"}
    assert (result.token_ids.tolist(), result.logprobs.tolist()) == (REPLY, list(map(logprob, REPLY)))
    assert (result.finish_reason, result.versions) == (FinishReason.STOP, (VersionSpan("weights-1", 5),))


async def test_every_parameter_has_its_field():
    vllm = FakeVllmGenerate(engine())
    sampling = Sampling(
        max_tokens=1, temperature=0.0, top_p=0.5, top_k=7, min_p=0.25, seed=-3, stop=("END",), stop_token_ids=(2,),
        ignore_eos=True, presence_penalty=0.5, frequency_penalty=-0.5, repetition_penalty=2.0, json_schema='{"a": 1}',
        top_logprobs=2, min_tokens=1, bad_words=("no",), logit_bias={5: 1.5}, allowed_token_ids=(5, 6),
    )  # fmt: skip
    async with vllm.serving() as url, VllmHttpGenerator(url, model="m") as generator:
        result = await generator.generate(asked(sampling=sampling))
        for name in ("regex", "grammar"):
            await generator.generate(asked(sampling=Sampling(max_tokens=1, **{name: "x"})))
    first, *others = vllm.bodies
    assert first["model"] == "m"
    assert first["sampling_params"] == {
        "max_tokens": 1, "temperature": 0.0, "top_p": 0.5, "top_k": 7, "min_p": 0.25, "seed": -3, "stop": ["END"],
        "stop_token_ids": [2], "ignore_eos": True, "presence_penalty": 0.5, "frequency_penalty": -0.5,
        "repetition_penalty": 2.0, "structured_outputs": {"json": '{"a": 1}'}, "logprobs": 2, "detokenize": True,
        "min_tokens": 1, "bad_words": ["no"], "logit_bias": {"5": 1.5}, "allowed_token_ids": [5, 6],
    }  # fmt: skip
    assert [sent["sampling_params"]["structured_outputs"] for sent in others] == [{"regex": "x"}, {"grammar": "x"}]
    assert result.finish_reason is FinishReason.LENGTH
    assert result.extras["top_logprob_ids"].numpy().tolist() == [[11, 10]]
    assert result.extras["top_logprobs"].numpy().tolist() == [[logprob(11), logprob(11) - 1]]


async def test_media_are_refused_by_name():
    image = Media(modality=Modality.IMAGE, mime_type="image/png", data=b"\x89PNG")
    async with VllmHttpGenerator("http://127.0.0.1:1") as generator:
        with pytest.raises(InvalidArgument, match="VllmGrpcGenerator"):
            await generator.generate(asked(media=(image,)))


async def test_twenty_turns_with_tools_are_one_segment_without_drift():
    tokenizer = ByteTokenizer()
    vllm = FakeVllmGenerate(FakeEngine(counting_model(tokenizer)))
    vllm.engine.plans += [None, None, Plan(tokens=4), None, None, None, None, Plan(tokens=0)]
    async with (
        vllm.serving() as url,
        AgentServer([CountingAgent()], port=0) as server,
        Trainer([server.address], policy_of(url, tokenizer)) as trainer,
    ):
        outcome = await trainer.rollout(rollout_id="r", messages=QUESTION, max_turns=TURNS)
    (segment,) = outcome.samples["main"].segments
    assert segment.drift_index is None
    assert len(vllm.bodies) == TURNS + 2, "two calls were aborted and asked again"
    last = counting_model(tokenizer)(vllm.bodies[-1]["token_ids"])
    assert segment.ids.tolist() == vllm.bodies[-1]["token_ids"] + last
    assert segment.logprobs.tolist() == list(map(logprob, segment.ids[segment.mask()].tolist()))
    assert {span.version for span in segment.versions} == {"weights-1"}


@pytest.mark.parametrize("ending", ["task", "hook", "deadline"])
async def test_a_reply_that_is_no_longer_wanted_closes_its_request(ending):
    vllm = FakeVllmGenerate(engine())
    vllm.engine.plans += [Plan(waits=True)] * 9  # the policy may ask again just before its own deadline
    async with vllm.serving() as url, policy_of(url, ByteTokenizer()) as policy:
        wanted = chat(timeout=0.3) if ending == "deadline" else chat()
        answer = asyncio.ensure_future(policy(wanted))
        await until(lambda: vllm.engine.sampling)
        if ending == "hook":
            policy.cancel(wanted)
        elif ending == "task":
            answer.cancel()
        (result,) = await asyncio.gather(answer, return_exceptions=True)
        await until(lambda: len(vllm.left) == len(vllm.bodies))
    kinds = {"task": asyncio.CancelledError, "hook": Cancelled, "deadline": DeadlineExceeded}
    assert isinstance(result, kinds[ending])
    assert vllm.left == [body["request_id"] for body in vllm.bodies]


REFUSALS = {
    400: ("top_p must be in (0, 1], got 0.0.", InvalidArgument),
    401: ("Unauthorized", Unauthenticated),
    403: ("Forbidden", PermissionDenied),
    404: ("The model `m` does not exist.", Internal),
    429: ("later", ResourceExhausted),
    500: ("the engine is dead", Unavailable),
    503: ("starting", Unavailable),
}


@pytest.mark.parametrize("status", REFUSALS)
async def test_a_refusal_becomes_the_error_of_its_status(status):
    vllm = FakeVllmGenerate(engine())
    text, kind = REFUSALS[status]
    vllm.status = status, text
    async with vllm.serving() as url, VllmHttpGenerator(url) as generator:
        with pytest.raises(kind) as caught:
            await generator.generate(asked())
    assert f"{url}/inference/v1/generate" in str(caught.value)
    assert caught.value.retryable is (kind in (Unavailable, ResourceExhausted))


RUST = "this model's maximum context length is 2048 tokens, but the prompt contains 2050 input tokens"
PYTHON = "The decoder prompt (length 2050) is longer than the maximum model length of 2048. Make sure that it is not."


@pytest.mark.parametrize("text", [RUST, PYTHON])
async def test_a_prompt_that_is_too_long_has_an_error_of_its_own(text):
    vllm = FakeVllmGenerate(engine())
    vllm.status = 400, text
    async with vllm.serving() as url, VllmHttpGenerator(url) as generator:
        with pytest.raises(ContextLengthExceeded) as caught:
            await generator.generate(asked())
    assert (caught.value.tokens, caught.value.limit) == (2050, 2048)


async def test_a_server_without_the_call_is_told_which_option_it_needs():
    vllm = FakeVllmGenerate(engine(), scale_out=False)
    async with vllm.serving() as url, VllmHttpGenerator(url) as generator:
        with pytest.raises(Internal, match="--enable-scale-out"):
            await generator.generate(asked())


async def test_a_server_that_is_away_is_named_and_the_key_is_not():
    async with VllmHttpGenerator("http://127.0.0.1:1", api_key="a-secret-key") as generator:
        with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1") as caught:
            await generator.generate(asked())
    assert "a-secret-key" not in str(caught.value)


WRONG = {
    "no choice": lambda body: body["choices"].clear(),
    "no ids": lambda body: body["choices"][0].pop("token_ids"),
    "fewer logprobs": lambda body: body["choices"][0]["logprobs"]["content"].pop(),
    "other ids": lambda body: body["choices"][0]["token_ids"].reverse(),
    "another reason": lambda body: body["choices"][0].update(finish_reason="tired"),
    "another prompt": lambda body: body["usage"].update(prompt_tokens=2),
    "more tokens": lambda body: body["usage"].update(completion_tokens=6),
    "a gap in the versions": lambda body: body["choices"][0]["weight_versions"][0].update(start=1),
    "versions that end early": lambda body: body["choices"][0]["weight_versions"][0].update(end=4),
}


@pytest.mark.parametrize("case", WRONG)
async def test_a_reply_that_contradicts_itself_is_no_result(case):
    vllm = FakeVllmGenerate(engine(), change=WRONG[case])
    async with vllm.serving() as url, VllmHttpGenerator(url) as generator:
        with pytest.raises(Internal):
            await generator.generate(asked())


async def test_a_reply_whose_weights_changed_has_the_version_of_each_token():
    spans = [{"version": "default", "start": 0, "end": 2}, {"version": "step-2", "start": 2, "end": 5}]
    vllm = FakeVllmGenerate(engine(), change=lambda body: body["choices"][0].update(weight_versions=spans))
    async with vllm.serving() as url, policy_of(url, ByteTokenizer()) as policy:
        response = await policy(chat(version="3"))
        assert response.versions == (VersionSpan("3", 2), VersionSpan("step-2", 3)), "unnamed ones are the trainer's"
        response = await policy(chat(version="3"))
    assert response.versions == (VersionSpan("3", 2), VersionSpan("step-2", 3)), "the engine was not restarted"


async def test_weights_that_have_lost_their_name_are_waited_for():
    vllm = FakeVllmGenerate(engine(version="default"))
    async with vllm.serving() as url, VllmHttpGenerator(url) as generator:
        assert (await generator.generate(asked())).versions == (VersionSpan("", 5),), "nobody has named them"
        vllm.engine.version = "step-1"
        await generator.generate(asked())
        vllm.engine.version = "default"
        with pytest.raises(Unavailable) as caught:
            await generator.generate(asked())
        spans = [{"version": "default", "start": 0, "end": 2}, {"version": "step-2", "start": 2, "end": 5}]
        vllm.change = lambda body: body["choices"][0].update(weight_versions=spans)
        with pytest.raises(Unavailable):
            await generator.generate(asked())  # it was named while the reply was sampled, with the disk's weights
        vllm.change = lambda body: None
        vllm.engine.version = "step-2"
        assert (await generator.generate(asked())).versions == (VersionSpan("step-2", 5),)
    assert caught.value.retry_after


async def test_control_pauses_loads_and_names_weights_and_resumes():
    vllm = FakeVllmGenerate(engine())
    async with vllm.serving() as url, VllmHttpControl(url) as control:
        for mode in PauseMode:
            await control.pause(mode, clear_cache=False)
            assert vllm.engine.paused == mode.value
            await control.resume()
        assert not await control.is_paused()
        async with control.updating("weights-2"):
            assert await control.is_paused()
            await control.load_weights("/models/step-2")
        assert (await control.is_paused(), await control.weight_version()) == (False, "weights-2")
        assert await control.reset_prefix_cache()
        assert await control.collective_rpc("ping", "a", to="b") == [None]
        await control.init_weight_transfer({"port": 1})
        await control.start_weight_update()
        await control.update_weights({"names": ["a"]})
        await control.finish_weight_update("weights-3")
        assert await control.weight_version() == "weights-3"
        for name in ("", "default"):
            with pytest.raises(InvalidArgument):
                await control.set_weight_version(name)
    sent = dict(call for call in vllm.calls if isinstance(call, tuple))
    assert sent["/update_weights"] == {"update_info": {"names": ["a"]}}
    assert sent["/collective_rpc"] == {"method": "ping", "args": ["a"], "kwargs": {"to": "b"}}
    load = {"method": "reload_weights", "args": [], "kwargs": {"weights_path": "/models/step-2"}}
    assert ("/collective_rpc", load) in vllm.calls


async def test_control_sleeps_and_wakes_up():
    vllm = FakeVllmGenerate(engine())
    async with vllm.serving() as url, VllmHttpControl(url) as control:
        await control.sleep(2, PauseMode.WAIT)  # a call of vLLM, no wait
        assert await control.is_sleeping()
        await control.wake_up("weights", "kv_cache")
        assert not await control.is_sleeping()
        with pytest.raises(Internal, match="VLLM_SERVER_DEV_MODE"):
            await control.load_lora("a", "/adapters/a")
    paths = [call[0] for call in vllm.calls if isinstance(call, tuple)]
    assert paths[:2] == ["/sleep?level=2&mode=wait", "/wake_up?tags=weights&tags=kv_cache"]


async def test_a_failed_update_leaves_vllm_paused_under_the_old_name():
    vllm = FakeVllmGenerate(engine())
    async with vllm.serving() as url, VllmHttpControl(url) as control:
        with pytest.raises(OSError):
            async with control.updating("weights-2"):
                raise OSError("the disk is full")
        assert (await control.is_paused(), await control.weight_version()) == (True, "weights-1")
