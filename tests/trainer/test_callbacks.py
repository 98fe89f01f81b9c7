"""A trainer samples each chat once and applies each outcome once, however often it is asked."""

import asyncio

import grpc
import numpy as np
import pytest

from osmosis_grpc.network.client_calls import call
from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol._gen.osmosis.rollout.v1.chat_pb2 import ChatRequest as ChatRequestMessage
from osmosis_grpc.protocol._gen.osmosis.rollout.v1.outcome_pb2 import CompleteRequest
from osmosis_grpc.protocol._gen.osmosis.rollout.v1.services_pb2_grpc import TrainerServiceStub
from osmosis_grpc.protocol.errors import Cancelled, FailedPrecondition, Internal, Unavailable
from osmosis_grpc.protocol.types import ChatRequest, OutcomeStatus, Receipt, RolloutOutcome, Sample, Segment
from osmosis_grpc.protocol.wire.chat import RECEIPTS, chat_bytes, reply_from_wire
from osmosis_grpc.protocol.wire.outcome import outcome_to_wire
from tests.credentials import shown
from tests.waiting import until

USER = {"role": "user", "content": "hi"}


class Sampler:
    """A policy that counts, and that can be held or made to fail."""

    def __init__(self):
        self.seen = []
        self.hold = asyncio.Event()
        self.hold.set()
        self.error = None

    async def __call__(self, request, /):
        self.seen.append(request)
        await self.hold.wait()
        if self.error is not None:
            raise self.error
        return answer(request, f"reply {len(self.seen)}")


@pytest.fixture
async def sampler():
    return Sampler()


@pytest.fixture
async def ask(train, sampler, stack):
    """Asks a chat, or reports an outcome, over a real socket."""
    trainer = await train(sampler)
    channel = await stack.enter_async_context(grpc.aio.insecure_channel(trainer.address))
    stub = TrainerServiceStub(channel)

    async def ask(what, timeout=10.0):
        if isinstance(what, RolloutOutcome):
            request = CompleteRequest(outcome=outcome_to_wire(what))
            return RECEIPTS.names.get((await called(stub.Complete, request, trainer, timeout)).receipt)
        return reply_from_wire(await asked(stub, what, trainer, timeout))

    ask.trainer = trainer
    return ask


async def called(method, request, trainer, timeout=5.0):
    """An RPC's answer."""
    return await call(method, request, timeout=timeout, metadata=shown(trainer))


async def asked(stub, what, trainer, timeout=5.0):
    """A chat's answer."""
    return await called(stub.Chat, ChatRequestMessage.FromString(chat_bytes(what)), trainer, timeout)


def chat(number=1, messages=(USER,), **fields):
    return ChatRequest(rollout_id="r", chat_number=number, messages=list(messages), **fields)


def ended(result_id="one", attempt=1, **fields):
    return RolloutOutcome(
        rollout_id="r", attempt=attempt, result_id=result_id, status=OutcomeStatus.COMPLETED, **fields
    )


async def test_a_failed_sampling_is_sampled_again(ask, sampler):
    sampler.error = Unavailable("swapping weights", retry_after=0.25)
    with pytest.raises(Unavailable) as caught:
        await ask(chat())
    assert caught.value.retry_after == 0.25
    sampler.error = RuntimeError("out of memory")
    with pytest.raises(Internal, match="RuntimeError: out of memory"):
        await ask(chat())
    sampler.error = None
    await ask(chat())
    assert len(sampler.seen) == 3


async def test_the_end_stops_a_sampling_and_refuses_new_chats(ask, sampler):
    await ask(chat(1))
    sampler.hold.clear()
    open_chat = asyncio.ensure_future(ask(chat(2, [USER, {"role": "assistant", "content": "x"}, USER])))
    await until(lambda: len(sampler.seen) == 2)
    assert await ask(ended()) is Receipt.RECORDED
    with pytest.raises(Cancelled):
        await open_chat
    with pytest.raises(FailedPrecondition) as caught:
        await ask(chat(3))
    assert caught.value.kind == "ENDED"


