"""A trainer that closes: its servers read its last answers."""

import asyncio
from contextlib import asynccontextmanager

import grpc

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import services_pb2, services_pb2_grpc
from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.testing.raw.connections import ACCEPT
from osmosis_grpc.testing.raw.server_frames import accepted, complete, hello
from osmosis_grpc.trainer import RolloutRequest, Trainer
from tests.trainer.conftest import PATIENCE, reply, talker
from tests.waiting import until


class SlowReader(services_pb2_grpc.RolloutServiceServicer):
    """An agent server that completes one rollout, and reads the answer to that once it may."""

    def __init__(self):
        self.may_read = asyncio.Event()
        self.read = asyncio.get_running_loop().create_future()

    async def Attach(self, request_iterator, context):
        await context.read()
        await self.send(context, hello())
        request = None
        while request is None:
            message = await context.read()
            request = next((frame.init for frame in message.frames if frame.WhichOneof("frame") == "init"), None)
        await self.send(context, accepted(request), complete(request))
        await self.may_read.wait()
        answers = []
        try:
            while (message := await context.read()) is not grpc.aio.EOF:
                answers += [frame.WhichOneof("frame") for frame in message.frames]
        finally:
            self.read.set_result(answers)

    async def send(self, context, *frames):
        await context.write(services_pb2.AttachResponse(frames=frames))


@asynccontextmanager
async def slow_reader():
    servicer, server = SlowReader(), grpc.aio.server()
    services_pb2_grpc.add_RolloutServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield servicer, f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def test_a_server_that_reads_late_reads_the_last_answer_of_a_trainer_that_closes():
    async with slow_reader() as (server, address):
        trainer = Trainer([address], reply)
        await trainer.__aenter__()
        outcome = await asyncio.wait_for(trainer.rollout(rollout_id="r"), PATIENCE)
        assert outcome.status is OutcomeStatus.COMPLETED
        closing = asyncio.ensure_future(trainer.__aexit__(None, None, None))
        await asyncio.wait({closing}, timeout=0.5)  # a trainer that does not wait for its server has gone by now,
        await asyncio.sleep(0.2)  # and the server has learned of it
        server.may_read.set()
        assert "complete_reply" in await asyncio.wait_for(server.read, PATIENCE)
        await asyncio.wait_for(closing, PATIENCE)


async def test_a_trainer_that_gave_rollouts_up_takes_their_outcomes_before_it_closes(serve):
    """Otherwise the server keeps them undelivered, and waits for that trainer when it is to stop."""
    agent = talker()
    agent.gate(*(f"r-{n}" for n in range(1, 4)))
    server = await serve(agent)
    request = RolloutRequest(rollout_id="r", metadata={"turns": 1})
    async with Trainer([server.address], reply) as trainer:
        async for outcome in trainer.run([request], group_size=4):
            assert outcome.rollout_id == "r-0"
            await until(lambda: len(agent.started) == 4)
            break
    await until(lambda: not server.engine.capacity().running)
    assert server.engine.capacity().undelivered == 0


async def test_a_server_that_dialled_in_and_reads_late_reads_the_last_answer():
    trainer = Trainer([], reply, listen="127.0.0.1:0")
    await trainer.__aenter__()
    async with grpc.aio.insecure_channel(trainer.address) as channel:
        call = channel.stream_stream(ACCEPT, None, services_pb2.AcceptResponse.FromString)()

        async def send(*frames):
            await call.write(services_pb2.AcceptRequest(frames=frames).SerializeToString())

        await send(hello())
        await call.read()
        running = asyncio.ensure_future(trainer.rollout(rollout_id="r"))
        request = (await call.read()).frames[0].init
        await send(accepted(request), complete(request))
        outcome = await asyncio.wait_for(running, PATIENCE)
        assert outcome.status is OutcomeStatus.COMPLETED
        await asyncio.wait_for(trainer.__aexit__(None, None, None), PATIENCE)
        answers = []
        while (message := await asyncio.wait_for(call.read(), PATIENCE)) is not grpc.aio.EOF:
            answers += [frame.WhichOneof("frame") for frame in message.frames]
        assert "complete_reply" in answers
