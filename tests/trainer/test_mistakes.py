"""A mistake in a frame handler ends one stream and no dialling; one in a sweep ends that sweep and no retention."""

import pytest

from osmosis_grpc.protocol.types import OutcomeStatus
from osmosis_grpc.server import attached_requests
from osmosis_grpc.trainer import Trainer
from osmosis_grpc.trainer.transports.attach import link as trainer_attachment
from tests.trainer.conftest import reply, talker
from tests.trainer.deployment import within


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
    calls = mistake(trainer_attachment, "Report")
    async with Trainer([server.address], reply) as trainer:
        outcome = await within(trainer.rollout(rollout_id="r"))
    assert outcome.status is OutcomeStatus.COMPLETED
    assert len(calls) > 1
    assert "a mistake on purpose" in caplog.text


async def test_a_server_dials_again_after_a_mistake_in_a_frame_handler(serve, mistake, caplog):
    server = await serve(talker())
    calls = mistake(attached_requests, "check_size")
    async with Trainer([], reply, listen="127.0.0.1:0") as trainer:
        server.attachments.dial(trainer.address)
        outcome = await within(trainer.rollout(rollout_id="r"))
    assert outcome.status is OutcomeStatus.COMPLETED
    assert len(calls) > 1
    assert "a mistake on purpose" in caplog.text
