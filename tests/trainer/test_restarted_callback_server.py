"""A server that another process replaces between two pings gets the rollouts that waited for the first one."""

import grpc
import pytest

from osmosis_grpc.protocol._gen.osmosis.rollout.v1.services_pb2_grpc import add_RolloutServiceServicer_to_server
from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.trainer import Trainer, TrainerConfig
from tests.trainer.conftest import USER, reply
from tests.trainer.deployment import begun
from tests.trainer.test_references import OldServer
from tests.waiting import until


class Replaced(OldServer):
    """Drains at first. Later answers are those of another process, which does not drain."""

    def __init__(self):
        super().__init__([])
        self.process, self.pings = "first", 0

    async def GetServerInfo(self, request, context):
        info = await super().GetServerInfo(request, context)
        info.process_id, info.draining = self.process, self.process == "first"
        self.pings += 1
        return info


@pytest.mark.slow  # a ping is due after 5 s
async def test_a_rollout_that_waits_for_a_draining_server_runs_in_its_next_process(stack):
    agents, listener = Replaced(), grpc.aio.server()
    add_RolloutServiceServicer_to_server(agents, listener)
    port = listener.add_insecure_port("127.0.0.1:0")
    await listener.start()
    stack.push_async_callback(listener.stop, None)
    config = TrainerConfig(longest_pause=0.2)
    async with Trainer([f"127.0.0.1:{port}"], reply, transport="callback", config=config) as trainer:
        ended = begun(trainer.rollout(rollout_id="r", messages=[USER]))
        await until(lambda: agents.pings and "r" in trainer.scheduler.rollouts)
        agents.process = "second"
        assert (await ended).status is OutcomeStatus.COMPLETED
