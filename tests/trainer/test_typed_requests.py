"""Type checkers know the fields of RolloutRequest in rollout() and init()."""

import subprocess
import sys
from typing import get_type_hints

import pytest

from osmosis_grpc.protocol.types import RolloutRequest
from osmosis_grpc.trainer.request_check import RolloutFields
from tests.processes import ROOT

SNIPPET = """
from osmosis_grpc.trainer import RolloutClient, Trainer


async def right(trainer: Trainer, client: RolloutClient) -> None:
    await trainer.rollout(rollout_id="r", max_turns=3)
    await client.init(rollout_id="r", label=None)


async def wrong(trainer: Trainer, client: RolloutClient) -> None:
    await trainer.rollout(rollout_idd="r")
    await client.init(rollout_id="r", max_turns="3")
"""


def test_the_fields_are_those_of_the_dataclass():
    assert get_type_hints(RolloutFields) == get_type_hints(RolloutRequest)


@pytest.mark.slow
def test_a_wrong_field_is_a_type_error(tmp_path):
    snippet = tmp_path / "snippet.py"
    snippet.write_text(SNIPPET)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(snippet)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.splitlines()
    errors = [line for line in found if "snippet.py:" in line and ": error:" in line]  # mypy caches the path of a run
    assert [line.split(":")[1] for line in errors] == ["11", "12"], found
    assert 'Unexpected keyword argument "rollout_idd"' in errors[0]
