"""The numbers of a trainer's streams rise, so a server knows a stream that the trainer opened earlier."""

from osmosis_grpc.protocol._gen.osmosis.rollout.v1.attach_pb2 import TrainerFrame
from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.server import AgentServer
from osmosis_grpc.testing.raw import RawTrainer, listen_as_agent_server
from osmosis_grpc.testing.raw.server_frames import HEARTBEAT
from osmosis_grpc.trainer import Trainer, TrainerConfig
from tests.trainer.conftest import USER, reply, talker
from tests.waiting import until

HASTY = TrainerConfig(longest_pause=0.01)


async def hello_to(servers):
    """Return the hello of the next stream that a trainer opens, and make the trainer end this stream."""
    stream = await servers.accept()
    hello = await stream.next("hello")
    await stream.send(HEARTBEAT)  # not a hello
    await stream.ended()
    return hello


async def test_a_hello_that_outlives_its_process_does_not_end_the_stream_of_the_next_process(tmp_path):
    ledger = tmp_path / "ledger"
    async with listen_as_agent_server() as servers:
        port = int(servers.address.rpartition(":")[2])
        async with Trainer([servers.address], reply, ledger=ledger, config=HASTY):
            late = await hello_to(servers)
    async with (
        AgentServer([talker()], port=port) as server,
        RawTrainer(server.address) as dead,
        Trainer([server.address], reply, ledger=ledger, config=HASTY) as trainer,
    ):
        await until(lambda: trainer.servers[0].attached)
        await dead.open().send(TrainerFrame(hello=late))
        assert await dead.stream.ended() == "ABORTED"
        outcome = await trainer.rollout(rollout_id="r", messages=[USER])
        assert outcome.status is OutcomeStatus.COMPLETED


async def test_each_stream_has_a_higher_number_in_the_process_and_after_a_restart(tmp_path):
    numbers, ids = [], set()
    async with listen_as_agent_server() as servers:
        for _ in range(3):
            async with Trainer([servers.address], reply, ledger=tmp_path / "ledger", config=HASTY):
                for _ in range(2):
                    hello = await hello_to(servers)
                    numbers.append(hello.stream_number)
                    ids.add(hello.attachment_id)
    assert len(ids) == 1
    assert numbers == sorted(set(numbers))


async def test_without_a_ledger_the_streams_of_a_process_are_counted():
    async with listen_as_agent_server() as servers, Trainer([servers.address], reply, config=HASTY):
        numbers = [(await hello_to(servers)).stream_number for _ in range(3)]
    assert numbers == [1, 2, 3]


async def test_a_server_that_is_named_again_gets_higher_numbers(tmp_path):
    """Its new link has the attachment id of the old one, whose stream may still be open at the server."""
    path = tmp_path / "servers"
    async with listen_as_agent_server() as servers:
        path.write_text(servers.address)
        async with Trainer(path, reply, ledger=tmp_path / "ledger", config=HASTY) as trainer:
            path.write_text("# none")  # read again as soon as the stream has ended
            before = await hello_to(servers)
            await until(lambda: not trainer.servers)
            path.write_text(servers.address)
            after = await (await servers.accept()).next("hello")
    assert after.attachment_id == before.attachment_id
    assert after.stream_number > before.stream_number
