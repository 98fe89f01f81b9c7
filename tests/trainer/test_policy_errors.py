"""What becomes of an exception that a policy raises: the loop over the trainer ends with it."""

import asyncio
import logging
import re
import subprocess
import sys
import traceback
from contextlib import aclosing
from dataclasses import replace

import pytest

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.policies import ChatRenderer, TokenPolicy
from osmosis_grpc.policies.threads import ThreadedPolicy
from osmosis_grpc.protocol.errors import CallError, RolloutFailed
from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.trainer import FailureReason, Group, RolloutRequest, Trainer
from tests.policies.byte_tokenizer import ByteTokenizer
from tests.trainer.conftest import PATIENCE, USER, Talker, reply, talker
from tests.trainer.deployment import collect
from tests.waiting import until

COMPLETED, FAILED = OutcomeStatus.COMPLETED, OutcomeStatus.FAILED


class OutOfMemory(RuntimeError):
    """The exception of a policy."""


def requests(count, name="g", **changes):
    return [RolloutRequest(rollout_id=f"{name}{n}", messages=[USER], **changes) for n in range(count)]


def raising(request):
    raise OutOfMemory("CUDA out of memory")


async def raising_later(request):
    await asyncio.sleep(0)
    raise OutOfMemory("CUDA out of memory")


class BrokenGenerator:
    """A TokenGenerator without memory."""

    async def generate(self, request):
        raise OutOfMemory("CUDA out of memory")

    async def abort(self, request_id):
        pass


