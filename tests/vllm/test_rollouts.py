"""Whole rollouts with a real vLLM: many turns without drift, cancels, deadlines, and new weights while they run."""

import asyncio
import os

import numpy as np
import pytest

from osmosis_grpc.integrations.vllm_grpc import VllmControl
from osmosis_grpc.integrations.vllm_http import PauseMode, VllmHttpControl, VllmHttpGenerator
from osmosis_grpc.policies import TokenPolicy, TokenPolicyConfig
from osmosis_grpc.protocol.errors import CallError, Cancelled, DeadlineExceeded, Unavailable
from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.rollout import RolloutAgentLoop
from osmosis_grpc.server import AgentServer
from osmosis_grpc.trainer import ChatRequest, Trainer
from tests.vllm.conftest import KINDS, ROUTES
from tests.vllm.engine import CONTEXT, MODELS, recomputed
from tests.waiting import until

pytestmark = pytest.mark.vllm
ROLLOUTS = int(os.environ.get("OSMOSIS_TEST_ROLLOUTS") or 16)
TURNS, TOKENS = 4, 16
NEAR = 1e-3
LONG = 1500
"""More tokens than an engine samples before a test is done with it."""


class Talks(RolloutAgentLoop):
    """Four turns; texts with characters of several bytes, which no tokenizer splits the same way twice."""

    name = "talks"

    def get_tools(self, request):
        return []

    async def run(self, ctx):
        messages = list(ctx.request.messages)
        for turn in range(TURNS):
            reply = await ctx.chat(messages, max_tokens=TOKENS + turn)
            messages += [reply.message, {"role": "user", "content": f"Und {turn}? \u2028é\U0001f600"}]
        return ctx.complete(messages[:-1], reward=1.0)


class LongReply(RolloutAgentLoop):
    """One long reply."""

    name = "long"

    def get_tools(self, request):
        return []

    async def run(self, ctx):
        reply = await ctx.chat(list(ctx.request.messages), max_tokens=LONG, ignore_eos=True)
        return ctx.complete([*ctx.request.messages, reply.message], reward=1.0)


def question(text="Hello"):
    return [{"role": "user", "content": text}]


def chat(**params):
    return ChatRequest(rollout_id="r", messages=question(), params={"ignore_eos": True, **params})


def control_of(kind, engine):
    return VllmControl(engine.target) if kind == "grpc" else VllmHttpControl(engine.url)


async def idle(engine):
    await until(lambda: asyncio.to_thread(lambda: engine.running() == 0), "the engine samples nothing", timeout=60)


async def busy(engine):
    await until(lambda: asyncio.to_thread(engine.running), "the engine samples", timeout=60)


@pytest.mark.parametrize("kind", ROUTES)
async def test_rollouts_at_once_are_one_segment_each_without_drift(kind, engine_of, renderer):
    _, generator = engine_of(kind)
    policy = TokenPolicy(renderer, generator, TokenPolicyConfig(context=CONTEXT, params={"temperature": 1.0}))
    async with AgentServer([Talks()], port=0) as server, Trainer([server.address], policy) as trainer:
        outcomes = await asyncio.gather(
            *(trainer.rollout(rollout_id=f"r{n}", messages=question(f"Question {n}?")) for n in range(ROLLOUTS))
        )
    assert {outcome.status for outcome in outcomes} == {OutcomeStatus.COMPLETED}
    segments = [segment for outcome in outcomes for segment in outcome.samples["main"].segments]
    assert [segment.drift_index for segment in segments] == [None] * ROLLOUTS
    assert all(outcome.samples["main"].trainable for outcome in outcomes)
    whole = [segment.ids.tolist() for segment in segments]
    wanted = recomputed(MODELS / "shaped", [(ids[:1], ids[1:], 1.0) for ids in whole])
    for segment, logprobs in zip(segments, wanted, strict=True):
        sampled = np.asarray([0.0, *logprobs])[segment.mask()]
        assert np.abs(sampled - segment.logprobs).max() < NEAR


@pytest.mark.parametrize("kind", KINDS)
async def test_a_cancelled_rollout_and_a_deadline_end_the_sampling(kind, engine_of, renderer):
    engine, generator = engine_of(kind)
    async with TokenPolicy(renderer, generator) as policy:
        answer = asyncio.ensure_future(policy(chat(max_tokens=LONG)))
        await busy(engine)
        answer.cancel()
        await asyncio.wait([answer])
        await idle(engine)
        late = ChatRequest(rollout_id="r", messages=question(), params=chat(max_tokens=LONG).params, timeout=1.0)
        with pytest.raises(DeadlineExceeded):
            await policy(late)
        await idle(engine)
        answer = asyncio.ensure_future(policy(chat(max_tokens=LONG)))
        await busy(engine)
        policy.cancel(chat())
        await idle(engine)
        answer.cancel()
        (result,) = await asyncio.gather(answer, return_exceptions=True)
        assert isinstance(result, Cancelled | asyncio.CancelledError)


