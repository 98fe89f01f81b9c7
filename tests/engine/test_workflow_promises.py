"""The engine's promises hold for workflows, too (rows 67 to 76 of the SDK's list)."""

import asyncio

import pytest

from osmosis_grpc.agent.workflow_runnable import WorkflowRunnable
from osmosis_grpc.engine import EngineConfig
from osmosis_grpc.policies import EchoPolicy
from osmosis_grpc.protocol.errors import AlreadyExists, InvalidArgument, NotFound, ResourceExhausted, Unavailable
from osmosis_grpc.protocol.types import FailureReason, Group, RolloutState, events
from osmosis_grpc.rollout import AgentWorkflow, AgentWorkflowConfig, ConcurrencyConfig, Grader, get_rollout_context
from tests.waiting import until

PROMPT = [{"role": "user", "content": "hello"}]


class Asks(AgentWorkflow):
    async def run(self, ctx):
        await get_rollout_context().chat(ctx.prompt, sample="agent")


class Waits(Asks):
    """Asks, and then waits for ever."""

    async def run(self, ctx):
        await super().run(ctx)
        await asyncio.Event().wait()


class Raises(Asks):
    async def run(self, ctx):
        await super().run(ctx)
        raise SystemExit("crashed")


class Ones(Grader):
    async def grade(self, ctx):
        for name in ctx.samples:
            ctx.set_sample_reward(name, 1.0)


class GraderWaits(Grader):
    async def grade(self, ctx):
        await asyncio.Event().wait()


def limited(workflow, name, most):
    config = AgentWorkflowConfig(name=name, concurrency=ConcurrencyConfig(max_concurrent=most))
    return WorkflowRunnable(workflow, config, Ones)


@pytest.mark.row("SDK 67")
async def test_a_workflow_has_a_limit_of_its_own(hosting):
    async with hosting(limited(Waits, "limited", 1), limited(Asks, "free", None), max_concurrent=3) as h:
        waiting = [await h.start(f"w{number}", agent_loop="limited", messages=PROMPT) for number in range(3)]
        await h.running()
        assert (h.engine.capacity().running, h.engine.capacity().queued) == (1, 2)
        free = await h.run("free", agent_loop="free", messages=PROMPT, label="x")
        assert (free.status, free.reward) == ("COMPLETED", 1.0)
        assert [record.state for record in waiting] == ["RUNNING", "QUEUED", "QUEUED"]
        for number, record in enumerate(waiting):  # each end lets the next one run
            await until(lambda record=record: record.state is RolloutState.RUNNING)
            h.engine.cancel("me", rollout_id=f"w{number}")
            assert (await h.settled(record)).status == "CANCELLED"


@pytest.mark.row("SDK 67")
async def test_a_configuration_without_a_limit_leaves_the_servers_limit(hosting):
    assert EngineConfig().max_concurrent == 100
    async with hosting(limited(Waits, "w", None), max_concurrent=1) as h:
        for number in range(2):
            await h.start(f"w{number}", messages=PROMPT)
        assert (h.engine.capacity().running, h.engine.capacity().queued) == (1, 1)


@pytest.mark.row("SDK 66")
async def test_time_in_the_queue_is_the_agents(hosting):
    async with hosting(WorkflowRunnable(Waits, None, Ones), max_concurrent=1) as h:
        await h.start("first", messages=PROMPT)
        await h.running()
        outcome = await h.run("second", messages=PROMPT, label="x", agent_timeout=0.1, grader_timeout=30)
        assert (outcome.status, outcome.failure.reason) == ("DEADLINE_EXCEEDED", FailureReason.AGENT_TIMEOUT)
        assert (outcome.failure.boundary, dict(outcome.samples)) == ("server", {})


@pytest.mark.row("SDK 68")
async def test_an_overload_is_refused_with_a_delay(hosting):
    async with hosting(Waits, max_concurrent=1, max_queued=1) as h:
        for number in range(2):
            await h.start(f"w{number}", messages=PROMPT)
        with pytest.raises(ResourceExhausted) as raised:
            await h.start("w2", messages=PROMPT)
        assert raised.value.retry_after > 0


