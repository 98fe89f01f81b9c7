"""vLLM's own gRPC service: the generator and the control client, against a server made from the facts of its protos."""

import asyncio
from base64 import b64encode

import grpc
import numpy as np
import pytest

from osmosis_grpc.integrations.vllm_grpc import PauseMode, VllmControl, VllmGrpcGenerator
from osmosis_grpc.integrations.vllm_grpc import vllm_messages_pb2 as pb
from osmosis_grpc.policies import ChatRenderer, FinishReason, GenerateRequest, Media, Modality, Sampling, TokenPolicy
from osmosis_grpc.protocol.errors import (
    Internal,
    InvalidArgument,
    PermissionDenied,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
)
from osmosis_grpc.protocol.types import VersionSpan
from osmosis_grpc.trainer import ChatRequest, Credentials, RolloutRequest, Trainer, version_lag
from tests.integrations.fake_engine import FakeEngine, Plan, logprob
from tests.integrations.fake_vllm import EXPANDED, PLACEHOLDER, FakeVllm
from tests.policies.byte_tokenizer import ByteTokenizer
from tests.trainer.conftest import USER, talker
from tests.waiting import until

REPLY = [11, 12, 13, 14, 15]


def asked(prompt=(1, 2, 3), *, sampling=None, **more):
    prompt_ids = np.asarray(prompt, dtype="<u4")
    sampling = sampling or Sampling(max_tokens=9)
    return GenerateRequest(request_id="r1", session_id="r/main", prompt_ids=prompt_ids, sampling=sampling, **more)


def engine(reply=REPLY):
    return FakeEngine(lambda prompt: list(reply))


async def test_a_call_carries_ids_and_neutral_parameters_and_its_result_ids_and_logprobs():
    """vLLM's own default of the temperature is 0."""
    vllm = engine()
    async with FakeVllm(vllm).serving() as target, VllmGrpcGenerator(target) as generator:
        result = await generator.generate(asked(priority=-2))
    (sent,) = vllm.received
    assert (sent.request_id, sent.session_id, sent.priority) == ("r1", "r/main", -2)
    assert (sent.WhichOneof("prompt"), list(sent.token_ids.ids)) == ("token_ids", [1, 2, 3])
    assert sent.temperature == 1.0
    assert sent.stopping.max_new_tokens == 9
    assert sent.response.HasField("output_text")
    assert (sent.response.output_text, sent.response.output_token_ids, sent.response.output_logprobs) == (
        False,
        True,
        True,
    )
    assert vllm.metadata[0]["x-session-id"] == "r/main"
    assert result.token_ids.tolist() == REPLY
    assert result.logprobs.tolist() == list(map(logprob, REPLY))
    assert (result.finish_reason, result.weight_version) == (FinishReason.STOP, "weights-1")


SHAPED = {"top_k": 20, "top_p": 0.8, "min_p": 0.1, "repetition_penalty": 1.1}
EVERY_TOKEN = 2**31 - 1


