"""Owners share windows, attachments, running and queued rollouts and bytes, whatever one of them does."""

import asyncio
from contextlib import AsyncExitStack

import grpc
import pytest

from osmosis_grpc.engine.fair_shares import Shares
from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol.errors import ResourceExhausted
from osmosis_grpc.server import AgentServer, ServerConfig, ServerSecurity
from osmosis_grpc.testing.raw import RawTrainer
from osmosis_grpc.testing.raw.connections import OPTIONS
from osmosis_grpc.testing.raw.trainer_frames import init
from osmosis_grpc.trainer import RolloutClient
from tests.callback_trainer import CallbackTrainer
from tests.server.attached import Talk
from tests.waiting import until

TOKENS = ["hostile=a-secret", "other=b-secret", "third=c-secret"]
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]


class Owned(RawTrainer):
    """A trainer that shows an owner's token, over a connection that it shares with others of that owner."""

    def __init__(self, address, token, channel=None):
        super().__init__(address, channel=channel)
        self.metadata = (("authorization", f"Bearer {token}"),)


@pytest.fixture
async def server(stack):
    return await hosting(stack)


async def hosting(stack, **config):
    config = ServerConfig(**config)
    return await stack.enter_async_context(
        AgentServer([Talk()], port=0, config=config, security=ServerSecurity(TOKENS))
    )


