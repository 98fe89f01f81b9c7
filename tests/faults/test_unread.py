"""Peers that send without end and never read: their queue is bounded, and others are not affected."""

import asyncio
import contextlib
from typing import Any

import grpc
import pytest

from osmosis_grpc.network import frame_stream
from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import attach_pb2, control_pb2, services_pb2
from osmosis_grpc.protocol.stream import stream_machine
from osmosis_grpc.protocol.types import RolloutRequest
from osmosis_grpc.server import AgentServer, ServerConfig
from osmosis_grpc.testing.raw import RawTrainer
from osmosis_grpc.testing.raw.connections import ACCEPT, ATTACH
from osmosis_grpc.testing.raw.server_frames import accepted, chat, complete
from osmosis_grpc.testing.raw.server_frames import hello as server_hello
from osmosis_grpc.testing.raw.trainer_frames import HEARTBEAT, init, recorded
from osmosis_grpc.trainer import Trainer
from tests.server.attached import Talk, Wide, bystander
from tests.waiting import until

KIB = 1024
SOON = 15.0
LONG = "x" * 2000


class Unread:
    """A stream whose client writes and never reads. `over` is set after its end."""

    def __init__(self, address: str, method: str, request: Any) -> None:
        options = (("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", 0))  # a window that does not grow
        self._channel = grpc.aio.insecure_channel(address, options=options)
        self._request = request
        self.call = self._channel.stream_stream(method)()
        self.writing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.writing.set_result(None)

    async def __aenter__(self) -> "Unread":
        return self

    async def __aexit__(self, *exc: Any) -> None:
        self.call.cancel()
        await asyncio.gather(self.writing, return_exceptions=True)
        await self._channel.close()

    async def send(self, *frames: Any) -> None:
        await self.call.write(self._request(frames=frames).SerializeToString())

    async def flood(self, frames: Any, times: int) -> int:
        """Send these again and again; how often it was possible without waiting for longer than half a second."""
        for sent in range(times):
            self.writing = asyncio.create_task(self.send(*frames))  # a write that is cut would cancel the call
            done, _ = await asyncio.wait({self.writing}, timeout=0.5)
            if not done or self.writing.exception() is not None:
                return sent
        return times


class Watched(frame_stream.FrameStream):
    """Remembers the most that waited in any of them."""

    most = 0

    def answer(self, frame: bytes) -> None:
        super().answer(frame)
        self.note()

    def send_event(self, frame: bytes) -> None:
        super().send_event(frame)
        self.note()

    def note(self) -> None:
        Watched.most = max(Watched.most, self.waiting_bytes)


@pytest.fixture
def watched(monkeypatch):
    """Small bounds, and what comes of them."""
    monkeypatch.setattr(stream_machine, "ANSWER_LIMIT", 64 * KIB)
    monkeypatch.setattr(stream_machine, "MAX_ANSWERS", 1024 * KIB)
    monkeypatch.setattr(stream_machine, "EVENT_LIMIT", 64 * KIB)
    monkeypatch.setattr("osmosis_grpc.server.attachment_registry.FrameStream", Watched)
    monkeypatch.setattr("osmosis_grpc.trainer.transports.attach.connections.FrameStream", Watched)
    monkeypatch.setattr(Watched, "most", 0)
    return Watched


def cancels(trainer: RawTrainer) -> list[Any]:
    ask = attach_pb2.CancelFrame(id=LONG, request=control_pb2.CancelRequest(group_id="nobody"))
    return [attach_pb2.TrainerFrame(cancel=ask)] * 50


def lists(trainer: RawTrainer) -> list[Any]:
    refs = [attach_pb2.RolloutRef(rollout_id=f"unknown-{n}") for n in range(5000)]
    return [attach_pb2.TrainerFrame(open_rollouts=attach_pb2.OpenRollouts(rollouts=refs))]


def refused_inits(trainer: RawTrainer) -> list[Any]:
    return [init(f"r{n}", agent_loop="nobody") for n in range(300)]


def subscriptions(trainer: RawTrainer) -> list[Any]:
    request = control_pb2.StreamEventsRequest(rollout_id="unknown")
    subscribe = (attach_pb2.Subscribe(id=f"{n} {LONG[:400]}", request=request) for n in range(2000))
    return [attach_pb2.TrainerFrame(subscribe=one) for one in subscribe]


def equal_inits(trainer: RawTrainer) -> list[Any]:
    return [init("ended", turns=0)] * 300


def completions_again(trainer: RawTrainer) -> list[Any]:
    received = trainer.stream.all("complete")[0].outcome
    return [init("ended", turns=0), recorded(received)] * 100


