"""Tokens in, tokens out over vLLM's own gRPC service and those of smg-grpc-proto: whole rollouts over real sockets."""

import asyncio
from itertools import pairwise

import grpc
import numpy as np
import pytest

from osmosis_grpc.integrations.smg import SmgGenerator
from osmosis_grpc.integrations.vllm_grpc import VllmGrpcGenerator
from osmosis_grpc.policies import (
    ChatRenderer,
    FinishReason,
    GenerateRequest,
    Media,
    Modality,
    Sampling,
    TokenPolicy,
    TokenPolicyConfig,
)
from osmosis_grpc.protocol.errors import Internal, InvalidArgument, Unavailable
from osmosis_grpc.protocol.types import OutcomeStatus, VersionSpan
from osmosis_grpc.server import AgentServer
from osmosis_grpc.trainer import ChatRequest, Trainer
from tests.integrations.counting_agent import EVERY, QUESTION, TURNS, CountingAgent, counting_model
from tests.integrations.fake_engine import FakeEngine, Plan, logprob
from tests.integrations.fake_vllm import FakeVllm
from tests.policies.byte_tokenizer import ByteTokenizer, chatml, forgetful, hermes, llama3
from tests.waiting import until

pytestmark = pytest.mark.adapters
pytest.importorskip("smg_grpc_proto")

SERVICES = ["vllm-grpc", "smg-vllm", "smg-sglang"]
REPLY = [11, 12, 13, 14, 15]
PATIENCE = 60.0


def server_of(service, engine):
    """A fake server of a service."""
    from tests.integrations.fake_smg import FakeSglang, FakeVllmEngine

    return {"vllm-grpc": FakeVllm, "smg-vllm": FakeVllmEngine, "smg-sglang": FakeSglang}[service](engine).serving()


def generator_of(service, target):
    if service == "vllm-grpc":
        return VllmGrpcGenerator(target)
    return SmgGenerator(target, engine=service.removeprefix("smg-"))


def prompt_of(sent):
    """The ids of the prompt that a server received."""
    ids = sent.token_ids.ids if "token_ids" in sent.DESCRIPTOR.fields_by_name else sent.tokenized.input_ids
    return list(ids)


def version_of(service, version):
    return "" if service == "smg-vllm" else version


async def counted(service, template):
    """Run the counting agent. Returns the outcome and the engine."""
    tokenizer = ByteTokenizer(template)
    engine = FakeEngine(counting_model(tokenizer))
    # In the third call and the seventh, new weights come.
    engine.plans += [None, None, Plan(tokens=4), None, None, None, None, Plan(tokens=0)]
    async with server_of(service, engine) as target, AgentServer([CountingAgent()], port=0) as server:
        policy = TokenPolicy(ChatRenderer(tokenizer), generator_of(service, target), TokenPolicyConfig(priority=3))
        async with Trainer([server.address], policy) as trainer:
            call = trainer.rollout(rollout_id="r", messages=QUESTION, max_turns=TURNS)
            return await asyncio.wait_for(call, PATIENCE), engine, tokenizer


@pytest.mark.parametrize("template", [chatml, llama3, hermes])
@pytest.mark.parametrize("service", SERVICES)
async def test_twenty_turns_with_tools_are_one_segment_without_drift(service, template):
    outcome, engine, tokenizer = await counted(service, template)
    assert outcome.status is OutcomeStatus.COMPLETED, outcome.failure
    (segment,) = outcome.samples["main"].segments
    assert segment.drift_index is None
    assert list(segment.chats) == list(range(1, TURNS + 1))
    prompts = [prompt_of(sent) for sent in engine.received]
    assert len(prompts) == TURNS + 2, "two calls were aborted and asked again"
    for before, after in pairwise(prompts):
        assert after[: len(before)] == before, "a prompt begins with the one before it"
    last = counting_model(tokenizer)(prompts[-1])
    assert segment.ids.tolist() == prompts[-1] + last
    if service == "vllm-grpc":  # the other services have neither field
        assert {(sent.priority, sent.session_id) for sent in engine.received} == {(3, "r/main")}
    assert {metadata["x-session-id"] for metadata in engine.metadata} == {"r/main"}
    sampled = segment.ids[segment.mask()].tolist()
    assert sampled[-len(last) :] == last
    assert segment.logprobs.tolist() == list(map(logprob, sampled))
    assert {span.version for span in segment.versions} == ({"weights-1"} if version_of(service, "x") else set())
    calls = [message for message in outcome.messages if message.get("tool_calls")]
    assert [message["tool_calls"][0]["function"]["arguments"] for message in calls] == [
        f'{{"a":{turn},"b":1}}' for turn in range(1, TURNS + 1)
    ]


