"""Every job of the Kubernetes sandbox is made to raise once, and is seen to run again or to be reported."""

import pytest

from osmosis_grpc import supervise
from tests.waiting import until

pytestmark = pytest.mark.adapters


async def program(made, fail, caplog):
    """The error reaches the caller, and the sandbox runs the next program."""
    async with made.sandbox() as box:
        fail()
        with pytest.raises(OSError, match="injected"):
            await box.run("true")
        assert (await box.run("echo next")).stdout == b"next\n"


async def clean_up(made, fail, caplog):
    """It is logged, and the next clean-up removes nothing that is in use."""
    fail()
    await until(lambda: "tools.kubernetes_clean_up failed" in caplog.text)
    async with made.sandbox() as box:
        assert (await box.run("echo next")).stdout == b"next\n"


SCENARIOS = {
    "tools.run_in_pod": program,
    "tools.pod_stdin": program,
    "tools.pod_output": program,
    "tools.kubernetes_clean_up": clean_up,
}


@pytest.mark.parametrize("name", SCENARIOS)
async def test_a_job_of_a_cluster_that_raises_runs_again_or_is_reported(name, cluster, monkeypatch, caplog):
    monkeypatch.setattr("osmosis_grpc.tools.kubernetes.cluster.CLEAN_EVERY", 0.05)
    async with cluster() as made:
        await SCENARIOS[name](made, lambda: supervise.inject(name, OSError(f"injected into {name}")), caplog)