@pytest.mark.parametrize("way", ["crash", "cancel", "bad configuration", "grader", "shutdown"])
@pytest.mark.row("SDK 69")
async def test_every_accepted_rollout_has_exactly_one_end(hosting, way):
    class Uncopied(AgentWorkflowConfig):
        name: str = "agent"

        def __deepcopy__(self, memo):
            raise RuntimeError("it has a socket")

    agents = {
        "crash": WorkflowRunnable(Raises, None, Ones),
        "cancel": WorkflowRunnable(Waits, None, Ones),
        "bad configuration": WorkflowRunnable(Asks, Uncopied(), Ones),
        "grader": WorkflowRunnable(Asks, None, GraderWaits),
        "shutdown": WorkflowRunnable(Waits, None, Ones),
    }
    async with hosting(agents[way]) as h:
        record = await h.start("r1", messages=PROMPT, label="x", grader_timeout=0.1 if way == "grader" else None)
        if way in ("cancel", "shutdown"):
            await until(lambda: h.kinds(record, events.ChatAnswered))
            if way == "cancel":
                h.engine.cancel("me", rollout_id="r1")
            else:
                await h.engine.shutdown.close(1.0)
        outcome = await h.settled(record)
        h.check_whole(record)
        status, reason = {
            "crash": ("FAILED", FailureReason.AGENT_EXCEPTION),
            "cancel": ("CANCELLED", None),
            "bad configuration": ("FAILED", FailureReason.AGENT_EXCEPTION),
            "grader": ("DEADLINE_EXCEEDED", FailureReason.GRADER_TIMEOUT),
            "shutdown": ("FAILED", FailureReason.SHUTDOWN),
        }[way]
        assert (outcome.status, outcome.failure and outcome.failure.reason) == (status, reason)
        assert list(outcome.samples) == ([] if way == "bad configuration" else ["agent"])
        assert outcome.reward is None
        if way == "bad configuration":
            assert outcome.failure.message.startswith("TypeError: the configuration of agent cannot be copied, ")


@pytest.mark.row("SDK 70")
async def test_an_equal_init_finds_the_rollout_and_another_one_is_refused(hosting):
    async with hosting(Asks) as h:
        record = await h.start("r1", messages=PROMPT)
        for _ in range(2):
            again, started = await h.init("r1", messages=PROMPT)
            assert (again, started) == (record, False)
            await h.settled(record)
        with pytest.raises(AlreadyExists):
            await h.init("r1", messages=[])
        assert len(h.trainer.chats) == 1


@pytest.mark.row("SDK 71")
async def test_cancel_takes_one_a_group_a_prefix_or_all_and_is_idempotent(hosting):
    async with hosting(Waits, max_concurrent=1, max_queued=9) as h:
        records = [
            await h.start(f"r{number}", messages=PROMPT, group=Group(f"g{number // 2}", number % 2, 2))
            for number in range(5)
        ]
        others = [await h.start(f"eval-{number}", messages=PROMPT) for number in range(2)]
        await until(lambda: h.kinds(records[0], events.ChatAnswered))
        cancelled = [h.engine.cancel("me", reason="enough", rollout_id="r0"), h.engine.cancel("me", group_id="g1")]
        assert [[row.rollout_id for row in rows] for rows in cancelled] == [["r0"], ["r2", "r3"]]
        assert [row.disposition for row in h.engine.cancel("me", rollout_id="r0")] == ["CANCELLED"]
        with_prefix = h.engine.cancel("me", rollout_id_prefix="eval-")
        assert [(row.rollout_id, row.disposition) for row in with_prefix] == [
            ("eval-0", "CANCELLED"),
            ("eval-1", "CANCELLED"),
        ]
        assert [(await h.settled(other)).status for other in others] == ["CANCELLED"] * 2
        h.engine.cancel("me")
        outcomes = [await h.settled(record) for record in records]
        assert [outcome.status for outcome in outcomes] == ["CANCELLED"] * 5
        assert [outcome.extra_fields for outcome in outcomes[:2]] == [{"cancel_reason": "enough"}, {}]
        assert [row.disposition for row in h.engine.cancel("me", rollout_id="r0")] == ["ALREADY_ENDED"]
        never = [record for record in records if not h.kinds(record, events.Started)]
        assert {record.rollout_id for record in never} >= {"r2", "r3"}
        assert list(outcomes[0].samples) == ["agent"]


