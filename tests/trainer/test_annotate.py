"""trainer.annotate(), over both transports."""

import asyncio

import numpy as np
import pytest

from osmosis_grpc.protocol.errors import AlreadyExists, InvalidArgument, NotFound, Unavailable, Unimplemented
from osmosis_grpc.protocol.types import Annotation, SegmentAnnotation, events
from osmosis_grpc.server import AgentServer
from osmosis_grpc.trainer import RolloutClient, Trainer
from tests.ports import quiet_port
from tests.trainer.conftest import USER, reply, talker
from tests.waiting import until


@pytest.fixture(params=["attach", "callback"])
def transport(request):
    return request.param


def annotations(trail):
    return [event.kind.annotation for event in trail if isinstance(event.kind, events.Annotated)]


async def test_the_record_goes_from_init_to_loss(transport, tmp_path):
    async with (
        AgentServer([talker()], port=0, state_dir=tmp_path) as server,
        Trainer([server.address], reply, transport=transport) as trainer,
    ):
        outcome = await trainer.rollout(rollout_id="r1", messages=[USER], metadata={"turns": 2})
        (segment,) = outcome.samples["main"].segments
        recomputed = SegmentAnnotation(sample="main", index=0, logprobs=segment.logprobs + np.float32(-0.5))
        fields = {"id": "step-3", "trained": True, "advantage": 0.75, "segments": (recomputed,)}
        number, created = await trainer.annotate(outcome, **fields, weight_step="3")
        assert created
        assert await trainer.annotate(outcome, **fields, weight_step="3") == (number, False)
        with pytest.raises(AlreadyExists, match="step-3"):
            await trainer.annotate(outcome, id="step-3", trained=False)
        with pytest.raises(InvalidArgument, match="logprobs"):
            await trainer.annotate(outcome, segments=(SegmentAnnotation(logprobs=[0.0]),))
        await trainer.annotate(outcome, Annotation(author="a person", note="good"), labels=("a", "b"))
        trail = [event async for event in trainer.events("r1")]
        first, second = annotations(trail)
        assert np.allclose(first.segments[0].logprobs, segment.logprobs - 0.5)
        assert (first.advantage, first.trained, first.weight_step) == (0.75, True, "3")
        assert (second.author, second.note, second.labels) == ("a person", "good", ("a", "b"))
        assert first.time is not None
        assert [event.event_number for event in trail] == list(range(1, len(trail) + 1))
    async with AgentServer([talker()], port=0, state_dir=tmp_path) as server, RolloutClient(server.address) as client:
        again = [event async for event in client.events("r1")]
        assert annotations(again) == [first, second]
        with pytest.raises(AlreadyExists):
            await client.annotate("r1", Annotation(id="step-3"))
        assert await client.annotate("r1", first) == (number, False), "the time is the server's and does not count"


async def test_among_several_servers_the_one_that_has_the_rollout_gets_it(transport):
    async with AgentServer([talker("one")], port=0) as one, AgentServer([talker("two")], port=0) as two:
        async with Trainer([one.address, two.address], reply, transport=transport) as trainer:
            outcomes = [
                await trainer.rollout(rollout_id=name, messages=[USER], agent_loop=name) for name in ("one", "two")
            ]
            await asyncio.gather(*(trainer.annotate(outcome, trained=True) for outcome in outcomes))
            for name in ("one", "two"):
                assert len(annotations([event async for event in trainer.events(name)])) == 1
        async with Trainer([one.address, two.address], reply, transport=transport) as trainer:
            await until(lambda: all(server.attached for server in trainer.servers))
            assert (await trainer.annotate(outcomes[1], note="from another process"))[1]
            with pytest.raises(NotFound, match="r9"):
                await trainer.annotate(Unknown(), note="x")


class Unknown:
    """An outcome that no server has."""

    rollout_id, attempt = "r9", 1


async def test_a_server_without_the_feature_is_not_asked(transport, monkeypatch):
    monkeypatch.setattr("osmosis_grpc.server.servicer.FEATURES", ())
    monkeypatch.setattr("osmosis_grpc.server.attachment_registry.FEATURES", ())
    async with (
        AgentServer([talker()], port=0) as server,
        Trainer([server.address], reply, transport=transport) as trainer,
    ):
        outcome = await trainer.rollout(rollout_id="r1", messages=[USER])
        with pytest.raises(Unimplemented, match="version"):
            await trainer.annotate(outcome, trained=True)


async def test_while_a_server_is_away_the_rollout_is_not_called_unknown(transport):
    async with AgentServer([talker("one")], port=0) as one:
        targets = [one.address, f"127.0.0.1:{quiet_port()}"]
        async with Trainer(targets, reply, transport=transport) as trainer:
            outcome = await trainer.rollout(rollout_id="one", messages=[USER], agent_loop="one")
            assert (await trainer.annotate(outcome, note="here"))[1]
            with pytest.raises(Unavailable, match=f"not attached now: {targets[1]}"):
                await trainer.annotate(Unknown(), note="x")


async def test_wrong_arguments_are_refused_before_anything_is_sent():
    async with AgentServer([talker()], port=0) as server, Trainer([server.address], reply) as trainer:
        outcome = await trainer.rollout(rollout_id="r1", messages=[USER])
        with pytest.raises(TypeError, match="tarined"):
            await trainer.annotate(outcome, tarined=True)
        with pytest.raises(TypeError, match="not a dict"):
            await trainer.annotate(outcome, {"trained": True})
        with pytest.raises(InvalidArgument, match="advantage"):
            await trainer.annotate(outcome, advantage=float("nan"))
        with pytest.raises(InvalidArgument, match=r"annotation\.id"):
            await trainer.annotate(outcome, id="")
        assert annotations([event async for event in trainer.events("r1")]) == []