@pytest.mark.parametrize(
    "frames", [cancels, lists, refused_inits, subscriptions, equal_inits, completions_again], ids=lambda f: f.__name__
)
async def test_a_trainer_that_never_reads(watched, frames):
    async with AgentServer([Talk()], port=0) as server, bystander(server), RawTrainer(server.address) as trainer:
        await trainer.attach()
        await trainer.start("ended", turns=0)
        await trainer.settled()
        await trainer.barrier()
        asked = frames(trainer)
        await trainer.stream.cut()
        async with Unread(server.address, ATTACH, services_pb2.AttachRequest) as unread:
            await unread.send(trainer.hello())
            await unread.flood(asked, 3000)
            attachment = server.attachments.get(trainer.attachment_id)
            await until(lambda: attachment is None or not attachment.attached)
        assert 64 * KIB < watched.most < 1024 * KIB + 16 * 64 * KIB


@pytest.mark.slow
@pytest.mark.parametrize("asked", ["one chat", "refused chats", "outcomes"])
async def test_an_agent_server_that_never_reads(watched, asked):
    """The trainer does not read on, and goes on where it was as soon as its answers are taken."""
    text = "y" * 1000
    async with Trainer([], lambda request: answer(request, text), listen="127.0.0.1:0") as trainer:
        task = asyncio.create_task(trainer.rollout(rollout_id="r", agent_loop="talk"))
        async with Unread(trainer.address, ACCEPT, services_pb2.AcceptRequest) as unread:
            await unread.send(server_hello(journal_id="j"))
            rollout = None
            while rollout is None:
                message = services_pb2.AcceptResponse.FromString(await unread.call.read())
                rollout = next((f.init for f in message.frames if f.WhichOneof("frame") == "init"), None)
            await unread.send(accepted(rollout), chat(rollout))
            nobodys = type(rollout)(rollout_id=f"nobodys-{LONG[:200]}", attempt=1)
            frame = {
                "one chat": chat(rollout, state=LONG.encode()),
                "refused chats": chat(nobodys),
                "outcomes": complete(nobodys),
            }[asked]
            sent = await unread.flood([frame] * 500, 2000)
            assert sent < 2000, "the trainer reads on"
            assert 64 * KIB < watched.most < 64 * KIB + 16 * 32 * KIB
            reader = asyncio.create_task(_read_all(unread.call))
            mark = type(rollout)(rollout_id="mark", attempt=1)
            async with asyncio.timeout(SOON):
                await unread.writing
                await unread.send(complete(mark))
                await reader
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _read_all(call: Any) -> None:
    while True:
        message = services_pb2.AcceptResponse.FromString(await call.read())
        if any(frame.complete_reply.rollout_id == "mark" for frame in message.frames):
            return


async def test_two_sides_under_load_do_not_wait_for_one_another(watched):
    """Answers of both sides are over their bounds all the time: replies, tools and cancels larger than the room."""
    tool = {"type": "function", "function": {"name": "t", "description": "d" * 3000, "parameters": {"type": "object"}}}

    class Tooled(Wide):
        def get_tools(self, request: Any) -> Any:
            return [tool]

    config = ServerConfig(max_concurrent=200)
    async with (
        AgentServer([Tooled()], port=0, config=config) as server,
        Trainer(server.address, lambda request: answer(request, "z" * 30_000)) as trainer,
    ):
        requests = [RolloutRequest(rollout_id=f"r{n}", agent_loop="wide", metadata={"turns": 8}) for n in range(100)]
        ended = [outcome.status async for outcome in trainer.run(requests)]
        assert ended == ["COMPLETED"] * 100
        assert watched.most > 64 * KIB, "nothing was held"


@pytest.mark.slow
async def test_what_is_never_taken_ends_the_stream(monkeypatch, watched):
    """Signs of life do not make up for reading nothing: what is asked again and again would pile up."""
    monkeypatch.setattr(stream_machine, "MAX_ANSWERS", 2**40)
    config = ServerConfig(heartbeat_interval=0.3, heartbeat_timeout=0.6)
    async with AgentServer([Talk()], port=0, config=config) as server, RawTrainer(server.address) as trainer:
        async with Unread(server.address, ATTACH, services_pb2.AttachRequest) as unread:
            await unread.send(trainer.hello())
            await unread.flood(cancels(trainer), 20)
            attachment = await until(lambda: server.attachments.get(trainer.attachment_id))
            async with asyncio.timeout(SOON):
                while attachment.attached:
                    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                        await unread.send(HEARTBEAT)
                    await asyncio.sleep(0.05)  # a heartbeat now and then
        async with bystander(server):
            pass
