"""`serve --disk-budget` and `--memory-budget` reach the journal and the engine."""

import re
import urllib.request

import pytest

from osmosis_grpc.protocol.errors import ResourceExhausted
from osmosis_grpc.protocol.types import Callback
from osmosis_grpc.trainer import RolloutClient
from tests.processes import serving

CALCULATOR = ("-m", "osmosis_grpc.testing.calculator:agent_loop")


async def test_the_budgets_are_those_of_the_options(tmp_path):
    budgets = ("--disk-budget", "0.5", "--memory-budget", "16")
    with serving(*CALCULATOR, *budgets, "--metrics-port", "0", "--state-dir", str(tmp_path)) as (_, ready):
        with urllib.request.urlopen(f"http://{ready['metrics']}/metrics") as page:
            (shown,) = re.findall(r"(?m)^osmosis_journal_budget_bytes (.*)$", page.read().decode())
        assert float(shown) == 0.5 * 1024**3
        async with RolloutClient(ready["grpc"]) as client:
            large = [{"role": "user", "content": "x" * 12_000_000}]
            callback = Callback(target="127.0.0.1:9", credential="c" * 32)
            await client.init(rollout_id="first", messages=large, callback=callback)
            with pytest.raises(ResourceExhausted, match=f"memory_budget of {16 * 1024**2} bytes is full"):
                await client.init(rollout_id="second", messages=large, callback=callback)
