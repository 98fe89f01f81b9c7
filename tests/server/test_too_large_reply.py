"""A reply of more than 32 MiB ends its rollout FAILED with REPLY_UNREADABLE, over a stream and over a callback."""

from osmosis_grpc.protocol._gen.osmosis.rollout.v1 import chat_pb2, message_pb2, outcome_pb2
from osmosis_grpc.testing.raw import RawTrainer
from osmosis_grpc.testing.raw.trainer_frames import chat_reply
from tests.server.attached import Talk

TEXT = "a" * (33 * 1024 * 1024)


async def test_over_an_attachment(serve):
    server = await serve(Talk())
    async with RawTrainer(server.address) as trainer:
        await trainer.attach()
        await trainer.start("r")
        large = chat_pb2.ChatResponse(message=message_pb2.Message(role="assistant", text=TEXT))
        await trainer.send(chat_reply(await trainer.chat(), response=large))
        outcome = await trainer.settled()
        assert (outcome.status, outcome.failure.reason) == (outcome_pb2.OUTCOME_STATUS_FAILED, "REPLY_UNREADABLE")
