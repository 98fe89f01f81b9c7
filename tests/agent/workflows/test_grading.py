"""Graders: what they get, what they set, and how they fail (rows 53 to 66 and 77 of the SDK's list)."""

import asyncio
import time

import pytest

from osmosis_grpc.agent.error_categories import RolloutErrorCategory, error_category
from osmosis_grpc.agent.grading import grade_recorded
from osmosis_grpc.agent.workflow_runnable import WorkflowRunnable
from osmosis_grpc.policies import EchoPolicy, ScriptedPolicy
from osmosis_grpc.protocol.errors import InvalidArgument, Unavailable
from osmosis_grpc.protocol.types import ChatPurpose, FailureReason, RolloutRequest, events
from osmosis_grpc.rollout import (
    AgentWorkflow,
    AgentWorkflowConfig,
    ConcurrencyConfig,
    Grader,
    GraderConfig,
    GraderContext,
    RolloutSample,
    get_rollout_context,
)
from osmosis_grpc.testing import collect_rollout, run_rollout
from tests.agent.workflows.made import QUESTION, Asks, AsksTwice, Ones


def grades(function):
    """Make a grader class of a function."""

    class Made(Grader):
        async def grade(self, ctx):
            result = function(ctx)
            if asyncio.iscoroutine(result):
                await result

    return Made


async def run_graded(grader, workflow=AsksTwice, policy=None, **request):
    request.setdefault("label", "42")
    return await run_rollout(WorkflowRunnable(workflow, None, grader), policy or EchoPolicy(), QUESTION, **request)


@pytest.mark.row("SDK 53", "SDK 57")
async def test_the_grader_gets_the_samples_and_the_label():
    seen = []

    def look(ctx):
        assert ctx.get_samples() is ctx.samples
        seen.append((ctx.label, {name: sample.label for name, sample in ctx.samples.items()}, ctx.prompt))
        for name, sample in ctx.samples.items():
            assert sample.id == name
            assert [message["content"] for message in sample.messages] == ["Be brief.", "hello", "hello"]
            ctx.set_sample_reward(name, 0.5)

    outcome = await run_graded(grades(look))
    assert outcome.failure is None
    await run_graded(grades(look), label=None, metadata={"answer": 1})
    assert seen == [
        ("42", {"first": "42", "second": "42"}, QUESTION),
        (None, {"first": None, "second": None}, QUESTION),
    ]
    assert {name: sample.reward for name, sample in outcome.samples.items()} == {"first": 0.5, "second": 0.5}


@pytest.mark.row("SDK 58")
async def test_rewards_are_events_and_reach_the_only_sample_and_the_rollout():
    outcome, trail = await collect_rollout(WorkflowRunnable(Asks, None, Ones), EchoPolicy(), QUESTION, label="x")
    assert (outcome.reward, outcome.samples["main"].reward) == (1.0, 1.0)
    assert [event.kind for event in trail if isinstance(event.kind, events.Graded)] == [events.Graded("main", 1.0)]


@pytest.mark.row("SDK 58")
def test_an_unknown_sample_is_refused():
    context = GraderContext("42", {"agent": RolloutSample(id="agent")})
    with pytest.raises(ValueError, match=r"^Sample other not found; the samples are: agent$"):
        context.set_sample_reward("other", 1.0)
    context.set_sample_reward("agent", 0.0)
    context.set_sample_reward("agent", 2)
    assert (context.samples["agent"].reward, type(context.samples["agent"].reward)) == (2.0, float)


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), "0.5", "abc", [1], None, 1j], ids=repr)
@pytest.mark.row("SDK 59")
def test_a_value_that_is_no_reward_is_refused_at_the_call(reward):
    sample = RolloutSample(id="agent")
    with pytest.raises(ValueError, match="not a finite number"):
        GraderContext(None, {"agent": sample}).set_sample_reward("agent", reward)
    if reward is not None:
        with pytest.raises(ValueError, match="not a finite number"):
            sample.reward = reward
    assert sample.reward is None


@pytest.mark.row("SDK 59")
async def test_a_wrong_reward_fails_the_rollout_at_its_line():
    outcome = await run_graded(grades(lambda ctx: ctx.set_sample_reward("first", float("nan"))))
    assert outcome.failure.reason is FailureReason.GRADER_EXCEPTION
    assert (outcome.failure.boundary, outcome.failure.file) == ("grader", "tests/agent/workflows/test_grading.py")


