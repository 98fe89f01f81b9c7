"""scripts/lint_supervision.py finds background work that no Supervisor owns."""

import importlib.util

import pytest

from tests.processes import ROOT

LINT = ROOT / "scripts" / "lint_supervision.py"


def problems(source):
    spec = importlib.util.spec_from_file_location("lint_supervision", LINT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return list(module.problems(source))


FORBIDDEN = {
    "asyncio.create_task(work())": "create_task",
    "loop = get(); loop.create_task(work())": "create_task",
    "asyncio.ensure_future(work())": "ensure_future",
    "callback = loop.create_task": "create_task",
    "from asyncio import create_task": "create_task",
    "asyncio.TaskGroup()": "TaskGroup",
    "anyio.create_task_group()": "create_task_group",
    "threading.Thread(target=work).start()": "Thread",
    "from threading import Thread\nThread(target=work)": "Thread",
    "class Mine(threading.Thread): pass": "Thread",
    "threading.Timer(1, work)": "Timer",
    "self._loop.call_later(1, work)": "call_later",
    "asyncio.get_running_loop().call_at(1, work)": "call_at",
    "call_later(1, work)": "call_later",
}


@pytest.mark.parametrize("source", FORBIDDEN)
def test_the_lint_finds_each_way_to_start_unsupervised_work(source):
    assert [name for _, name in problems(source)] == [FORBIDDEN[source]]


@pytest.mark.parametrize(
    "source",
    [
        "self._supervisor.call_later(JOB, 1, work)",
        "engine.supervisor.start(JOB, work)",
        "from osmosis_grpc.supervise import call_later\ncall_later(JOB, 1, work)",
        "thread: threading.Thread | None = None",
        "await asyncio.to_thread(work)",
        "loop.call_soon(work)",
    ],
)
def test_supervised_work_is_not_found(source):
    assert problems(source) == []
