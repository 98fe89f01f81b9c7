"""A sync policy is accepted wherever an async one is."""

import pytest

from osmosis_grpc.policies.scripted import answer
from osmosis_grpc.testing import run_rollout
from tests.trainer.conftest import USER, Talker


def sync(request):
    return answer(request, "fine")


async def awaited(request):
    return sync(request)


@pytest.mark.parametrize("policy", [sync, awaited])
async def test_run_rollout_takes_sync_and_async_policies(policy):
    outcome = await run_rollout(Talker(), policy, [USER])
    assert (outcome.status, outcome.samples["main"].trainable) == ("COMPLETED", True)
