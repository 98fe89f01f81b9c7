"""The server compares messages, so a trainer need not: `parent_chat` alone gives the right segments.

Equality is that of JSON values, so number spellings, key orders and white space make no difference.
"""

import asyncio
import json
import random

import grpc
import pytest

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import rollout_pb2
from osmosis_grpc.protocol._gen.osmosis.rollout.v1.attach_pb2 import TrainerFrame
from osmosis_grpc.protocol._gen.osmosis.rollout.v1.services_pb2_grpc import (
    RolloutServiceStub,
    add_TrainerServiceServicer_to_server,
)
from osmosis_grpc.testing.raw import RawTrainer
from osmosis_grpc.testing.raw.trainer_frames import chat_reply, recorded
from tests.server.walks import BlindTrainer, Walks, runs_of

FORMS = {"full": rollout_pb2.HISTORY_FORM_FULL, "delta": rollout_pb2.HISTORY_FORM_DELTA}


async def by_attachment(server, trainer, init, form):
    async with RawTrainer(server.address) as raw, asyncio.TaskGroup() as answers:
        await raw.attach(history=FORMS[form])
        await raw.send(TrainerFrame(init=init))

        one_at_a_time = asyncio.Lock()

        async def answer(chat):
            response = await trainer.Chat(chat, None)
            async with one_at_a_time:
                await raw.send(chat_reply(chat, response=response))

        stream = raw.stream
        while not stream.fresh("complete"):
            await stream.until(lambda: stream.fresh("chat") or stream.fresh("complete"))
            while stream.fresh("chat"):
                answers.create_task(answer(await stream.next("chat")))
        outcome = await raw.outcome()
        await raw.send(recorded(outcome))
        return outcome


async def by_callback(server, trainer, init, form, *, by_reference=False):
    listener = grpc.aio.server()
    add_TrainerServiceServicer_to_server(trainer, listener)
    port = listener.add_insecure_port("127.0.0.1:0")
    await listener.start()
    callback = rollout_pb2.Callback(target=f"127.0.0.1:{port}", history=FORMS[form], outcome_by_reference=by_reference)
    init.callback.CopyFrom(callback)
    try:
        async with grpc.aio.insecure_channel(server.address) as channel, asyncio.timeout(30):
            await RolloutServiceStub(channel).Init(init)
            return await trainer.outcome
    finally:
        await listener.stop(None)


async def by_reference(server, trainer, init, form):
    return await by_callback(server, trainer, init, form, by_reference=True)


def check(trainer, outcome, form):
    """Compare an outcome with the segments of a trainer that knows chats by number only."""
    extra = json.loads(outcome.extra_json)
    assert {(sample, number): parent for sample, number, parent in extra["bases"]} == {
        key: chat.parent for key, chat in trainer.chats.items()
    }, "the server names the chat that the agent continued"
    assert trainer.forms <= {"full", form}
    for sample in outcome.samples:
        assert sample.trainable, sample.not_trainable_reason
        named = {number for segment in sample.segments for number in segment.chats}
        dropped = {number for segment in sample.segments if segment.dropped for number in segment.chats}
        built = trainer.segments(sample.name, named, dropped)
        assert all((segment.chats[0] in dropped) is (dropped >= set(segment.chats)) for segment in built)
        assert [list(segment.chats) for segment in sample.segments] == [segment.chats for segment in built]
        for told, segment in zip(sample.segments, built, strict=True):
            assert list(told.mask_runs) == runs_of(segment.mask)
            if told.ids:
                assert (list(told.ids), list(told.logprobs)) == (segment.ids, segment.logprobs)


async def walk(server, ways, seed, rounds):
    way, form = ways
    rng = random.Random(f"{way.__name__} {form} {seed}")
    trainer = BlindTrainer(rng)
    outcome = await way(server, trainer, trainer.init(f"{way.__name__}-{form}-{seed}", rounds), form)
    assert outcome.status, outcome.failure
    assert not outcome.failure.message, outcome.failure
    check(trainer, outcome, form)
    return outcome


WAYS = [(way, form) for way in (by_attachment, by_callback, by_reference) for form in FORMS]


@pytest.mark.parametrize("ways", WAYS, ids=lambda ways: f"{ways[0].__name__}-{ways[1]}")
async def test_parent_chat_alone_makes_the_segments_of_the_outcome(serve, ways):
    server = await serve(Walks())
    outcomes = [await walk(server, ways, seed, rounds=12) for seed in range(3)]
    segments = [segment for outcome in outcomes for sample in outcome.samples for segment in sample.segments]
    assert len(segments) > 3 * len(outcomes), "there are branches"
    assert any(len(segment.chats) > 1 for segment in segments), "and chats that grow a segment"
    assert any(segment.HasField("drift_index") for segment in segments)


@pytest.mark.long
@pytest.mark.parametrize("ways", WAYS, ids=lambda ways: f"{ways[0].__name__}-{ways[1]}")
async def test_parent_chat_alone_makes_the_segments_of_many_outcomes(serve, ways):
    server = await serve(Walks())
    for seed in range(100, 200):
        await walk(server, ways, seed, rounds=20)