@pytest.mark.parametrize("service", SERVICES)
async def test_a_template_that_changes_the_past_gives_a_segment_for_each_change(service):
    """Its old replies lose their thoughts when the user speaks."""
    outcome, _, _ = await counted(service, forgetful)
    segments = outcome.samples["main"].segments
    chats = [list(segment.chats) for segment in segments]
    assert chats == [list(range(begin, begin + EVERY)) for begin in range(1, TURNS + 1, EVERY)]
    for earlier, segment in pairwise(segments):
        known, prompt = earlier.ids, segment.ids[: len(earlier.ids)]
        common = min(len(known), len(prompt))
        differs = np.flatnonzero(known[:common] != prompt[:common])
        assert segment.drift_index == (differs[0] if len(differs) else common)
    assert segments[0].drift_index is None


@pytest.mark.parametrize("service", SERVICES)
async def test_every_finish_reason_is_seen(service):
    engine = FakeEngine(lambda prompt: list(REPLY))
    engine.plans += [None, None, Plan(tokens=2)]
    prompt = np.arange(3, dtype="<u4")
    async with server_of(service, engine) as target, generator_of(service, target) as generator:
        results = [
            await generator.generate(
                GenerateRequest(
                    request_id=f"r{most}", session_id="r/main", prompt_ids=prompt, sampling=Sampling(max_tokens=most)
                )
            )
            for most in (9, 1, 9)
        ]
    assert [result.finish_reason for result in results] == [
        FinishReason.STOP,
        FinishReason.LENGTH,
        FinishReason.ABORTED,
    ]
    assert [result.token_ids.tolist() for result in results] == [REPLY, REPLY[:1], REPLY[:2]]
    assert [result.logprobs.tolist() for result in results] == [
        list(map(logprob, ids)) for ids in (REPLY, REPLY[:1], REPLY[:2])
    ]
    assert {result.weight_version for result in results} == {version_of(service, "weights-1")}
    assert [sent["x-session-id"] for sent in engine.metadata] == ["r/main"] * 3
    assert [sent.request_id for sent in engine.received] == ["r9", "r1", "r9"]


@pytest.mark.parametrize("service", ["vllm-grpc", "smg-sglang"])
async def test_weights_that_have_lost_their_name_are_waited_for(service):
    engine = FakeEngine(lambda prompt: list(REPLY), version="default")
    async with server_of(service, engine) as target, generator_of(service, target) as generator:
        assert (await generator.generate(smg_request())).weight_version == "", "nobody has named them"
        engine.version = "weights-1"
        assert (await generator.generate(smg_request())).weight_version == "weights-1"
        engine.version = "default"
        with pytest.raises(Unavailable):
            await generator.generate(smg_request())
    assert len(engine.received) == 2


@pytest.mark.parametrize("service", SERVICES)
async def test_the_length_of_the_context_is_known(service):
    async with server_of(service, FakeEngine(list)) as target, generator_of(service, target) as generator:
        assert await generator.context_length() == 4096


