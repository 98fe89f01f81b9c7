"""`memory_budget` counts what live rollouts take: their requests, what their agents read of them, their chats."""

import asyncio

import pytest

from osmosis_grpc.protocol.errors import InvalidArgument, ResourceExhausted
from osmosis_grpc.protocol.types import RolloutRequest, jsontext
from osmosis_grpc.protocol.types.requests import copy_of, unread_metadata

TEXT = '{"a":[' + ",".join(["[]"] * 10_000) + "]}"
USER = {"role": "user", "content": "x" * 10_000}


def unparsed():
    return jsontext.Unparsed.checked(TEXT, "metadata_json")


async def test_metadata_counts_once_the_agent_has_read_it(hosting):
    read, gate = [], asyncio.Event()

    async def reads(ctx):
        if ctx.request.rollout_id != "first":
            read.append(ctx.request.metadata)
        await gate.wait()
        return ctx.complete([])

    async with hosting(reads, memory_budget=1_000_000) as h:
        first = await h.start("first", digest=b"1", metadata=unparsed())
        second = await h.start("second", digest=b"2", metadata=unparsed())
        await h.until(lambda: read)
        assert len(read[0]["a"]) == 10_000
        assert read[0]["a"] is read[0]["a"]
        with pytest.raises(ResourceExhausted, match="memory_budget"):
            await h.init("third")
        gate.set()
        await h.until(lambda: first.delivery.settled and second.delivery.settled)
        await h.start("third")


async def test_chats_of_live_rollouts_count(hosting):
    gate = asyncio.Event()

    async def chats(ctx):
        messages = [USER]
        for _ in range(3):
            messages += [(await ctx.chat(messages)).message, USER]
        await gate.wait()
        return ctx.complete([])

    async with hosting(chats, memory_budget=100_000) as h:
        record = await h.start("first")
        await h.until(lambda: len(h.trainer.chats) == 3 and not record.calls)
        with pytest.raises(ResourceExhausted, match="memory_budget"):
            await h.init("second")
        gate.set()
        await h.until(lambda: h.trainer.outcomes)
        await h.start("second")


def test_a_copy_of_a_request_parses_nothing():
    request = RolloutRequest(rollout_id="r", metadata=unparsed())
    assert unread_metadata(copy_of(request, type(request), attempt=2)) is unread_metadata(request)
    assert request.metadata["a"][:1] == [[]]
    assert unread_metadata(request) is request.metadata


@pytest.mark.parametrize("text", ["{", "[]", '{"a":NaN}', '{"a":' + "[" * 256 + "]" * 256 + "}", '{"a":1,"a":2}'])
def test_what_is_no_object_is_refused_before_it_is_read(text):
    with pytest.raises(InvalidArgument, match="metadata_json"):
        jsontext.Unparsed.checked(text, "metadata_json")


@pytest.mark.parametrize("text", ['{"a":' + "[" * 255 + "]" * 255 + "}", '{"a":"' + "[" * 300 + '\\"]"}'])
def test_brackets_in_strings_are_no_levels(text):
    assert jsontext.Unparsed.checked(text, "metadata_json").value()
