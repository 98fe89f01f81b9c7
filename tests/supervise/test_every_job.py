"""Every declared job is made to raise once, and is seen to run again or to be reported.

The jobs of the trainer and its ledger are in tests/trainer/test_supervised.py. The jobs of sandboxes
in containers are in tests/tools/kubernetes/test_programs.py and tests/tools/docker/test_reach.py.
"""

import contextlib
import importlib
import re

import pytest

from osmosis_grpc import supervise
from osmosis_grpc.supervise import OnFailure
from tests.deployment import deployment
from tests.processes import ROOT
from tests.supervise import process_jobs, server_jobs, worker_jobs
from tests.tools.docker import test_reach as container_jobs
from tests.tools.kubernetes import test_programs as pod_jobs
from tests.trainer import test_supervised as trainer_jobs

for package in ("osmosis_grpc", "gateway/osmosis_gateway"):
    for path in (ROOT / package).rglob("*.py"):
        if re.search(r"\bjob\($|\bjob\(\"", path.read_text(), re.M):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removeprefix("gateway.")
            with contextlib.suppress(ImportError):  # a library that is not installed here
                importlib.import_module(name)

SCENARIOS = server_jobs.SCENARIOS | process_jobs.SCENARIOS | worker_jobs.SCENARIOS
TOOLS = "test.", "testing.conformance."
"""Jobs of tests, and of the conformance suite: it runs in a process of its own, and each failure ends its command."""
PROCESSES = "cli.demo_server", "cli.demo_trainer", "serve.restart_workers"
"""Their scenarios start several processes."""
JOBS = {name: job for name, job in supervise.declared().items() if not name.startswith(TOOLS)}


def test_every_declared_job_has_a_scenario():
    elsewhere = trainer_jobs.SCENARIOS | pod_jobs.SCENARIOS | container_jobs.SCENARIOS
    assert set(SCENARIOS) | set(elsewhere) == set(JOBS)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in PROCESSES else name for name in sorted(SCENARIOS)]
)
async def test_a_job_that_raises_runs_again_or_is_reported(name, tmp_path, caplog):
    def fail():
        supervise.inject(name, OSError(f"injected into {name}"))

    job = JOBS[name]
    supervise.failures.clear()
    (tmp_path / "state" / "rollouts").mkdir(parents=True)  # a sweep looks there only if it is there
    async with deployment(tmp_path / "state") as h:
        before = h
        await SCENARIOS[name](h, fail)
        if name in process_jobs.ELSEWHERE or name in worker_jobs.SUPERVISOR:
            return
        if job.on_failure is not OnFailure.RAISE:
            await h.until(lambda: f"{name} failed" in caplog.text)
        if job.on_failure is OnFailure.FAIL_OWNER:
            assert str(h.supervisor.failure) == f"injected into {name}"
        elif name not in server_jobs.ENDS_BADLY:
            assert h.supervisor.failure is None
            await before.completes("afterwards")
