"""An attachment as a raw trainer sees it: hellos, a whole rollout, histories."""

import pytest

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import outcome_pb2, rollout_pb2
from osmosis_grpc.testing.raw import RawTrainer
from tests.server.attached import Talk, Wide, plays, texts, user

MIB = 1024 * 1024
COMPLETED = outcome_pb2.OUTCOME_STATUS_COMPLETED


async def test_the_server_says_who_it_is(serve):
    server = await serve(Talk(), Wide(), max_concurrent=5, max_queued=2)
    async with RawTrainer(server.address) as trainer:
        stream = await trainer.attach(protocol_min=0, protocol_max=99)
        hello = stream.all("hello")[0]
        assert stream.frames[0].WhichOneof("frame") == "hello"
        assert hello.attachment_id == trainer.attachment_id
        assert (hello.protocol_min, hello.protocol_max) == (1, 1)
        assert (hello.max_open_rollouts, list(hello.agent_loops), hello.draining) == (7, ["talk", "wide"], False)
        assert hello.journal_id
        assert hello.process_id
        assert hello.limits.max_message_bytes == 64 * MIB
        await trainer.barrier()
        assert (stream.count("hello"), stream.count("window")) == (1, 0), (
            "the hello has the window, so no window frame follows"
        )


@pytest.mark.parametrize("attachment_id", ["a" * 16, "a" * 256, "ünîcödé is text as well"])
async def test_attachment_ids_of_every_size(serve, attachment_id):
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer:
        stream = await trainer.attach(attachment_id=attachment_id)
        assert stream.all("hello")[0].attachment_id == attachment_id


async def test_a_rollout_travels_by_reference(serve):
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer:
        stream = await trainer.attach()
        answer = await trainer.start("r", turns=3)
        assert (answer.created, [tool.function.name for tool in answer.tools]) == (True, ["nod"])
        outcome = await trainer.finish()
        first, second, third = stream.all("chat")
        assert texts(first.full.messages) == ["How are you?"]
        assert (second.delta.parent_chat, texts(second.delta.messages)) == (1, ["so much for turn 1"])
        assert (third.delta.parent_chat, texts(third.delta.messages)) == (2, ["so much for turn 2"])
        assert not any(chat.HasField("tools") for chat in (first, second, third))

        (sample,) = outcome.samples
        assert (sample.name, sample.prefix_chat, texts(sample.messages)) == ("main", 3, ["so much for turn 3"])
        assert (sample.trainable, sample.not_trainable_reason) == (True, "")
        (segment,) = sample.segments
        assert (list(segment.ids), list(segment.logprobs)) == ([], [])
        assert (list(segment.chats), list(segment.mask_runs)) == ([1, 2, 3], [1, 1, 1, 1, 1, 1])
        assert (outcome.status, outcome.reward, list(outcome.omitted)) == (COMPLETED, 1.0, [])


async def test_the_message_size_does_not_grow_with_the_history(serve):
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer:
        stream = await trainer.attach()
        await trainer.start("r", turns=40)
        await trainer.finish()
        sizes = [chat.ByteSize() for chat in stream.all("chat")[1:]]
        assert max(sizes) - min(sizes) <= 2, "but for the digits of its numbers"


# Histories.


async def test_an_edited_history_goes_in_full(serve):
    async def run(ctx):
        messages = list(ctx.request.messages)
        messages += [(await ctx.chat(messages)).message, user("and?")]
        messages[0] = user("How were you?")
        messages.append((await ctx.chat(messages)).message)
        return ctx.complete([user("something else")])

    server = await serve(plays(run))
    async with RawTrainer(server.address) as trainer:
        stream = await trainer.attach()
        await trainer.start("r")
        outcome = await trainer.finish()
        assert texts(stream.all("chat")[1].full.messages) == ["How were you?", "fine", "and?"]
        (sample,) = outcome.samples
        assert (sample.prefix_chat, texts(sample.messages)) == (0, ["something else"])


async def test_an_open_chat_comes_again_in_the_form_that_the_new_stream_wants(serve):
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer:
        await trainer.attach()
        await trainer.start("r", turns=2)
        await trainer.answer(await trainer.chat())
        assert (await trainer.chat()).WhichOneof("history") == "delta"
        await trainer.stream.cut()
        await trainer.attach(history=rollout_pb2.HISTORY_FORM_FULL)
        assert (await trainer.chat()).WhichOneof("history") == "full"