@pytest.mark.parametrize("mode", PauseMode)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_reply_goes_on_after_a_pause_with_the_versions_of_its_tokens(kind, mode, engine_of, renderer):
    engine, generator = engine_of(kind)
    most = 200 if mode is PauseMode.WAIT else 600
    async with TokenPolicy(renderer, generator) as policy, control_of(kind, engine) as control:
        await control.set_weight_version("old")
        answer = asyncio.ensure_future(policy(chat(max_tokens=most)))
        await busy(engine)
        async with control.updating("new", mode):
            assert await control.is_paused()
        response = await answer
        assert not await control.is_paused()
    assert len(response.tokens.ids) == most
    versions = [span.version for span in response.versions]
    if mode is PauseMode.WAIT or (mode is PauseMode.KEEP and kind == "grpc"):
        assert versions == ["old"]
    else:
        assert versions == ["old", "new"]
    rows = [(response.prompt_ids.tolist(), response.tokens.ids.tolist(), 1.0)]
    (wanted,) = recomputed(MODELS / "shaped", rows)
    assert np.abs(np.asarray(wanted) - response.tokens.logprobs).max() < NEAR


@pytest.mark.parametrize("kind", ["http", "http-rust"])
async def test_new_weights_sample_the_rest_of_a_reply(kind, engine_of, renderer):
    engine, generator = engine_of(kind)
    async with TokenPolicy(renderer, generator) as policy, VllmHttpControl(engine.url) as control:
        await control.set_weight_version("first")
        answer = asyncio.ensure_future(policy(chat(max_tokens=600)))
        await busy(engine)
        async with control.updating("second"):
            await control.load_weights(str(MODELS / "second"))
        response = await answer
        async with control.updating("first"):
            await control.load_weights(str(MODELS / "first"))
        after = await policy(chat(max_tokens=8))
    (first, second) = response.versions
    assert (first.version, second.version, after.versions[0].version) == ("first", "second", "first")
    ids, at = response.tokens.ids.tolist(), first.tokens
    prompt = response.prompt_ids.tolist()
    old = recomputed(MODELS / "first", [(prompt, ids, 1.0), (prompt, after.tokens.ids.tolist(), 1.0)])
    (new,) = recomputed(MODELS / "second", [(prompt, ids, 1.0)])
    given = response.tokens.logprobs
    assert np.abs(np.asarray(old[0][:at]) - given[:at]).max() < NEAR
    assert np.abs(np.asarray(new[at:]) - given[at:]).max() < NEAR
    assert np.abs(np.asarray(old[0][at:]) - given[at:]).max() > 1.0, "the models differ"
    assert np.abs(np.asarray(old[1]) - after.tokens.logprobs).max() < NEAR


@pytest.mark.parametrize("kind", KINDS)
async def test_control_sleeps_wakes_up_and_names_what_vllm_lacks(kind, engine_of):
    engine, _ = engine_of(kind)
    async with control_of(kind, engine) as control:
        assert not await control.is_sleeping()
        if kind != "grpc":
            assert await control.reset_prefix_cache()
            await control.sleep(1)  # a call of vLLM, no wait
            await control.wake_up()
            with pytest.raises(CallError):
                await control.collective_rpc("there_is_no_such_method")
        else:
            with pytest.raises(CallError):
                await control.sleep(1)  # a call of vLLM; it needs --enable-sleep-mode
        with pytest.raises(CallError):  # the servers run without --enable-lora
            await control.load_lora("a", "/nowhere")
        for info_of in (control.init_weight_transfer, control.update_weights):
            with pytest.raises(CallError):  # and without --weight-transfer-config
                await info_of({"names": []})
        assert not await control.is_paused()


async def test_an_engine_that_is_killed_and_starts_again_loses_no_rollout(python_engine, renderer):
    """Weights that had a name are Unavailable after the restart, until they are named again."""
    engine = python_engine
    policy = TokenPolicy(renderer, VllmHttpGenerator(engine.url), TokenPolicyConfig(context=CONTEXT))
    async with VllmHttpControl(engine.url) as control:
        await control.set_weight_version("step-7")
    async with AgentServer([Talks(), LongReply()], port=0) as server, Trainer([server.address], policy) as trainer:
        before = await trainer.rollout(rollout_id="before", messages=question(), agent_loop="talks")
        waiting = [
            asyncio.ensure_future(trainer.rollout(rollout_id=f"r{n}", messages=question(), agent_loop="long"))
            for n in range(4)
        ]
        await busy(engine)
        await asyncio.to_thread(engine.kill)
        await asyncio.to_thread(engine.start)
        async with VllmHttpGenerator(engine.url) as unaware, VllmHttpControl(engine.url) as control:
            assert await unaware.context_length() == CONTEXT
            assert await control.weight_version() == "default"
            with pytest.raises(Unavailable):
                await policy(chat(max_tokens=4))
            await control.set_weight_version("step-8")
        outcomes = await asyncio.gather(*waiting)
    assert before.status is OutcomeStatus.COMPLETED
    assert {outcome.status for outcome in outcomes} == {OutcomeStatus.COMPLETED}
    segments = [segment for outcome in outcomes for segment in outcome.samples["main"].segments]
    assert {span.version for segment in segments for span in segment.versions} == {"step-8"}
    assert {segment.drift_index for segment in segments} == {None}
