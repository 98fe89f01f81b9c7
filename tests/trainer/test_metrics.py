"""trainer.metrics(): a flat dict, of what a trainer's rollouts and policy calls came to."""

import asyncio
import math
import re
from dataclasses import replace

import pytest

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.errors import AlreadyExists, PermissionDenied
from osmosis_grpc.protocol.types import ChatResponse, Failure, OutcomeStatus, RolloutOutcome
from osmosis_grpc.trainer import RolloutRequest, TokenBlock
from osmosis_grpc.trainer.metrics import MAX_REASONS, RECENT, Metrics
from tests.trainer.conftest import PATIENCE, USER
from tests.trainer.deployment import collect
from tests.waiting import until


class Mixed(RolloutAgentLoop):
    """Chats twice, then does what its rollout's id begins with."""

    name = "mixed"

    def get_tools(self, request):
        return []

    async def run(self, ctx):
        messages = list(ctx.request.messages)
        for _ in range(2):
            messages += [(await ctx.chat(messages)).message, USER]
        kind = ctx.request.rollout_id.partition("-")[0]
        if kind == "raises":
            raise KeyError("no key")
        if kind == "hangs":
            await asyncio.sleep(3600)
        return ctx.complete(messages, reward=float(ctx.request.label or 0))


def check_flat(values):
    assert all(type(name) is str and type(value) is float and math.isfinite(value) for name, value in values.items())


async def test_metrics_of_a_trainer(serve, attach_to):
    def policy(request):
        if request.rollout_id.startswith("unanswered"):
            raise PermissionDenied("no GPU")
        return answer(request, "fine", tokens=3)

    trainer = await attach_to(policy, await serve(Mixed()))
    before = trainer.metrics()
    check_flat(before)
    assert before["rollouts/completed"] == before["chats/answered"] == before["rollouts/open"] == 0.0
    assert not [name for name in before if name.startswith(("reward", "evaluation", "policy", "failures"))]

    trainer.resume(version=3)
    requests = [RolloutRequest(rollout_id=f"ok-{n}", messages=[USER], label=str(n % 2)) for n in range(4)]
    for name in ("raises-1", "unanswered-1", "hangs-1"):
        timeout = 0.3 if name == "hangs-1" else None
        requests.append(RolloutRequest(rollout_id=name, messages=[USER], agent_timeout=timeout))
    requests.append(RolloutRequest(rollout_id="nobody-1", agent_loop="nobody"))
    assert len(await collect(trainer.run(requests))) == 8
    with pytest.raises(AlreadyExists):
        await trainer.rollout(requests[0])
    values = trainer.metrics()
    check_flat(values)
    expected = {
        "rollouts/completed": 4,
        "rollouts/failed": 4,
        "rollouts/cancelled": 0,
        "rollouts/deadline_exceeded": 1,
        "rollouts/open": 0,
        "rollouts/from_journal": 0,
        "failures/agent/AGENT_EXCEPTION": 1,
        "failures/trainer/CHAT_REFUSED": 1,
        "failures/agent/AGENT_TIMEOUT": 1,
        "failures/refused/NotFound": 1,
        "failures/refused/AlreadyExists": 1,
        "reward/mean": 0.5,
        "chats/answered": 12,
        "chats/failed": 1,
        "chats/open": 0,
        "tokens/sampled": 36,
        "policy/version": 3,
        "policy/lag/mean": 0,
        "policy/lag/max": 0,
        "rollouts/not_trainable": 0,
        "samples/trainable": 4,
        "samples/segments": 4,
        "samples/cut": 0,
        "replies/dropped": 0,
    }
    assert {name: values.get(name) for name in expected} == expected
    assert {name for name in values if name.startswith("failures")} == {n for n in expected if n.startswith("failures")}
    assert values["tokens/prompt"] > 36
    for name in ("rollout_seconds", "chat_seconds"):
        assert 0 <= values[f"{name}/p50"] <= values[f"{name}/p95"]
        assert values[f"{name}/mean"] >= 0


async def test_untrainable_rollouts_and_split_samples(serve, attach_to):
    def policy(request):
        if request.rollout_id.startswith("plain"):
            return ChatResponse(message={"role": "assistant", "content": "fine"})
        made = answer(request, "fine", tokens=3)
        if request.rollout_id.startswith("drifts"):  # no prompt continues the tokens before it
            made = replace(made, prompt_ids=TokenBlock.of([request.chat_number, 7]).ids, prompt_prefix=0)
        return made

    trainer = await attach_to(policy, await serve(Mixed()))
    names = ("plain-1", "plain-2", "drifts-1", "ok-1")
    requests = [RolloutRequest(rollout_id=name, messages=[USER]) for name in names]
    await collect(trainer.run(requests))
    await trainer.evaluate([RolloutRequest(rollout_id="plain-3", messages=[USER])])
    values = trainer.metrics()
    check_flat(values)
    assert values["rollouts/not_trainable"] == 2.0
    assert (values["samples/trainable"], values["samples/segments"]) == (2.0, 3.0)
    assert "evaluation/rollouts/not_trainable" not in values