async def test_every_parameter_has_its_field():
    vllm = engine()
    sampling = Sampling(
        max_tokens=1, temperature=0.0, top_p=0.5, top_k=7, min_p=0.25, seed=-3, stop=("END",), stop_token_ids=(2,),
        ignore_eos=True, presence_penalty=0.5, frequency_penalty=-0.5, repetition_penalty=2.0, json_schema='{"a": 1}',
        top_logprobs=2, min_tokens=1, logit_bias={5: 1.5}, allowed_token_ids=(5, 6),
    )  # fmt: skip
    async with FakeVllm(vllm).serving() as target, VllmGrpcGenerator(target, model="m", lora="l") as generator:
        result = await generator.generate(asked(sampling=sampling))
        for name in ("regex", "grammar"):
            await generator.generate(asked(sampling=Sampling(max_tokens=1, **{name: "x"})))
    first, second, third = vllm.received
    assert (first.model, first.lora_name, first.HasField("temperature"), first.temperature) == ("m", "l", True, 0.0)
    assert first.sampling == pb.RandomSampling(top_k=7, top_p=0.5, min_p=0.25, seed=-3)
    penalties = {"presence_penalty": 0.5, "frequency_penalty": -0.5, "repetition_penalty": 2.0}
    limits = {"logit_bias": {5: 1.5}, "allowed_token_ids": [5, 6]}
    assert first.decoding == pb.DecodingParameters(**penalties, **limits, json='{"a": 1}')
    assert first.stopping == pb.StoppingCriteria(
        max_new_tokens=1, min_new_tokens=1, stop_token_ids=[2], stop_strings=["END"], ignore_eos=True
    )
    assert first.response.output_candidates.top_n == 2
    assert (second.decoding.regex, third.decoding.grammar) == ("x", "x")
    assert result.finish_reason is FinishReason.LENGTH
    assert result.extras["top_logprob_ids"].numpy().tolist() == [[11, 10]]
    assert result.extras["top_logprobs"].numpy().tolist() == [[logprob(11), logprob(11) - 1]]


async def test_bad_words_are_refused_by_name():
    async with VllmGrpcGenerator("127.0.0.1:1") as generator:
        with pytest.raises(InvalidArgument) as caught:
            await generator.generate(asked(sampling=Sampling(max_tokens=1, bad_words=("no",))))
    assert [field for field, _ in caught.value.violations] == ["params.bad_words"]


async def test_media_are_raw_bytes_and_links():
    vllm = engine()
    media = (
        Media(modality=Modality.IMAGE, mime_type="image/png", data=b"\x89PNG"),
        Media(modality=Modality.VIDEO, url="https://example.com/a.mp4"),
        Media(modality=Modality.AUDIO, mime_type="audio/wav", data=b"RIFF"),
    )
    async with FakeVllm(vllm).serving() as target, VllmGrpcGenerator(target) as generator:
        result = await generator.generate(asked([5, PLACEHOLDER, PLACEHOLDER, PLACEHOLDER, 6], media=media))
    assert result.prompt_ids.tolist() == [5, *[EXPANDED] * 12, 6], "the prompt from which vLLM sampled"
    image, video, audio = vllm.received[0].media
    assert (image.modality, image.raw_bytes, image.mime_type) == (pb.MODALITY_IMAGE, b"\x89PNG", "image/png")
    assert (video.modality, video.url) == (pb.MODALITY_VIDEO, "https://example.com/a.mp4")
    assert (audio.modality, audio.raw_bytes) == (pb.MODALITY_AUDIO, b"RIFF")


class SeeingTokenizer(ByteTokenizer):
    """Writes the id of an image for each image."""

    def apply_chat_template(self, messages, **more):
        return super().apply_chat_template(
            [{**message, "content": _shown(message["content"])} for message in messages], **more
        )


def _shown(content):
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    return "".join(chr(PLACEHOLDER) if part["type"] == "image" else part["text"] for part in parts)


def image(data):
    return {"type": "image_url", "image_url": {"url": "data:image/png;base64," + b64encode(data).decode()}}


async def test_later_prompts_send_images_once_and_record_their_tokens():
    """A conversation that begins with text, and gets an image in the second question and in the third."""
    tokenizer = SeeingTokenizer()
    vllm = FakeEngine(lambda prompt: tokenizer.reply("I see."))
    messages, known, sent = [], None, []
    async with FakeVllm(vllm).serving() as target, policy_of(target, tokenizer) as policy:
        for number, content in enumerate(
            ["Hello", [image(b"one")], [{"type": "text", "text": "And "}, image(b"two")]], 1
        ):
            prefix = len(messages)
            messages.append({"role": "user", "content": content})
            more = {"parent_chat": number - 1, "prefix_len": prefix, "known_ids": known}
            response = await policy(ChatRequest(rollout_id="r", chat_number=number, messages=list(messages), **more))
            if known is not None:
                assert response.prompt_ids[: len(known)].tolist() == known.tolist(), "no drift"
            known = np.concatenate([response.prompt_ids, response.tokens.ids])
            messages.append(response.message)
            sent.append(list(vllm.received[-1].token_ids.ids))
    assert [ids.count(PLACEHOLDER) for ids in sent] == [0, 1, 2]
    assert sent[2][: len(sent[1])] == sent[1]
    assert [[item.raw_bytes for item in request.media] for request in vllm.received] == [[], [b"one"], [b"one", b"two"]]
    assert np.count_nonzero(known == EXPANDED) == 8
    assert PLACEHOLDER not in known


