"""The same scenarios through every combination of old and new give the same outcome."""

import asyncio
import dataclasses
import math

import numpy as np
import pytest

from osmosis_gateway.http_bodies import init_answer
from osmosis_grpc.policies import formula
from osmosis_grpc.protocol.types import events
from tests.legacy.agent import NAME, SCHEMAS
from tests.legacy.conftest import CLIENT
from tests.legacy.new_trainer import AttachedTrainer, NewTrainer, outcome_of
from tests.legacy.old_contract import RolloutResponse
from tests.legacy.old_trainer import OldTrainer
from tests.legacy.scenarios import BY_NAME, REPLY_TOKENS, SCENARIOS, Fault, Scenario
from tests.waiting import ended

pytestmark = pytest.mark.asyncio(loop_scope="module")


def between(*combinations):
    """Only these combinations of (trainer, agent server)."""
    names = [f"{trainer}-trainer-{agent}-agent" for trainer, agent in combinations]
    return pytest.mark.parametrize("combination", combinations, ids=names, indirect=True)


def tokens_of(scenario: Scenario):
    """The ids, mask and logprobs that a scenario's conversation makes, by the formula alone."""
    parts, numbers = [], iter(range(1, 1000))
    for at, message in enumerate(scenario.messages + scenario.added):
        sampled = at >= len(scenario.messages) and message["role"] == "assistant"
        if sampled:
            block = formula.reply_tokens(scenario.name, "main", next(numbers), REPLY_TOKENS)
            parts.append((block.ids, 1, block.logprobs))
        else:
            parts.append((formula.message_ids(scenario.name, "main", at), 0, []))
    while parts and not parts[-1][1]:
        parts.pop()  # what follows the last reply was never in a prompt
    ids = [number for block, _, _ in parts for number in block]
    mask = [bit for block, bit, _ in parts for _ in block]
    return ids, mask, [logprob for _, _, logprobs in parts for logprob in logprobs]


async def kinds_of(played):
    """Every event of the rollout, to its last one."""
    async with asyncio.timeout(10):
        return [event.kind async for event in played.sides.watch.events(played.scenario.name)]


def schemas_for(trainer):
    """The tools that a trainer gets. HTTP adds what the SDK added."""
    return init_answer("", SCHEMAS)["tools"] if isinstance(trainer, OldTrainer) else SCHEMAS


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
async def test_the_outcome_is_the_same(scenario, play):
    played = await play(scenario)
    assert played.outcome == scenario.outcome
    assert scenario.error in played.error
    assert bool(scenario.error) == bool(played.error)
    assert played.sides.agent.runs[played.scenario.name] == 1
    assert played.trainer.tools == schemas_for(played.trainer)
    tries = played.trainer.tries
    assert len(tries) == len(scenario.faults) + len(scenario.script), "no chat is sampled twice"
    whole = math.ceil if isinstance(played.trainer, OldTrainer) else float  # HTTP tells whole seconds
    for fault, asked, again in zip(scenario.faults, tries, tries[1:], strict=False):
        assert again - asked >= whole(fault.retry_after or 0) - 0.05, "it waits for Retry-After"


@pytest.mark.parametrize("name", ["one-tool", "agent-exception", "duplicate-init"])
async def test_one_outcome_is_delivered(name, play):
    played = await play(BY_NAME[name])
    scenario, old = played.scenario, played.sides.old_agent_server
    kinds = await kinds_of(played)
    assert [type(kind) for kind in kinds[-2:]] == [events.Ended, events.Delivered]
    assert (kinds[-1].given_up, kinds[-1].tries) == ("", 1)
    assert sum(isinstance(kind, events.Ended) for kind in kinds) == 1
    assert outcome_of(await ended(played.sides.watch, scenario.name)) == scenario.outcome, "the server holds the same"
    await asyncio.sleep(0.1)  # time for a second result, which must not come
    assert len(played.trainer.outcomes) == 1
    if old is not None:
        assert old.acks[scenario.name] == [200], "an old agent knows no other acknowledgement"
        assert old.chat_statuses[scenario.name] == [200] * len(scenario.script)
        assert len(old.inits[scenario.name]) == 1


async def test_an_init_that_comes_late_starts_nothing(play):
    played = await play(BY_NAME["one-tool"])
    if isinstance(played.trainer, AttachedTrainer):
        again = await played.trainer.again(played.sides.address)
        if again is not None:
            assert outcome_of(again) == played.scenario.outcome
            assert again.samples["main"].segments == played.trainer.outcomes[0].samples["main"].segments
    else:
        again = await played.trainer.init(played.sides.address)
        assert list(again.tools) == schemas_for(played.trainer)
        assert getattr(again, "created", False) is False
    await asyncio.sleep(0.1)  # time for a second result, which must not come
    assert played.sides.agent.runs[played.scenario.name] == 1
    assert len(played.trainer.tries) == len(played.scenario.script)