async def test_groups_are_counted(serve, attach_to):
    trainer = await attach_to(lambda request: answer(request, "fine", tokens=3), await serve(Mixed()))
    counts = ("yielded", "dropped", "dropped_members", "retried", "zero_variance")
    assert {name: trainer.metrics()[f"groups/{name}"] for name in counts} == dict.fromkeys(counts, 0.0)
    requests = [RolloutRequest(rollout_id=name, messages=[USER]) for name in ("ok-1", "ok-2", "raises-1")]
    assert len(await collect(trainer.groups(requests, 2))) == 2
    values = trainer.metrics()
    check_flat(values)
    assert [values[f"groups/{name}"] for name in ("yielded", "dropped", "dropped_members")] == [2.0, 1.0, 0.0]
    assert values["groups/zero_variance"] == trainer.group_counts.zero_variance == 2
    assert values["groups/retried"] >= 1


async def test_metrics_of_open_rollouts_and_their_lag(serve, attach_to):
    gate = asyncio.Event()
    asked = []

    async def policy(request):
        asked.append(request)
        await gate.wait()
        return answer(request, "fine", tokens=2)

    trainer = await attach_to(policy, await serve(Mixed()))
    trainer.resume(version=10)
    running = asyncio.ensure_future(trainer.rollout(rollout_id="ok-1", messages=[USER]))
    await until(lambda: asked)
    values = trainer.metrics()
    assert (values["rollouts/open"], values["chats/open"]) == (1.0, 1.0)
    trainer.resume(version=14)
    gate.set()
    await asyncio.wait_for(running, PATIENCE)
    values = trainer.metrics()
    assert (values["policy/lag/mean"], values["policy/lag/max"], values["policy/version"]) == (4.0, 4.0, 14.0)


def outcome(name="r", **fields):
    fields = {"status": OutcomeStatus.COMPLETED, "reward": 1.0} | fields
    return RolloutOutcome(rollout_id=name, **fields)


def read(metrics):
    return metrics.read(open_rollouts=0, open_chats=0, version="")


class FromJournal(RolloutOutcome):
    from_journal = "an earlier run"


def test_evaluation_is_counted_apart():
    metrics = Metrics()
    metrics.ended(outcome(reward=0.0), "")
    metrics.ended(outcome("e", evaluation=True), "")
    metrics.refused(RolloutRequest(rollout_id="f", evaluation=True), AlreadyExists("there"))
    values = read(metrics)
    assert (values["rollouts/completed"], values["reward/mean"], values["rollouts/failed"]) == (1.0, 0.0, 0.0)
    assert (values["evaluation/rollouts/completed"], values["evaluation/reward/mean"]) == (1.0, 1.0)
    assert values["evaluation/failures/refused/AlreadyExists"] == 1.0


def test_outcomes_of_an_earlier_run_are_counted_and_their_times_are_not():
    metrics = Metrics()
    metrics.ended(FromJournal(rollout_id="r", status=OutcomeStatus.COMPLETED, reward=1.0), "")
    values = read(metrics)
    assert (values["rollouts/completed"], values["rollouts/from_journal"], values["reward/mean"]) == (1.0, 1.0, 1.0)
    assert not [name for name in values if name.startswith("rollout_seconds")]


def test_metrics_are_bounded():
    metrics = Metrics()
    for n in range(MAX_REASONS + 10):
        failure = Failure("agent", "no")
        metrics.ended(
            outcome(status=OutcomeStatus.FAILED, reward=None, failure=failure, finish_reason=f"{n:03} ü/\n" * 100), ""
        )
    values = read(metrics)
    names = [name for name in values if name.startswith("failures/")]
    assert len(names) == MAX_REASONS + 1
    assert max(map(len, names)) < 100
    assert all(re.fullmatch(r"[\w.\- /]+", name, re.ASCII) for name in names), "MLflow takes no other characters"
    assert values["failures/other"] == 10.0
    for n in range(RECENT * 2):
        metrics.ended(outcome(reward=float(n >= RECENT)), "")
    assert read(metrics)["reward/mean"] == 1.0, "the newest values count"
    assert read(metrics)["rollouts/completed"] == RECENT * 2


def test_tokens_of_a_policy_without_ids_are_those_of_its_usage():
    metrics = Metrics()
    reply = ChatResponse(
        message={"role": "assistant", "content": "x"}, usage={"prompt_tokens": 5, "completion_tokens": 2}
    )
    metrics.answered(reply, 0.5)
    metrics.answered(replace(reply, usage={"prompt_tokens": None}), 1.5)
    values = read(metrics)
    assert (values["tokens/prompt"], values["tokens/sampled"], values["chat_seconds/mean"]) == (5.0, 2.0, 1.0)