async def test_a_conversation_with_an_image_goes_on_after_a_restart_of_the_trainer():
    tokenizer = SeeingTokenizer()
    vllm = FakeEngine(lambda prompt: tokenizer.reply("I see."))
    messages = [{"role": "user", "content": [image(b"one")]}]
    async with FakeVllm(vllm).serving() as target:
        async with policy_of(target, tokenizer) as policy:
            response = await policy(ChatRequest(rollout_id="r", messages=list(messages)))
        messages += [response.message, {"role": "user", "content": "Sure?"}]
        known = np.concatenate([response.prompt_ids, response.tokens.ids])
        more = {"parent_chat": 1, "prefix_len": 2, "known_ids": known}
        async with policy_of(target, tokenizer) as policy:
            second = await policy(ChatRequest(rollout_id="r", chat_number=2, messages=messages, **more))
    assert list(vllm.received[1].token_ids.ids).count(PLACEHOLDER) == 1
    assert second.prompt_ids[: len(known)].tolist() == known.tolist(), "the rendered tokens are the sampled ones here"


def policy_of(target, tokenizer):
    return TokenPolicy(ChatRenderer(tokenizer), VllmGrpcGenerator(target))


def chat(number=1, **more):
    return ChatRequest(rollout_id="r", chat_number=number, messages=[{"role": "user", "content": "Hi"}], **more)


def continuing(reply, tokenizer):
    """A model that writes `reply`, also if the prompt ends with its first tokens."""
    begin = tokenizer.encode("<|im_start|>assistant\n")

    def model(prompt):
        at = max(n for n in range(len(prompt)) if prompt[n : n + len(begin)] == begin) + len(begin)
        return reply[len(prompt) - at :]

    return model


async def test_aborted_is_asked_again_from_what_was_sampled_with_a_version_for_each_part():
    tokenizer = ByteTokenizer()
    reply = tokenizer.reply("Hello there")
    vllm = FakeEngine(continuing(reply, tokenizer))
    vllm.plans += [Plan(tokens=3, waits=True), Plan(tokens=0)]
    async with (
        FakeVllm(vllm).serving() as target,
        policy_of(target, tokenizer) as policy,
        VllmControl(target) as control,
    ):
        answer = asyncio.ensure_future(policy(chat(params={"max_tokens": 50})))
        await until(lambda: vllm.sampling)
        async with control.updating("weights-2"):
            await until(lambda: vllm.calls[-2:] == ["IsPaused", "IsPaused"])
            assert len(vllm.received) == 1, "nothing is asked during the update"
        response = await answer
    assert response.message == {"role": "assistant", "content": "Hello there"}
    assert (response.finish_reason, response.tokens.ids.tolist()) == ("stop", reply)
    assert response.tokens.logprobs.tolist() == list(map(logprob, reply))
    assert response.versions == (VersionSpan("weights-1", 3), VersionSpan("weights-2", len(reply) - 3))
    prompts = [list(sent.token_ids.ids) for sent in vllm.received]
    assert prompts == [response.prompt_ids.tolist()] + [response.prompt_ids.tolist() + reply[:3]] * 2
    assert [sent.stopping.max_new_tokens for sent in vllm.received] == [50, 47, 47]
    assert len({sent.request_id for sent in vllm.received}) == 3
    assert {sent.session_id for sent in vllm.received} == {"r/main"}