async def attached(stack, server, token, count=1):
    """So many trainers of an owner."""
    channels = [
        await stack.enter_async_context(
            grpc.aio.insecure_channel(server.address, options=(("grpc.use_local_subchannel_pool", 1), *OPTIONS))
        )
        for _ in range(1 + count // 500)
    ]
    made = [
        await stack.enter_async_context(Owned(server.address, token, channels[number // 500]))
        for number in range(count)
    ]
    for start in range(0, count, 50):
        await asyncio.gather(*(trainer.attach() for trainer in made[start : start + 50]))
    return made


def window(trainer):
    """Return the newest window of a trainer."""
    received = trainer.stream.all("window")
    return received[-1].max_open_rollouts if received else trainer.stream.all("hello")[0].max_open_rollouts


async def hang(trainers, count):
    """Start rollouts whose chats get no answer."""
    for number in range(count):
        await trainers[number % len(trainers)].send(init(f"hang-{number}"))

    def answered():
        return sum(trainer.stream.count("init_reply") for trainer in trainers) >= count

    await until(answered)


async def test_three_hundred_attachments_take_no_others_window(stack, server):
    (other,) = await attached(stack, server, "b-secret")
    assert window(other) == 300
    hostile = await attached(stack, server, "a-secret", 300)
    await other.barrier()
    assert window(other) == 150
    assert {window(trainer) for trainer in hostile[-50:]} == {1}
    (third,) = await attached(stack, server, "c-secret")
    await other.barrier()
    assert (window(other), window(third)) == (100, 100)


@pytest.mark.slow
async def test_a_thousand_attachments_keep_no_other_from_attaching(stack, server):
    held = await attached(stack, server, "a-secret", 1024)
    assert all(trainer.stream.over is None for trainer in held)
    (late,) = [await stack.enter_async_context(Owned(server.address, "a-secret"))]
    late.open()
    await late.send(late.hello())
    assert await late.stream.ended() == "RESOURCE_EXHAUSTED", "beyond the limit it has more than a share"
    others = await attached(stack, server, "b-secret", 30)
    assert window(others[0]) == 150 // 30
    await others[0].start("r")
    await others[0].finish()


async def test_hanging_rollouts_leave_others_their_share_of_slots_and_queue(stack, server):
    hostile = await attached(stack, server, "a-secret", 30)
    await hang(hostile, 300)
    left = server.engine.capacity()
    assert (left.running, left.queued) == (100, 200), "an owner alone has everything"
    (other,) = await attached(stack, server, "b-secret")
    for number in range(60):  # one after the other, and 60 at once
        await other.start(f"r-{number}")
        await other.finish()
    await other.send(*(init(f"many-{number}") for number in range(60)))
    for _ in range(60):
        assert (await other.finish()).status == 1
    await hostile[0].send(init("one-more"))
    code, ended = None, ""
    try:
        refused = await hostile[0].stream.next("init_reply")
        while refused.rollout_id != "one-more":
            refused = await hostile[0].stream.next("init_reply")
        code = refused.status.code
    except AssertionError as error:  # its window shrank so long ago that it has to know
        ended = str(error)
    assert code == EXHAUSTED or "RESOURCE_EXHAUSTED" in ended


@pytest.mark.slow
async def test_the_same_with_callbacks(stack, server):
    never = asyncio.Event()

    async def hangs(request):
        await never.wait()

    hung = await stack.enter_async_context(CallbackTrainer(hangs))
    good = await stack.enter_async_context(CallbackTrainer(lambda request: answer(request, "fine", tokens=2)))
    talk = {"messages": [{"role": "user", "content": "How are you?"}], "metadata": {"turns": 1}}
    async with (
        RolloutClient(server.address, token="a-secret") as hostile,
        RolloutClient(server.address, token="b-secret") as other,
    ):
        for number in range(300):
            await hostile.init(rollout_id=f"hang-{number}", callback=hung.callback(), **talk)
        async with asyncio.timeout(30):
            for number in range(30):
                await other.init(rollout_id=f"r-{number}", callback=good.callback(), **talk)
                assert (await good.outcome(f"r-{number}")).status.name == "COMPLETED"


async def test_limits_for_each_owner(stack):
    server = await hosting(
        stack, max_concurrent=10, max_queued=0, max_concurrent_per_owner=4, max_attachments_per_owner=2
    )
    trainers = await attached(stack, server, "a-secret", 2)
    late = await stack.enter_async_context(Owned(server.address, "a-secret"))
    late.open()
    await late.send(late.hello())
    assert await late.stream.ended() == "RESOURCE_EXHAUSTED"
    await hang(trainers, 6)
    left = server.engine.capacity()
    assert (left.running, left.queued) == (4, 2), "more of its rollouts wait, though slots are free"
    (other,) = await attached(stack, server, "b-secret")
    await other.start("r")
    await other.finish()


async def test_slots_move_towards_even_shares(stack):
    async with AsyncExitStack() as own:
        server = await hosting(own, max_concurrent=4, max_queued=8)
        (first,) = await attached(own, server, "a-secret")
        for number in range(8):
            await first.start(f"a-{number}")
        (second,) = await attached(own, server, "b-secret")
        for number in range(4):
            await second.start(f"b-{number}")
        chats = [await second.chat() for _ in range(2)]
        left = server.engine.capacity()
        assert (left.running, left.queued) == (6, 6), "the second has its half beyond the limit, and no more"
        for _ in range(2):
            await first.answer(await first.chat())
            await first.settled()
        left = server.engine.capacity()
        assert (left.running, left.queued) == (4, 6), "the first has no further slot while it has more than a half"
        await second.answer(chats[0])
        await second.settled()
        assert (await second.chat()).rollout_id == "b-2"


def test_shares():
    shares = Shares(12)
    for _ in range(12):
        assert shares.available("a")
        shares.add("a", 1)
    assert not shares.available("a")
    for _ in range(6):
        assert shares.available("b")
        shares.add("b", 1)
    assert not shares.available("b")
    for _ in range(4):
        assert shares.available("c")
        shares.add("c", 1)
    assert not shares.available("c")
    shares.add("a", -8)
    assert not shares.available("a"), "14 of 12 are in use"
    assert not shares.available("b")
    assert not shares.available("c")
    shares.add("b", -3)
    assert all(shares.available(name) for name in "abc")
    shares.add("a", -4)
    shares.add("c", -4)
    assert shares.share("b") == 12


def test_a_limit_below_one_is_refused():
    for name in ("max_concurrent_per_owner", "max_attachments_per_owner"):
        with pytest.raises(ValueError, match=name):
            ServerConfig(**{name: 0})
    assert ResourceExhausted("x").retryable
