"""Trainers made from stubs run Init, Chat and Complete, and decode the details of refused calls."""

import pytest

from tests.clients import stubs
from tests.clients.scenario import EXPECTED, run_scenario

pytestmark = [pytest.mark.clients, pytest.mark.timeout(300)]


async def test_p24_a_typescript_trainer_made_with_the_shipped_template(serve, tmp_path):
    client = await stubs.typescript(tmp_path)
    assert await run_scenario(serve, *client, cwd=tmp_path) == EXPECTED


async def test_p24_a_go_trainer_made_with_the_shipped_template(serve, tmp_path):
    client = await stubs.go(tmp_path)
    assert await run_scenario(serve, *client, cwd=tmp_path) == EXPECTED


async def test_a_betterproto2_trainer(serve, tmp_path):
    client = await stubs.betterproto2(tmp_path)
    assert await run_scenario(serve, *client, cwd=tmp_path) == EXPECTED