async def test_a_chat_that_comes_during_an_update_has_the_new_version():
    tokenizer = ByteTokenizer()
    vllm = FakeEngine(lambda prompt: tokenizer.reply("Fine"))
    async with (
        FakeVllm(vllm).serving() as target,
        policy_of(target, tokenizer) as policy,
        VllmControl(target) as control,
    ):
        async with control.updating("weights-2"):
            answer = asyncio.ensure_future(policy(chat()))
            await until(lambda: "IsPaused" in vllm.calls)
        response = await answer
    assert {span.version for span in response.versions} == {"weights-2"}


@pytest.mark.parametrize("ending", ["task", "hook"])
async def test_a_reply_that_is_no_longer_wanted_is_aborted(ending):
    """vLLM samples on without a reader, so the RPC's end is not enough."""
    vllm = engine()
    vllm.plans.append(Plan(waits=True))
    async with FakeVllm(vllm).serving() as target, policy_of(target, ByteTokenizer()) as policy:
        answer = asyncio.ensure_future(policy(chat()))
        await until(lambda: vllm.sampling)
        (request_id,) = vllm.sampling
        if ending == "hook":
            policy.cancel(chat())
        answer.cancel()
        await asyncio.wait([answer])
        await until(lambda: not vllm.sampling)
    assert vllm.aborted == [request_id]


ERRORS = {
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.INTERNAL: Unavailable,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ResourceExhausted,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDenied,
    grpc.StatusCode.INVALID_ARGUMENT: Internal,
    grpc.StatusCode.NOT_FOUND: Internal,
    grpc.StatusCode.UNIMPLEMENTED: Internal,
}


@pytest.mark.parametrize("status", ERRORS)
async def test_an_error_names_the_server_and_is_retryable_if_a_retry_may_help(status):
    vllm = engine()
    vllm.plans.append(Plan(status=status))
    async with FakeVllm(vllm).serving() as target, VllmGrpcGenerator(target) as generator:
        with pytest.raises(ERRORS[status]) as caught:
            await generator.generate(asked())
    assert target in str(caught.value)
    assert caught.value.retryable is (ERRORS[status] in (Unavailable, ResourceExhausted))


async def test_a_server_that_is_away_is_named_and_the_token_is_not():
    secret = Credentials(token="a-very-secret-token")
    async with VllmGrpcGenerator("127.0.0.1:1", credentials=secret) as generator:
        with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1 .*refuses connections") as caught:
            await generator.generate(asked())
    assert secret.token not in str(caught.value)


async def test_a_token_is_sent_with_every_call():
    vllm = engine()
    secret = Credentials(token="a-very-secret-token")
    async with FakeVllm(vllm).serving() as target, VllmGrpcGenerator(target, credentials=secret) as generator:
        await generator.generate(asked())
    assert vllm.metadata[0]["authorization"] == "Bearer a-very-secret-token"


@pytest.mark.parametrize("target", ["", "localhost", "http://127.0.0.1:1/v1", "127.0.0.1:0", "127.0.0.1:x"])
def test_a_wrong_target_is_refused(target):
    with pytest.raises(ValueError, match="is not HOST:PORT"):
        VllmGrpcGenerator(target)


async def test_an_older_release_has_no_versions():
    vllm = engine()
    older = FakeVllm(vllm, without=["IsPaused", "GetWeightVersion", "GetServerInfo"])
    async with older.serving() as target, VllmGrpcGenerator(target) as generator:
        results = [await generator.generate(asked()) for _ in range(2)]
        assert await generator.context_length() == 0
    assert [result.weight_version for result in results] == ["", ""]
    assert vllm.calls == ["Generate", "Generate"]