POLICIES = {
    "sync": lambda: raising,
    "async": lambda: raising_later,
    "on a thread": lambda: ThreadedPolicy(raising),
    "by name": lambda: {"": raising_later, "critic": reply},
    "of tokens": lambda: TokenPolicy(ChatRenderer(ByteTokenizer()), BrokenGenerator()),
}
LOOPS = {
    "groups": lambda trainer: trainer.groups(requests(3), 4),
    "run": lambda trainer: trainer.run(requests(3)),
    "run in groups": lambda trainer: trainer.run(requests(3), group_size=4, retries=1),
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("loop", LOOPS)
async def test_a_loop_ends_with_the_exception_of_a_policy_that_fails_a_whole_group(serve, attach_to, policy, loop):
    server = await serve(talker())
    trainer = await attach_to(POLICIES[policy](), server)
    with pytest.raises(OutOfMemory):
        await collect(LOOPS[loop](trainer))
    await until(lambda: server.engine.capacity().running == 0)
    await until(lambda: trainer.metrics()["rollouts/open"] == 0)


async def test_a_single_rollout_raises_the_exception_of_the_policy(serve, attach_to):
    trainer = await attach_to(raising, await serve(talker()))
    with pytest.raises(OutOfMemory):
        await asyncio.wait_for(trainer.rollout(rollout_id="r1"), PATIENCE)


async def test_an_evaluation_raises_the_exception_of_the_policy(serve, attach_to):
    trainer = await attach_to(raising, await serve(talker()))
    with pytest.raises(OutOfMemory):
        await asyncio.wait_for(trainer.evaluate(requests(4), group_size=2), PATIENCE)


async def cancelled_within(request):
    waiting = asyncio.ensure_future(asyncio.Event().wait())
    waiting.cancel()
    await waiting


async def test_a_policy_whose_own_task_was_cancelled_has_failed(serve, attach_to):
    trainer = await attach_to(cancelled_within, await serve(talker()))
    with pytest.raises(RuntimeError) as raised:
        await collect(trainer.run(requests(1)))
    cause = raised.value.__cause__
    assert isinstance(cause, asyncio.CancelledError)
    assert "cancelled_within" in [frame.name for frame in traceback.extract_tb(cause.__traceback__)]


def stopping(request):
    raise StopIteration("no text left")


async def stopping_later(request):
    raise StopAsyncIteration("no text left")


@pytest.mark.parametrize(
    ("policy", "function"),
    [
        (lambda: stopping, stopping),
        (lambda: stopping_later, stopping_later),
        (lambda: ThreadedPolicy(stopping), stopping),
    ],
    ids=["sync", "async", "on a thread"],
)
async def test_the_end_of_an_iterator_in_a_policy_is_an_error_at_the_line_of_the_policy(
    serve, attach_to, policy, function
):
    trainer = await attach_to(policy(), await serve(talker()))
    with pytest.raises(RuntimeError) as raised:
        await collect(trainer.run(requests(1)))
    frames = [traceback.extract_tb(error.__traceback__) for error in (raised.value, raised.value.__cause__) if error]
    assert function.__name__ in [stack[-1].name for stack in frames]
    assert "async generator" not in str(raised.value)


async def test_the_other_rollouts_are_cancelled_when_the_exception_is_raised(serve, attach_to):
    agent = talker()
    agent.gate("h0-0", "h0-1")
    server = await serve(agent)
    trainer = await attach_to(raising, server)
    with pytest.raises(OutOfMemory):
        await collect(trainer.groups([*requests(1, "h"), *requests(1)], 2))
    await until(lambda: server.engine.capacity().running == 0)
    assert sum(agent.running.values()) == 0
    await until(lambda: trainer.metrics()["rollouts/cancelled"] == 2)


def failing_for(*names):
    """A policy that raises for these rollouts."""

    def policy(request):
        return raising(request) if request.rollout_id in names else reply(request)

    return policy


async def test_a_later_group_that_fails_whole_is_raised(serve, attach_to):
    trainer = await attach_to(failing_for("g1-0", "g1-1"), await serve(talker()))
    seen = []
    with pytest.raises(OutOfMemory):
        async with aclosing(trainer.groups(requests(2), 2, max_in_flight=1)) as groups:
            async for group in groups:
                seen.append(group.id)
    assert seen == ["g0"]


@pytest.mark.parametrize("failing", [3, 4])
async def test_a_run_over_members_of_a_group_ends_only_if_all_of_them_fail(serve, attach_to, failing):
    trainer = await attach_to(failing_for(*(f"g{number}" for number in range(failing))), await serve(talker()))
    members = [replace(request, group=Group("g", index, 4)) for index, request in enumerate(requests(4))]
    if failing == 4:
        with pytest.raises(OutOfMemory):
            await collect(trainer.run(members))
    else:
        ended = await collect(trainer.run(members))
        assert sorted(outcome.status for outcome in ended) == sorted([COMPLETED] + [FAILED] * failing)


async def test_a_policy_that_fails_once_is_tried_again(serve, attach_to):
    failed = set()

    def policy(request):
        if request.attempt == 1:
            failed.add(request.rollout_id)
            raise OutOfMemory("CUDA out of memory")
        return reply(request)

    trainer = await attach_to(policy, await serve(talker()))
    (group,) = await collect(trainer.groups(requests(1), 2))
    assert [outcome.attempt for outcome in group] == [2, 2]
    assert failed == {"g0-0", "g0-1"}


async def test_on_failure_raise_ends_the_loop_at_the_first_exception(serve, attach_to):
    agent = talker()
    agent.gate("g0-1")
    server = await serve(agent)
    trainer = await attach_to(failing_for("g0-0"), server)
    with pytest.raises(OutOfMemory):
        await collect(trainer.groups(requests(1), 3, retries=5, on_failure="raise"))
    assert ("g0-0", 2) not in agent.attempts
    await until(lambda: server.engine.capacity().running == 0)


class Broken(Talker):
    """Raises in its member 1, and else completes."""

    name = "broken"

    async def run(self, ctx):
        if ctx.request.group.index == 1:
            raise ValueError("the weather service is away")
        return await super().run(ctx)


async def test_on_failure_raise_names_the_outcome_of_an_agent_that_fails(serve, attach_to):
    trainer = await attach_to(reply, await serve(Broken("broken")))
    with pytest.raises(RolloutFailed) as raised:
        await collect(trainer.groups(requests(1), 2, on_failure="raise"))
    outcome = raised.value.outcome
    assert (outcome.rollout_id, outcome.attempt, outcome.failure.boundary) == ("g0-1", 2, "agent")


class Wrapping(RolloutAgentLoop):
    """Raises an exception of its own when a chat fails."""

    name = "wrapping"

    async def run(self, ctx):
        try:
            await ctx.chat([USER])
        except Exception:
            raise KeyError("messages")
        return ctx.complete([USER], reward=1.0)


@pytest.mark.parametrize("agent", [talker, Wrapping])
async def test_the_outcome_names_the_policy_and_no_line_of_the_agent(serve, attach_to, agent):
    trainer = await attach_to({"": failing_for("g0-0")}, await serve(agent()))
    outcomes = {}
    async for outcome in trainer.run(requests(1), group_size=2):
        outcomes[outcome.rollout_id] = outcome
    failure = outcomes["g0-0"].failure
    assert (failure.boundary, failure.reason) == ("trainer", FailureReason.CHAT_REFUSED)
    assert [(cause.type, cause.message) for cause in failure.causes] == [("OutOfMemory", "CUDA out of memory")]
    assert (failure.file, failure.line, failure.frames) == ("", 0, ())
    assert "the policy failed: OutOfMemory: CUDA out of memory" in failure.message


class Critic(RolloutAgentLoop):
    """Asks the policy `critic`."""

    name = "critic"

    async def run(self, ctx):
        ctx.add_sample("review", policy="critic")
        await ctx.chat([USER], sample="review")
        return ctx.complete([USER], reward=1.0)


async def test_the_outcome_names_a_policy_that_has_a_name(serve, attach_to):
    trainer = await attach_to({"critic": failing_for("g0-0"), "": reply}, await serve(Critic()))
    outcomes = [outcome async for outcome in trainer.run(requests(1), group_size=2)]
    (failure,) = [outcome.failure for outcome in outcomes if outcome.failure is not None]
    assert "'critic'" in failure.message


class Careless(RolloutAgentLoop):
    """Gives a reward of 0 when a chat fails."""

    name = "careless"

    async def run(self, ctx):
        try:
            await ctx.chat([USER])
        except Exception:
            return ctx.complete([USER], reward=0.0)
        return ctx.complete([USER], reward=1.0)


async def test_an_evaluation_of_no_reply_at_all_is_no_reward_of_zero(serve, attach_to):
    trainer = await attach_to(raising, await serve(Careless()))
    with pytest.raises(OutOfMemory):
        await asyncio.wait_for(trainer.evaluate(requests(2)), PATIENCE)


class Patient(RolloutAgentLoop):
    """Asks again when a chat fails."""

    name = "patient"

    async def run(self, ctx):
        for _ in range(2):
            try:
                await ctx.chat([USER])
            except CallError:
                continue
            break
        return ctx.complete([USER], reward=1.0)


async def test_an_agent_that_asks_again_completes(serve, attach_to):
    asked = []

    def policy(request):
        asked.append(request.chat_number)
        return raising(request) if len(asked) == 1 else reply(request)

    trainer = await attach_to(policy, await serve(Patient()))
    (outcome,) = await collect(trainer.run(requests(1)))
    assert (outcome.status, len(asked)) == (COMPLETED, 2)


async def test_the_log_has_one_traceback_and_a_count(serve, attach_to, caplog):
    trainer = await attach_to(raising, await serve(talker()))
    with caplog.at_level(logging.WARNING, "osmosis_grpc.trainer"), pytest.raises(OutOfMemory):
        await collect(trainer.groups(requests(4), 4))
    lines = [r.getMessage() for r in caplog.records if r.name.startswith("osmosis_grpc.trainer")]
    assert sum("Traceback" in line for line in lines) == 1
    assert len(lines) == 2
    counted = trainer.metrics()["chats/failed"]
    assert re.findall(r"\d+", lines[1]) == [str(int(counted) - 1)]


@pytest.mark.parametrize("retries", [0, 2])
async def test_with_a_ledger_the_next_process_tries_the_failed_members_again(serve, attach_to, tmp_path, retries):
    server = await serve(talker())
    options = {"ledger": tmp_path / "ledger"}
    async with Trainer([server.address], raising, **options) as trainer:
        with pytest.raises(OutOfMemory):
            await collect(trainer.groups(requests(1), 2, retries=retries))
    async with Trainer([server.address], reply, **options) as trainer:
        (group,) = await collect(trainer.groups(requests(1), 2))
        assert [outcome.attempt for outcome in group] == [retries + 2] * 2
        await group.confirm()


PROGRAM = """
import sys
from osmosis_grpc.trainer import RolloutRequest, SyncTrainer, Trainer
import asyncio
requests = [RolloutRequest(rollout_id=f"r{n}", messages=[{"role": "user", "content": "hi"}]) for n in range(8)]


def policy(request):
    raise RuntimeError("CUDA out of memory")


async def later():
    async with Trainer([sys.argv[1]], policy, transport=sys.argv[2]) as trainer:
        async for group in trainer.groups(requests, group_size=8):
            print(group)


if sys.argv[2] == "sync":
    with SyncTrainer([sys.argv[1]], policy) as trainer:
        for group in trainer.groups(requests, group_size=8):
            print(group)
asyncio.run(later())
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sync", "attach", "callback"])
async def test_a_program_ends_with_the_traceback_of_the_policy_and_exit_code_1(serve, kind):
    server = await serve(talker())
    command = [sys.executable, "-c", PROGRAM, server.address, kind]
    ended = await asyncio.to_thread(
        subprocess.run, command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=50, check=False
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    *_, trace = ended.stderr.partition("Traceback (most recent call last):")[2].rpartition("Traceback")
    assert trace.splitlines()[-1] == "RuntimeError: CUDA out of memory"
    assert "in policy" in trace