@pytest.mark.parametrize("name", ["one-tool", "max-turns", "null-content", "500-messages"])
async def test_the_tokens_arrive(name, play):
    played = await play(BY_NAME[name])
    scenario = played.scenario
    blocks = [kind.response.tokens for kind in await kinds_of(played) if isinstance(kind, events.ChatAnswered)]
    assert blocks == [
        formula.reply_tokens(scenario.name, "main", n, REPLY_TOKENS) for n in range(1, len(scenario.script) + 1)
    ]
    outcomes = [await ended(played.sides.watch, scenario.name)]
    outcomes += [outcome for outcome in played.trainer.outcomes if not isinstance(outcome, dict)]
    ids, mask, logprobs = tokens_of(scenario)
    for outcome in outcomes:
        sample = outcome.samples["main"]
        assert sample.trainable, sample.not_trainable_reason
        [segment] = sample.segments
        assert segment.ids.tolist() == ids
        assert segment.mask().tolist() == mask
        assert np.array_equal(segment.logprobs, np.array(logprobs, dtype="<f4"))
        assert sample.reward == scenario.reward


async def test_a_trainer_that_tells_no_tokens(play):
    """What the old contract's trainers did: their replies have counts, but no ids."""
    played = await play(dataclasses.replace(BY_NAME["one-tool"], tells_tokens=False))
    assert played.outcome == played.scenario.outcome
    sample = (await ended(played.sides.watch, played.scenario.name)).samples["main"]
    assert (sample.trainable, sample.segments) == (False, ())
    assert sample.not_trainable_reason == "chat 1: the reply came without token ids"


async def test_a_broken_trainer_is_given_up_alike(play):
    """An old agent gets a refusal as early as a new one: its own retries do not multiply ours."""
    scenario = dataclasses.replace(
        BY_NAME["plain-answer"],
        added=[],
        status="ERROR",
        finish_reason="error",
        reward=None,
        error="the sampler is broken",
        faults=(Fault("broken"),) * 50,
    )
    played = await play(scenario)
    assert (played.outcome.status, played.outcome.num_llm_calls, played.outcome.reward) == ("ERROR", 0, None)
    assert scenario.error in played.error
    assert len(played.trainer.tries) == (1 if isinstance(played.trainer, NewTrainer) else 1 + CLIENT.max_retries)


async def test_a_silent_error_tells_the_same_messages(play):
    """ctx.error(text) without messages: an old server reports it as it reports an exception."""
    reported = {"error": "no messages", "at_turn": 2, "silent": True}
    played = await play(dataclasses.replace(BY_NAME["agent-error"], metadata=reported, error="no messages"))
    assert played.outcome == played.scenario.outcome


@pytest.mark.parametrize("how", ["raise", "error"])
async def test_a_failure_before_the_first_chat(how, play):
    scenario = Scenario(
        name="early",
        messages=[],
        added=[],
        status="ERROR",
        finish_reason="error",
        error="nothing works",
        metadata={how: "nothing works", "at_turn": 0},
    )
    played = await play(scenario)
    assert (played.outcome, played.trainer.tries) == (scenario.outcome, [])
    assert scenario.error in played.error


@between(("old", "new"), ("old", "old"))
@pytest.mark.parametrize("name", ["plain-answer", "one-tool", "null-content", "agent-exception", "reward-absent"])
async def test_an_old_trainer_gets_what_the_contract_says(name, play):
    played = await play(BY_NAME[name])
    scenario, trainer = played.scenario, played.trainer
    defaults = {"model": "default", "temperature": 1.0, "top_p": 1.0, "max_tokens": 512, "logprobs": True}
    assert trainer.chats == [
        defaults | {"rollout_id": scenario.name, "messages": history} | scenario.params
        for history in scenario.histories
    ]
    [got] = trainer.outcomes
    assert set(got) <= set(RolloutResponse.model_fields)
    assert None not in got.values(), "no nulls"
    assert len(got["metrics"]) == 8
    assert ("reward" in got) == (scenario.reward is not None)
    assert ("error_message" in got) == (scenario.status == "ERROR")


@between(("new", "new"), ("attached", "new"), ("dialled", "new"), ("old", "new"))
async def test_a_new_agents_extra_parameters_are_forwarded(play):
    extra = {"temperature": 0.0, "top_k": 20, "chat_template_kwargs": {"thinking": False}}
    [chat] = (await play(dataclasses.replace(BY_NAME["plain-answer"], params=extra))).trainer.chats
    sent = chat if isinstance(chat, dict) else chat.params
    assert {name: sent[name] for name in extra} == extra


@between(("new", "old"), ("attached", "old"), ("old", "old"))
async def test_an_old_agent_server_gets_what_the_contract_says(play):
    played = await play(BY_NAME["one-tool"])
    scenario, sides = played.scenario, played.sides
    [init] = sides.old_agent_server.inits[scenario.name]
    assert (init.rollout_id, init.messages) == (scenario.name, scenario.messages)
    assert init.completion_params == scenario.params
    assert (init.max_turns, init.max_tokens_total, init.metadata) == (10, 8192, scenario.metadata)
    assert (await sides.watch.info()).agent_loops[0].name == NAME


@between(("new", "old"), ("attached", "old"), ("old", "old"))
async def test_an_impatient_old_agent_is_sampled_for_once(play, sides, monkeypatch):
    """It hangs up after 0.3 s and asks again after 0.1 s; the reply to its first try comes after 0.55 s."""
    monkeypatch.setattr(sides.old_agent_server, "patience", 0.3)
    played = await play(dataclasses.replace(BY_NAME["plain-answer"], latency=0.55))
    assert played.outcome == played.scenario.outcome
    assert len(played.trainer.tries) == 1