@pytest.mark.parametrize("service", SERVICES)
async def test_a_cancelled_rollout_aborts_its_call(service):
    tokenizer = ByteTokenizer()
    engine = FakeEngine(counting_model(tokenizer))
    engine.plans.append(Plan(waits=True))
    async with server_of(service, engine) as target, AgentServer([CountingAgent()], port=0) as server:
        policy = TokenPolicy(ChatRenderer(tokenizer), generator_of(service, target))
        async with Trainer([server.address], policy) as trainer:
            rollout = asyncio.ensure_future(trainer.rollout(rollout_id="r", messages=QUESTION))
            await until(lambda: engine.sampling)
            await trainer.cancel("r")
            await until(lambda: engine.aborted and not engine.sampling)
            assert (await asyncio.wait_for(rollout, PATIENCE)).status is OutcomeStatus.CANCELLED
    assert engine.aborted == [sent.request_id for sent in engine.received]


def smg_request(**sampling):
    return GenerateRequest(
        request_id="q",
        session_id="r/main",
        prompt_ids=np.arange(3, dtype="<u4"),
        sampling=Sampling(**({"max_tokens": 9} | sampling)),
    )


async def test_the_sampled_token_counts_against_vllms_limit_of_logprobs_over_smg():
    engine = FakeEngine(lambda prompt: [51, 52])
    async with server_of("smg-vllm", engine) as target, SmgGenerator(target) as generator:
        result = await generator.generate(smg_request(top_logprobs=19))
        with pytest.raises(InvalidArgument) as refused:
            await generator.generate(smg_request(top_logprobs=20))
    assert result.extras["top_logprobs"].numpy().shape == (2, 19)
    assert refused.value.violations[0][0] == "params.top_logprobs"
    assert "--max-logprobs 21" in str(refused.value)


async def test_parameters_reach_vllm_over_smg():
    engine = FakeEngine(lambda prompt: list(REPLY))
    full = {"temperature": 0.0, "top_p": 0.5, "top_k": 7, "min_p": 0.25, "stop": ("END",), "stop_token_ids": (2,)}
    full |= {"ignore_eos": True, "presence_penalty": 0.5, "frequency_penalty": -0.5, "repetition_penalty": 2.0}
    async with server_of("smg-vllm", engine) as target, SmgGenerator(target) as generator:
        await generator.generate(smg_request())
        result = await generator.generate(smg_request(**full, seed=-3, top_logprobs=2, grammar="g"))
        with pytest.raises(InvalidArgument, match=r"params\.seed"):
            await generator.generate(smg_request(seed=2**40))
    plain, sent = [request.sampling_params for request in engine.received]
    assert (plain.temperature, plain.top_p, plain.top_k, plain.repetition_penalty) == (1.0, 1.0, 0, 1.0)
    assert (plain.max_tokens, plain.HasField("logprobs"), plain.logprobs, plain.n) == (9, True, 0, 1)
    assert (sent.HasField("temperature"), sent.temperature, sent.top_p, sent.top_k, sent.min_p) == (
        True,
        0,
        0.5,
        7,
        0.25,
    )
    assert (list(sent.stop), list(sent.stop_token_ids), sent.ignore_eos) == (["END"], [2], True)
    assert (sent.presence_penalty, sent.frequency_penalty, sent.repetition_penalty) == (0.5, -0.5, 2.0)
    assert (sent.seed, sent.grammar, sent.logprobs) == (-3, "g", 3)
    assert result.extras["top_logprob_ids"].numpy().tolist() == [[token, token - 1] for token in REPLY]
    assert result.cached_tokens == 3


async def test_parameters_reach_sglang_over_smg():
    engine = FakeEngine(lambda prompt: list(REPLY))
    async with server_of("smg-sglang", engine) as target, SmgGenerator(target, engine="sglang") as generator:
        await generator.generate(smg_request())
        result = await generator.generate(smg_request(temperature=0.0, top_k=7, grammar="g", top_logprobs=2))
        with pytest.raises(InvalidArgument, match="takes no seed"):
            await generator.generate(smg_request(seed=1))
    plain, sent = engine.received
    params = plain.sampling_params
    assert (params.temperature, params.top_p, params.top_k, params.repetition_penalty, params.n) == (1, 1, -1, 1, 1)
    assert (params.max_new_tokens, params.no_stop_trim) == (9, True)
    assert (plain.return_logprob, plain.logprob_start_len) == (True, -1)
    assert (sent.sampling_params.temperature, sent.sampling_params.top_k) == (0.0, 7)
    assert (sent.sampling_params.ebnf_grammar, sent.top_logprobs_num) == ("g", 2)
    assert result.extras["top_logprob_ids"].numpy().tolist() == [[token, token - 1] for token in REPLY]