@pytest.mark.row("SDK 60")
async def test_a_sample_without_a_reward_is_a_failure_that_names_it():
    outcome = await run_graded(grades(lambda ctx: ctx.set_sample_reward("first", 1.0)))
    assert (outcome.failure.boundary, outcome.failure.reason) == ("grader", FailureReason.GRADER_RESULT_INVALID)
    assert outcome.failure.message == "after grading, there is no reward for the sample 'second'"
    assert error_category(outcome) is RolloutErrorCategory.VALIDATION_ERROR
    assert list(outcome.samples) == ["first", "second"]
    assert outcome.mean_reward is None


@pytest.mark.row("SDK 60")
async def test_a_removed_sample_needs_no_reward_and_is_not_trained_on():
    def remove(ctx):
        ctx.set_sample_reward("first", 1.0)
        ctx.samples["second"].remove_sample = True
        ctx.samples["first"].metrics["steps"] = 3
        ctx.samples["first"].extra_fields["object"] = object

    outcome = await run_graded(grades(remove))
    assert outcome.failure is None
    assert (outcome.samples["first"].train, outcome.samples["second"].train) == (None, False)
    assert list(outcome.trainable_samples()) == ["first"]
    first = outcome.extra_fields["samples"]["first"]
    assert first == {"metrics": {"steps": 3}, "extra_fields": {"object": "<class 'object'>"}}


@pytest.mark.parametrize("grader", [None, Ones])
@pytest.mark.row("SDK 61")
async def test_a_workflow_without_a_sample_fails(grader):
    class Silent(AgentWorkflow):
        async def run(self, ctx):
            pass

    outcome = await run_graded(grader, Silent)
    assert (outcome.status, outcome.failure.reason) == ("FAILED", FailureReason.AGENT_RESULT_INVALID)
    assert outcome.failure.message.startswith("the workflow has no sample: none of its agents got a reply")
    assert error_category(outcome) is RolloutErrorCategory.VALIDATION_ERROR


@pytest.mark.parametrize(
    ("request_fields", "graded"),
    [({"label": "42"}, True), ({"label": None, "metadata": {"a": 1}}, True), ({"label": None}, False)],
    ids=["label", "metadata", "neither"],
)
@pytest.mark.row("SDK 62")
async def test_the_grader_runs_with_a_label_or_metadata(request_fields, graded):
    outcome = await run_graded(Ones, Asks, **request_fields)
    assert outcome.status == "COMPLETED"
    assert outcome.reward == (1.0 if graded else None)
    why = "the request has no label and no metadata, so the grader did not run"
    assert outcome.extra_fields == ({} if graded else {"grading": why})


@pytest.mark.row("SDK 62")
async def test_after_a_failed_workflow_the_grader_does_not_run():
    class Fails(Asks):
        async def run(self, ctx):
            await super().run(ctx)
            raise RuntimeError("no luck")

    ran = []
    outcome = await run_graded(grades(ran.append), Fails)
    assert (ran, outcome.failure.reason, outcome.reward) == ([], FailureReason.AGENT_EXCEPTION, None)
    assert list(outcome.samples) == ["main"]


@pytest.mark.row("SDK 55")
async def test_a_truncated_reply_keeps_the_partial_sample():
    class Strict(Asks):
        async def run(self, ctx):
            reply = await get_rollout_context().chat(ctx.prompt)
            if reply.finish_reason == "length":
                raise RuntimeError("the reply was cut: finish_reason is length")

    async def cut(request):
        response = await EchoPolicy()(request)
        return response.__class__(message=response.message, finish_reason="length", tokens=response.tokens)

    outcome = await run_graded(Ones, Strict, policy=cut)
    assert "finish_reason is length" in outcome.failure.message
    assert (outcome.status, outcome.finish_reason) == ("FAILED", "length")
    assert len(outcome.samples["main"].messages) == 3
    outcome = await run_graded(Ones, Asks, policy=cut)
    assert (outcome.status, outcome.finish_reason, outcome.reward) == ("COMPLETED", "length", 1.0)


@pytest.mark.row("SDK 63")
async def test_a_failed_grader_keeps_the_samples_and_sends_no_reward():
    def fail(ctx):
        ctx.set_sample_reward("first", 1.0)
        raise KeyError("answer")

    outcome = await run_graded(grades(fail))
    assert (outcome.status, outcome.failure.boundary) == ("FAILED", "grader")
    assert outcome.failure.reason is FailureReason.GRADER_EXCEPTION
    assert outcome.failure.message == "KeyError: 'answer'"
    assert outcome.failure.where.startswith("tests/agent/workflows/test_grading.py:")
    assert [sample.reward for sample in outcome.samples.values()] == [None, None]
    assert all(len(sample.segments) == 1 for sample in outcome.samples.values())


