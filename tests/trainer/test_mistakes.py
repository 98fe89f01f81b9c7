"""A mistake in a frame handler ends one stream and no dialling; one in a sweep ends that sweep and no retention."""

import asyncio

import pytest

from osmosis_grpc.protocol.errors import AlreadyExists
from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.server import attached_inits
from osmosis_grpc.trainer import Trainer, TrainerConfig
from osmosis_grpc.trainer.chats.chat_cache import ChatCache
from osmosis_grpc.trainer.transports.attach import link as trainer_attachment
from tests.trainer.conftest import PATIENCE, reply, talker
from tests.waiting import until


def within(awaitable):
    return asyncio.wait_for(awaitable, PATIENCE)


@pytest.fixture
def mistake(monkeypatch):
    """Makes a function of a module raise once, and counts its calls."""

    def make(owner, name):
        defaults, calls = getattr(owner, name), []

        def mistaken(*args, **kwargs):
            calls.append(1)
            if len(calls) == 1:
                raise KeyError("a mistake on purpose")
            return defaults(*args, **kwargs)

        monkeypatch.setattr(owner, name, mistaken)
        return calls

    return make


async def test_a_trainer_dials_again_after_a_mistake_in_a_frame_handler(serve, mistake, caplog):
    server = await serve(talker())
    calls = mistake(trainer_attachment, "outcome_from_wire")
    async with Trainer([server.address], reply) as trainer:
        outcome = await within(trainer.rollout(rollout_id="r"))
    assert outcome.status is OutcomeStatus.COMPLETED
    assert len(calls) > 1
    assert "a mistake on purpose" in caplog.text


async def test_a_server_dials_again_after_a_mistake_in_a_frame_handler(serve, mistake, caplog):
    server = await serve(talker())
    calls = mistake(attached_inits, "check_size")
    async with Trainer([], reply, listen="127.0.0.1:0") as trainer:
        server.attachments.dial(trainer.address)
        outcome = await within(trainer.rollout(rollout_id="r"))
    assert outcome.status is OutcomeStatus.COMPLETED
    assert len(calls) > 1
    assert "a mistake on purpose" in caplog.text


async def test_a_trainer_forgets_old_rollouts_after_a_failed_sweep_too(serve, mistake, caplog):
    server = await serve(talker())
    calls = mistake(ChatCache, "sweep")
    async with Trainer([server.address], reply, config=TrainerConfig(ttl=0.1)) as trainer:
        await within(trainer.rollout(rollout_id="r"))
        await until(lambda: calls)
        async with asyncio.timeout(PATIENCE):
            while True:  # a rollout that is forgotten may be asked for again; to ask is to remember
                try:
                    await trainer.rollout(rollout_id="r")
                    break
                except AlreadyExists:
                    await asyncio.sleep(0.5)  # more than the ttl
    assert "a mistake on purpose" in caplog.text


async def test_a_callback_trainer_sweeps_again_after_a_sweep_that_failed(mistake, caplog):
    calls = mistake(ChatCache, "sweep")
    async with Trainer([], reply, transport="callback", config=TrainerConfig(ttl=0.1)):
        await until(lambda: len(calls) >= 3)
    assert "a mistake on purpose" in caplog.text
