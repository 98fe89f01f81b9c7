"""Failure.reason: each way to fail has a reason from the closed list, over the wire and back."""

import asyncio
from dataclasses import replace

import pytest

from osmosis_grpc.policies.scripted import EchoPolicy
from osmosis_grpc.protocol.errors import Internal, InvalidArgument, ToolExecutionError, Unavailable
from osmosis_grpc.protocol.types import Failure, FailureReason, OutcomeStatus, RolloutOutcome
from osmosis_grpc.protocol.wire.outcome import outcome_from_wire, outcome_to_wire

USER = {"role": "user", "content": "hello"}


async def chats(ctx):
    await ctx.chat([USER])
    return ctx.complete([USER])


async def raises(ctx):
    raise ValueError("the agent's own mistake")


async def raises_a_tools_error(ctx):
    raise ToolExecutionError("the tool broke")


async def cancels_itself(ctx):
    asyncio.current_task().cancel()
    await asyncio.sleep(1)  # cancelled here


async def gives_up(ctx):
    return ctx.error("I give up")


async def returns_nothing(ctx):
    pass


async def returns_what_cannot_be_sent(ctx):
    return ctx.complete([USER], extra_fields={"a": object()})


async def hangs(ctx):
    await asyncio.Event().wait()


AGENTS = {
    raises: FailureReason.AGENT_EXCEPTION,
    cancels_itself: FailureReason.AGENT_EXCEPTION,
    raises_a_tools_error: FailureReason.TOOL_EXCEPTION,
    gives_up: FailureReason.AGENT_ERROR,
    returns_nothing: FailureReason.AGENT_RESULT_INVALID,
    returns_what_cannot_be_sent: FailureReason.AGENT_RESULT_INVALID,
}


@pytest.mark.parametrize("agent", AGENTS)
async def test_the_reason_of_what_an_agent_does(hosting, agent):
    async with hosting(agent) as h:
        assert (await h.run()).failure.reason is AGENTS[agent]


async def test_the_reason_of_a_timeout(hosting):
    async with hosting(hangs) as h:
        assert (await h.run(agent_timeout=0.05)).failure.reason is FailureReason.AGENT_TIMEOUT


async def test_the_reason_of_a_server_that_shuts_down(hosting):
    async with hosting(hangs) as h:
        record = await h.start()
        await h.engine.shutdown.close(1.0)
        assert record.delivery.outcome.failure.reason is FailureReason.SHUTDOWN


async def test_the_reason_of_a_lost_trainer(hosting):
    async with hosting(hangs) as h:
        record = await h.start()
        h.engine.lose(record.tenant, "the trainer was away")
        assert (await h.settled(record)).failure.reason is FailureReason.TRAINER_LOST


async def misfit(request):
    reply = await EchoPolicy()(request)
    return replace(reply, prompt_prefix=5)


async def refuses(request):
    raise Internal("the policy failed")


async def is_away(request):
    raise Unavailable("not here")


POLICIES = {
    misfit: FailureReason.REPLY_UNREADABLE,
    refuses: FailureReason.CHAT_REFUSED,
    is_away: FailureReason.TRAINER_UNREACHABLE,
}


@pytest.mark.parametrize("policy", POLICIES)
async def test_the_reason_of_what_a_trainer_does(hosting, policy):
    async with hosting(chats, trainer_grace=0.05) as h:
        h.trainer.policy = policy
        assert (await h.run()).failure.reason is POLICIES[policy]


@pytest.mark.parametrize("reason", [*FailureReason, "", "OF_A_NEWER_VERSION"])
def test_reasons_travel(reason):
    failed = RolloutOutcome(rollout_id="r", status=OutcomeStatus.FAILED, failure=Failure("agent", "no", reason=reason))
    read = outcome_from_wire(outcome_to_wire(failed), "outcome").failure
    assert read == failed.failure
    assert isinstance(read.reason, FailureReason) == (reason in list(FailureReason))


@pytest.mark.parametrize("reason", ["lower", "TWO WORDS", "X" * 65, "A\nB"])
def test_a_reason_of_another_form_is_refused_by_name(reason):
    failed = RolloutOutcome(rollout_id="r", status=OutcomeStatus.FAILED, failure=Failure("agent", "no", reason=reason))
    with pytest.raises(InvalidArgument, match=r"outcome\.failure\.reason"):
        outcome_from_wire(outcome_to_wire(failed), "outcome")
