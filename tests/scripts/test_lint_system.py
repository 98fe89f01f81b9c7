"""scripts/lint_system.py finds clocks, random numbers, ids and threads that bypass the System."""

import importlib.util

import pytest

from tests.processes import ROOT, run

LINT = ROOT / "scripts" / "lint_system.py"


def problems(source):
    spec = importlib.util.spec_from_file_location("lint_system", LINT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return list(module.problems(source))


FORBIDDEN = {
    "now = time.time()": "time.time",
    "clock = time.monotonic": "time.monotonic",
    "from time import monotonic": "time.monotonic",
    "datetime.now(UTC)": "datetime.now",
    "datetime.datetime.utcnow()": "datetime.utcnow",
    "import random": "random",
    "from uuid import uuid4": "uuid.uuid4",
    "import secrets": "secrets",
    "os.urandom(16)": "os.urandom",
    "await asyncio.to_thread(read)": "asyncio.to_thread",
    "loop.run_in_executor(None, read)": "run_in_executor",
    "now = SYSTEM.time()": "SYSTEM",
}


@pytest.mark.parametrize("source", FORBIDDEN)
def test_the_lint_finds_each_way_around_the_system(source):
    assert [name for _, name in problems(source)] == [FORBIDDEN[source]]


def test_the_lint_allows_the_system_and_the_time_of_the_loop():
    assert not problems("supervisor.system.monotonic()")
    assert not problems("loop.time()")
    assert not problems("time.sleep(1); time.strftime('%H', moment)")
    assert not problems("def make(system: System = SYSTEM, *, clock=SYSTEM.monotonic): pass")


def test_the_product_has_no_such_use():
    result = run(str(LINT))
    assert (result.stdout, result.returncode) == ("", 0)