@pytest.mark.row("SDK 64")
async def test_the_chats_of_a_grader_are_for_judging_and_never_trained_on():
    asked = []

    async def policy(request):
        asked.append((request.sample, request.purpose))
        return await EchoPolicy()(request)

    async def judge(ctx):
        context = get_rollout_context()
        context.register_agent("judge", ctx)
        await context.chat([{"role": "user", "content": "good?"}], sample="judge")
        await context.chat([{"role": "user", "content": "good?"}], purpose=ChatPurpose.POLICY)
        assert set(ctx.samples) == {"main"}
        ctx.set_sample_reward("main", 1.0)

    outcome = await run_graded(grades(judge), Asks, policy=policy)
    assert outcome.failure is None
    assert asked == [("main", ChatPurpose.POLICY), ("judge", ChatPurpose.JUDGE), ("main", ChatPurpose.JUDGE)]
    assert list(outcome.samples) == ["main"]
    assert len(outcome.samples["main"].messages) == 3
    assert [tuple(segment.chats) for segment in outcome.samples["main"].segments] == [(1,)]


@pytest.mark.row("SDK 64")
async def test_a_failed_chat_of_a_judge_is_the_trainers_failure():
    async def policy(request):
        if request.purpose is ChatPurpose.JUDGE:
            raise InvalidArgument("messages", "the judge is gone")
        return await EchoPolicy()(request)

    async def judge(ctx):
        await get_rollout_context().chat([{"role": "user", "content": "good?"}], sample="judge")

    outcome = await run_graded(grades(judge), Asks, policy=policy)
    assert (outcome.failure.boundary, outcome.failure.reason) == ("trainer", FailureReason.CHAT_REFUSED)


CATEGORIES = {
    TimeoutError: RolloutErrorCategory.TIMEOUT,
    ValueError: RolloutErrorCategory.VALIDATION_ERROR,
    TypeError: RolloutErrorCategory.VALIDATION_ERROR,
    AssertionError: RolloutErrorCategory.VALIDATION_ERROR,
    RuntimeError: RolloutErrorCategory.AGENT_ERROR,
    UnicodeError: RolloutErrorCategory.VALIDATION_ERROR,
}


@pytest.mark.parametrize("where", ["workflow", "grader"])
@pytest.mark.parametrize("error", CATEGORIES)
@pytest.mark.row("SDK 65")
async def test_exceptions_have_the_sdks_categories_and_a_text(error, where):
    class Fails(Asks):
        async def run(self, ctx):
            await super().run(ctx)
            if where == "workflow":
                raise error

    def fail(ctx):
        raise error

    outcome = await run_graded(grades(fail), Fails)
    assert error_category(outcome) is CATEGORIES[error]
    assert outcome.failure.message == error.__name__
    assert outcome.failure.boundary == ("agent" if where == "workflow" else "grader")


class Hangs(Asks):
    async def run(self, ctx):
        await super().run(ctx)
        await asyncio.Event().wait()


class Swallows(Asks):
    async def run(self, ctx):
        await super().run(ctx)
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return


class Blocks(Asks):
    async def run(self, ctx):
        await super().run(ctx)
        time.sleep(0.3)  # blocks the event loop beyond the time limit


@pytest.mark.parametrize("workflow", [Hangs, Swallows, Blocks])
@pytest.mark.row("SDK 66")
async def test_the_agents_time_limit_holds_and_keeps_the_samples(workflow):
    ran = []
    outcome = await run_graded(grades(ran.append), workflow, agent_timeout=0.2)
    assert (ran, outcome.status, outcome.failure.reason) == ([], "DEADLINE_EXCEEDED", FailureReason.AGENT_TIMEOUT)
    assert error_category(outcome) is RolloutErrorCategory.TIMEOUT
    assert outcome.failure.message.startswith("the agent_timeout of 0.2 s ran out")
    assert list(outcome.samples) == ["main"]


async def hang(ctx):
    await asyncio.Event().wait()


async def swallow(ctx):
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        ctx.set_sample_reward("main", 1.0)


def block(ctx):
    time.sleep(0.3)  # blocks the event loop beyond the time limit
    ctx.set_sample_reward("main", 1.0)