@pytest.mark.row("SDK 72")
async def test_the_status_says_queued_running_grading_and_the_end(hosting):
    assert EngineConfig().record_ttl >= 900
    async with hosting(
        limited(Waits, "waits", 1), WorkflowRunnable(Asks, AgentWorkflowConfig(name="graded"), GraderWaits)
    ) as h:
        first, second = [await h.start(f"r{n}", agent_loop="waits", messages=PROMPT) for n in range(2)]
        graded = await h.start("graded", agent_loop="graded", messages=PROMPT, label="x")
        await until(lambda: graded.activity().description == "grader")
        await until(lambda: first.activity().description == "agent")
        assert (second.info().state, second.activity().description) == ("QUEUED", "queued")
        assert (first.info().state, graded.info().state) == ("RUNNING", "RUNNING")
        h.engine.cancel("me")
        await h.settled(second)
        assert h.engine.rollouts.get("me", "r1").state == "CANCELLED"
        with pytest.raises(NotFound):
            h.engine.rollouts.get("me", "unknown")


@pytest.mark.row("SDK 73")
async def test_a_trainer_that_is_away_comes_back_with_an_equal_init_or_the_rollout_ends(hosting):
    async def away(request):
        raise Unavailable("the trainer is away")

    async with hosting(Asks, trainer_grace=30.0) as h:
        h.trainer.policy = away
        record = await h.start("r1", messages=PROMPT)
        await until(lambda: h.kinds(record, events.ChatFailed))
        back = h.Trainer(key="back")
        assert (await h.init("r1", messages=PROMPT, trainer=back))[1] is False
        assert (await h.settled(record)).status == "COMPLETED"
        assert [outcome.rollout_id for outcome in back.outcomes] == ["r1"]
    async with hosting(Asks, trainer_grace=0.02) as h:
        h.trainer.policy = away
        outcome = await h.run("r1", messages=PROMPT)
        assert (outcome.failure.boundary, outcome.failure.reason) == ("trainer", FailureReason.TRAINER_UNREACHABLE)


@pytest.mark.parametrize(
    ("error", "tries"),
    [
        (InvalidArgument("messages", "too long for the policy"), 1),
        (ResourceExhausted("429: slow down for the policy"), 3),
        (Unavailable("503: no weights for the policy"), 3),
    ],
    ids=["400", "429", "503"],
)
@pytest.mark.row("SDK 74")
async def test_errors_of_the_policy_are_retried_or_end_the_rollout_with_their_text(hosting, error, tries):
    asked = []

    async def fails_twice(request):
        asked.append(request.chat_number)
        if len(asked) < 3:
            raise error
        return await EchoPolicy()(request)

    async with hosting(Asks) as h:
        h.trainer.policy = fails_twice
        outcome = await h.run("r1", messages=PROMPT)
        assert asked == [1] * tries
        assert outcome.status == ("COMPLETED" if tries == 3 else "FAILED")
        if tries == 1:
            assert "for the policy" in outcome.failure.message
            assert outcome.failure.reason is FailureReason.CHAT_REFUSED


@pytest.mark.row("SDK 76")
async def test_after_the_drain_limit_the_rest_is_ended(hosting):
    async with hosting(Waits) as h:
        record = await h.start("r1", messages=PROMPT)
        await until(lambda: h.kinds(record, events.ChatAnswered))
        await h.engine.shutdown.stop(0.05)
        assert record.delivery.outcome.failure.reason is FailureReason.SHUTDOWN
        assert list(record.delivery.outcome.samples) == ["agent"]
