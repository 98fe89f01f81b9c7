"""Extras reach the segments of a trainer, over both transports, with full histories and deltas."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace

import numpy as np
import pytest

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.errors import Unavailable
from osmosis_grpc.protocol.types import OutcomeStatus, Tensor, TokenBlock
from osmosis_grpc.server import AgentServer, ServerConfig
from osmosis_grpc.trainer import RolloutClient, RolloutRequest, Trainer, TrainerConfig
from tests.callback_trainer import CallbackTrainer
from tests.made_extras import MAKERS, made, right
from tests.ports import quiet_port
from tests.trainer.loops import Ask, Planned, Rewind
from tests.waiting import until

USER = {"role": "user", "content": "go"}
PATIENCE = 15.0
A = Ask("main", ("x",))
PLAN = [A, A, Rewind("main", 2), A, A, Ask("other", ("y",)), Ask("main", ("is it?",), judge=True), A]
"""A branch, a second sample and a judge."""
DRIFT = 5
"""The chat of sample main whose prompt has a token that the earlier chat does not have."""
TRANSPORTS = {
    "attach": {},
    "attach full": {"config": TrainerConfig(delta=False)},
    "callback full": {"transport": "callback", "config": TrainerConfig(delta=False)},
    "callback delta": {"transport": "callback"},
}


def policy(request):
    """Gives every extra for prompts and replies, but no entropy for prompts, and no sampling_mask in sample other."""
    response = answer(request, f"{request.sample} {request.chat_number}")
    prompt, tokens = response.prompt_ids, response.tokens
    if (request.sample, request.chat_number) == ("main", DRIFT):
        prompt = prompt.copy()
        prompt[len(prompt) // 2] += 1
    names = set(MAKERS) - ({"sampling_mask"} if request.sample == "other" else set())
    return replace(
        response,
        prompt_ids=prompt,
        prompt_extras=made(names - {"entropy"}, prompt),
        tokens=TokenBlock.of(tokens.ids, tokens.logprobs, made(names, tokens.ids, len(prompt))),
    )


def check(samples, segments=3):
    """Sample main has all extras, and `segments` segments; sample other lacks one."""
    for segment in samples["main"].segments:
        assert set(segment.token_extras) == {"routed_experts", "sampling_mask"}
        assert (set(segment.sampled_extras), segment.incomplete_extras) == ({"entropy"}, ())
        assert right(segment)
    assert len(samples["main"].segments) == segments
    if "other" in samples:
        (segment,) = samples["other"].segments
        assert (set(segment.token_extras), set(segment.sampled_extras)) == ({"routed_experts"}, {"entropy"})
        assert right(segment)


@pytest.mark.parametrize("options", TRANSPORTS.values(), ids=TRANSPORTS)
@pytest.mark.parametrize("ledger", [False, True], ids=["no ledger", "ledger"])
async def test_extras_reach_the_segments(serve, stack, tmp_path, options, ledger):
    agent = Planned()
    agent.plans["r"] = PLAN
    server = await serve(agent)
    path = tmp_path / "ledger" if ledger else None
    async with Trainer([server.address], policy, ledger=path, **options) as trainer, asyncio.timeout(PATIENCE):
        outcome = await trainer.rollout(rollout_id="r", messages=[USER])
        check(outcome.samples)
    client = await stack.enter_async_context(RolloutClient(server.address))
    reported = (await client.get("r")).outcome
    for name, sample in outcome.samples.items():
        assert reported.samples[name].segments == sample.segments


@pytest.mark.parametrize("delta", [False, True], ids=["full", "delta"])
async def test_the_server_assembles_the_same_segments(serve, stack, delta):
    """A trainer that keeps no chats gets the extras in the outcome."""
    agent, reported = Planned(), {}
    agent.plans["r"] = PLAN
    server = await serve(agent)

    async def record(outcome, state, credential):
        reported[outcome.rollout_id] = outcome

    trainer = await stack.enter_async_context(CallbackTrainer(policy, recorder=record))
    client = await stack.enter_async_context(RolloutClient(server.address))
    await client.init(rollout_id="r", messages=[USER], callback=trainer.callback(delta=delta))
    await until(lambda: "r" in reported)
    check(reported["r"].samples)


class Waits(RolloutAgentLoop):
    """Chats twice. Waits between its chats until it may go on."""

    name = "waits"
    replayable = True

    def __init__(self):
        self.asked, self.may = asyncio.Event(), asyncio.Event()

    def get_tools(self, request):
        return []

    async def run(self, ctx):
        messages = [*ctx.request.messages, (await ctx.chat(ctx.request.messages)).message, USER]
        self.asked.set()
        await self.may.wait()
        messages.append((await ctx.chat(messages)).message)
        return ctx.complete(messages, reward=1.0)


LEDGERS = [(name, True) for name in TRANSPORTS] + [(name, False) for name in TRANSPORTS if "callback" in name]
"""Without a ledger, an attached trainer that closes says goodbye, and its rollouts end."""


@pytest.mark.parametrize(("transport", "ledger"), LEDGERS)
async def test_extras_outlive_the_trainers_process(serve, tmp_path, transport, ledger):
    agent = Waits()
    server = await serve(agent, trainer_grace=PATIENCE)
    request = RolloutRequest(rollout_id="r", messages=[USER])

    def trainer():
        path = tmp_path / "ledger" if ledger else None
        return Trainer([server.address], policy, ledger=path, **TRANSPORTS[transport])

    async with asyncio.timeout(PATIENCE):
        stack = AsyncExitStack()
        first = await stack.enter_async_context(trainer())
        running = asyncio.ensure_future(first.rollout(request))
        await agent.asked.wait()
        await stack.aclose()
        with pytest.raises(Unavailable):
            await running
        async with trainer() as second:
            running = asyncio.ensure_future(second.rollout(request))
            agent.may.set()
            outcome = await running
    assert outcome.status is OutcomeStatus.COMPLETED
    check(outcome.samples, segments=1 if ledger else 2)  # without its tokens the policy makes the prompt anew


@pytest.mark.parametrize("options", TRANSPORTS.values(), ids=TRANSPORTS)
async def test_extras_outlive_the_servers_process(tmp_path, options):
    """The agent runs again, and its first reply comes from the journal."""

    port = quiet_port()

    def server(agent):
        return AgentServer([agent], port=port, config=ServerConfig(retry_delay=(0.05, 0.2)), state_dir=tmp_path)

    async with asyncio.timeout(PATIENCE), AsyncExitStack() as stack:
        agent, stopping = Waits(), AsyncExitStack()
        first = await stopping.enter_async_context(server(agent))
        trainer = await stack.enter_async_context(Trainer([first.address], policy, **options))
        running = asyncio.ensure_future(trainer.rollout(rollout_id="r", messages=[USER]))
        await agent.asked.wait()
        await stopping.aclose()
        agent = Waits()
        agent.may.set()
        second = await stack.enter_async_context(server(agent))
        check((await running).samples, segments=1)
        client = await stack.enter_async_context(RolloutClient(second.address))
        check((await client.get("r")).outcome.samples, segments=1)


async def test_extras_come_from_the_journal_when_another_trainer_takes_over(serve, stack):
    """The server keeps no extras of a trainer that keeps its replies. A trainer without these replies gets them too."""
    agent, reported = Waits(), []
    server = await serve(agent, trainer_grace=PATIENCE)

    async def record(outcome, state, credential):
        reported.append(outcome)

    attached = await stack.enter_async_context(Trainer([server.address], policy))
    running = asyncio.ensure_future(attached.rollout(rollout_id="r", messages=[USER]))
    await agent.asked.wait()
    trainer = await stack.enter_async_context(CallbackTrainer(policy, recorder=record))
    client = await stack.enter_async_context(RolloutClient(server.address))
    taken = await client.init(rollout_id="r", messages=[USER], callback=trainer.callback())
    assert not taken.created
    agent.may.set()
    await until(lambda: reported)
    check(reported[0].samples, segments=2)  # without the tokens of chat 1 the policy makes the prompt anew
    running.add_done_callback(lambda done: done.exception())  # its trainer closes without the outcome


async def test_logprobs_come_from_the_journal_when_another_trainer_takes_over(serve, stack):
    """The server keeps no logprobs of a trainer that keeps its replies. A trainer without these replies gets them."""
    agent, reported, sampled = Waits(), [], []
    server = await serve(agent, trainer_grace=PATIENCE)

    def bare_policy(request):
        sampled.append(answer(request, f"reply {request.chat_number}", tokens=4).tokens)
        return answer(request, f"reply {request.chat_number}", tokens=4)

    async def record(outcome, state, credential):
        reported.append(outcome)

    attached = await stack.enter_async_context(Trainer([server.address], bare_policy))
    running = asyncio.ensure_future(attached.rollout(rollout_id="r", messages=[USER]))
    await agent.asked.wait()
    trainer = await stack.enter_async_context(CallbackTrainer(bare_policy, recorder=record))
    client = await stack.enter_async_context(RolloutClient(server.address))
    await client.init(rollout_id="r", messages=[USER], callback=trainer.callback())
    agent.may.set()
    await until(lambda: reported)
    segments = reported[0].samples["main"].segments
    logprobs = np.concatenate([segment.logprobs for segment in segments])
    np.testing.assert_array_equal(logprobs, np.concatenate([tokens.logprobs for tokens in sampled]))
    assert sum(segment.sampled for segment in segments) == len(logprobs)
    running.add_done_callback(lambda done: done.exception())  # its trainer closes without the outcome


@pytest.mark.parametrize("options", TRANSPORTS.values(), ids=TRANSPORTS)
async def test_a_prompt_that_repeats_earlier_ids_makes_the_server_read_them_from_the_journal(serve, stack, options):
    """The server drops ids that the trainer leaves out of its prompts. Chat 5 differs in the middle of its prompt."""
    agent = Planned()
    agent.plans["r"] = [A] * 7
    server = await serve(agent)

    def drifting_policy(request):
        response = answer(request, f"reply {request.chat_number}", tokens=4)
        if request.chat_number < DRIFT:
            return response
        prompt = response.prompt_ids.copy()
        prompt[len(prompt) // 2] += request.chat_number == DRIFT
        return replace(response, prompt_ids=prompt)

    async with Trainer([server.address], drifting_policy, **options) as trainer, asyncio.timeout(PATIENCE):
        outcome = await trainer.rollout(rollout_id="r", messages=[USER])
    client = await stack.enter_async_context(RolloutClient(server.address))
    segments = outcome.samples["main"].segments
    assert [segment.chats for segment in segments] == [(1, 2, 3, 4), (5, 6, 7)]
    assert (await client.get("r")).outcome.samples["main"].segments == segments


LARGE = 5 << 20


def large_policy(request):
    """Gives extras with more bytes than an outcome may have."""
    response = answer(request, "fine", tokens=4)
    large = Tensor.of(np.full((4, LARGE), request.chat_number, "uint8"))
    return replace(response, tokens=replace(response.tokens, extras={"large": large}))


@pytest.mark.slow
async def test_extras_beyond_the_limit_of_an_outcome_are_those_of_the_trainers_chats(serve, stack):
    agent = Planned()
    agent.plans["r"] = [A, Rewind("main", 0), Ask("main", ("z",))]
    server = await serve(agent)
    reported = []

    async def record(outcome, state, credential):
        reported.append(outcome)

    async with Trainer([server.address], large_policy, transport="callback") as trainer, asyncio.timeout(PATIENCE):
        outcome = await trainer.rollout(rollout_id="r", messages=[USER])
    for segment in outcome.samples["main"].segments:
        (number,) = segment.chats
        assert segment.sampled_extras["large"].numpy().min() == segment.sampled_extras["large"].numpy().max() == number

    agent.plans["r2"] = agent.plans["r"]
    trainer = await stack.enter_async_context(CallbackTrainer(large_policy, recorder=record))
    client = await stack.enter_async_context(RolloutClient(server.address))
    await client.init(rollout_id="r2", messages=[USER], callback=trainer.callback())
    await until(lambda: reported)
    (outcome,) = reported
    assert outcome.omitted == ("samples[main].segments[0]", "samples[main].segments[1]")
    assert [segment.referred for segment in outcome.samples["main"].segments] == [True, True]
    assert outcome.not_trainable_reason == "main: its tokens were left out"
