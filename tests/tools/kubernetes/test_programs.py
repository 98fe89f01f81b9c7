"""What pods have of their own, besides what test_every_sandbox.py shows, against a fake API server."""

import pytest

from osmosis_grpc import supervise
from tests.waiting import until

pytestmark = pytest.mark.adapters


@pytest.mark.row("ARL 50")
async def test_the_logged_arguments_of_an_exec_hold_neither_command_nor_variables(api, box):
    await box.run("echo canary-command", environment={"KEY": "canary-variable"})
    assert "canary" not in str(api.exec_arguments)


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
    await until(lambda: "tools.container_clean_up failed" in caplog.text)
    async with made.sandbox() as box:
        assert (await box.run("echo next")).stdout == b"next\n"


async def warm_up(made, fail, caplog):
    """It is logged, and containers are made again."""
    fail()
    async with made.sandbox():  # takes a warm one, so that the next is made
        pass
    await until(lambda: "tools.start_spare_containers failed" in caplog.text)
    async with made.sandbox() as box:
        assert (await box.run("echo next")).stdout == b"next\n"


SCENARIOS = {
    "tools.start_spare_containers": warm_up,
    "tools.run_in_container": program,
    "tools.container_stdin": program,
    "tools.container_output": program,
    "tools.container_clean_up": clean_up,
}


@pytest.mark.parametrize("name", SCENARIOS)
async def test_a_job_of_a_cluster_that_raises_runs_again_or_is_reported(name, cluster, monkeypatch, caplog):
    monkeypatch.setattr("osmosis_grpc.tools.containers.machine.CLEAN_EVERY", 0.05)
    async with cluster(warm=1) as made:
        await SCENARIOS[name](made, lambda: supervise.inject(name, OSError(f"injected into {name}")), caplog)
