"""Our padded batches and records equal what verl's own workers make of the same outputs. Run by `make test-trainers`.

With RECORD=1 in the environment, the batches of verl that the fast tests compare are written anew.
"""

import json
import os
from pathlib import Path

import pytest

from osmosis_grpc.records.export import padded_batch
from tests.records.export.outcomes import GOLDEN, case, golden
from tests.trainers.verl_post_processing import as_json, differences, used, v1_differences, verl_batch

pytestmark = [pytest.mark.trainers, pytest.mark.filterwarnings("ignore")]
pytest.importorskip("verl")

RECORDED = Path(__file__).parent.parent / "records" / "export" / "verl_batches.jsonl"
SEEDS = range(200)
RECORDED_SEEDS = (-1, *range(6))
"""-1 is the golden vector."""


def given(seed):
    return case(seed) if seed >= 0 else (golden(), GOLDEN, 0)


@pytest.mark.parametrize("first", SEEDS[::20])
@pytest.mark.row("ARL 45", "ARL 46", "ARL 47")
def test_padded_batches_and_records_equal_those_of_verl(first):
    for seed in range(first, first + 20):
        outcomes, config, pad_id = case(seed)
        assert pad_id != 0
        ours, theirs = padded_batch(outcomes, config, pad_id=pad_id), verl_batch(outcomes, config, pad_id)
        theirs.check_consistency()
        assert differences(ours, theirs) == []
        assert used(ours) == []
        assert v1_differences(outcomes, config, pad_id) == []


def test_the_recorded_batches_are_those_of_this_verl():
    made = [{"seed": seed} | as_json(verl_batch(*given(seed))) for seed in RECORDED_SEEDS]
    if os.environ.get("RECORD"):
        RECORDED.write_text("".join(json.dumps(each, separators=(",", ":")) + "\n" for each in made))
    recorded = [json.loads(line) for line in RECORDED.read_text().splitlines()]
    for one, other in zip(recorded, made, strict=True):
        other = json.loads(json.dumps(other))
        assert one["non_tensor_batch"].keys() == other["non_tensor_batch"].keys()
        assert one == other