WRONG = {
    "no ids": (lambda reply: reply.outputs.ClearField("token_ids"), "0 token ids for 5 tokens"),
    "fewer logprobs": (lambda reply: reply.outputs.logprobs.pop(), "4 logprobs for 5 tokens"),
    "not finished": (lambda reply: reply.outputs.ClearField("finish_info"), "the finish reason 0"),
    "another prompt": (lambda reply: setattr(reply.prompt_info, "num_prompt_tokens", 2), "sampled from 2 tokens"),
}


@pytest.mark.parametrize("case", WRONG)
async def test_a_reply_that_contradicts_itself_is_no_result(case):
    change, problem = WRONG[case]

    class Wrong(FakeVllm):
        async def Generate(self, request):
            reply = await super().Generate(request)
            change(reply)
            return reply

    async with Wrong(engine()).serving() as target, VllmGrpcGenerator(target) as generator:
        with pytest.raises(Internal, match=problem):
            await generator.generate(asked())


async def test_control_pauses_names_weights_and_resumes():
    vllm = engine()
    async with FakeVllm(vllm).serving() as target, VllmControl(target) as control:
        facts = await control.server()
        assert (facts.model, facts.context_length, facts.takes_token_ids) == ("tiny", 4096, True)
        for mode in PauseMode:
            await control.pause(mode, clear_cache=False)
            assert vllm.paused == f"PAUSE_MODE_{mode.name}"
            await control.resume()
        assert not await control.is_paused()
        with pytest.raises(Internal, match="FAILED_PRECONDITION"):
            await control.finish_weight_update("weights-2")
        await control.pause()
        await control.finish_weight_update("weights-2")
        assert await control.weight_version() == "weights-2"
        await control.resume()


async def test_control_sleeps_transfers_weights_and_loads_adapters():
    vllm = engine()
    async with FakeVllm(vllm).serving() as target, VllmControl(target) as control:
        await control.sleep(2, PauseMode.WAIT)  # a call of vLLM, no wait
        assert await control.is_sleeping()
        await control.wake_up("weights")
        assert not await control.is_sleeping()
        await control.pause()
        await control.init_weight_transfer({"port": 1})
        await control.start_weight_update()
        await control.update_weights({"names": ["a"]})
        await control.finish_weight_update("weights-2")
        await control.load_lora("mine", "/adapters/mine")
        assert await control.loras() == {"mine": "/adapters/mine"}
        await control.unload_lora("mine")
        assert await control.loras() == {}
    assert vllm.calls[0] == "Sleep"
    assert vllm.transferred == ['{"port": 1}', "start", '{"names": ["a"]}']


async def test_a_failed_update_leaves_vllm_paused_under_the_old_name():
    vllm = engine()
    async with FakeVllm(vllm).serving() as target, VllmControl(target) as control:
        with pytest.raises(OSError):
            async with control.updating("weights-2"):
                raise OSError("the disk is full")
        assert await control.is_paused()
        assert await control.weight_version() == "weights-1"


async def test_weights_that_nobody_has_named_have_the_version_of_the_trainer(serve):
    tokenizer = ByteTokenizer()
    vllm = FakeEngine(lambda prompt: tokenizer.reply("Fine"), version="default")
    server = await serve(talker())
    requests = [RolloutRequest(rollout_id=f"r{n}", messages=[USER]) for n in range(2)]
    async with FakeVllm(vllm).serving() as target, Trainer([server.address], policy_of(target, tokenizer)) as trainer:
        trainer.resume(version=3)
        (group,) = [group async for group in trainer.groups(requests[:1], 2, max_version_lag=2)]
    spans = [segment.versions for outcome in group for segment in outcome.samples["main"].segments]
    assert {span.version for versions in spans for span in versions} == {"3"}
    assert [version_lag(outcome, 4) for outcome in group] == [1, 1]


async def test_the_name_of_unnamed_weights_is_refused():
    async with FakeVllm(engine()).serving() as target, VllmControl(target) as control:
        with pytest.raises(InvalidArgument):
            await control.set_weight_version("default")
