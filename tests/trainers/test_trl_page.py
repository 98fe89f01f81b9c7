"""The blocks of docs/trl.md run, in order, in one empty folder. Run by `make test-trainers`."""

import re

import pytest

from tests.docs.pages import Reader, blocks_of
from tests.processes import ROOT

pytestmark = [pytest.mark.trainers, pytest.mark.filterwarnings("ignore")]
pytest.importorskip("trl")


@pytest.mark.timeout(400)
async def test_the_page_leads_from_an_empty_folder_to_a_rising_reward(tmp_path):
    with Reader(tmp_path) as reader:
        for block in blocks_of(ROOT / "docs" / "trl.md"):
            await reader.run(block, timeout=200)
        rewards = [float(reward) for reward in re.findall(r"^step +\d+  reward (\S+)", reader.output[-1], re.M)]
    assert len(rewards) == 20
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.1
