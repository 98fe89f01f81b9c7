"""Dropped replies and cuts are the same whatever way an outcome takes to the trainer."""

from dataclasses import replace

import pytest

from osmosis_grpc.protocol.types import RolloutRequest
from osmosis_grpc.server import AgentServer
from osmosis_grpc.testing import run_rollout
from osmosis_grpc.trainer import Trainer
from tests.dropping import CASES, Drops, different, marked
from tests.trainer.deployment import within

LEFT = [case for case, (_, dropped) in CASES.items() if dropped]
WAYS = {"attach": {}, "callback": {"transport": "callback"}, "ledger": {"ledger": True}}


def arrays(sample):
    """Returns what is trained on, without the ids, which depend on the name of the rollout."""
    return [(s.chats, s.dropped, s.mask_runs, s.drift_index, s.split, len(s.ids)) for s in sample.segments]


async def cut(request):
    return replace(different(request), finish_reason="length")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", LEFT, ids=lambda case: case.__name__)
async def test_every_way_to_the_trainer_gives_the_same_marks(serve, tmp_path, case, way):
    metadata = {"case": case.__name__}
    local = (await run_rollout(Drops(), cut, rollout_id="r", metadata=metadata)).samples["main"]
    server, options = await serve(Drops()), dict(WAYS[way])
    if options.pop("ledger", False):
        options["ledger"] = tmp_path / "ledger"
    async with Trainer([server.address], cut, **options) as trainer:
        outcome = await within(trainer.rollout(rollout_id="r", metadata=metadata))
        sample, values = outcome.samples["main"], trainer.metrics()
        assert marked(sample) == CASES[case]
        assert (values["samples/cut"], values["replies/dropped"]) == (1, len(sample.dropped_chats))
        assert values["samples/segments"] == len(CASES[case][0])
        assert (sample.cut, arrays(sample)) == ("length", arrays(local))
        assert [s.ids.tolist() for s in sample.segments] == [s.ids.tolist() for s in local.segments]
        assert [s.logprobs.tolist() for s in sample.segments] == [s.logprobs.tolist() for s in local.segments]


async def test_marks_come_back_from_the_ledger_and_from_the_journal(tmp_path):
    folder = tmp_path / "state"
    request = RolloutRequest(rollout_id="r", messages=[], metadata={"case": "retried"})
    found = []
    for ledger in ("one", "one", "two"):  # the same trainer again, and one that answered no chat
        async with (
            AgentServer([Drops()], port=0, state_dir=folder) as server,
            Trainer([server.address], cut, ledger=tmp_path / ledger) as trainer,
        ):
            found.append((await within(trainer.rollout(request))).samples["main"])
    assert [(sample.cut, marked(sample)) for sample in found] == [("length", ([(1, 3, 4)], [(2,)]))] * 3
    assert [arrays(sample) for sample in found[1:]] == [arrays(found[0])] * 2
    ids = [[segment.ids.tolist() for segment in sample.segments] for sample in found]
    assert ids[1:] == [ids[0]] * 2