@pytest.mark.parametrize("function", [hang, swallow, block])
@pytest.mark.row("SDK 66")
async def test_the_graders_time_limit_is_another_one(function):
    outcome = await run_graded(grades(function), Asks, agent_timeout=100, grader_timeout=0.2)
    assert (outcome.status, outcome.failure.reason) == ("DEADLINE_EXCEEDED", FailureReason.GRADER_TIMEOUT)
    assert outcome.failure.boundary == "grader"
    assert outcome.failure.message.startswith("the grader_timeout of 0.2 s ran out")
    if function is hang:
        assert outcome.failure.file.endswith("test_grading.py")
        assert outcome.failure.line == hang.__code__.co_firstlineno + 1
    assert error_category(outcome) is RolloutErrorCategory.TIMEOUT
    assert (list(outcome.samples), outcome.reward) == (["main"], None)


@pytest.mark.row("SDK 66")
async def test_the_graders_time_is_not_the_agents():
    async def slow(ctx):
        await asyncio.sleep(0.4)  # the limit itself is longer than that of the agent
        ctx.set_sample_reward("main", 1.0)

    outcome = await run_graded(grades(slow), Asks, agent_timeout=0.3, grader_timeout=30)
    assert (outcome.failure, outcome.reward) == (None, 1.0)


@pytest.mark.row("SDK 65")
async def test_a_module_that_is_missing_at_run_time_has_the_command_that_installs_it():
    def judge(ctx):
        raise ModuleNotFoundError("No module named 'strands'", name="strands.models")

    class Imports(AgentWorkflow):
        async def run(self, ctx):
            import numpi  # noqa: F401

    outcome = await run_graded(grades(judge))
    assert "needs the extra 'strands': pip install" in outcome.failure.message
    outcome = await run_graded(Ones, Imports)
    hint = "; install its package with pip install PACKAGE, or correct the import"
    assert outcome.failure.message == f"ModuleNotFoundError: No module named 'numpi'{hint}"
    assert outcome.failure.file.endswith("test_grading.py")


@pytest.mark.row("SDK 27")
async def test_a_grader_timeout_without_a_grader_is_refused():
    with pytest.raises(InvalidArgument, match=r"spec.grader_timeout: the agent Asks has no grader"):
        await run_graded(None, Asks, grader_timeout=1.0)


@pytest.mark.row("SDK 77")
async def test_both_contexts_have_the_same_metadata():
    seen = []

    class Notes(Asks):
        async def run(self, ctx):
            seen.append(ctx.metadata)
            ctx.metadata["from the workflow"] = True
            await super().run(ctx)

    def look(ctx):
        seen.append(ctx.metadata)
        ctx.set_sample_reward("main", 1.0)

    await run_graded(grades(look), Notes, metadata={"row": {"id": 7}})
    assert seen[0] is seen[1]
    assert seen[0] == {"row": {"id": 7}, "from the workflow": True}


async def test_graders_have_their_configuration_and_a_limit_of_their_own():
    config, running = GraderConfig(name="g", concurrency=ConcurrencyConfig(max_concurrent=1), threshold=0.5), []

    class Counts(Grader):
        async def grade(self, ctx):
            assert self.config is config
            running.append(ctx.rollout_id)
            await asyncio.sleep(0)
            assert running == [ctx.rollout_id]
            running.remove(ctx.rollout_id)
            ctx.set_sample_reward("main", self.config.threshold)

    runnable = WorkflowRunnable(Asks, AgentWorkflowConfig(name="asks"), Counts, config)
    rollouts = [run_rollout(runnable, EchoPolicy(), QUESTION, label="x") for _ in range(4)]
    assert [outcome.reward for outcome in await asyncio.gather(*rollouts)] == [0.5] * 4


async def test_a_recorded_rollout_is_graded_again():
    def contains(ctx):
        assert get_rollout_context() is None
        for name, sample in ctx.samples.items():
            ctx.set_sample_reward(name, float(ctx.label in sample.messages[-1]["content"]))

    outcome = await run_graded(Ones, policy=ScriptedPolicy(lambda request: f"it is {request.sample}"))
    request = RolloutRequest(rollout_id="old", messages=QUESTION, label="first")
    graded = await grade_recorded(grades(contains), request, outcome)
    assert (graded.failure, dict(graded.rewards)) == (None, {"first": 1.0, "second": 0.0})

    async def raises(ctx):
        raise Unavailable("no judge")

    failed = await grade_recorded(grades(raises), request, {"main": QUESTION})
    assert (failed.failure.boundary, dict(failed.rewards)) == ("trainer", {})
    late = await grade_recorded(grades(hang), request, {"main": QUESTION}, timeout=0.01)
    assert late.failure.reason is FailureReason.GRADER_EXCEPTION
    assert (await grade_recorded(Ones, request, {})).failure.message == "the rollout has no samples"
