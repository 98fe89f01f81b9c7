"""Which replies are marked as dropped, and how they share segments with the others."""

import pytest

from osmosis_grpc.testing import run_rollout
from tests.dropping import CASES, Drops, different, marked


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
async def test_replies_that_the_agent_left_are_marked(case):
    outcome = await run_rollout(Drops(), different, metadata={"case": case.__name__})
    assert marked(outcome.samples["main"]) == CASES[case]
    assert sum(segment.sampled for segment in outcome.samples["main"].segments) == 3 * outcome.metrics.num_llm_calls
