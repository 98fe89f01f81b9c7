"""The ledger's thread dies: each caller that waits gets an error that names it, and so does each later call."""

import asyncio

import pytest

from osmosis_grpc import supervise
from osmosis_grpc.protocol.errors import LedgerError, OsmosisRolloutError, TrainerFailed
from osmosis_grpc.storage.ledger.writer import COMMIT
from osmosis_grpc.trainer import RolloutRequest
from tests.trainer.conftest import reply, talker
from tests.trainer.deployment import collect, within
from tests.waiting import until


def begun(awaitable):
    task = asyncio.ensure_future(within(awaitable))
    task.add_done_callback(lambda task: task.cancelled() or task.exception())
    return task


@pytest.mark.parametrize("transport", ["attach", "callback"])
async def test_a_dead_ledger_thread_fails_every_call_of_the_trainer(serve, attach_to, tmp_path, caplog):
    agent = talker()
    agent.gate("r1", "r2-0", "r2-1", "r3")
    trainer = await attach_to(reply, await serve(agent), ledger=tmp_path / "ledger")
    waiting = {
        "rollout": begun(trainer.rollout(rollout_id="r1")),
        "groups": begun(collect(trainer.groups([RolloutRequest(rollout_id="r2")], group_size=2))),
        "run": begun(collect(trainer.run([RolloutRequest(rollout_id="r3")]))),
    }
    await until(lambda: len(agent.started) == 4)
    waiting["events"] = begun(collect(trainer.events("r1")))
    supervise.inject(COMMIT.name, MemoryError("injected"))
    try:
        agent.release("r1")  # its chat is to be committed
        for name, task in waiting.items():
            with pytest.raises(OsmosisRolloutError, match=r"ledger\.commit"):
                await task
            assert isinstance(task.exception(), TrainerFailed | LedgerError), name
        with pytest.raises(TrainerFailed, match=r"ledger\.commit.*injected"):
            await within(trainer.rollout(rollout_id="r9"))
        with pytest.raises(TrainerFailed):
            await within(collect(trainer.run([RolloutRequest(rollout_id="r8")])))
        assert "ledger.commit failed; the trainer has failed" in caplog.text
    finally:
        agent.release()