async def test_policies_see_the_new_messages_and_samples_come_from_the_trainers_own_chats(ask, sampler):
    first = await ask(chat(1))
    history = [USER, first.message, {"role": "tool", "content": "4", "tool_call_id": "c"}]
    second = await ask(chat(2, history))
    seen = sampler.seen[1]
    assert (seen.parent_chat, seen.prefix_len) == (1, 2)
    np.testing.assert_array_equal(seen.known_ids, np.concatenate([first.prompt_ids, first.tokens.ids]))

    wrong = Segment(
        ids=first.tokens.ids, logprobs=first.tokens.logprobs, mask_runs=(0, len(first.tokens.ids)), chats=(1, 2)
    )
    await ask(ended(samples={"main": Sample(segments=(wrong,), reward=0.5, trainable=True)}, reward=0.5))
    sample = (await ask.trainer.outcome("r")).samples["main"]
    assert sample.reward == 0.5
    (segment,) = sample.segments
    np.testing.assert_array_equal(segment.ids, np.concatenate([second.prompt_ids, second.tokens.ids]))
    assert segment.sampled == len(first.tokens.ids) + len(second.tokens.ids)
    assert [c.chat_number for c in sample.chats] == [1, 2]


async def test_an_outcomes_segments_are_used_where_the_trainer_did_not_answer(ask):
    told = Segment(
        ids=np.array([1, 2], dtype="<u4"), logprobs=np.array([-0.5], dtype="<f4"), mask_runs=(1, 1), chats=(1,)
    )
    await ask(ended(samples={"main": Sample(segments=(told,), trainable=True)}))
    assert (await ask.trainer.outcome("r")).samples["main"].segments == (told,)


SAID = {"role": "assistant", "content": "x"}
NO_IDS, NO_LOGPROBS = np.empty(0, "<u4"), np.empty(0, "<f4")


async def test_a_reply_that_the_agent_never_received_is_not_trained_on(ask):
    await ask(chat(1))
    second = await ask(chat(2, [USER, USER]))
    told = Segment(
        ids=second.tokens.ids, logprobs=second.tokens.logprobs, mask_runs=(0, len(second.tokens.ids)), chats=(2,)
    )
    await ask(ended(samples={"main": Sample(segments=(told,), trainable=True)}))
    sample = (await ask.trainer.outcome("r")).samples["main"]
    assert [segment.chats for segment in sample.segments] == [(2,)]
    assert [sampled.chat_number for sampled in sample.chats] == [1, 2]


async def test_a_sample_that_is_reported_untrainable_stays_untrainable(ask):
    await ask(chat(2, [USER, USER]))
    await ask(ended(samples={"main": Sample(trainable=False, not_trainable_reason="chat 1: no ids")}))
    sample = (await ask.trainer.outcome("r")).samples["main"]
    assert (sample.trainable, sample.not_trainable_reason, sample.segments) == (False, "chat 1: no ids", ())


@pytest.mark.parametrize(("numbers", "trainable"), [((1, 2), True), ((2,), False)])
async def test_left_out_segments_are_the_trainers_if_it_has_them_all(ask, numbers, trainable):
    replies = [await ask(chat(number, [USER] * number)) for number in numbers]
    runs = [(reply.prompt_prefix + len(reply.prompt_ids), len(reply.tokens.ids)) for reply in replies]
    left_out = [
        Segment(ids=NO_IDS, logprobs=NO_LOGPROBS, mask_runs=runs[number - 1 if trainable else 0], chats=(number,))
        for number in (1, 2)
    ]
    omitted = ("samples[main].segments[0]", "samples[main].segments[1]")
    await ask(ended(samples={"main": Sample(segments=tuple(left_out), trainable=True)}, omitted=omitted))
    sample = (await ask.trainer.outcome("r")).samples["main"]
    assert sample.trainable is trainable
    assert [segment.referred for segment in sample.segments] == ([False, False] if trainable else [])