async def test_smg_refuses_media_and_an_error_of_the_engine_is_no_reply():
    engine = FakeEngine(lambda prompt: list(REPLY))
    image = Media(modality=Modality.IMAGE, data=b"\x89PNG")
    async with server_of("smg-vllm", engine) as target, SmgGenerator(target) as generator:
        with pytest.raises(InvalidArgument, match="1 images or other media"):
            await generator.generate(
                GenerateRequest(
                    request_id="q",
                    session_id="s",
                    prompt_ids=np.arange(3, dtype="<u4"),
                    sampling=Sampling(max_tokens=1),
                    media=(image,),
                )
            )
        engine.plans.append(Plan(status=grpc.StatusCode.INTERNAL))
        with pytest.raises(Unavailable, match=target):
            await generator.generate(smg_request())
    assert len(engine.received) == 1


@pytest.mark.parametrize(("service", "named"), [("smg-vllm", ""), ("smg-sglang", "weights-1")])
async def test_the_engine_is_found_out(service, named):
    engine = FakeEngine(lambda prompt: list(REPLY))
    async with server_of(service, engine) as target, SmgGenerator(target) as generator:
        await generator.abort("nothing was sent")
        assert (await generator.generate(smg_request())).weight_version == named


async def test_a_server_without_such_an_engine_is_an_error():
    engine = FakeEngine(lambda prompt: list(REPLY))
    async with server_of("vllm-grpc", engine) as target, SmgGenerator(target) as generator:
        with pytest.raises(Internal, match="neither for vLLM nor for SGLang"):
            await generator.generate(smg_request())


async def test_the_other_engine_is_an_error_that_says_so():
    engine = FakeEngine(lambda prompt: list(REPLY))
    async with server_of("smg-vllm", engine) as target, SmgGenerator(target, engine="sglang") as generator:
        with pytest.raises(Internal, match="another service"):
            await generator.generate(smg_request())
    with pytest.raises(ValueError, match="engine: 'llama' is not one of auto, vllm, sglang"):
        SmgGenerator("127.0.0.1:1", engine="llama")


async def test_the_tokenizer_is_downloaded_into_its_folder_only(tmp_path):
    from tests.integrations.fake_smg import FakeVllmEngine

    sent, folder = tmp_path / "sent", tmp_path / "in" / "here"
    sent.mkdir()
    (sent / "tokenizer.json").write_text("{}")
    served = FakeVllmEngine(FakeEngine(lambda prompt: []), sent)
    async with served.serving() as target, SmgGenerator(target) as generator:
        assert await generator.download_tokenizer(folder) == folder
    assert (folder / "tokenizer.json").read_text() == "{}"
    assert not [*tmp_path.glob("outside*"), *(tmp_path / "in").glob("outside*")]


async def test_versions_change_within_a_reply():
    tokenizer = ByteTokenizer()
    engine = FakeEngine(counting_model(tokenizer))
    engine.plans.append(Plan(tokens=5, waits=True))
    async with server_of("smg-sglang", engine) as target:
        policy = TokenPolicy(ChatRenderer(tokenizer), SmgGenerator(target, engine="sglang"))
        async with policy:
            answer = asyncio.ensure_future(policy(ChatRequest(rollout_id="r", messages=QUESTION)))
            await until(lambda: engine.sampling)
            engine.version = "weights-2"
            engine.abort(list(engine.sampling))
            response = await answer
    rest = len(response.tokens.ids) - 5
    assert response.versions == (VersionSpan("weights-1", 5), VersionSpan("weights-2", rest))
