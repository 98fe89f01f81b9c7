"""A trainer says with which parameters chats are sampled, and its outcomes say with which ones they were."""

import pytest

from osmosis_grpc.agent import RolloutAgentLoop
from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.errors import AlreadyExists
from osmosis_grpc.protocol.types import SplitReason, events
from osmosis_grpc.server import AgentServer
from osmosis_grpc.trainer import RolloutClient, Trainer
from tests.callback_trainer import CallbackTrainer

USER = {"role": "user", "content": "hi"}
REQUEST = {"messages": [USER], "completion_params": {"temperature": 0.7, "max_tokens": 9}}


class Stubborn(RolloutAgentLoop):
    """Has its own temperature, and goes back once."""

    name = "stubborn"

    def get_tools(self, request):
        return []

    async def run(self, ctx):
        await ctx.chat([USER], temperature=0)
        reply = await ctx.chat([USER], temperature=0)
        await ctx.chat([USER, {"role": "assistant", "content": "another reply"}, USER], temperature=0)
        return ctx.complete([USER, reply.message], reward=1.0)


async def policy(request):
    return answer(request, f"reply {request.chat_number}")


@pytest.mark.parametrize("transport", ["attach", "callback"])
@pytest.mark.parametrize("pin", [False, True])
async def test_an_outcome_has_the_parameters_of_its_chats_and_the_reasons_of_its_segments(transport, pin):
    async with (
        AgentServer([Stubborn()], port=0) as server,
        Trainer([server.address], policy, transport=transport) as trainer,
    ):
        outcome = await trainer.rollout(rollout_id="r1", pin_completion_params=pin, **REQUEST)
        asked = [e.kind async for e in trainer.events("r1") if isinstance(e.kind, events.ChatRequested)]
    sample = outcome.samples["main"]
    params = REQUEST["completion_params"] if pin else {"temperature": 0.0}
    assert [chat.params for chat in sample.chats] == [params] * 3
    assert [(kind.params, kind.passed) for kind in asked] == [(params, {"temperature": 0.0} if pin else None)] * 3
    changed = SplitReason.HISTORY_CHANGED
    assert [segment.split for segment in sample.segments] == [None, changed, changed]


async def test_two_requests_that_differ_in_the_pin_are_not_the_same():
    async with (
        AgentServer([Stubborn()], port=0) as server,
        CallbackTrainer(policy) as trainer,
        RolloutClient(server.address) as client,
    ):
        request = {"rollout_id": "r1", "callback": trainer.callback(), **REQUEST}
        for created in (True, False):
            assert (await client.init(pin_completion_params=True, **request)).created is created
        with pytest.raises(AlreadyExists) as refusal:
            await client.init(**request)
    assert "spec.pin_sampling" in str(refusal.value)
